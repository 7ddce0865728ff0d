"""Optimizers on the shards of two ranks: those that step otherwise than one process, and only those, are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim import _muon

from gspo_lightning.core.distributed import local
from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.strategies.optimizer_state import load_shards
from gspo_lightning.policy.strategies.optimizer_trial import try_steps
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import two_ranks

OWN = ROOT / "tests" / "loop" / "update" / "own_optimizers.py"
SINGLE: dict[str, dict[str, Any]] = {
    "ASGD": {}, "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "AdamW": {}, "Adamax": {},
    "LBFGS": {}, "Muon": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.9, "centered": True}, "Rprop": {},
    "SGD": {"momentum": 0.9, "dampening": 0.5},
}  # fmt: skip
"""Name in torch.optim -> options; SparseAdam takes no dense gradients."""
CASES = {(name, ""): options for name, options in SINGLE.items()} | {
    (name, "fused"): {"fused": True} for name in ("Adagrad", "Adam", "AdamW", "SGD")
}
REFUSED = {
    "fsdp2": {("Adafactor", ""), ("LBFGS", ""), ("Rprop", ""), ("Adagrad", "fused"), ("SGD", "fused")},
    "fsdp": {("Adafactor", ""), ("LBFGS", ""), ("Muon", "")},
}


def network(kind: str = "") -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 13, bias=False), nn.Tanh(), nn.Linear(13, 4, bias=False))
    if kind == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if kind == "fsdp":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    return model


def trained(model: nn.Module, rank: int | None, build: Callable[[Any], torch.optim.Optimizer]) -> torch.Tensor:
    """Weights after three steps on the mean of 16 rows, of which a rank has half."""
    generator = torch.Generator().manual_seed(1)
    rows, targets = torch.randn(16, 9, generator=generator), torch.randn(16, 4, generator=generator)
    part = slice(None) if rank is None else slice(8 * rank, 8 * rank + 8)
    optimizer = build(list(model.parameters()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(rows[part]) - targets[part]).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        with torch.enable_grad():
            optimizer.step(closure)
    with FullyShardedDataParallel.summon_full_params(model):
        weights = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
        return torch.cat([weight.detach().flatten() for weight in weights]).clone()


def compared(rank: int, kind: str) -> dict[tuple[str, str], tuple[float | str, bool]]:
    """Case -> difference to one process relative to what it moves, or the error; and True if it is refused."""
    found = {}
    start = torch.cat([p.detach().flatten() for p in network().parameters()])
    for case, options in CASES.items():

        def build(parameters: Any, case: Any = case, options: Any = options) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = getattr(torch.optim, case[0])(parameters, lr=1e-2, **options)
            return optimizer

        refused, difference = False, 0.0
        model = network(kind)
        try:
            try_steps(build, model)
        except UserError:
            refused = True
        outcome: float | str
        try:
            whole = trained(network(), None, build)
            difference = float((trained(model, rank, build) - whole).norm() / (whole - start).norm())
            outcome = difference
        except Exception as error:
            outcome = type(error).__name__
        found[case] = outcome, refused
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", REFUSED)
def test_refused_optimizers_are_exactly_those_wrong_on_shards(kind: str) -> None:
    for found in two_ranks(compared, kind):
        assert isinstance(found, dict), found
        assert {case for case, (_, refused) in found.items() if refused} == REFUSED[kind]
        for case, (outcome, refused) in found.items():
            if refused:
                assert isinstance(outcome, str) or outcome > 0.05, case
            elif case != ("Muon", ""):
                assert isinstance(outcome, float), (case, outcome)
                assert outcome < 1e-5, case


def resumed(rank: int, folder: str) -> dict[tuple[str, str], bool]:
    """Case -> True if two steps, a checkpoint of shards and two steps are four steps under FSDP2, bit for bit."""
    found = {}
    for number, (case, options) in enumerate(CASES.items()):
        if case in REFUSED["fsdp2"]:
            continue
        kind = getattr(torch.optim, case[0])
        models = [network("fsdp2") for _ in range(2)]
        first, second = (kind(list(model.parameters()), lr=1e-2, **options) for model in models)
        for step in range(4):
            if step == 2:
                path = Path(folder, str(number))
                state = get_optimizer_state_dict(models[0], first)
                save({"optimizer_0": state}, checkpoint_id=path)
                models[1].load_state_dict(models[0].state_dict())
                load_shards(path, "optimizer_0", models[1], second)
            for model, optimizer in zip(models[: 1 + step // 2], (first, second), strict=False):
                for parameter in model.parameters():
                    parameter.grad = (parameter.detach() + step).sin()
                optimizer.step()
        pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
        found[case] = all(torch.equal(local(a.detach()), local(b.detach())) for a, b in pairs)
    return found


@pytest.mark.thorough
def test_allowed_optimizers_resume_exactly_from_shards(tmp_path: Path) -> None:
    for found in two_ranks(resumed, str(tmp_path)):
        assert isinstance(found, dict), found
        assert len(found) == len(CASES) - len(REFUSED["fsdp2"])
        assert {case for case, equal in found.items() if not equal} == set()


def muon_in_float32(rank: int) -> float:
    """Difference of Muon on shards to one process if its iteration does not round to bfloat16."""
    iterate = _muon._zeropower_via_newtonschulz
    _muon._zeropower_via_newtonschulz = exact  # type: ignore[assignment]
    try:
        start = torch.cat([p.detach().flatten() for p in network().parameters()])
        weights = [
            trained(model, number, lambda p: torch.optim.Muon(p, lr=1e-2))
            for model, number in ((network(), None), (network("fsdp2"), rank))
        ]
    finally:
        _muon._zeropower_via_newtonschulz = iterate
    return float((weights[1] - weights[0]).norm() / (weights[0] - start).norm())


def exact(gradient: torch.Tensor, factors: tuple[float, float, float], steps: int, eps: float) -> torch.Tensor:
    """The Newton-Schulz iteration of Muon (Jordan, 2024) in the gradient's precision."""
    tall = gradient.size(0) > gradient.size(1)
    matrix = gradient.T if tall else gradient
    matrix = matrix / matrix.norm().clamp(min=eps)
    for _ in range(steps):
        gram = matrix @ matrix.T
        matrix = factors[0] * matrix + (factors[1] * gram + factors[2] * gram @ gram) @ matrix
    return matrix.T if tall else matrix


def test_muon_on_shards_is_muon_but_for_its_rounding() -> None:
    for difference in two_ranks(muon_in_float32):
        assert isinstance(difference, float), difference
        assert difference < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        pytest.param("torch.optim.Adafactor", [], "Adafactor cannot step sharded weights", id="Adafactor"),
        pytest.param(
            "torch.optim.SGD", ["--model.optimizer.fused=true"], "SGD with fused: true cannot step sharded", id="fused"
        ),
        pytest.param("NormalizedRows", [], "NormalizedRows needs whole matrices", id="large"),
    ],
)
def test_a_run_is_refused_before_its_rollouts(name: str, options: list[str], message: str, tmp_path: Path) -> None:
    argv = ["fit", f"--config={runs.QUICKSTART}", f"--config={ROOT / 'configs' / 'fsdp2.yaml'}", *runs.SMALL]
    argv += ["--model.cold_start=null", "--trainer.accelerator=cpu", "--trainer.devices=2"]
    argv += [f"--plugins={OWN}", f"--model.optimizer={name}", "--model.optimizer.lr=1e-3", *options]
    log = tmp_path / "log"
    assert Command([*argv, f"--trainer.default_root_dir={tmp_path}"], 2, log=log).start().wait() == [2, 2]
    assert message in log.read_text()
    assert "torch.optim.AdamW, or trainer.strategy: ddp" in log.read_text()


@pytest.mark.thorough
def test_an_optimizer_that_cannot_step_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model.cold_start=null", "--model.optimizer=torch.optim.SparseAdam", "--model.optimizer.lr=1e-3"]
    runs.fit(tmp_path, *options, code=2)
    assert "model.optimizer: SparseAdam cannot step here: SparseAdam does not support dense" in capsys.readouterr().err
