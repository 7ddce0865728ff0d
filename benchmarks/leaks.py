"""Precision and recall of ``gspo data decontaminate`` on planted leaks: ``python -m benchmarks.leaks [--output FILE]``.

Problems are put together from sentences with names, things and numbers, so that clean ones share phrases with the
benchmark, as problems of one kind do. Every benchmark problem is planted in four ways: verbatim, with its numbers
reworded (others, or in words), within a longer text, and in another markup.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import add_output, finish
from gspo_lightning.commands.data import main as data

__all__ = ["KINDS", "measure"]


def _split(text: str, at: str = " ") -> list[str]:
    return text.split(at)


KINDS = ("verbatim", "reworded numbers", "embedded", "other markup")
NAMES = _split(
    "Ada Boris Chen Dana Emil Fatima Goran Hana Ivan Jun Karla Liam Mona Nils Olga Pedro Quinn Rosa Sven Tara"
)
THINGS = _split("apples books marbles stamps tickets bottles pencils coins cards shells ribbons lamps chairs stones")
PLACES = _split(
    "the market, the school, a small shop, the harbour, her garden, the old mill, a village fair, the station",
    ", ",
)
STORY = (
    "{name} bought {n} {things} at {place} and paid {n} dollars for all of them.",
    "On the first day of the week {name} gave {n} {things} to each of {n} friends.",
    "Half of the {things} were sold before noon, and {n} more were sold in the afternoon.",
    "{name} has {n} times as many {things} as {name2}, who found {n} of them near {place}.",
    "Each box holds exactly {n} {things}, and there are {n} boxes in {place}.",
    "After a storm at {place}, {n} of the {things} were broken and had to be replaced.",
    "{name} and {name2} share the {things} in the ratio {n} to {n}.",
    "A delivery of {n} {things} arrives every {n} hours, except on Sundays.",
    "The price of the {things} rises by {n} percent every month, starting at {n} dollars.",
    "{name2} returns {n} of the {things} to {place} and keeps the rest.",
    "Let $x$ be the number of {things} and suppose that $\\frac{{{n}}}{{{n}}}x + {n} \\leq {n}{{,}}{t}$ holds.",
    "The function $f(x) = {n}x^{{2}} - \\sqrt{{{n}}}x + {n}$ describes the profit of {name} at {place}.",
    "A circle of radius ${n}$ touches both sides of an angle of ${n}^\\circ$ at the points $P$ and $Q$.",
    "The sequence $a_1, a_2, \\dots$ satisfies $a_{{k+1}} = {n}a_k - {n}$ with $a_1 = {n}$.",
)
EXTRA = _split(
    "red old new late early quiet bright heavy small large open empty wooden golden plain rare cheap "
    "broken clean cold dark deep dry famous fast flat fresh full hard high hollow hot local long loose "
    "loud low narrow neat odd pale quick rough round sharp short simple slow smooth soft solid sour "
    "square steep stiff strange strong sweet tall thick thin"
)
"""Words that make sentences of one kind differ."""
QUESTIONS = (
    "How many {things} are left at the end of the week?",
    "What is the total number of {things} that {name} has now?",
    "How much money does {name} have to pay in total?",
    "Find the smallest positive integer $n$ for which this is possible, and write the answer as an integer.",
    "What is the greatest possible value of the sum, and for how many values of $x$ is it reached?",
    "The answer can be written as $\\frac{{m}}{{n}}$, where $m$ and $n$ are relatively prime. Find $m+n$.",
)
VARIED = {"varied sentences": 0.6, "sentences of a few templates": 0.0}
"""Share of the spaces that get a word more."""
NUMBER = re.compile(r"(?<![\w{,])\d{1,2}(?![\d,{}])")
IN_WORDS = dict(
    enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    )
)


class _Number:
    """Another one every time it is written."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def __format__(self, spec: str) -> str:
        return str(self._draw.randrange(2, 100))


def problem(draw: random.Random, varied: float) -> str:
    """One of a few sentences and a question."""
    name, name2 = draw.sample(NAMES, 2)
    things, place = draw.choice(THINGS), draw.choice(PLACES)

    def filled(sentence: str) -> str:
        t = draw.randrange(100, 1000)
        return sentence.format(name=name, name2=name2, things=things, place=place, t=t, n=_Number(draw))

    chosen = draw.sample(STORY, draw.randrange(2, 5))
    parts = re.split(r"(\$[^$]*\$)", " ".join(map(filled, [*chosen, draw.choice(QUESTIONS)])))
    return "".join(part if part.startswith("$") else _varied(part, draw, varied) for part in parts)


def _varied(text: str, draw: random.Random, share: float) -> str:
    """With a word more here and there."""
    return re.sub(r" (?=[a-z])", lambda _: f" {draw.choice(EXTRA)} " if draw.random() < share else " ", text)


def planted(text: str, kind: str, draw: random.Random, others: Sequence[str]) -> str:
    """A leak of a problem."""
    if kind == "reworded numbers":

        def reworded(found: re.Match[str]) -> str:
            value = int(found[0])
            return IN_WORDS.get(value, found[0]) if draw.random() < 0.5 else str(value + draw.randrange(1, 9))

        return NUMBER.sub(reworded, text)
    if kind == "embedded":
        return f"Here are some exercises. {draw.choice(others)} {text} Explain every step. {draw.choice(others)}"
    if kind == "other markup":
        text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text).replace("{,}", ",").replace("\\leq", "\u2264")
        text = re.sub(r"\\sqrt\{(\d+)\}", "\u221a\\1", text).replace("^{2}", "\u00b2").replace("^\\circ", "\u00b0")
        return "<p>" + re.sub(r"\$([^$]*)\$", r"<i>\1</i>", text).replace("\\dots", "...") + "</p>"
    return text


def measure(prompts: int, clean: int, varied: float, seed: int, folder: Path) -> dict[str, Any]:
    """Plant, decontaminate, count.

    Args:
        prompts: of the benchmark.
        clean: records that leak nothing.
        varied: share of the spaces that get a word more, without which all problems have sentences in common.
        seed: of everything drawn.
        folder: for the files.
    """
    draw = random.Random(seed)
    benchmark = [problem(draw, varied) for _ in range(prompts)]
    others = [problem(draw, varied) for _ in range(clean)]
    records = [{"kind": "clean", "prompt": text} for text in others]
    records += [{"kind": k, "prompt": planted(text, k, draw, others)} for text in benchmark for k in KINDS]
    draw.shuffle(records)
    eights = {gram for text in benchmark for gram in _eights(text)}
    sharing = sum(not eights.isdisjoint(_eights(text)) for text in others)
    files = [folder / name for name in ("train.jsonl", "benchmark.jsonl", "kept.jsonl")]
    files[0].write_text("".join(json.dumps(record) + "\n" for record in records))
    files[1].write_text("".join(json.dumps({"prompt": text}) + "\n" for text in benchmark))
    data(["decontaminate", "--input", str(files[0]), "--against", str(files[1]), "--output", str(files[2])])
    lines = Path(f"{files[2]}.dropped.jsonl").read_text().splitlines()
    dropped = Counter(json.loads(line)["record"]["kind"] for line in lines)
    leaks = sum(dropped[kind] for kind in KINDS)
    return {
        "benchmark_prompts": prompts,
        "clean": clean,
        "clean_that_share_an_8_gram": sharing / clean,
        "recall": {kind: dropped[kind] / prompts for kind in KINDS},
        "precision": leaks / max(1, leaks + dropped["clean"]),
        "clean_dropped": dropped["clean"],
    }


def _eights(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser("python -m benchmarks.leaks", description=__doc__)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--clean", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    add_output(parser)
    options = parser.parse_args(argv)
    found: dict[str, Any] = {}
    for name, varied in VARIED.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(options.prompts, options.clean, varied, options.seed, Path(folder))
    words = f"--prompts {options.prompts} --clean {options.clean} --seed {options.seed}"
    finish(found, f"python -m benchmarks.leaks {words}", options.output)


if __name__ == "__main__":
    main()
