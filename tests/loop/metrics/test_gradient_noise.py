"""The noise of a mini-batch's gradient, by hand, without bias, and the same on two ranks as on one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.gradient_noise import GradientNoise, noise_and_signal, split_groups
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.loop.old_policy import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.loop.update.micro_batches import all_but_last_backward
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from tests.policy.packing.test_batches import groups, rollout
from tests.runs.ranks import two_ranks

CPU = torch.device("cpu")
TAG = "update/gradient_noise"


def parts_of(*rows: int) -> list[MicroBatch]:
    """Micro-batches of so many rows."""
    return [make_micro_batch([rollout(1, k, 2, 2) for k in range(n)]) for n in rows]


class Line(nn.Module):
    """Two weights whose gradient is whatever is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def update(
    line: Line, noise: GradientNoise, rows: Sequence[int], gradients: Sequence[Sequence[float]]
) -> dict[str, float]:
    line.weight.grad = None
    noise.start(parts_of(*rows))
    for gradient in gradients:
        line(torch.tensor(gradient)).backward()
    assert line.weight.grad is not None
    return noise.finish(float(line.weight.grad.norm()), CPU)


def test_two_updates_by_hand() -> None:
    """One row gave (1, 0), three rows (-3, 0): squares 10, of the sum 4, N = 4, sum of n_j^2 = 10.

    variance = (10 * 16 - 4 * 10) / 6 = 20, signal = (4 - 10) * 16 / 6 = -16. Then (1, 0) and (9, 0): 82 and 100, so
    (82 * 16 - 100 * 10) / 6 = 52 and (100 - 82) * 16 / 6 = 48.
    """
    line = Line()
    noise = GradientNoise(line)
    assert update(line, noise, (1, 3), [(1.0, 0.0), (-3.0, 0.0)]) == {}  # nothing to compare the noise with
    assert update(line, noise, (1, 3), [(1.0, 0.0), (9.0, 0.0)]) == {TAG: pytest.approx((20 + 52) / (-16 + 48))}
    again = GradientNoise(Line())
    again.load_state_dict(json.loads(json.dumps(noise.state_dict())))
    assert again.state_dict() == [pytest.approx([20, -16]), pytest.approx([52, 48])]


def test_neither_estimate_has_a_bias() -> None:
    """Rows are independent with mean (2, 1) and variance 9 + 4, in micro-batches of 1, 2 and 5 rows."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20_000, 8, 2, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 2.0])
    rows = rows + torch.tensor([2.0, 1.0])
    parts = [part.sum(dim=1) for part in rows.split([1, 2, 5], dim=1)]
    squares = float(torch.stack([p.square().sum(dim=1) for p in parts]).sum(dim=0).mean())
    whole = float(sum(parts).square().sum(dim=1).mean())
    noise, signal = noise_and_signal(squares, whole, (8.0, 30.0))
    assert noise == pytest.approx(8 * 13, rel=0.02)
    assert signal == pytest.approx(64 * 5, rel=0.02)


def test_noise_is_not_logged_for_one_micro_batch_or_nan_gradients() -> None:
    line = Line()
    noise = GradientNoise(line)
    assert update(line, noise, (4,), [(1.0, 1.0)]) == {}  # a single micro-batch
    assert noise.finish(1.0, CPU) == {}  # no update began
    line(torch.tensor([5.0, 5.0])).backward()  # of a check, say
    assert update(line, noise, (1, 1), [(math.nan, 0.0), (1.0, 0.0)]) == {}
    assert noise.state_dict() == []


def test_a_second_attempt_with_smaller_pieces_forgets_the_first() -> None:
    line = Line()
    noise = GradientNoise(line)
    noise.start(parts_of(4, 4))
    line(torch.tensor([100.0, 100.0])).backward()  # then memory ran out
    assert update(line, noise, (1, 3), [(1.0, 0.0), (9.0, 0.0)]) == {TAG: pytest.approx(52 / 48)}


def test_the_gradients_are_those_of_the_micro_batches(policy: Policy) -> None:
    """Against each micro-batch's gradient, computed alone."""
    every = groups([[3, 5], [4, 4], [1, 6], [2, 2]])
    for r in (r for group in every for r in group):
        r.token_ids, r.advantage = r.token_ids % 20 + 2, r.sample - 0.4
        r.prompt = type(r.prompt)(r.prompt.id, "p", tuple(t % 20 + 2 for t in r.prompt.token_ids))
    (batch,) = RolloutBatch.of(every, mini_batches=1, max_tokens=16, packed=True).mini_batches
    assert len(batch.micro_batches) >= 3
    terms = LossTerms(policy, CachedLogProbs(), GSPO(), 1.0)
    weights = [p for p in policy.parameters() if p.requires_grad]
    denominator = mini_batch_count(terms.objective, batch.micro_batches)
    alone = [
        torch.cat(
            [
                g.flatten().double()
                for g in torch.autograd.grad(
                    micro_batch_loss(part, terms, denominator=denominator, sums=MetricSums(), on_policy=True), weights
                )
            ]
        )
        for part in batch.micro_batches
    ]
    sizes = [len(part.advantages) for part in batch.micro_batches]
    wanted = noise_and_signal(
        sum(float(g.square().sum()) for g in alone), float(sum(alone).square().sum()),
        (float(sum(sizes)), float(sum(n * n for n in sizes))),
    )  # fmt: skip
    update_metrics = UpdateMetrics("full")
    update_metrics.watch(policy)
    sums = update_metrics.sums(batch.micro_batches)
    all_but_last_backward(batch.micro_batches, terms, sums, on_policy=True).backward()
    norm = math.sqrt(sum(float(w.grad.double().square().sum()) for w in weights if w.grad is not None))
    found = update_metrics.before_step(policy, norm)
    assert update_metrics.state_dict()["noise"] == [pytest.approx(wanted, rel=1e-4)]
    assert found.get(TAG) == (pytest.approx(wanted[0] / wanted[1], rel=1e-4) if wanted[1] > 0 else None)


def test_a_group_in_two_micro_batches_is_no_sample_of_two() -> None:
    """Its advantages add up to 0, so its parts cancel: halves of groups look like all noise and no signal."""
    generator = torch.Generator().manual_seed(0)
    right = (torch.rand(4000, 4, 8, 1, generator=generator) < 0.5).double()
    shared = 3 * torch.randn(4000, 4, 1, 3, generator=generator, dtype=torch.float64)
    own = torch.randn(4000, 4, 8, 3, generator=generator, dtype=torch.float64) + 0.5 * right
    rows = (right - right.mean(dim=2, keepdim=True)) * (shared + own)
    whole, halves = rows.sum(dim=2), rows.view(4000, 4, 2, 4, 3).sum(dim=3).flatten(1, 2)
    found = []
    for parts, size in ((whole, 8.0), (halves, 4.0)):
        squares = float(parts.square().sum(dim=(1, 2)).mean())
        total = float(parts.sum(dim=1).square().sum(dim=1).mean())
        found.append(noise_and_signal(squares, total, (32.0, 32.0 * size)))
    noise, signal = float(4 * whole.flatten(0, 1).var(dim=0).sum()), float((4 * whole.mean(dim=(0, 1))).square().sum())
    assert found[0] == (pytest.approx(noise, rel=0.05), pytest.approx(signal, rel=0.05))
    assert found[1][0] > 5 * noise
    assert found[1][1] < 0


@pytest.mark.parametrize(("budget", "split"), [(1000, False), (24, False), (16, False), (12, True)])
def test_noise_is_not_measured_where_a_group_is_split(budget: int, split: bool) -> None:
    (batch,) = RolloutBatch.of(
        groups([[3, 5, 6], [4, 4], [1, 6]]), mini_batches=1, max_tokens=budget, packed=True
    ).mini_batches
    line, update_metrics = Line(), UpdateMetrics("full")
    update_metrics.watch(line)
    for gradient in ((1.0, 0.0), (9.0, 1.0)):
        update_metrics.sums(batch.micro_batches)
        line.weight.grad = None
        for _ in batch.micro_batches:
            line(torch.tensor(gradient)).backward()
        assert line.weight.grad is not None
        update_metrics.before_step(line, float(line.weight.grad.norm()))
    prompts = [{int(ids[0]) for ids in part.input_ids} for part in batch.micro_batches]
    assert split == (sum(map(len, prompts)) > 3)
    assert len(update_metrics.state_dict()["noise"]) == (2 if len(prompts) > 1 and not split else 0)


def test_which_rows_are_of_one_group_is_known_without_asking_the_device() -> None:
    """Tensors of the meta device cannot be read at all; groups are whole, or one of them is in two parts."""
    every = groups([[3, 5, 6], [4, 4]])
    for budget, numbers in ((20, [(0, 0, 0), (1, 1)]), (12, [(0, 0), (1, 1), (1,)])):
        (batch,) = RolloutBatch.of(every, mini_batches=1, max_tokens=budget, packed=True).mini_batches
        parts = [part.to("meta") for part in batch.micro_batches]
        assert [part.group_index for part in parts] == numbers
        assert split_groups(parts) is (budget == 12)
    assert split_groups([replace(part, group_index=None) for part in parts[-1:]])  # unknown: nothing is measured


ROWS = ((1, 3), (2, 2))
GRADIENTS = (((1.0, 2.0), (9.0, 0.0)), ((3.0, 1.0), (2.0, 2.0)))


def _rank(rank: int, dependent: int | None = None) -> dict[str, float]:
    line = Line()
    noise = GradientNoise(line)
    ddp = DistributedDataParallel(line)
    noise.start(parts_of(*ROWS[rank]), independent=rank != dependent)
    for i, gradient in enumerate(GRADIENTS[rank]):
        with nullcontext() if i else ddp.no_sync():
            (2 * ddp(torch.tensor(gradient))).backward()  # DDP averages, an update adds up
    assert line.weight.grad is not None
    found = noise.finish(float(line.weight.grad.norm()), CPU)
    del ddp  # it would be the group's last owner, and its destructor joins threads that wait for the GIL it holds
    return found


def test_two_ranks_measure_what_one_process_does() -> None:
    line = Line()
    wanted = update(line, GradientNoise(line), [*ROWS[0], *ROWS[1]], [*GRADIENTS[0], *GRADIENTS[1]])
    assert wanted
    for found in two_ranks(_rank):
        assert found == pytest.approx(wanted, rel=1e-6)


def test_noise_is_measured_on_no_rank_if_one_splits_a_group() -> None:
    assert two_ranks(_rank, 1) == [{}, {}]
