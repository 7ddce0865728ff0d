"""``gspo evaluate``: run a model, a server or recorded answers on benchmarks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.commands.evaluate.answers import Answers, Recorded
from gspo_lightning.commands.evaluate.comparison import compare
from gspo_lightning.commands.evaluate.page import write_page
from gspo_lightning.commands.evaluate.run import Plan, evaluate
from gspo_lightning.commands.evaluate.table import table
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.data.corpus.decontamination_report import about, read_report
from gspo_lightning.training.suites.problems import data_file
from gspo_lightning.training.suites.suite import load_suite, shipped
from gspo_lightning.training.suites.verdicts import VerdictFile


def leak_lines(
    configs: Sequence[str], checkpoint: str | None, suites: Sequence[str], folder: Path | None
) -> Iterator[str]:
    """Yield messages about the decontamination report of ``data.train``; none if the training file is unknown.

    Args:
        configs: config files of ``gspo fit``.
        checkpoint: checkpoint of a run, whose folder holds its config; only used without ``configs``.
        suites: ``NAME`` or ``NAME:WINDOW``.
        folder: folder with the suites' files.

    Raises:
        UserError: the report cannot be read.
    """
    files = [Path(name) for name in configs]
    if not files and checkpoint is not None:
        files = [Path(checkpoint).parent.parent / "config.yaml"]
    train = _training_file(files)
    if train is None:
        return
    description = about(train)
    if description is None:
        yield f"trained on {train.name}: not checked for leaks from these benchmarks"
        return
    sentence, is_current = description
    yield f"trained on {sentence}" if is_current else f"warning: trained on {sentence}"
    report = read_report(train)
    if folder is None or report is None or not is_current:
        return
    for name in suites:
        suite = load_suite(name.partition(":")[0])
        if not report.covers(data_file(suite, folder)):
            yield f"warning: {suite.name} is not among them: gspo data decontaminate --against its file"


def _training_file(files: Sequence[Path]) -> Path | None:
    """Return ``data.train`` of the last config that sets it; None if it is not a file."""
    train: Any = None
    for file in files:
        try:
            config = load_yaml(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue  # reported where the config is needed
        data = config.get("data") if isinstance(config, dict) else None
        if isinstance(data, dict):
            train = data.get("train", train)
    if isinstance(train, dict):  # a component, such as PromptFile
        train = (train.get("init_args") or {}).get("path")
    return Path(train) if isinstance(train, str) and Path(train).is_file() else None


EPILOG = """\
Answers are sampled by --model, or were sampled elsewhere (--completions). Stop at any time: the same command with
the same --output continues from there.

  gspo evaluate --model Qwen/Qwen3-1.7B --suite aime2024 --output runs/evaluate/qwen3
  gspo evaluate --completions answers.jsonl --suite zebralogic --data benchmarks --output runs/evaluate/zebra
  gspo evaluate --compare runs/evaluate/before runs/evaluate/after
"""


def main(argv: Sequence[str]) -> int:
    """Evaluate, or compare two evaluations.

    Raises:
        UserError: an option, a suite, a record or an answer is wrong.
        InfrastructureError: too many answers could not be graded.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(list(argv))
    if rest and not options.config:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    registry.import_plugins(options.plugins)
    if options.compare:
        before, after = options.compare
        say(compare(before, after))
        return 0
    plan = _plan(options)
    if options.config:
        from gspo_lightning.commands.evaluate.configured import with_config  # torch

        arguments = []
        for file in options.config:
            arguments += ["--config", file]
        if options.ckpt_path:
            arguments.append(f"--ckpt_path={options.ckpt_path}")
        code = with_config([*arguments, *rest], lambda answers: _evaluate(plan, lambda _: answers))
    else:
        _evaluate(plan, lambda file: _source(options, file))
        code = 0
    if code == 0:
        for line in leak_lines(options.config, options.ckpt_path, plan.suites, plan.data):
            say(line)
    return code


def _evaluate(plan: Plan, source: Callable[[VerdictFile], Answers]) -> None:
    results = evaluate(plan, source)
    write_page(plan.output, results)
    table(results)
    for name in ("results.json", "report.md", "report.png", "samples.jsonl"):
        say(f"written: {plan.output / name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gspo evaluate",
        description="Run benchmarks with the rewards of training, and compute intervals.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME[:WINDOW]",
        help=f"of {', '.join(shipped())}, or a YAML file; a window of dates where a suite has them",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="of gspo fit: its model, rollout source and system prompt; other options work as in gspo fit",
    )
    parser.add_argument(
        "--ckpt_path",
        metavar="PATH",
        help="a checkpoint or run folder of gspo fit; with --config also last: its newest run",
    )

    parser.add_argument("--model", metavar="FOLDER_OR_HUB_ID", help="a model to sample from in this process")
    parser.add_argument("--server", metavar="URL", help="any with OpenAI's routes; its key in VLLM_API_KEY")
    parser.add_argument("--completions", type=Path, metavar="FILE", help='lines {"id", "sample", "completion"}')
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the suites' data as files; else the hub")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: runs/evaluate/<time>")
    parser.add_argument("--samples", type=int, metavar="K", help="answers to each problem (default: the suite's)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N problems")
    parser.add_argument("--max_response_tokens", type=int, metavar="N", help="default: the suite's")
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument("--trust_remote_code", action="store_true", help="run Python code that the model's repository "
                        "ships; no file decides that")  # fmt: skip
    parser.add_argument("--workers", type=int, help="processes that score answers (default: all cores but one)")
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules that define rewards")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two outputs, problem by problem")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    if not options.suite:
        raise UserError("--suite", "is missing", fix=f"name one of {', '.join(shipped())}, or a YAML file")
    sources = [options.model, options.ckpt_path or options.config, options.server, options.completions]
    if sum(bool(source) for source in sources) != 1:
        problem = "is one of several options that select what is evaluated" if any(sources) else "is missing"
        raise UserError("--model", problem, fix="give one of --model, --config, --ckpt_path, --server, --completions")
    if options.ckpt_path == "last" and not options.config:
        raise UserError("--ckpt_path", "is 'last', but of which runs?", fix="--config FILE, or the checkpoint's path")
    for name in ("samples", "limit", "max_response_tokens"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name}", f"is {getattr(options, name)}; it must be at least 1")
    return Plan(
        tuple(options.suite),
        options.output or _new(Path("runs/evaluate")),
        options.data,
        options.workers,
        samples=options.samples,
        limit=options.limit,
        max_response_tokens=options.max_response_tokens,
    )


def _new(parent: Path) -> Path:
    """Return an unused folder named by the time; a number is added if the name is taken (clocks can be set back)."""
    name = time.strftime("%Y%m%d-%H%M%S")
    folder = parent / name
    number = 1
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def _source(options: argparse.Namespace, file: VerdictFile) -> Answers:
    if options.completions is not None:
        return Recorded(options.completions, file.done)
    if options.server is not None:
        from gspo_lightning.commands.evaluate.served import Served
        from gspo_lightning.rollouts.serving.endpoint import given

        return Served(given([options.server], plain_http=False)[0])
    from gspo_lightning.commands.evaluate.model import Sampled  # torch

    if options.model is not None:
        return Sampled.of_model(options.model, options.revision, options.trust_remote_code)
    from gspo_lightning.resume.find import checkpoint_at  # torch

    path = checkpoint_at(Path(options.ckpt_path), "--ckpt_path")
    return Sampled.of_checkpoint(path, options.trust_remote_code)
