"""Hints of a run: what looks wrong in its numbers and answers, why, and where to look."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.view.index import RolloutIndex
from gspo_lightning.report.words import plain

SAMPLER_GAP = 0.004
"""Nats per token above which a sampler is not the policy: bfloat16 alone gives about 0.001."""
SHARE = 0.8
"""Share of answers of one template that is remarkable."""
ANSWERS = 12
"""Recorded answers below which templates are not counted."""
WRAPPER = 8
"""Characters that all prompts begin or end with, from which on they count as a template."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A finding: ``level`` is ``bad``, ``look`` or ``note``; ``link`` is the page's address of the place to look."""

    name: str
    level: str
    title: str
    why: str
    link: str

    def plain(self) -> dict[str, str]:
        """Return the fields."""
        return asdict(self)


Finder = Callable[[Run, RolloutIndex, Sequence[Mapping[str, Any]]], Hint | None]


def hints(run: Run, index: RolloutIndex, answers: Sequence[Mapping[str, Any]]) -> list[Hint]:
    """Return all hints, the bad ones first.

    Args:
        run: the run.
        index: of its recorded responses.
        answers: its held-out answers (:func:`gspo_lightning.report.answers.read_answers`).
    """
    found = [hint for finder in FINDERS if (hint := finder(run, index, answers)) is not None]
    return sorted(found, key=lambda hint: ("bad", "look", "note").index(hint.level))


def _alarms(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    if not run.alarms:
        return None
    names = ", ".join(dict.fromkeys(str(alarm.get("signature", "?")).replace("_", " ") for alarm in run.alarms[:5]))
    why = f"Alarms at update {run.alarms[0]['update']}: {names}. The dotted lines in the curves are theirs."
    return Hint("alarms", "bad", "The run raised alarms", why, "#overview")


def _sampler(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    gap = run.get("noise/sampler_logprob_gap")
    if gap is None or (size := float(np.median(_last(gap)))) < SAMPLER_GAP:
        return None
    shift = run.get("noise/kl_sampler_old_k1")
    one_sided = shift is not None and abs(float(np.median(_last(shift)))) > 0.8 * size
    way = (
        "always in the same direction, as a wrong temperature or scaling does"
        if one_sided
        else "in both directions, as stale weights, another precision or dropout do"
    )
    return Hint(
        "sampler", "bad", f"The sampler's log-probs differ by {plain(size)} nats per token",
        f"The old policy gives other log-probabilities to the tokens than the sampler reported, {way}. "
        "bfloat16 alone gives about 0.001. Ratios then compare two different models.",
        "#overview?chart=noise/sampler_logprob_gap",
    )  # fmt: skip


def _gamed(run: Run, index: RolloutIndex, _: Any) -> Hint | None:
    reward, held = run.get("reward/mean"), run.get(run.held_out_tag)
    if reward is None or len(reward) < 8:
        return None
    low, high = _range(run, reward)
    rise = float(_last(reward).mean() - _first(reward).mean()) / max(high - low, 1e-9)
    if rise < 0.1:
        return None
    behind = _behind(run, held, rise, 1.0 if run.shown_by == "accuracy" else max(high - low, 1e-9))
    share, template = _template(index, late=True)
    before = _template_share(index, template, late=False)
    one_way = share >= SHARE and before < SHARE / 2 and not (held is not None and _rises(run, held))
    said = [] if behind is None else [behind]
    if one_way:
        said.append(
            f"{100 * share:.0f} % of the last recorded answers follow one template, {100 * before:.0f} % at first"
        )
    if not said:
        return None
    title = "Rewards rise while held-out answers do not" if behind else "Rewards rise as answers become the same"
    why = f"The training reward rose by {100 * rise:.0f} % of its range; {'; '.join(said)}.{_parts(run)}"
    return Hint("gamed", "bad", title, why, f"#rollouts?sort=reward&iteration={_iteration(index)}")


def _template_hint(run: Run, index: RolloutIndex, _: Any) -> Hint | None:
    share, template = _template(index, late=True)
    held = run.get(run.held_out_tag)
    if share < SHARE or (held is not None and _rises(run, held)):
        return None
    why = f"{100 * share:.0f} % of the last recorded answers read “{template[:80]}” once digits are left out."
    return Hint("one_template", "look", "Nearly all answers follow one template", why, "#rollouts?sort=iteration")


def _drift(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    forks = {
        tag.rsplit("/", 1)[-1]: s for tag in run.scalars if tag.startswith("agents/forks/") and (s := run.get(tag))
    }
    found = {name: float(np.mean(_last(s))) for name, s in forks.items() if name in ("answer", "system", "input")}
    name, size = max(found.items(), key=lambda item: item[1], default=("", 0.0))
    if size < 0.05:
        return None
    what = {"answer": "what the policy said", "system": "the system message", "input": "earlier messages"}[name]
    return Hint(
        "template_drift", "bad", "Template drift: conversations come back changed",
        f"On average {plain(size)} times per rollout the client, or its chat template, changed {what} before sending "
        "it back. Such a history no longer begins with the sampled tokens, so it is trained as another row.",
        f"#overview?chart=agents/forks/{name}",
    )  # fmt: skip


def _wrapping(run: Run, index: RolloutIndex, answers: Sequence[Mapping[str, Any]]) -> Hint | None:
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
            return Hint(
                "template_drift", "bad", "Template drift: held-out prompts are wrapped in another way",
                f"All recorded training prompts {side} with “{one[:60]}”, all held-out prompts with “{other[:60]}”. "
                "The evaluation then measures answers to another template than the one that is trained.",
                "#answers",
            )  # fmt: skip
    return _changed_wrapper(index)


def _changed_wrapper(index: RolloutIndex) -> Hint | None:
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
            return Hint(
                "template_drift", "bad", "Template drift: prompts changed their wrapping during the run",
                f"At first all recorded prompts {side} with “{one[:60]}”, at last with “{other[:60]}”.",
                "#rollouts?sort=iteration",
            )  # fmt: skip
    return None


def _dead(run: Run, index: RolloutIndex, _: Any) -> Hint | None:
    dead, reward = run.get("reward/dead_groups"), run.get("reward/mean")
    if dead is None or reward is None or (share := float(_last(dead).mean())) < 0.6:
        return None
    low, high = _range(run, reward)
    solved = (_last(reward).mean() - low) / max(high - low, 1e-9) > 0.7
    why = f"In {100 * share:.0f} % of the last groups all answers earn the same, so nothing is learned from them: " + (
        "most prompts are solved. Stop here, or give harder ones."
        if solved
        else "most prompts are too hard, or the reward tells no answers apart."
    )
    return Hint(
        "dead", "note" if solved else "look", "Most groups are dead", why, "#rollouts?choice=any&sort=iteration"
    )


def _clipping(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    clipped, place = run.get("clip/tokens"), run.get("data/mini_batch")
    if clipped is None or place is None or place.values.max() == 0:
        return None
    share = float(clipped.values.mean())
    limit = 0.8 if run.sequence_level else 0.1
    if share > limit:
        why = f"{100 * share:.0f} % of tokens have no gradient because of it; the range, or the steps, are too wide."
        return Hint("clipping", "look", "Most of the gradient is clipped", why, "#rollouts?sort=log_s&clipped=1")
    if share == 0:
        why = "With several updates per rollout some ratios leave a range that is right; this one never acts."
        return Hint("clipping", "look", "Nothing is ever clipped", why, "#rollouts?sort=log_s")
    return None


def _cut(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    cut = run.get("response/truncated")
    if cut is None or (share := float(_last(cut).mean())) < 0.25:
        return None
    why = f"{100 * share:.0f} % of the last responses end at data.max_response_tokens: usually without an answer."
    return Hint("cut", "look", "Many answers are cut off", why, "#rollouts?sort=length")


def _stale(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    age, place = run.get("staleness/mean_age"), run.get("data/mini_batch")
    if age is None or place is None or (size := float(_last(age).mean())) <= place.values.max() + 1:
        return None
    why = f"Tokens are {plain(size)} updates old on average, more than one iteration has."
    return Hint("stale", "look", "Rollouts are stale", why, "#rollouts?sort=age")


def _faults(run: Run, _: RolloutIndex, __: Any) -> Hint | None:
    found = {tag: float(_last(s).mean()) for tag in ("reward/missing", "reward/timeouts") if (s := run.get(tag))}
    tag, share = max(found.items(), key=lambda item: item[1], default=("", 0.0))
    if share < 0.05:
        return None
    word = "have no reward" if tag.endswith("missing") else "run into the deadline of a reward"
    return Hint(
        "faults", "look", "Rewards fail", f"{100 * share:.0f} % of the last responses {word}.", f"#overview?chart={tag}"
    )


def _old(_: Run, index: RolloutIndex, __: Any) -> Hint | None:
    facts = index.facts()
    if facts["tokens"]:
        return None
    why = "Set data.record_tokens to see which tokens an update moves. " + (
        "The responses are those of data.record_rollouts."
        if facts["rollouts"]
        else "No training responses are recorded."
    )
    return Hint("no_tokens", "note", "This run recorded no tokens", why, "#config")


FINDERS: tuple[Finder, ...] = (
    _alarms, _sampler, _gamed, _template_hint, _drift, _wrapping, _clipping, _dead, _cut, _stale, _faults, _old,
)  # fmt: skip


def _first(series: Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    return series.values[: max(1, len(series) // 5)]


def _last(series: Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    return series.values[-max(1, len(series) // 5) :]


def _range(run: Run, reward: Series) -> tuple[float, float]:
    """Return the lowest and highest reward of a response so far, else of an iteration."""
    low, high = run.get("reward/min"), run.get("reward/max")
    lowest = float((low or reward).values.min())
    return lowest, max(float((high or reward).values.max()), lowest)


def _errors(run: Run) -> float:
    """Return the standard error of a difference of two evaluations."""
    known = run.get("val/accuracy_standard_error")
    return math.sqrt(2) * float(known.values.max()) if known is not None and known.values.max() > 0 else 0.02


def _rises(run: Run, held: Series) -> bool:
    return len(held) > 1 and float(held.values[-1] - held.values[0]) > 2 * _errors(run)


def _behind(run: Run, held: Series | None, rise: float, scale: float) -> str | None:
    """Describe held-out answers that fell, or stay behind the rise of the reward by more than chance; else None."""
    if held is None or len(held) < 2:
        return None
    before, best, after = float(held.values[0]), float(held.values.max()), float(held.values[-1])
    chance = 2 * _errors(run)
    if best - after > chance:
        return f"the held-out {run.shown_by} fell from {plain(best)} to {plain(after)}"
    gain = (after - before) / scale
    if gain < 0.5 * rise and rise - gain > chance / scale:
        return f"the held-out {run.shown_by} only went from {plain(before)} to {plain(after)}"
    return None


def _parts(run: Run) -> str:
    """Name the part of the reward that rose most, if there are several."""
    tags = [tag for tag in run.scalars if tag.startswith("reward/parts/")]
    rises = {tag: float(_last(s).mean() - _first(s).mean()) for tag in tags if (s := run.get(tag)) is not None}
    if len(rises) < 2:
        return ""
    tag = max(rises, key=lambda name: rises[name])
    return f" Most of the rise is {tag.rsplit('/', 1)[-1]}."


def _iteration(index: RolloutIndex) -> int:
    return int(index.facts()["last"] or 0)


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
