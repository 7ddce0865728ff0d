"""What an update did to the weights: by hand, and the same from replicas and shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gspo_lightning.metrics import parameters
from gspo_lightning.metrics.meter import UpdateMeter
from gspo_lightning.metrics.parameters import ParameterMeter
from gspo_lightning.strategies.sharding import is_sharded
from tests.runs.processes import in_processes


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 4, bias=False))


def step(module: nn.Module) -> None:
    """Every weight grows by a tenth, those below 0 stay."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.1 * p.clamp(min=0)


def measured(module: nn.Module, meter: ParameterMeter) -> dict[str, float]:
    meter.before_step(module)
    step(module)
    return meter.after_step(module)


def test_size_and_share_by_hand() -> None:
    whole = model()
    before = torch.cat([p.detach().flatten() for p in whole.parameters()]).double()
    found = measured(whole, ParameterMeter(whole))
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
    found = measured(whole, ParameterMeter(whole))
    assert found["weights/other"] == pytest.approx(float((after + 0.1 * after.clamp(min=0)).norm()), rel=1e-6)


def test_a_large_model_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "SAMPLE", 1000)
    large = nn.Sequential(*(nn.Linear(50, 60, bias=False) for _ in range(5)), nn.Linear(7, 1, bias=False))
    meter = ParameterMeter(large)
    meter.before_step(large)
    assert meter._before is not None
    assert meter._before.numel() == 938  # 15,007 weights, every 16th of all of them laid end to end
    everything = torch.cat([p.detach().flatten() for p in large.parameters()])
    assert torch.equal(meter._before, everything[::16])
    step(large)
    assert meter.after_step(large)["update/changed"] == pytest.approx(0.5, abs=0.05)


def test_a_remembered_single_weight_matrix_is_a_copy() -> None:
    single = nn.Linear(3, 3, bias=False)
    assert measured(single, ParameterMeter(single))["update/changed"] > 0


def _rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        found = []
        for sharded in (False, True):
            module = model()
            meter = ParameterMeter(module)
            if sharded:
                fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
            assert is_sharded(module) == sharded
            found.append(measured(module, meter))
        Path(folder, str(rank)).write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def test_replicas_and_shards_on_two_ranks_measure_what_one_process_does(tmp_path: Path) -> None:
    whole = model()
    expected = measured(whole, ParameterMeter(whole))
    in_processes(_rank, str(tmp_path))
    for rank in range(2):
        for found in json.loads((tmp_path / str(rank)).read_text()):
            assert found == pytest.approx(expected, rel=1e-6)


def test_a_spike_is_measured_against_the_median_before_it_and_state_goes_on() -> None:
    meter = UpdateMeter("basic")
    policy = model()
    found = [meter.before_step(policy, norm)["optim/gradient_spike"] for norm in (2.0, 4.0, 0.0, 6.0, float("nan"))]
    assert found[:4] == [1.0, 2.0, 0.0, 2.0]  # medians 2, 2, 3, 3
    again = UpdateMeter("basic")
    again.load_state_dict(meter.state_dict())
    assert again.before_step(policy, 8.0) == meter.before_step(policy, 8.0) == {"optim/gradient_spike": 2.0}
