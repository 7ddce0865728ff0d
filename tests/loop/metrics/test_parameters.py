"""What an update did to the weights: by hand, and the same from replicas and shards."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gspo_lightning.loop.metrics import parameters
from gspo_lightning.loop.metrics.parameters import ParameterMetrics
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.policy.strategies.sharding import is_sharded
from tests.runs.ranks import two_ranks


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 4, bias=False))


def step(module: nn.Module) -> None:
    """Every weight grows by a tenth, those below 0 stay."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.1 * p.clamp(min=0)


def measured(module: nn.Module, update_metrics: ParameterMetrics) -> dict[str, float]:
    update_metrics.before_step(module)
    step(module)
    return update_metrics.after_step(module)


def test_size_and_share_by_hand() -> None:
    whole = model()
    before = torch.cat([p.detach().flatten() for p in whole.parameters()]).double()
    found = measured(whole, ParameterMetrics(whole))
    assert found["update/changed"] == pytest.approx(float((before > 0).double().mean()))
    assert found["update/relative_norm"] == pytest.approx(
        0.1 * float(before.clamp(min=0).norm() / before.norm()), rel=1e-5
    )
    after = torch.cat([p.detach().flatten() for p in whole.parameters()]).double()
    assert found["weights/other"] == pytest.approx(float(after.norm()), rel=1e-6)


def test_frozen_weights_do_not_count() -> None:
    whole = model()
    whole[0].requires_grad_(False)
    after = whole[1].weight.detach().clone()
    found = measured(whole, ParameterMetrics(whole))
    assert found["weights/other"] == pytest.approx(float((after + 0.1 * after.clamp(min=0)).norm()), rel=1e-6)


def test_a_large_model_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "SAMPLE", 1000)
    large = nn.Sequential(*(nn.Linear(50, 60, bias=False) for _ in range(5)), nn.Linear(7, 1, bias=False))
    update_metrics = ParameterMetrics(large)
    update_metrics.before_step(large)
    assert update_metrics._before is not None
    assert update_metrics._before.numel() == 938  # 15,007 weights, every 16th of all of them laid end to end
    everything = torch.cat([p.detach().flatten() for p in large.parameters()])
    assert torch.equal(update_metrics._before, everything[::16])
    step(large)
    assert update_metrics.after_step(large)["update/changed"] == pytest.approx(0.5, abs=0.05)


def test_a_remembered_single_weight_matrix_is_a_copy() -> None:
    single = nn.Linear(3, 3, bias=False)
    assert measured(single, ParameterMetrics(single))["update/changed"] > 0


def _rank(rank: int) -> list[dict[str, float]]:
    found = []
    for sharded in (False, True):
        module = model()
        update_metrics = ParameterMetrics(module)
        if sharded:
            fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        assert is_sharded(module) == sharded
        found.append(measured(module, update_metrics))
    return found


def test_replicas_and_shards_on_two_ranks_measure_what_one_process_does() -> None:
    whole = model()
    expected = measured(whole, ParameterMetrics(whole))
    for of_a_rank in two_ranks(_rank):
        for found in of_a_rank:
            assert found == pytest.approx(expected, rel=1e-6)


def test_a_spike_is_measured_against_the_median_before_it_and_state_goes_on() -> None:
    update_metrics = UpdateMetrics("basic")
    policy = model()
    found = [
        update_metrics.before_step(policy, norm)["optim/gradient_spike"] for norm in (2.0, 4.0, 0.0, 6.0, float("nan"))
    ]
    assert found[:4] == [1.0, 2.0, 0.0, 2.0]  # medians 2, 2, 3, 3
    again = UpdateMetrics("basic")
    again.load_state_dict(update_metrics.state_dict())
    assert again.before_step(policy, 8.0) == update_metrics.before_step(policy, 8.0) == {"optim/gradient_spike": 2.0}
