"""``gspo data decontaminate``: drop prompts that leak a benchmark, and write a decontamination report."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_lightning.commands.data.drop import Found, drop
from gspo_lightning.commands.data.terminal import add_column, add_files, add_threshold, check_threshold, reading
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.registry import installed_version
from gspo_lightning.data.corpus.contamination import (
    LONG,
    SHARE,
    SHORT,
    BenchmarkPrompt,
    LeakSearch,
    Rule,
    comparable,
    rare_below,
)
from gspo_lightning.data.corpus.decontamination_report import Benchmark, DecontaminationReport, report_file
from gspo_lightning.data.corpus.files import Identifiers, Inputs, prompt_of
from gspo_lightning.data.corpus.output import Outputs
from gspo_lightning.data.corpus.text import words

DESCRIPTION = "Drop prompts that give away a prompt of a benchmark, and write a report with the hashes of all files."
_BLOCK_CHARACTERS = 1 << 17
_REASONS = {
    Rule.SHORT_GRAMS: f"half of a benchmark prompt's {SHORT}-grams",
    Rule.LONG_GRAM: f"a {LONG}-gram of a benchmark prompt that is rare here",
    Rule.NEAR: "nearly a benchmark prompt",
}
_LONGEST = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    parser.add_argument(
        "--against", nargs="+", type=Path, required=True, metavar="FILE", help="prompts of benchmarks, of either format"
    )
    add_column(parser)
    parser.add_argument("--against_column", metavar="NAME", help="with the benchmarks' prompts (default: --column)")
    add_threshold(parser)


@dataclass(slots=True)
class _Answers:
    """Records that share an answer with a benchmark; counted but not dropped."""

    of_benchmarks: set[str]
    by_record: dict[int, str] = field(default_factory=dict)
    """Number of a record -> the answer that it shares."""

    def add(self, index: int, value: Any) -> None:
        answer = short_answer(value)
        if answer is not None and answer in self.of_benchmarks:
            self.by_record[index] = answer


def run(options: argparse.Namespace) -> None:
    """Drop prompts that leak a benchmark.

    Raises:
        UserError: an option or a record is wrong.
    """
    check_threshold(options.threshold)
    benchmarks = _benchmarks(options)
    same_answer: set[int] = set()

    def find(inputs: Inputs, outputs: Outputs) -> Found:
        prompts = _benchmark_prompts(benchmarks, options.against_column or options.column)
        answers = _Answers({prompt.answer for prompt in prompts if prompt.answer is not None})
        search = LeakSearch(prompts, options.threshold)
        _search(inputs, options.column, search, answers)
        leaks = search.leaks
        same_answer.update(answers.by_record.keys() - leaks.keys())

        def why(index: int) -> Mapping[str, Any]:
            leak = leaks[index]
            prompt = prompts[leak.prompt]
            return {
                "reason": _REASONS[leak.rule],
                "rule": leak.rule,
                "share": round(leak.share, 4),
                "repeats": {"file": options.against[prompt.file].name, **benchmarks[prompt.file].place(prompt.number)},
                "same_answer": prompt.answer is not None and answers.by_record.get(index) == prompt.answer,
            }

        counts = Counter(leak.rule for leak in leaks.values())
        against = tuple(Benchmark(b.paths[0].name, b.sha256[0], len(b)) for b in benchmarks)
        by_rule = {rule: counts[rule] for rule in _REASONS}
        report = DecontaminationReport(
            "", against, _rules(options.threshold, len(inputs)), by_rule, installed_version("gspo_lightning")
        )
        by_reason = {_REASONS[rule]: count for rule, count in by_rule.items()}
        return Found(lambda i: i not in leaks, why, by_reason, report)

    drop("decontaminate", options, find, against=options.against, certifies=True)
    say(f"written: {report_file(options.output)}")
    say(f"{len(same_answer):,} kept records have an answer of the benchmarks, which alone is no leak")


def _benchmarks(options: argparse.Namespace) -> list[Inputs]:
    """Open the files of ``--against``, each a benchmark."""
    benchmarks = [Inputs([path], "--against") for path in options.against]
    for number, path in enumerate(options.against):
        if any(path.samefile(other) for other in options.against[:number]):
            raise UserError("--against", f"{path} is given twice", fix="name each file once")
        if any(other.exists() and path.samefile(other) for other in options.input):
            raise UserError("--against", f"{path} is also an --input: everything would be a leak", fix="name one role")
    return benchmarks


def _rules(threshold: float, records: int) -> dict[str, Any]:
    return {
        "short_gram": SHORT,
        "share": SHARE,
        "long_gram": LONG,
        "rare": rare_below(records),
        "similarity": threshold,
    }


def _benchmark_prompts(benchmarks: Sequence[Inputs], column: str) -> list[BenchmarkPrompt]:
    prompts = []
    for file, inputs in enumerate(benchmarks):
        for number, record in enumerate(inputs.records([column, "answer"])):
            text = prompt_of(inputs, record, column, "--against_column NAME")
            split = tuple(words(text))
            answer = short_answer(record.values.get("answer"))
            prompts.append(BenchmarkPrompt(file, number, split, comparable(text, split), answer))
    return prompts


def _search(inputs: Inputs, column: str, search: LeakSearch, answers: _Answers) -> None:
    """Search every record for leaks, a block at a time."""
    identifiers = Identifiers(inputs)
    texts: list[str] = []
    splits: list[list[str]] = []
    start = 0
    size = 0

    def search_block() -> None:
        nonlocal start, size
        search.look(start, texts, splits)
        start += len(texts)
        size = 0
        texts.clear()
        splits.clear()

    with reading(inputs, "search") as step:
        for index, record in enumerate(inputs.records([column, "id", "answer"])):
            identifiers.add(record)
            text = prompt_of(inputs, record, column)
            answers.add(index, record.values.get("answer"))
            split = words(text)
            splits.append(split)
            texts.append(comparable(text, split))
            size += len(text)
            step(record)
            if size >= _BLOCK_CHARACTERS:
                search_block()
        if texts:
            search_block()
    search.finish(len(inputs))


def short_answer(value: Any) -> str | None:
    r"""Return a text or number without GSM8K's working, ``\boxed`` and dollar signs; None if it is not short.

    >>> short_answer("40 + 2 = 42\n#### 42"), short_answer(r"\boxed{42}"), short_answer(42), short_answer({"tests": []})
    ('42', '42', '42', None)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).rsplit("####", 1)[-1].strip().strip("$").strip()
    if text.startswith("\\boxed{") and text.endswith("}"):
        text = text[len("\\boxed{") : -1].strip()
    return text.casefold() if 0 < len(text) <= _LONGEST else None
