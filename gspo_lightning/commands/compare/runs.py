"""The runs behind a comparison: what tells variants apart, and each run made once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gspo_lightning.errors import UserError
from gspo_lightning.unfinished import beside

__all__ = ["Variant", "run_once"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A name, and the arguments of ``gspo fit`` that make it different from the others."""

    name: str
    arguments: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Its name as part of a file name."""
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
    """The folder of a run: the one that is there if the same command made it, else a new one.

    Args:
        name: of its folder in ``output``.
        title: printed before it is made.
        arguments: of ``gspo fit``, after the configs.
        configs: as of ``gspo fit``; a run is made again when one of them changes.
        output: ``trainer.default_root_dir``.
        gspo: runs a command line, returns its exit code.
        data: lines that stand for other files the run reads; it is made again when one of them changes.

    Raises:
        UserError: it could not be made.
    """
    stub = output / "configs" / f"{name}.yaml"
    argv = [
        "fit", f"--config={stub}", *(f"--config={path}" for path in configs), *arguments,
        f"--trainer.default_root_dir={output}",
    ]  # fmt: skip
    text = "\n".join(f"# {line}" for line in ["made by gspo compare", *argv, *data, *_contents(configs)]) + "\n{}\n"
    done = sorted((output / name).glob("version_*/summary.json"), key=lambda p: p.stat().st_mtime)
    if done and stub.is_file() and stub.read_text(encoding="utf-8") == text:
        return done[-1].parent
    stub.parent.mkdir(parents=True, exist_ok=True)
    unfinished = beside(stub)
    unfinished.write_text(text, encoding="utf-8")
    Console(highlight=False).print(title, style="bold", markup=False)
    os.replace(unfinished, stub)
    for old in done:  # of another command
        old.unlink()
    from gspo_lightning.distributed import leaves_no_group  # imports torch, as the run does

    with leaves_no_group():  # or the next run would wait for this one's ranks, which have ended
        code = gspo(argv)
        done = sorted((output / name).glob("version_*/summary.json"), key=lambda p: p.stat().st_mtime)
        if code != 0 or not done:
            raise UserError(
                "gspo compare",
                f"the run {title} ended with exit code {code}",
                fix="repeat the same command to continue, or run it alone: gspo " + shlex.join(argv),
            )
    return done[-1].parent


def _contents(configs: Sequence[Path]) -> list[str]:
    return [line for path in configs for line in path.read_text(encoding="utf-8").splitlines()]
