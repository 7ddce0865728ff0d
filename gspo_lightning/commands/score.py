"""``gspo score``: score recorded completions without training, with the reward code of training."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.escape import say, whole_values
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.temp_files import sweep, temp_path
from gspo_lightning.core.thinking import after_thinking
from gspo_lightning.data.corpus.lines import numbered
from gspo_lightning.rewards import Pending, Reward, RewardRunner, Sample, SampleScore, ScoreStatus

_BATCH_SAMPLES = 512
_BATCH_CHARACTERS = 8_000_000
_BATCHES_AHEAD = 2
_REASONS = 5
"""Maximum number of reasons for missing rewards in the summary."""
_FLAGS = (("truncated", bool), ("unfinished_thought", bool))
_OWN_KEYS = ("id", "prompt", "completion", "completion_ids", "truncated", "unfinished_thought")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--reward",
        action="append",
        required=True,
        metavar="NAME[:JSON]",
        help='a reward and its parameters, for example ExactMatch:\'{"marker": ""}\'; several are added up',
    )
    parser.add_argument("--input", type=Path, required=True, help='lines {"id", "prompt", "completion", "answer", ...}')
    parser.add_argument(
        "--output", type=Path, required=True, help='lines {"id", "reward", "status", "detail"}, same order'
    )
    parser.add_argument("--workers", type=int, help="worker processes (default: all cores but one)")
    parser.add_argument("--deadline", type=float, default=3.0, help="CPU seconds that a sample may use (default: 3)")
    parser.add_argument("--memory-mb", type=int, default=2048, help="address space of a worker, MiB (default: 2048)")
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules that define rewards")


def main(argv: Sequence[str]) -> int:
    """Score a file; the output appears complete at the end, or not at all.

    Raises:
        UserError: an option, a reward or an input line is wrong (the message has the line number).
        InfrastructureError: too many samples were lost.
    """
    parser = argparse.ArgumentParser("gspo score", description="Score recorded completions without training.")
    add_arguments(parser)
    options = parser.parse_args(list(argv))
    registry.import_plugins(options.plugins)
    rewards: dict[str, Reward] = {}
    for specification in options.reward:
        reward = build_reward(specification)
        name = type(reward).__name__
        repeated = sum(key == name or key.startswith(f"{name}_") for key in rewards)
        rewards[f"{name}_{repeated + 1}" if repeated else name] = reward
    if not options.input.is_file():
        raise UserError("--input", f"{options.input} does not exist")
    if not options.output.parent.is_dir() or (options.output.exists() and not options.output.is_file()):
        raise UserError("--output", f"{options.output} cannot be written", fix="name a file in a folder that exists")
    if options.output.exists() and options.output.samefile(options.input):
        raise UserError("--output", f"{options.output} is the input, which would be lost", fix="name another file")
    runner = RewardRunner(
        rewards,
        num_workers=options.workers,
        deadline_s=options.deadline,
        memory_mb=options.memory_mb,
        plugins=options.plugins,
    )
    with runner:
        totals = _score_file(runner, options.input, options.output)
    say(f"{options.output}: {totals}")
    return 0


def build_reward(specification: str) -> Reward:
    """Build a reward from ``NAME`` or ``NAME:{"parameter": value}``.

    Raises:
        UserError: the reward is unknown, the value is not a JSON object, or a parameter is unknown or missing.
    """
    name, colon, text = specification.partition(":")
    try:
        values: Any = load_json(text) if colon else {}
    except json.JSONDecodeError as error:
        raise UserError("--reward", f"{text!r} is not JSON: {error}", fix='write NAME:{"parameter": value}') from error
    if not isinstance(values, dict):
        raise UserError("--reward", f"{text!r} is not a JSON object", fix='write NAME:{"parameter": value}')
    cls = _reward_class(name)
    parameters = registry.parameters(cls)
    names = [parameter.name for parameter in parameters]
    for key in values:
        if key not in names:
            raise UserError(f"--reward {name}", f"{key!r} is not a parameter; {did_you_mean(key, names)}")
    for parameter in parameters:
        if parameter.default is inspect.Parameter.empty and parameter.name not in values:
            raise UserError(
                f"--reward {name}",
                f"the parameter {parameter.name!r} is missing",
                fix=f"write '{name}:{json.dumps({parameter.name: '...'})}'",
            )
    return _instantiate(cls, values)


def _reward_class(name: str) -> type[Any]:
    with contextlib.suppress(UserError):
        return registry.component("rewards", name)
    if "." in name:
        registry.import_plugins([name.rpartition(".")[0]])
    return registry.component("rewards", name)


def _instantiate(cls: type[Any], values: dict[str, Any]) -> Reward:
    """Instantiate a reward with jsonargparse, which checks types as in a config file."""
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "reward")
    try:
        parsed = parser.parse_object({"reward": values})
    except ArgumentError as error:
        raise UserError(f"--reward {cls.__name__}", str(error).strip()) from error
    reward: Reward = parser.instantiate_classes(parsed).reward
    return reward


@dataclass(slots=True)
class _Totals:
    """Counts for the summary printed at the end."""

    statuses: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    """Reason -> number of missing rewards."""
    first: dict[str, Any] = field(default_factory=dict)
    """Reason -> id of the first sample whose reward is missing for it."""
    scored: int = 0
    """Number of samples that have a reward."""
    total: float = 0.0
    """Sum of their rewards."""
    agreements: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """(Judge, agreed) -> number of samples."""

    def add(self, identifier: Any, score: SampleScore) -> None:
        self.agreements.update(score.agreements.items())
        self.statuses[str(score.status)] += 1
        if score.status is ScoreStatus.MISSING:
            self.missing[score.detail] += 1
            self.first.setdefault(score.detail, identifier)
        if score.reward is not None:
            self.scored += 1
            self.total += score.reward

    def __str__(self) -> str:
        mean = f"mean reward {self.total / self.scored:.4f}" if self.scored else "no reward"
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items())) or "empty input"
        agreements = ""
        for judge in sorted({judge for judge, _ in self.agreements}):
            agreed = self.agreements[judge, True]
            agreements += f"; {judge} agrees in {agreed} of {agreed + self.agreements[judge, False]}"
        lines = [f"{mean}; {counts}{agreements}"]
        for reason, count in self.missing.most_common(_REASONS):
            lines.append(f"  missing, {count}, first {self.first[reason]}: {reason}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Batch:
    """Input lines scored together: their ids as written, their samples, and the number of bytes read."""

    ids: list[Any] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    characters: int = 0
    read: int = 0


def _score_file(runner: RewardRunner, source: Path, target: Path) -> _Totals:
    totals = _Totals()
    waiting: deque[tuple[_Batch, Pending]] = deque()
    unfinished = temp_path(target)
    sweep(target.parent, target.name)
    try:
        with (
            unfinished.open("w", encoding="utf-8") as output,
            tqdm(total=source.stat().st_size, unit="B", unit_scale=True, desc="score") as bar,
        ):
            for batch in _batches(source):
                waiting.append((batch, runner.submit(batch.samples)))
                if len(waiting) > _BATCHES_AHEAD:
                    _write(output, *waiting.popleft(), totals, bar)
            while waiting:
                _write(output, *waiting.popleft(), totals, bar)
            output.flush()
            os.fsync(output.fileno())
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return totals


def _write(output: IO[str], batch: _Batch, pending: Pending, totals: _Totals, bar: Any) -> None:
    for identifier, score in zip(batch.ids, pending.result(), strict=True):
        totals.add(identifier, score)
        line: dict[str, Any] = {
            "id": identifier,
            "reward": score.reward,
            "status": str(score.status),
            "detail": score.detail,
        }
        if len(score.parts) > 1:
            line["parts"] = {name: part.reward for name, part in score.parts.items()}
        output.write(json.dumps(line) + "\n")
    bar.update(batch.read)


def _batches(source: Path) -> Iterator[_Batch]:
    """Yield the input lines in batches of bounded size."""
    batch = _Batch()
    with source.open("rb") as file:
        for number, line in numbered(file, str(source)):
            batch.read += len(line)
            if not line.strip():
                continue
            identifier, sample = _read_line(line, source, number)
            batch.ids.append(identifier)
            batch.samples.append(sample)
            batch.characters += len(line)
            if len(batch.samples) >= _BATCH_SAMPLES or batch.characters >= _BATCH_CHARACTERS:
                yield batch
                batch = _Batch()
    if batch.samples:
        yield batch


def _read_line(line: bytes, source: Path, number: int) -> tuple[Any, Sample]:
    """Parse one input line into its id and sample.

    Raises:
        UserError: the line is not a JSON object, or a field is missing or has the wrong type; names file and line.
    """
    where = f"{source}:{number}"
    try:
        record = whole_values(load_json(line))
    except RecursionError:
        raise UserError(where, "is nested too deeply") from None
    except ValueError as error:
        raise UserError(where, f"is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserError(where, f"is a JSON {type(record).__name__}, not an object", fix='write {"completion": ...}')
    if "completion" not in record:
        raise UserError(where, f"has no 'completion'; it has {', '.join(record) or 'nothing'}")
    for name, kind in (("completion", str), ("prompt", str), *_FLAGS, ("completion_ids", list)):
        if name in record and not isinstance(record[name], kind):
            raise UserError(where, f"{name!r} is a {type(record[name]).__name__}; it must be a {kind.__name__}")
    identifier = record.get("id", number)
    sample = Sample(
        id=str(identifier),
        prompt=record.get("prompt", ""),
        completion=record["completion"],
        completion_ids=tuple(record.get("completion_ids", ())),
        columns={key: value for key, value in record.items() if key not in _OWN_KEYS},
        truncated=record.get("truncated", False),
        unfinished_thought=record.get("unfinished_thought", after_thinking(record["completion"]) is None),
    )
    return identifier, sample
