"""An engine's random numbers are its own, although it draws them from the generators that everybody shares."""

from __future__ import annotations

import random

import numpy as np
import torch

from gspo_lightning.rollouts.vllm.process_state import RandomState


def draw() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


def test_two_streams_go_on_where_they_stopped() -> None:
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    alone = [draw(), draw(), draw()]
    torch.manual_seed(8), np.random.seed(8), random.seed(8)
    engine = [draw(), draw()]
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    state, mixed, theirs = RandomState(8), [draw()], []
    for _ in range(2):
        with state.in_use():
            theirs.append(draw())
        mixed.append(draw())
    assert mixed == alone
    assert theirs == engine


def test_an_error_leaves_the_generators_of_others_alone() -> None:
    state, before = RandomState(1), torch.get_rng_state()
    try:
        with state.in_use():
            torch.rand(1)
            raise KeyError
    except KeyError:
        assert torch.equal(torch.get_rng_state(), before)
