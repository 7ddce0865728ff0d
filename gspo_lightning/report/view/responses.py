"""Verdicts that recorded responses and held-out answers give, beside those of the run's numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gspo_lightning.report.ending import rose
from gspo_lightning.report.held_out import held_out_change
from gspo_lightning.report.run import Run
from gspo_lightning.report.verdict import Verdict, worst_first
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.view.index import RolloutIndex

SHARE = 0.8
"""Share of answers of one template that is remarkable."""
ANSWERS = 12
"""Recorded answers below which templates are not counted."""
WRAPPER = 8
"""Characters that all prompts begin or end with, from which on they count as a template."""

Finder = Callable[[Run, RolloutIndex, Sequence[Mapping[str, Any]]], Verdict | None]


def all_verdicts(run: Run, index: RolloutIndex, answers: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Return the verdicts of the report and those of recorded responses in one list, the worst first.

    Args:
        run: the run.
        index: of its recorded responses.
        answers: its held-out answers (:func:`gspo_lightning.report.answers.read_answers`).
    """
    more = [verdict for finder in FINDERS if (verdict := finder(run, index, answers)) is not None]
    return worst_first([*verdicts(run), *more])


def _one_template(run: Run, index: RolloutIndex, _: Any) -> Verdict | None:
    """Return the verdict on answers that become the same; it is bad if rewards rise and held-out answers do not."""
    share, template = _template(index, late=True)
    change, rise = held_out_change(run), rose(run)
    if share < SHARE or (change is not None and change.sign == 1):
        return None
    before = _template_share(index, template, late=False)
    sentence = f"{100 * share:.0f} % of the last recorded answers follow one template, {100 * before:.0f} % at first"
    sentence += f": “{template[:80]}”, digits left out"
    if rise is not None and before < SHARE / 2:
        sentence += f"; the training reward rose by {100 * rise:.0f} % of its range"
        return Verdict(
            "one template", "bad", "rewards rise as answers become the same", sentence, "#rollouts?sort=reward"
        )
    return Verdict("one template", "look", "nearly all answers", sentence, "#rollouts?sort=iteration")


def _wrapping(run: Run, index: RolloutIndex, answers: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """Compare what all training prompts and all held-out prompts begin and end with."""
    train = {
        row[0]
        for row in index.columns(
            "prompt", where=f"WHERE n IN (SELECT n FROM rollouts ORDER BY n LIMIT {index.sample(500)})"
        )
    }
    held = {str(row.get("prompt", "")) for row in answers}
    if len(train) < 4 or len(held) < 4:
        return _changed_wrapper(index)
    ours, theirs = _wrapper(sorted(train)), _wrapper(sorted(held))
    for side, one, other in zip(("begin", "end"), ours, theirs, strict=True):
        longer = max(one, other, key=len)
        if len(longer) >= WRAPPER and one != other and len(_common([one, other])) < 0.5 * len(longer):
            return Verdict(
                "template drift", "bad", "held-out prompts are wrapped in another way",
                f"all recorded training prompts {side} with “{one[:60]}”, all held-out prompts with “{other[:60]}”; "
                "the evaluation measures answers to another template than the one that is trained",
                "#answers",
            )  # fmt: skip
    return _changed_wrapper(index)


def _changed_wrapper(index: RolloutIndex) -> Verdict | None:
    """Compare the prompts of the first iterations with those of the last."""
    facts = index.facts()
    if facts["rollouts"] < 2 * ANSWERS or facts["first"] == facts["last"]:
        return None
    some = index.sample(min(200, max(ANSWERS, facts["rollouts"] // 8)))
    part = "WHERE n IN (SELECT n FROM rollouts ORDER BY iteration {} LIMIT {})"
    early, late = ({r[0] for r in index.columns("prompt", where=part.format(way, some))} for way in ("ASC", "DESC"))
    if len(early) < 2 or len(late) < 2 or early & late:
        return None
    before, after = _wrapper(sorted(early)), _wrapper(sorted(late))
    for side, one, other in zip(("begin", "end"), before, after, strict=True):
        longer = max(one, other, key=len)
        if len(longer) >= WRAPPER and len(_common([one, other])) < 0.5 * len(longer):
            return Verdict(
                "template drift", "bad", "prompts changed their wrapping during the run",
                f"at first all recorded prompts {side} with “{one[:60]}”, at last with “{other[:60]}”",
                "#rollouts?sort=iteration",
            )  # fmt: skip
    return None


def _no_tokens(_: Run, index: RolloutIndex, __: Any) -> Verdict | None:
    facts = index.facts()
    if facts["tokens"]:
        return None
    there = "the responses are those of data.record_rollouts" if facts["rollouts"] else "no training responses either"
    sentence = f"set data.record_tokens to see which tokens an update moves; {there}"
    return Verdict("recorded tokens", "note", "none", sentence, "#config")


FINDERS: tuple[Finder, ...] = (_one_template, _wrapping, _no_tokens)


def template_of(text: str) -> str:
    """Return a text without what differs between answers of one kind: digits, spaces, letter case.

    >>> template_of("7+5=2;  2*3=6 #6"), template_of("The answer is 42.")
    ('0+0=0; 0*0=0 #0', 'the answer is 0.')
    """
    return re.sub(r"\s+", " ", re.sub(r"\d+", "0", text)).strip().lower()


def _answers(index: RolloutIndex, late: bool) -> list[str]:
    """Return recorded answers of the first or the last iterations; of the groups that are chosen without a look."""
    order = "DESC" if late else "ASC"
    some = f"choice NOT IN ('live', 'dead') ORDER BY iteration {order} LIMIT {index.sample(200)}"
    where = f"WHERE n IN (SELECT n FROM rollouts WHERE {some})"
    rows = [(int(i), str(text)) for i, text in index.columns("iteration", "completion", where=where)]
    edge = (rows[-1][0] if late else rows[0][0]) if rows else 0
    span = max(1, int(0.2 * (index.facts()["last"] or 0)))
    return [text for i, text in rows if abs(i - edge) <= span]


def _template(index: RolloutIndex, late: bool) -> tuple[float, str]:
    found = [template_of(text) for text in _answers(index, late)]
    if len(found) < ANSWERS:
        return 0.0, ""
    template, count = Counter(found).most_common(1)[0]
    return count / len(found), template


def _template_share(index: RolloutIndex, template: str, late: bool) -> float:
    found = [template_of(text) for text in _answers(index, late)]
    return found.count(template) / len(found) if found else 0.0


def _common(texts: Sequence[str]) -> str:
    """Return what all texts begin with."""
    low, high = min(texts), max(texts)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))]


def _wrapper(texts: Sequence[str]) -> tuple[str, str]:
    """Return what all texts begin and end with."""
    end = _common([text[::-1] for text in texts])[::-1]
    return _common(list(texts)), end
