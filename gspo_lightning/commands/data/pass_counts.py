"""Pass counts per record: read from recorded rollouts, or written as columns into a copy of the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from gspo_lightning.commands.data.terminal import reading
from gspo_lightning.core.errors import UserError, is_finite
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.data.corpus.files import FORMATS, Identifiers, Inputs, Record, prompt_of
from gspo_lightning.data.corpus.output import common_schema, whole_line
from gspo_lightning.report.statistics.intervals import beta_interval

COLUMNS = ("pass_rate", "pass_rate_low", "pass_rate_high", "pass_samples")


class PassCount(NamedTuple):
    """Number of passes and of scored responses of a prompt; missing scores are not counted."""

    passes: int
    samples: int


def journal_of(output: Path) -> Path:
    """Return the journal file from which an interrupted command resumes."""
    return output.with_name(f"{output.name}.progress.jsonl")


def columns_of(pass_count: PassCount | None) -> dict[str, Any]:
    """Return the columns added to a record.

    >>> columns_of(PassCount(2, 8))
    {'pass_rate': 0.25, 'pass_rate_low': 0.056, 'pass_rate_high': 0.5916, 'pass_samples': 8}
    >>> columns_of(None)
    {'pass_rate': None, 'pass_rate_low': None, 'pass_rate_high': None, 'pass_samples': 0}
    """
    if pass_count is None or not pass_count.samples:
        return dict(zip(COLUMNS, (None, None, None, 0), strict=True))
    low, high = beta_interval(*pass_count)
    rate = pass_count.passes / pass_count.samples
    values = (round(rate, 6), round(low, 4), round(high, 4), pass_count.samples)
    return dict(zip(COLUMNS, values, strict=True))


def rewrite(inputs: Inputs, path: Path, pass_counts: Sequence[PassCount | None]) -> None:
    """Write a copy of the records with the added columns; all other columns are unchanged."""
    with tqdm(desc="write", total=len(pass_counts), unit=" records", unit_scale=True) as bar:
        write = _rows if inputs.format == ".parquet" else _lines
        for written in write(inputs, path, pass_counts):
            bar.update(written)


def _lines(inputs: Inputs, path: Path, pass_counts: Sequence[PassCount | None]) -> Iterator[int]:
    with open(path, "wb") as file:
        for record, pass_count in zip(inputs.records(), pass_counts, strict=True):
            file.write(_line(record, columns_of(pass_count)))
            yield 1


def _line(record: Record, added: dict[str, Any]) -> bytes:
    """Return a JSON line with the columns appended; existing values of these columns are replaced."""
    if any(name in record.values for name in added) or not record.values:
        return json.dumps({**record.values, **added}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    text = whole_line(record.raw).rstrip()
    return text[:-1].rstrip() + b", " + json.dumps(added).encode()[1:] + b"\n"


def _rows(inputs: Inputs, path: Path, pass_counts: Sequence[PassCount | None]) -> Iterator[int]:
    import pyarrow
    import pyarrow.parquet

    schema = common_schema(inputs)
    types = dict(zip(COLUMNS, (pyarrow.float64(),) * 3 + (pyarrow.int64(),), strict=True))
    for name in COLUMNS:
        if name in schema.names:
            schema = schema.remove(schema.get_field_index(name))
    extended = pyarrow.schema([*schema, *types.items()], metadata=schema.metadata)
    first = 0
    with pyarrow.parquet.ParquetWriter(path, extended) as file:
        for source in inputs.paths:
            for batch in pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=8192):
                rows = [columns_of(pass_count) for pass_count in pass_counts[first : first + len(batch)]]
                columns = [batch.column(name) for name in schema.names]
                columns += [pyarrow.array([row[name] for row in rows], type=kind) for name, kind in types.items()]
                file.write_batch(pyarrow.record_batch(columns, schema=extended))
                first += len(batch)
                yield len(batch)
    inputs.check_unchanged()


def recorded_pass_counts(
    inputs: Inputs, column: str, paths: Sequence[Path], reward: str | None
) -> list[PassCount | None]:
    """Return the pass count of each record; None for a record without a response.

    Args:
        inputs: input files.
        column: name of the prompt column.
        paths: files of rollouts (``data.record_rollouts``, ``gspo predict``), or folders of such files.
        reward: reward part to count; None takes the total.

    Raises:
        UserError: a rollout cannot be read, or no rollout matches a prompt.
    """
    counts: dict[bytes, PassCount] = {}
    for prompt, value in _rollouts(paths, reward):
        if value is not None:
            passes, samples = counts.get(_key(prompt), PassCount(0, 0))
            counts[_key(prompt)] = PassCount(passes + is_right(value), samples + 1)
    pass_counts: list[PassCount | None] = []
    identifiers = Identifiers(inputs)
    with reading(inputs, "count") as step:
        for record in inputs.records([column, "id"]):
            identifiers.add(record)
            pass_counts.append(counts.get(_key(prompt_of(inputs, record, column))))
            step(record)
    if not any(pass_counts):
        raise UserError("--recorded", "holds no judged response to any of these prompts", fix="--column NAME?")
    return pass_counts


def _rollouts(paths: Sequence[Path], reward: str | None) -> Iterator[tuple[str, float | None]]:
    """Yield (prompt, reward) of every rollout."""
    files: list[Path] = []
    for path in paths:
        of_path = sorted(f for f in path.iterdir() if f.suffix in FORMATS) if path.is_dir() else [path]
        if not of_path:
            raise UserError("--recorded", f"the folder {path} holds no .jsonl or .parquet file")
        for file in of_path:
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
