"""Metric definitions: for every logged number its meaning, unit, healthy range, and what to do outside of it.

The texts are data: one YAML file of ``definitions/`` per heading of the site's page of metrics. Their symbols: A is an
advantage, m the response tokens, n_i the number of response tokens of sequence i, d = log pi - log pi_old per token,
s_i = exp(sum_m d / n_i), r the ratio that the objective clips (s_i or exp d). Sums run over all micro-batches and ranks
of an update before anything is divided. Numbers quoted as the paper's are from arXiv 2507.18071.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gspo_lightning.core.metric_table.health import AlarmRule, Health, read_health, read_rule
from gspo_lightning.core.metric_table.reading import READINGS, Reading
from gspo_lightning.core.parsing import read_table

FULL = "model.metrics: full"
"""``when`` of metrics that are measured unless a run asks for less."""
HEADINGS = (
    *("cold_start", "reward", "responses", "agents", "critic", "sources", "ratio_to_the_old_policy", "by_mini_batch"),
    *("clipping", "corrections", "drift_and_entropy", "distillation", "optimization", "data", "parallelism"),
    *("collapse", "numerical_noise", "speed", "evaluation", "of_single_objectives", "mixture_of_experts"),
    "reward_models",
)
"""The files of ``definitions/``, in the order of the document."""
_FOLDER = Path(__file__).with_name("definitions")

Kind = Literal["scalar", "histogram", "text", "picture"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table. ``<...>`` in a tag stands for a name; ``when`` is empty for metrics that every run logs."""

    tag: str
    """The TensorBoard tag, or a template such as ``val/pass@<k>``."""
    definition: str
    """The formula or count, exact."""
    unit: str
    """Meaning of one unit on the y axis."""
    health: Health
    """The range of a healthy run, and why."""
    what_to_do: str
    """Advice for a run outside of the healthy range, one sentence."""
    group: str
    """Heading of its section."""
    kind: Kind = "scalar"
    """Kind of stored value."""
    when: str = ""
    """Runs or updates that have the metric, if not all have it."""
    reading: Reading | None = None
    """The sum that the metric is computed from, and how; None if it comes from none of the sums of an update."""
    alarms: Mapping[str, AlarmRule] = field(default_factory=dict)
    """Collapse signature -> its thresholds for this metric."""

    @property
    def healthy(self) -> str:
        """The range of a healthy run, why, and the alarms beyond it, in words."""
        rules = [f"alarm {name}, {rule.words}" for name, rule in self.alarms.items()]
        return "; ".join([self.health.words, *rules])


def _definitions(heading: str) -> Iterator[MetricSpec]:
    """Read the metrics of one file, in its order."""
    written = read_table(_FOLDER / f"{heading}.yaml")
    for tag, fields in written["metrics"].items():
        reading = None
        for kind, names in fields.pop("reading", {}).items():  # {mean: NAME} or {deviation: [NAME, FIRST]}
            reading = READINGS[kind](*([names] if isinstance(names, str) else names))
        alarms = {name: read_rule(rule) for name, rule in fields.pop("alarms", {}).items()}
        health = read_health(fields.pop("healthy"))
        yield MetricSpec(tag=tag, group=written["group"], reading=reading, health=health, alarms=alarms, **fields)


METRICS: tuple[MetricSpec, ...] = tuple(spec for heading in HEADINGS for spec in _definitions(heading))
"""Definitions of all tags of a run."""


def _rules() -> dict[str, AlarmRule]:
    """Join what the definitions of several metrics say of one signature."""
    rules: dict[str, AlarmRule] = {}
    for spec in METRICS:
        for name, rule in spec.alarms.items():
            joined = rules.get(name, AlarmRule(None, None, {}))
            with_looks = joined if rule.hits is None else rule
            thresholds = {**joined.thresholds, **rule.thresholds}
            rules[name] = AlarmRule(with_looks.hits, with_looks.window, thresholds)
    return rules


RULES = _rules()
"""Collapse signature -> its looks and all its thresholds."""


def threshold(name: str) -> float:
    """Return a threshold of a signature, ``<signature>.<threshold>``.

    >>> threshold("dead_group_flood.dead")
    0.9
    """
    signature, _, field_name = name.partition(".")
    return RULES[signature].thresholds[field_name]
