"""What the definition of a metric says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gspo_lightning.metrics.definitions.reading import Reading

__all__ = ["FULL", "Kind", "MetricSpec"]

FULL = "model.metrics: full"
"""``when`` of what is measured unless a run asks for less."""

Kind = Literal["scalar", "histogram", "text", "picture"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One line of the table. ``<...>`` in a tag stands for a name; ``when`` is empty for what every run logs."""

    tag: str
    """The TensorBoard tag, or a template such as ``val/pass@<k>``."""
    definition: str
    """The formula or count, exact."""
    unit: str
    """What one unit on the y axis is."""
    healthy: str
    """The range of a healthy run, and why."""
    what_to_do: str
    """One sentence for the run that is outside of it."""
    group: str
    """The heading it stands under."""
    kind: Kind = "scalar"
    """How it is stored."""
    when: str = ""
    """The runs or updates that have it, where not all do."""
    reading: Reading | None = None
    """The sum that it is read from, and how; None where it is none of the sums of an update."""
