"""This tree beside an earlier revision on the same machine: pairs of fresh processes in turn, ratios with an interval.

``python -m benchmarks --against REVISION``; ``last`` is the last tag, or the commit before this one.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BOUND", "Ratio", "against", "compare", "last", "worktree"]

ROOT = Path(__file__).parent.parent
BOUND = 1.3
"""The check fails if the whole interval of a subject is above this factor."""
SNIPPETS = {
    "step": """
import json, torch
from benchmarks.models import MODELS, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.workloads import WORKLOADS
torch.set_num_threads(1)
shape = MODELS["1m"]
ours = Ours(build_model(shape), word_tokenizer(shape.vocabulary), WORKLOADS["balanced"])
ours.step()
cpu = ours.step().cpu
print(json.dumps({"step": cpu["total"], "sampler": cpu["generate"]}))
""",
    "graders": r"""
import json, time
from gspo_lightning.rewards import MathVerifier
grader = MathVerifier()
grader.prepare()
texts = [(rf"so \boxed{{\frac{{{i}}}{{7}}}}", f"{i}/7") for i in range(1, 601)]
assert grader.score(texts[0][0], answer=texts[0][1]).reward == 1.0
begun = time.process_time()
for text, answer in texts:
    grader.score(text, answer=answer)
print(json.dumps({"graders": time.process_time() - begun}))
""",
    "start-up": """
import json, time
import gspo_lightning.commands.fit.command
print(json.dumps({"start-up": time.process_time()}))
""",
}
"""Process -> Python that prints CPU seconds by subject: names that earlier revisions have, too."""


@dataclass(frozen=True)
class Ratio:
    """CPU time of this tree divided by that of the earlier revision."""

    subject: str
    ratio: float
    """Of the medians."""
    low: float
    high: float
    """95 % interval."""
    seconds: float
    """Median of this tree."""
    rounds: int

    @property
    def slower(self) -> bool:
        """True if this tree is slower by more than the noise of these pairs."""
        return self.low > 1.0

    @property
    def fails(self) -> bool:
        """True if it is surely slower than :data:`BOUND`."""
        return self.low > BOUND

    @property
    def line(self) -> dict[str, str | float | int]:
        """The result as a line of the history."""
        return {
            "what": f"against: {self.subject}", "unit": "CPU s", "value": self.seconds, "low": self.low,
            "high": self.high, "rounds": self.rounds, "ratio": self.ratio,
        }  # fmt: skip


def compare(subject: str, before: Sequence[float], now: Sequence[float], draws: int = 2000) -> Ratio:
    """Return the ratio of medians of pairs, with the interval of redrawn pairs (bootstrap); the same at every call."""
    pairs, chance = list(zip(before, now, strict=True)), random.Random(0)

    def ratio(some: Sequence[tuple[float, float]]) -> float:
        return statistics.median(b for _, b in some) / statistics.median(a for a, _ in some)

    drawn = sorted(ratio(chance.choices(pairs, k=len(pairs))) for _ in range(draws))
    low, high = drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1]
    return Ratio(subject, ratio(pairs), low, high, statistics.median(now), len(pairs))


Measure = Callable[[Path, str], Mapping[str, float]]


def against(trees: tuple[Path, Path], rounds: int, measure: Measure | None = None) -> list[Ratio]:
    """Measure an earlier tree and this one in turn, A B B A, each in fresh processes; a round is one of each.

    Args:
        trees: the earlier one, and this one.
        rounds: pairs; one more comes first and is dropped.
        measure: returns CPU seconds by subject of one of :data:`SNIPPETS` in a tree.
    """
    run, found = measure or _run, dict[str, dict[Path, list[float]]]()
    for snippet in SNIPPETS:
        for turn in range(rounds + 1):
            for tree in trees if turn % 2 == 0 else reversed(trees):
                for subject, seconds in run(tree, SNIPPETS[snippet]).items():
                    found.setdefault(subject, {}).setdefault(tree, []).append(seconds)
    before, now = trees
    return [compare(subject, times[before][1:], times[now][1:]) for subject, times in found.items()]


def _run(tree: Path, code: str) -> Mapping[str, float]:
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a benchmark failed in {tree}:\n{done.stderr[-2000:]}")
    found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _git(*arguments: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def last(root: Path = ROOT) -> str | None:
    """Return the last tag before this commit, or else the commit before it; None in a clone that has neither."""
    for arguments in (("describe", "--tags", "--abbrev=0", "HEAD^"), ("rev-parse", "HEAD^")):
        with suppress(subprocess.CalledProcessError):
            return _git(*arguments, root=root)
    return None


@contextmanager
def worktree(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """Check a revision out beside this tree, and remove it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        _git("worktree", "add", "--detach", str(tree), revision, root=root)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree), root=root)


def show(found: Sequence[Ratio], revision: str) -> None:
    """Print what became slower or faster."""
    for one in found:
        verdict = "FAILS" if one.fails else "slower" if one.slower else "faster" if one.high < 1.0 else "no difference"
        pairs = f"{one.low:.2f} to {one.high:.2f}; {one.rounds} pairs"
        print(f"{one.subject}: {one.ratio:.2f} times the CPU time of {revision} ({pairs}): {verdict}", flush=True)
