"""Every objective through an update's own loss terms, on a model: whole runs are in tests/runs/test_options.py."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gspo_lightning.core.registry import components
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from tests.runs.test_positive_run import averaged_gradient, rollouts

NEEDED: dict[str, Any] = {"max_response_tokens": 12}
"""Arguments without a default."""
OURS = {name: cls for name, cls in components("objectives").items() if cls.__module__.startswith("gspo_lightning.")}


def made(cls: type[Objective]) -> Objective:
    needed = [p.name for p in inspect.signature(cls).parameters.values() if p.default is inspect.Parameter.empty]
    return cls(**{name: NEEDED[name] for name in needed})


@pytest.mark.parametrize("name", OURS)
def test_every_objective_moves_a_model_and_not_by_the_cut(name: str) -> None:
    found = []
    for cut in (False, True):
        policy = load_policy(ModelSettings()).train()
        whole = make_micro_batch(rollouts())
        parts = list(cut_rows(whole, 9, packed=False)) if cut else [whole]
        assert (len(parts) > 1) == cut
        terms = LossTerms(policy, CachedLogProbs(), made(OURS[name]), 1.0)
        found.append(averaged_gradient(parts, terms, 1))
    one, several = found
    assert max(abs(x) for values in one.values() for x in values) > 1e-5
    for weight, values in one.items():
        assert several[weight] == pytest.approx(values, abs=2e-6), weight
