"""``gspo compare``: variants of one config on the same prompts, seeds and cold starts, all seeds shown."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gspo_lightning.commands.compare_figure import draw
from gspo_lightning.commands.compare_page import page, summary_table
from gspo_lightning.commands.compare_stats import SEEDS_FOR_A_CLAIM
from gspo_lightning.commands.report_data import Run, read_run
from gspo_lightning.errors import UserError

__all__ = ["Variant", "main"]

PICTURE, PAGE = "compare.png", "compare.md"
EPILOG = f"""\
Everything else is passed to gspo fit, for all variants: --trainer.max_epochs 15.
A run that is there already and was made by the same command is not made again: stop at any time, and go on.
A difference is claimed from {SEEDS_FOR_A_CLAIM} seeds on, if the bootstrap interval of paired differences leaves 0 out.

  gspo compare --config configs/quickstart.yaml --objectives GSPO,GRPO --seeds 1,2,3
  gspo compare --config configs/quickstart.yaml --config configs/moe.yaml --variant GSPO \\
      --variant "GRPO + replay: --model.objective GRPO --model.routing_replay R2"
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A name, and the arguments of ``gspo fit`` that make it different from the others."""

    name: str
    arguments: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Its name as part of a file name."""
        return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in self.name).split())


def main(argv: Sequence[str], gspo: Callable[[list[str]], int]) -> int:
    """Make the runs that are missing, then write the picture and the page.

    Args:
        argv: the arguments.
        gspo: runs a command line, returns its exit code.

    Raises:
        UserError: fewer than two variants, variants of one name, no config, or a run that cannot be made.
    """
    parser = argparse.ArgumentParser(
        "gspo compare",
        description="Several objectives, or any differences of a config, side by side.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="append", default=[], type=Path, metavar="FILE", help="as of gspo fit")
    parser.add_argument("--objectives", default="", metavar="A,B,...", help="a variant for each")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME: ARGUMENTS", help="a variant by arguments of gspo fit"
    )
    parser.add_argument("--seeds", default="1,2,3", metavar="1,2,...", help="default: 1,2,3")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/compare"), metavar="DIR", help="default: runs/compare"
    )
    options, shared = parser.parse_known_args(list(argv))
    variants, seeds = _variants(options.objectives, options.variant), _seeds(options.seeds)
    _check(options.config, variants)
    runs = {
        variant.name: {
            seed: read_run(_run(variant, seed, options.config, shared, options.output.resolve(), gspo))
            for seed in seeds
        }
        for variant in variants
    }
    _write(runs, options.config, shared, variants, options.output)
    console = Console(highlight=False)
    console.print(summary_table(runs))
    for name in (PICTURE, PAGE):
        console.print(f"written: {options.output / name}", soft_wrap=True, markup=False)
    return 0


def _variants(objectives: str, described: Sequence[str]) -> list[Variant]:
    found = [Variant(name, (f"--model.objective={name}",)) for name in objectives.replace(" ", "").split(",") if name]
    for text in described:
        name, _, arguments = text.partition(":")
        found.append(Variant(name.strip(), tuple(shlex.split(arguments)) or (f"--model.objective={name.strip()}",)))
    return found


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError("--seeds", f"is {text!r}, but must be different whole numbers", fix="--seeds 1,2,3")
    return seeds


def _check(configs: Sequence[Path], variants: Sequence[Variant]) -> None:
    from gspo_lightning.registry import component

    if not configs:
        raise UserError("--config", "is missing", fix="gspo compare --config configs/quickstart.yaml ...")
    for path in configs:
        if not path.is_file():
            raise UserError("--config", f"{path} does not exist")
    if len({v.folder for v in variants}) < len(variants) or len(variants) < 2:
        names = ", ".join(v.name for v in variants) or "none"
        raise UserError(
            "--objectives",
            f"and --variant name {len(variants)} ({names}); two or more of different names are needed",
            fix="--objectives GSPO,GRPO",
        )
    for variant in variants:
        if variant.arguments == (f"--model.objective={variant.name}",):
            component("objectives", variant.name)  # a typo is found before the first run, not before the second


def _run(
    variant: Variant,
    seed: int,
    configs: Sequence[Path],
    shared: Sequence[str],
    output: Path,
    gspo: Callable[[list[str]], int],
) -> Path:
    """The folder of a run: the one that is there if the same command made it, else a new one."""
    name = f"{variant.folder}-seed{seed}"
    stub = output / "configs" / f"{name}.yaml"
    argv = [
        "fit", f"--config={stub}", *(f"--config={path}" for path in configs), *shared, *variant.arguments,
        f"--seed_everything={seed}", f"--trainer.default_root_dir={output}",
    ]  # fmt: skip
    text = "\n".join(f"# {line}" for line in ["made by gspo compare", *argv, *_contents(configs)]) + "\n{}\n"
    done = sorted((output / name).glob("version_*/summary.json"), key=lambda p: p.stat().st_mtime)
    if done and stub.is_file() and stub.read_text(encoding="utf-8") == text:
        return done[-1].parent
    stub.parent.mkdir(parents=True, exist_ok=True)
    unfinished = stub.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    Console(highlight=False).print(f"{variant.name}, seed {seed}", style="bold", markup=False)
    os.replace(unfinished, stub)
    for old in done:  # of another command
        old.unlink()
    code = gspo(argv)
    done = sorted((output / name).glob("version_*/summary.json"), key=lambda p: p.stat().st_mtime)
    if code != 0 or not done:
        raise UserError(
            "gspo compare",
            f"the run {variant.name}, seed {seed} ended with exit code {code}",
            fix="start the same command again to go on with it, or run it alone: gspo " + shlex.join(argv),
        )
    return done[-1].parent


def _contents(configs: Sequence[Path]) -> list[str]:
    return [line for path in configs for line in path.read_text(encoding="utf-8").splitlines()]


def _write(
    runs: dict[str, dict[int, Run]],
    configs: Sequence[Path],
    shared: Sequence[str],
    variants: Sequence[Variant],
    output: Path,
) -> None:
    command = ["gspo compare", *(f"--config {path}" for path in configs)]
    command += [f"--variant {shlex.quote(f'{v.name}: {shlex.join(v.arguments)}')}" for v in variants]
    seeds = ",".join(str(seed) for seed in next(iter(runs.values())))
    command += [f"--seeds {seeds}", *([shlex.join(shared)] if shared else [])]
    unfinished = output / f".{PICTURE}.unfinished"
    draw(runs).savefig(unfinished, format="png")
    os.replace(unfinished, output / PICTURE)
    (output / PAGE).write_text(page(runs, " ".join(command), PICTURE), encoding="utf-8")
