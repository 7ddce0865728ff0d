"""A critic's state is whole tensors, whatever mesh has written it, and every mesh reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gspo_lightning.core.distributed import local
from gspo_lightning.loop.critic.state import read_state, written_state
from tests.runs.ranks import two_ranks

MESHES = {"shards": (2,), "replicas": (2, 1)}


class Critic:
    """A backbone with a weight that two ranks cannot halve, its head, and two optimizers after a step."""

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        torch.manual_seed(0)
        self.backbone: nn.Module = nn.Linear(4, 3, bias=False)
        if shape is not None:
            names = ("replicate", "shard")[-len(shape) :]
            fully_shard(self.backbone, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
        self.head = nn.Linear(3, 1)
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=0.1) for part in (self.head, self.backbone)]

    def step(self) -> None:
        self.head(self.backbone(torch.ones(1, 4))).sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return written_state(self.backbone, self.head, self.optimizers)

    def read(self, state: dict[str, Any]) -> None:
        read_state(state, self.backbone, self.head, self.optimizers)


def _rank(rank: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a mesh writes, on the first rank as one process does; and whether it goes on from what one process wrote."""
    whole = Critic(None)
    whole.step()
    written = Critic(shape)
    written.step()
    trunk = written.state()["trunk"]["weight"]
    resumed = Critic(shape)
    resumed.read(whole.state())
    for critic in (written, resumed):
        critic.step()
    pieces = [local(next(critic.backbone.parameters()).detach()) for critic in (written, resumed)]
    expected = whole.state()["trunk"]["weight"]
    return {
        "written": rank > 0 or all(torch.equal(trunk[name], expected[name]) for name in ("weight", "exp_avg")),
        "step": trunk["step"],
        "goes on": torch.equal(*pieces),
    }


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_writes_and_reads_the_state_of_one_process(mesh: str) -> None:
    results = two_ranks(_rank, MESHES[mesh])
    assert results[0] == {"written": True, "step": 1.0, "goes on": True}
    assert results[1]["goes on"] is True
