"""``gspo compare``: compare variants of a config on the same prompts, seeds and cold starts, and show every seed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gspo_lightning.commands.compare.page import draw, page, summary_table
from gspo_lightning.commands.compare.rollouts import compare_rollouts
from gspo_lightning.commands.compare.runs import RunInterruptedError, Variant, run_once
from gspo_lightning.commands.compare.stats import SEEDS_FOR_A_CLAIM
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say, terminal
from gspo_lightning.core.registry import component
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run
from gspo_lightning.report.style import save

PICTURE = "compare.png"
PAGE = "compare.md"
EPILOG = f"""\
Everything else is passed to gspo fit, for all variants: --trainer.max_epochs 15.
Runs that the same command has already finished are skipped, and an interrupted one goes on from its last checkpoint:
stop at any time and repeat the command.
A difference is claimed from {SEEDS_FOR_A_CLAIM} seeds on, if the bootstrap interval of paired differences leaves 0 out.

  gspo compare --config quickstart --objectives GSPO,GRPO --seeds 1,2,3
  gspo compare --rollouts runs/quickstart/version_0 --objectives GSPO,GRPO,DAPO
  gspo compare --config quickstart --config moe --variant GSPO \\
      --variant "GRPO + replay: --model.objective GRPO --model.routing_replay R2"
"""


def main(argv: Sequence[str], gspo: Callable[[list[str]], int]) -> int:
    """Start the missing runs, then write the figure and the page.

    Args:
        argv: arguments of the command.
        gspo: function that runs a ``gspo`` command line and returns its exit code.

    Raises:
        UserError: there are fewer than two variants, two have the same name, the config is missing, or a run fails.
    """
    options, shared = _parser().parse_known_args(list(argv))
    variants = _variants(options.objectives, options.variant)
    seeds = _seeds(options.seeds)
    if options.rollouts is not None and not options.config and (options.rollouts / "config.yaml").is_file():
        options.config = [options.rollouts / "config.yaml"]
    _check(options.config, variants)
    try:
        if options.rollouts is not None:
            return compare_rollouts(options.rollouts, variants, options.config, shared, options.output, gspo)
        return _compare(options, variants, seeds, shared, gspo)
    except RunInterruptedError as stopped:
        say(stopped, file=sys.stderr)
        return stopped.code


def _compare(
    options: argparse.Namespace,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    shared: Sequence[str],
    gspo: Callable[[list[str]], int],
) -> int:
    runs: dict[str, dict[int, Run]] = {}
    for variant in variants:
        runs[variant.name] = {}
        for seed in seeds:
            folder = run_once(
                f"{variant.folder}-seed{seed}",
                f"{variant.name}, seed {seed}",
                [*shared, *variant.arguments, f"--seed_everything={seed}"],
                configs=options.config,
                output=options.output.resolve(),
                gspo=gspo,
            )
            runs[variant.name][seed] = read_run(folder, command="gspo compare")
    _write(runs, options.config, shared, variants, options.output)
    console = terminal()
    console.print(summary_table(runs))
    for name in (PICTURE, PAGE):
        console.print(f"written: {options.output / name}", soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gspo compare",
        description="Compare several objectives, or any config changes, side by side.",
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
        "--rollouts",
        type=Path,
        metavar="RUN",
        help="on the same recorded rollouts instead: a run with data.record_rollouts, or a file or folder of such rows",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/compare"), metavar="DIR", help="default: runs/compare"
    )
    return parser


def _variants(objectives: str, described: Sequence[str]) -> list[Variant]:
    names = [name for name in objectives.replace(" ", "").split(",") if name]
    variants = [Variant(name, (f"--model.objective={name}",)) for name in names]
    for text in described:
        name, _, arguments = text.partition(":")
        name = name.strip()
        variants.append(Variant(name, tuple(shlex.split(arguments)) or (f"--model.objective={name}",)))
    return variants


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError("--seeds", f"is {text!r}, but must be different whole numbers", fix="--seeds 1,2,3")
    return seeds


def _check(configs: Sequence[Path], variants: Sequence[Variant]) -> None:
    if not configs:
        raise UserError("--config", "is missing", fix="gspo compare --config quickstart ...")
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
            component("objectives", variant.name)  # find a typo before the first run, not before the second


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
    command.append(f"--seeds {seeds}")
    if shared:
        command.append(shlex.join(shared))
    save(draw(runs), output / PICTURE)
    (output / PAGE).write_text(page(runs, " ".join(command), PICTURE), encoding="utf-8")
