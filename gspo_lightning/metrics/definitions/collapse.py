"""The metrics of collapse (docs/collapse.md)."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["COLLAPSE"]

COLLAPSE = (
    MetricSpec(
        "collapse/alarms",
        "signatures of collapse that are present after this update (docs/collapse.md), not only those just raised",
        "signatures",
        "0 throughout",
        "Read alarms.json in the run folder: which signature, since when, what to do; the batch is in dumps/.",
        "Collapse",
    ),
    MetricSpec(
        "collapse/rollbacks",
        "number of times that weights and optimizer were rolled back to a good checkpoint since the run began",
        "rollbacks",
        "0 throughout",
        "After one, compare the curves before and after; if it happens again, lower the learning rate for good.",
        "Collapse",
    ),
    MetricSpec(
        "alarms",
        "which signature, since when, what was seen, what was done, and where the batch is",
        "table",
        "empty throughout",
        "Follow its last column; gspo replay shows what the dumped update saw.",
        "Collapse",
        kind="text",
        when="runs with an alarm",
    ),
)
