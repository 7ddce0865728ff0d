"""What a precision can bear, with values computed by hand."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from gspo_lightning.commands.doctor.precision import findings
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.old_policy.noise import band, check_ratio_noise, ratio_noise
from gspo_lightning.objectives import CISPO, GSPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.row_isolation import probe, probe_length
from gspo_lightning.policy.policy import Policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings())


def test_band_is_the_smaller_side() -> None:
    assert band(GSPO(clip_low=3e-4, clip_high=4e-4)) == 3e-4
    assert band(CISPO(clip_low=1.0, clip_high=0.2)) == 0.2


def test_noise_of_equal_evaluations_is_zero_and_of_others_is_measured(policy: Policy) -> None:
    batch = probe(policy)
    assert ratio_noise(policy, batch) == 0.0
    shifted = policy(batch)[0].detach() + 2e-3
    assert ratio_noise(policy, batch, lambda: shifted) == pytest.approx(2e-3, rel=1e-3)


def test_a_policy_that_is_not_repeatable_is_refused(policy: Policy) -> None:
    noise = iter([0.0, 1e-3])
    handle = policy.register_forward_hook(lambda *a: (a[2][0] + next(noise), a[2][1]))
    try:
        with pytest.raises(UserError, match="it would clip noise"):
            check_ratio_noise(policy, probe(policy), GSPO(), contextlib.nullcontext)
    finally:
        handle.remove()
    check_ratio_noise(policy, probe(policy), GSPO(), contextlib.nullcontext)


def rows_of(policy: Policy, packed: bool) -> MicroBatch:
    policy.packed = packed
    return probe(policy, probe_length(policy, 300, 4096))


@contextlib.contextmanager
def moving(policy: Policy, by: Callable[[int, bool], float]) -> Iterator[list[tuple[int, bool]]]:
    """Log-probabilities move by the number of rows and by whether there are gradients; yields these of each call."""
    seen: list[tuple[int, bool]] = []

    def move(module: nn.Module, inputs: tuple[MicroBatch], output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        seen.append((inputs[0].response_mask.shape[0], output[0].requires_grad))
        return output[0] + by(*seen[-1]), output[1]

    handle = policy.register_forward_hook(move)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.parametrize("packed", [True, False])
def test_a_policy_that_depends_on_the_cut_is_refused(policy: Policy, packed: bool) -> None:
    rows = rows_of(policy, packed)
    assert int(rows.lengths.max()) == 300
    with (
        moving(policy, lambda count, gradients: 1e-3 * count) as seen,
        pytest.raises(UserError, match=r"cut into smaller ones that differ by 2\.0e-03 nats"),
    ):
        check_ratio_noise(policy, rows, GSPO(), contextlib.nullcontext)
    assert seen == [(4, False), (4, True), (2, False), (2, False)]  # old log-probabilities, an update, two pieces
    check_ratio_noise(policy, rows, GSPO(), contextlib.nullcontext)


def test_a_policy_that_differs_with_gradients_is_refused(policy: Policy) -> None:
    with (
        moving(policy, lambda count, gradients: 1e-3 * gradients),
        pytest.raises(UserError, match=r"of one micro-batch that differ by 1\.0e-03 nats"),
    ):
        check_ratio_noise(policy, rows_of(policy, True), GSPO(), contextlib.nullcontext)


def test_where_products_are_rounded_another_cut_is_only_mentioned(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), moving(policy, lambda count, gradients: 1e-3 * count):
        check_ratio_noise(policy, rows_of(policy, True), GSPO(), lambda: torch.autocast("cpu", torch.bfloat16))
    told = re.search(r"differ by (\S+) nats on average over a sequence, and GSPO clips at 0\.0003", caplog.text)
    assert told is not None
    assert float(told[1]) == pytest.approx(2e-3, abs=1e-3)  # 1e-3 for each of two rows, and what bfloat16 rounds


def test_a_probe_fits_into_the_model_and_into_a_micro_batch(policy: Policy) -> None:
    positions = policy.model.config.max_position_embeddings
    assert probe_length(policy, 10**6, 10**6) == min(positions, 4096)
    assert probe_length(policy, 60, 10**6) == 60
    assert probe_length(policy, 60, 80) == 20
    assert probe_length(policy, 4, 16) == 9


def test_doctor_finds_every_precision_repeatable_and_bfloat16_apart_from_float32() -> None:
    found = {}
    name = ""
    for finding in findings():
        name = finding.what if not finding.what.startswith(" ") else name
        found[name, finding.what.strip()] = finding.state
    assert all(found[name, name] == "ok" for name, _ in found)
    assert found["32-true", "the other layout (padded)"] == "ok"
    assert found["bf16-mixed", "in float32"] == found["model.dtype: bfloat16", "in float32"] == "note"
