"""Pass counts from recorded rollouts, matched by the text of the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.commands.data.progress import reading
from gspo_lightning.commands.data.tallies import Tally
from gspo_lightning.corpus.files import FORMATS, Inputs, prompt_of
from gspo_lightning.corpus.identifiers import Identifiers
from gspo_lightning.errors import UserError, is_finite

__all__ = ["recorded_tallies"]


def recorded_tallies(inputs: Inputs, column: str, paths: Sequence[Path], reward: str | None) -> list[Tally | None]:
    """Return the pass count of each record; None for a record without a response.

    Args:
        inputs: input files.
        column: name of the prompt column.
        paths: files of rollouts (``data.record_rollouts``, ``gspo predict``), or folders of such files.
        reward: reward part to count; None takes the total.

    Raises:
        UserError: a rollout cannot be read, or no rollout matches a prompt.
    """
    counts: dict[bytes, list[int]] = {}
    for prompt, value in _rollouts(paths, reward):
        if value is not None:
            one = counts.setdefault(_key(prompt), [0, 0])
            one[0] += value >= 1
            one[1] += 1
    found: list[Tally | None] = []
    identifiers = Identifiers(inputs)
    with reading(inputs, "count") as step:
        for record in inputs.records([column, "id"]):
            identifiers.add(record)
            counted = counts.get(_key(prompt_of(inputs, record, column)))
            found.append(None if counted is None else Tally(*counted))
            step(record)
    if not any(found):
        raise UserError("--recorded", "holds no judged response to any of these prompts", fix="--column NAME?")
    return found


def _rollouts(paths: Sequence[Path], reward: str | None) -> Iterator[tuple[str, float | None]]:
    """Yield (prompt, reward) of every rollout."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(f for f in path.iterdir() if f.suffix in FORMATS) if path.is_dir() else [path]
        if not inside:
            raise UserError("--recorded", f"the folder {path} holds no .jsonl or .parquet file")
        for file in inside:
            if any(file.exists() and other.exists() and file.samefile(other) for other in files):
                raise UserError("--recorded", f"{file} is given twice", fix="name each file once")
            files.append(file)
    for file in tqdm(files, desc="rollouts", unit=" files"):
        rollouts = Inputs([file], "--recorded")
        for record in rollouts.records(["prompt", "reward", "reward_parts"]):
            where = rollouts.name(record.file, record.number)
            yield prompt_of(rollouts, record, "prompt"), _value(record.values, reward, where)


def _value(row: dict[str, Any], reward: str | None, where: str) -> float | None:
    parts = row.get("reward_parts") or {}
    if reward is not None and reward not in parts:
        raise UserError(where, f"has no reward {reward!r}; it has {', '.join(parts) or 'none'}", fix="--reward NAME")
    if reward is None and "reward" not in row:
        raise UserError(where, "has no 'reward'", fix="give rollouts that were scored")
    value = row["reward"] if reward is None else parts[reward]
    if value is None:
        return None
    if not is_finite(value):
        raise UserError(where, f"its reward is {value!r:.40}, not a finite number")
    return float(value)


def _key(prompt: str) -> bytes:
    return blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).digest()
