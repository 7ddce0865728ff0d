"""Runs of a comparison: variants, and starting, resuming or reusing their runs."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import terminal

_SIGNALS = (129, 130, 143)
"""Exit codes of a run stopped by a signal."""
_FIRST = "# its first run: version_"


class RunInterruptedError(Exception):
    """Interruption of a run by a signal; ``code`` is the run's exit code."""

    def __init__(self, title: str, code: int) -> None:
        super().__init__(f"the run {title} was interrupted: repeat the same command to continue")
        self.code = code


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant of a config: a name and the arguments of ``gspo fit`` that set it apart."""

    name: str
    arguments: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Name of the variant as part of a file name."""
        return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in self.name).split())


def run_once(
    name: str,
    title: str,
    arguments: Sequence[str],
    *,
    configs: Sequence[Path],
    output: Path,
    gspo: Callable[[list[str]], int],
    data: Sequence[str] = (),
) -> Path:
    """Return the folder of a finished run: an existing one if the same command made it, else start a run.

    An interrupted run of the same command resumes from its last checkpoint, if it has one.

    Args:
        name: name of the run's folder in ``output``.
        title: printed before the run starts.
        arguments: arguments of ``gspo fit``, after the configs.
        configs: config files of ``gspo fit``; if one changes, the run is repeated.
        output: ``trainer.default_root_dir``.
        gspo: function that runs a ``gspo`` command line and returns its exit code.
        data: lines that identify other files the run reads; if one changes, the run is repeated.

    Raises:
        UserError: the run failed.
        RunInterruptedError: a signal stopped the run.
    """
    stub = output / "configs" / f"{name}.yaml"
    argv = [
        "fit", f"--config={stub}", *(f"--config={path}" for path in configs), *arguments,
        f"--trainer.default_root_dir={output}",
    ]  # fmt: skip
    text = "\n".join(f"# {line}" for line in ["made by gspo compare", *argv, *data, *_contents(configs)])
    earlier_text, first = _read(stub)
    finished = _summaries(output / name)
    if finished and earlier_text == text:
        return finished[-1].parent
    checkpoint: Path | None = None
    note = ""
    if earlier_text == text:
        checkpoint, note = _interrupted(output / name, first)
    else:
        from gspo_lightning.resume.files import write_text  # imports torch

        first = 1 + max(_numbers(output / name), default=-1)
        stub.parent.mkdir(parents=True, exist_ok=True)
        write_text(stub, f"{text}\n{_FIRST}{first}\n{{}}\n")
        for summary in finished:  # of another command
            summary.unlink()
    terminal().print(f"{title}{note}", style="bold", soft_wrap=True)
    from gspo_lightning.core.distributed import leaves_no_group  # imports torch

    gc.collect()  # the model and optimizer of the run before are in reference cycles, and would stay beside the next
    with leaves_no_group():  # else the next run would wait for this run's ranks, which have exited
        code = gspo(argv if checkpoint is None else [*argv, f"--ckpt_path={checkpoint}"])
        finished = _summaries(output / name)
        if code in _SIGNALS:
            raise RunInterruptedError(title, code)
        if code != 0 or not finished:
            raise UserError(
                "gspo compare",
                f"the run {title} ended with exit code {code}",
                fix="mend what it says, then repeat the same command to continue; the run alone: gspo "
                + shlex.join(argv),
            )
    return finished[-1].parent


def _interrupted(folder: Path, first: int) -> tuple[Path | None, str]:
    """Return the checkpoint to resume an interrupted run from, and a note for the message.

    Args:
        folder: folder of successive runs.
        first: number of the first run of the repeated command.
    """
    numbers = [number for number in _numbers(folder) if number >= first]
    if not numbers:
        return None, ""
    from gspo_lightning.resume.find import find_checkpoint  # imports torch

    fault = "it has no checkpoint"
    for number in sorted(numbers, reverse=True):
        try:
            newest = find_checkpoint(folder / f"version_{number}")
        except UserError as error:
            fault = error.problem
            continue
        if newest is not None:
            return newest.checkpoint, f" (interrupted: goes on from {newest.checkpoint})"
    return None, f" (interrupted: starts from the beginning, for {fault})"


def _numbers(folder: Path) -> list[int]:
    names = [path.name.removeprefix("version_") for path in folder.glob("version_*") if path.is_dir()]
    return [int(name) for name in names if name.isdigit()]


def _summaries(folder: Path) -> list[Path]:
    """Return the summaries of finished runs, in order of run number, not of time."""
    files = [folder / f"version_{number}" / "summary.json" for number in sorted(_numbers(folder))]
    return [file for file in files if file.is_file()]


def _read(stub: Path) -> tuple[str, int]:
    """Return the command that wrote a stub and the number of its first run; 0 for stubs of older versions."""
    if not stub.is_file():
        return "", 0
    lines = stub.read_text(encoding="utf-8").splitlines()
    command = lines[:-1]
    if command and command[-1].startswith(_FIRST):
        return "\n".join(command[:-1]), int(command[-1].removeprefix(_FIRST))
    return "\n".join(command), 0


def _contents(configs: Sequence[Path]) -> list[str]:
    return [line for path in configs for line in path.read_text(encoding="utf-8").splitlines()]
