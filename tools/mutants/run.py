"""All mutants, a few at a time."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable

from tools.mutants.child import Watch
from tools.mutants.laboratory import Job, Laboratory, Outcome
from tools.mutants.mutant import Mutant
from tools.mutants.reach import Reach


@dataclasses.dataclass
class Result:
    """A mutant and what became of it. ``reason``: why it may survive."""

    mutant: Mutant
    outcome: Outcome
    reason: str | None = None

    @property
    def is_gap(self) -> bool:
        """It should have been noticed."""
        return self.outcome.verdict in ("survived", "broken") and self.reason is None


def run_all(lab: Laboratory, work: list[tuple[Mutant, Reach]], jobs: int, say: Callable[[str], None]) -> list[Result]:
    """Every mutant in a child of its own, ``jobs`` at a time; the tests that killed others of its file come first."""
    wins: dict[str, Counter[str]] = {mutant.file: Counter() for mutant, _ in work}
    results: dict[int, Result] = {}
    queue, running = list(enumerate(work)), dict[int, Job]()
    while queue or running:
        while queue and len(running) < jobs:
            index, (mutant, reach) = queue.pop(0)
            tests, won = reach.of(mutant), wins[mutant.file]
            if not tests:
                results[index] = Result(mutant, Outcome("survived", "no test runs this line"))
                say(f"no test runs  {mutant.key}")
                continue
            tests.sort(key=lambda t: -won[t] / (0.01 + reach.seconds.get(t, 0.0)))
            code = compile(mutant.source, mutant.file, "exec", dont_inherit=True)
            files = list(dict.fromkeys(t.partition("::")[0] for t in tests if t))
            running[index] = lab.start(lab.test({mutant.file: code}, files, Watch(tests)))
        for index, job in list(running.items()):
            if (outcome := lab.poll(job)) is None:
                continue
            del running[index]
            mutant = work[index][0]
            results[index] = Result(mutant, outcome)
            wins[mutant.file][outcome.by] += 1
            if outcome.verdict != "killed" or len(results) % 50 == 0:
                say(f"{len(results)}/{len(work)} {outcome.verdict} in {outcome.seconds:.1f} s  {mutant.key}")
        time.sleep(0.01)
    return [results[i] for i in range(len(work))]
