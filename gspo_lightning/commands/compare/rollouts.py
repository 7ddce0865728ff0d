"""``gspo compare --rollouts``: compare objectives on the same recorded responses and weights."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.commands.compare.runs import Variant, run_once
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import terminal
from gspo_lightning.core.parsing import load_json
from gspo_lightning.report.side_by_side import SideBySideData, draw, page, summary_table
from gspo_lightning.report.style import save

NAME = "side_by_side"
FILE = "side_by_side.jsonl"
OBJECTIVE = "--model.objective"
REPLAY = "--model.routing_replay"
UNUSUAL = "--model.allow_unusual_clip"
QUIET = (
    "--data.rollouts.rewards=recorded", "--data.record_rollouts=false", "--data.val=null", "--model.metrics=basic",
    "--model.old_logprobs=recompute", "--trainer.num_sanity_val_steps=0", "--trainer.enable_checkpointing=false",
)  # fmt: skip
"""Settings of a replay: recorded rewards, no evaluation, no checkpoints; old log-probabilities are recomputed with the
weights at the start of each iteration, so that ratios are exactly 1 on its first mini-batch."""


def compare_rollouts(
    rollouts: Path,
    variants: Sequence[Variant],
    configs: Sequence[Path],
    shared: Sequence[str],
    output: Path,
    gspo: Callable[[list[str]], int],
) -> int:
    """Replay a recording once, computing every objective's gradient before each update; write the figure and the page.

    Args:
        rollouts: run folder with ``rollouts/``, or a file or folder of recorded rows.
        variants: two or more; the objective of the first updates the weights.
        configs: config files of the recorded run.
        shared: further arguments of ``gspo fit``.
        output: output folder.
        gspo: function that runs a ``gspo`` command line and returns its exit code.

    Raises:
        UserError: there is no recording, a variant differs in more than its objective, or the run fails.
    """
    records = rollouts / "rollouts" if (rollouts / "rollouts").is_dir() else rollouts
    files = sorted(records.glob("*.*")) if records.is_dir() else [records]
    if not records.exists() or not files:
        raise UserError(
            "--rollouts", f"{rollouts} holds no recorded rollouts", fix="record them: data.record_rollouts: true"
        )
    chosen = {variant.name: _objective(variant) for variant in variants}
    arguments = [
        "--data.rollouts=Recorded", f"--data.rollouts.path={records.resolve()}", *QUIET,
        *_iterations(files, shared), *shared, *_callback(chosen),
    ]  # fmt: skip
    _share_cold_start(rollouts, output)
    folder = run_once(
        NAME,
        f"{' / '.join(chosen)} on {records}",
        arguments,
        configs=configs,
        output=output.resolve(),
        gspo=gspo,
        data=[f"{file.name}: {file.stat().st_size} bytes" for file in files],
    )
    measured = SideBySideData.read(folder / FILE)
    command = ["gspo compare --rollouts", str(rollouts), *(f"--config {path}" for path in configs)]
    command += [f"--variant {shlex.quote(f'{v.name}: {shlex.join(v.arguments)}')}" for v in variants]
    if shared:
        command.append(shlex.join(shared))
    save(draw(measured), output / f"{NAME}.png")
    text = page(measured, " ".join(command), f"{NAME}.png")
    (output / f"{NAME}.md").write_text(text, encoding="utf-8")
    console = terminal()
    console.print(summary_table(measured))
    for suffix in ("png", "md"):
        console.print(f"written: {output / NAME}.{suffix}", soft_wrap=True)
    return 0


def _share_cold_start(recorded: Path, output: Path) -> None:
    """Link the cold start of the recorded run, unless the output folder has one."""
    cold_start = recorded.resolve().parents[1] / "cold_start"
    link = output / "cold_start"
    if cold_start.is_dir() and not link.exists():
        output.mkdir(parents=True, exist_ok=True)
        link.symlink_to(cold_start, target_is_directory=True)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Objective of a variant as in a config, its routing replay, and whether unusual clip ranges are allowed."""

    objective: dict[str, Any]
    replay: str
    unusual: bool


def _objective(variant: Variant) -> Chosen:
    """Parse the arguments of a variant.

    Raises:
        UserError: an argument would change the responses, the advantages or the weights, or names no objective.
    """
    name = ""
    settings = {}
    replay = "off"
    unusual = False
    for flag, value in _pairs(variant.arguments):
        if flag == OBJECTIVE:
            name = value
        elif flag.startswith(f"{OBJECTIVE}."):
            settings[flag.removeprefix(f"{OBJECTIVE}.").removeprefix("init_args.")] = _value(value)
        elif flag == REPLAY and value in ("off", "R2"):
            replay = value
        elif flag == UNUSUAL:
            unusual = value.lower() == "true"
        else:
            raise UserError(
                "--variant",
                f"{variant.name} has {flag} {value}, but on the same rollouts only the objective may differ, and "
                "whether experts are replayed (R2)",
                fix=f"{OBJECTIVE}, {OBJECTIVE}.clip_low ..., {REPLAY}; without --rollouts anything may differ",
            )
    if not name:
        raise UserError("--variant", f"{variant.name} names no objective", fix=f"{variant.name}: {OBJECTIVE} GSPO")
    return Chosen({"class_path": name, "init_args": settings}, replay, unusual)


def _pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Split arguments into (flag, value) from ``--flag=value`` or ``--flag value``; a missing value is empty."""
    pairs: list[tuple[str, str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            flag, _, value = argument.partition("=")
            pairs.append((flag, value))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], argument)
        else:
            pairs.append((argument, ""))
    return pairs


def _value(text: str) -> Any:
    """Parse a number, a boolean or other JSON; return any other text unchanged."""
    try:
        return load_json(text.lower())
    except ValueError:
        return text


def _callback(chosen: Mapping[str, Chosen]) -> list[str]:
    first = next(iter(chosen.values()))
    replay = {name: c.replay for name, c in chosen.items() if c.replay != "off"}
    objectives = {name: c.objective for name, c in chosen.items()}
    callback = {"class_path": "SideBySide", "init_args": {"objectives": objectives, "routing_replay": replay or None}}
    return [
        f"{OBJECTIVE}={json.dumps(first.objective)}",
        f"{REPLAY}={'R2' if replay else 'off'}",
        *([f"{UNUSUAL}=true"] if first.unusual else []),
        f"--trainer.callbacks+={json.dumps(callback)}",
    ]


def _iterations(files: Sequence[Path], shared: Sequence[str]) -> list[str]:
    """Return the flag for as many iterations as were recorded; empty if the user sets ``trainer.max_epochs``."""
    if any(argument.startswith("--trainer.max_epochs") for argument in shared):
        return []
    last = -1
    for file in files:
        if file.suffix == ".jsonl":
            with open(file, encoding="utf-8") as rows:
                try:
                    iteration = load_json(next(rows, "{}")).get("iteration")
                except (ValueError, AttributeError):  # the run reports the line
                    continue
            last = max(last, -1 if iteration is None else int(iteration))
    return [f"--trainer.max_epochs={max(last + 1, 1)}"]
