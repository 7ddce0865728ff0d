"""Rollout files: one JSON object per line, or one Parquet row, for each response.

``gspo predict`` and ``data.record_rollouts`` write them, :class:`~gspo_lightning.rollouts.Recorded` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError, is_finite
from gspo_lightning.core.parsing import load_json, whole_number
from gspo_lightning.core.rows import RowSpan
from gspo_lightning.core.types import FinishReason, Rollout, SamplingParams
from gspo_lightning.data.corpus.arrow import records_of
from gspo_lightning.resume import atomic_file
from gspo_lightning.rollouts.source import LARGEST_LOGPROB


def record(rollout: Rollout, sampling: SamplingParams, iteration: int | None = None) -> dict[str, Any]:
    """Return a rollout as plain data, with the token ids, mask and log-probabilities that training needs.

    Args:
        rollout: scored or not.
        sampling: its sampling settings; at temperature 0 or with top-p or top-k it is no sample of the policy.
        iteration: iteration of the run that trained on it, or None.
    """
    return {
        "id": f"{rollout.prompt.id}/{rollout.sample}",
        "prompt": rollout.prompt.text,
        "completion": rollout.text,
        **dict(rollout.prompt.columns),
        **of_conversation(rollout),
        "prompt_ids": list(rollout.prompt.token_ids),
        **({"pictures": [picture.sha256 for picture in rollout.prompt.media]} if rollout.prompt.media else {}),
        "completion_ids": rollout.token_ids.tolist(),
        "response_mask": rollout.response_mask.tolist(),
        "logprobs": None if rollout.logprobs is None else rollout.logprobs.tolist(),
        "finish_reason": str(rollout.finish_reason),
        **({"unfinished_thought": True} if rollout.unfinished_thought else {}),
        "policy_version": rollout.policy_version,
        "iteration": iteration,
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k},
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
        "reward_statuses": rollout.reward_statuses,
        **({"reward_logged": rollout.reward_logged} if rollout.reward_logged else {}),
        **({"reward_extra": rollout.reward_extra} if rollout.reward_extra else {}),
        **({"turn_ends": list(rollout.turn_ends)} if rollout.turn_ends else {}),
        **_of_rows(rollout),
        **({"tree": list(rollout.tree)} if rollout.tree else {}),
        **({"lost": rollout.lost} if rollout.lost else {}),
    }


def of_conversation(rollout: Rollout) -> dict[str, Any]:
    """Return the additional fields of a conversation, for rewards and readers; empty for a single response."""
    if not rollout.turn_ends:
        return {}
    return {
        "messages": list(rollout.messages),
        "turn_rewards": list(rollout.turn_rewards),
        "environment_reward": sum(rollout.turn_rewards) if rollout.turn_rewards else None,
    }


def _of_rows(rollout: Rollout) -> dict[str, Any]:
    """Return the additional fields of a rollout with rows of its own; empty for one row after its prompt."""
    if not rollout.rows:
        return {}
    return {"row_ends": [row.end for row in rollout.rows], "contexts": [list(row.context) for row in rollout.rows]}


def recording_file(folder: Path, iteration: int, rank: int) -> Path:
    """Return the path to which a rank writes the rollouts of an iteration."""
    return folder / "rollouts" / (f"{iteration:06d}.jsonl" if rank == 0 else f"{iteration:06d}-rank{rank}.jsonl")


def write_records(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one row per line; atomically, and readable by this user only."""
    with atomic_file(path, private=True) as file:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
            file.write(line.encode("utf-8", "backslashreplace"))  # half a character of a record's columns stays JSON


def write_rollouts(folder: Path, iteration: int, rollouts: Sequence[Rollout], sampling: SamplingParams) -> None:
    """Write all rollouts that this rank sampled in an iteration to the run folder.

    Raises:
        OSError: the file cannot be written, or the run folder is gone.
    """
    file = recording_file(folder.absolute(), iteration, rank_and_world()[0])
    file.parent.mkdir(exist_ok=True)
    write_records(file, [record(rollout, sampling, iteration) for rollout in rollouts])


class RecordFile:
    """Rows of one file, read on demand: only positions stay in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts: list[int] = []

    def scan(self) -> Iterator[dict[str, Any]]:
        """Yield every row once, from beginning to end.

        Raises:
            UserError: a line is not a JSON object; names its number.
        """
        self._starts = []
        with open(self.path, "rb") as file:
            start = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    self._starts.append(start)
                    yield self._parse(line, number)
                start += len(line)

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Read some rows by their number in the order of :meth:`scan`, which must have finished."""
        with open(self.path, "rb") as file:
            found = []
            for row in rows:
                file.seek(self._starts[row])
                found.append(self._parse(file.readline(), row + 1))
        return found

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = load_json(line)
        except ValueError as error:  # includes UnicodeDecodeError
            raise UserError(f"{self.path}:{number}", f"is not JSON: {error}", fix="one object a line") from error
        if not isinstance(row, dict):
            raise UserError(f"{self.path}:{number}", f"is a JSON {type(row).__name__}, not an object")
        return row


class _ParquetFile(RecordFile):
    """Parquet file whose columns stay in memory, in Arrow's compact form."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import pyarrow.lib
        import pyarrow.parquet

        try:
            self._table = pyarrow.parquet.read_table(path)
        except (pyarrow.lib.ArrowInvalid, OSError) as error:
            raise UserError(str(path), f"is not a Parquet file: {error}") from error

    def scan(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from records_of(batch)

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return records_of(self._table.take(list(rows)))


def rows_in(record: Mapping[str, Any]) -> tuple[RowSpan, ...]:
    """Return the rows of a recorded response; empty if it has one row after its prompt."""
    ends = record.get("row_ends") or ()
    if not ends:
        return ()
    contexts = [tuple(ids) for ids in record["contexts"]]
    return RowSpan.consecutive(contexts, [end - start for start, end in pairwise((0, *ends))])


def open_records(path: str) -> list[RecordFile]:
    """Open a ``.jsonl`` or ``.parquet`` file, or all of them in a folder, ordered by name.

    Raises:
        UserError: the path does not exist, or is another kind of file.
    """
    place = Path(path)
    files = sorted(f for f in place.iterdir() if f.suffix in (".jsonl", ".parquet")) if place.is_dir() else [place]
    if not place.exists():
        raise UserError("data.rollouts.path", f"{path!r} does not exist", fix="gspo predict or data.record_rollouts")
    if not files:
        raise UserError("data.rollouts.path", f"the folder {path!r} holds neither .jsonl nor .parquet files")
    if files[0].suffix not in (".jsonl", ".parquet"):
        raise UserError("data.rollouts.path", f"{path!r} is neither .jsonl nor .parquet")
    return [_ParquetFile(f) if f.suffix == ".parquet" else RecordFile(f) for f in files]


def check_row(row: Mapping[str, Any], where: str) -> None:
    """Check a row on its own.

    Raises:
        UserError: token ids are missing, or a field has the wrong type, length or value; names row and column.
    """
    for name in ("prompt_ids", "completion_ids"):
        ids = row.get(name)
        if not _is_ids(ids):
            raise UserError(where, f"{name} is {_shown(ids)}, but must be a list of token ids")
    count = len(row["completion_ids"])
    mask, logprobs, reward = row.get("response_mask"), row.get("logprobs"), row.get("reward")
    if mask is not None and not (_is_list(mask, count) and all(m in (0, 1) for m in mask)):
        raise UserError(where, f"response_mask is {_shown(mask)}, but must be {count} times true or false")
    if logprobs is not None and not (_is_list(logprobs, count) and all(_is_logprob(x) for x in logprobs)):
        raise UserError(where, f"logprobs is {_shown(logprobs)}, but must be {count} finite numbers <= 0 (nats)")
    if reward is not None and not is_finite(reward):
        raise UserError(where, f"reward is {_shown(reward)}, but must be a finite number or null")
    for name in ("iteration", "policy_version"):
        try:
            whole_number(row.get(name) or 0, name)
        except ValueError as error:
            raise UserError(where, str(error)) from error
    _check_contexts(row, where, count)
    if (reason := row.get("finish_reason", "stop")) not in list(FinishReason):
        raise UserError(where, f"finish_reason is {_shown(reason)}, but must be one of {', '.join(FinishReason)}")


def _check_contexts(row: Mapping[str, Any], where: str, count: int) -> None:
    """Check the rows of a response that has several; without ``row_ends``, ``contexts`` is a column of the prompt."""
    if not (ends := row.get("row_ends")):
        return
    rising = _is_ids(ends) and ends == sorted({*ends})
    if not (rising and ends[0] > 0 and ends[-1] == count):
        raise UserError(where, f"row_ends is {_shown(ends)}, but must be rising positions that end at {count}")
    contexts: Any = row.get("contexts")
    if not (_is_list(contexts, len(ends)) and all(_is_ids(ids) for ids in contexts)):
        raise UserError(where, f"contexts is {_shown(contexts)}, but must be a list of token ids for each of row_ends")


def _is_ids(ids: Any) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(i) is int and i >= 0 for i in ids)


def _is_list(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count


def _is_logprob(value: Any) -> bool:
    return is_finite(value) and value <= LARGEST_LOGPROB


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text
