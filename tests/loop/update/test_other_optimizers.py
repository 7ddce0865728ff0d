"""Optimizers of packages and of one's own, named in a config: those that cannot train here are refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gspo_lightning.cli import main
from gspo_lightning.policy.strategies.optimizer_trial import try_steps
from tests.runs import runs

PLUGIN = Path(__file__).with_name("own_optimizers.py")
PACKAGE = '''
import torch


class SecondOrder(torch.optim.SGD):
    """Differentiates the gradients once more, as AdaHessian does; a run does not keep their graph."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            torch.autograd.grad([p.grad.sum() for p in group["params"]], group["params"])
        return loss


class Bare(torch.optim.SGD):
    """Has a step without arguments, which needs gradients, as the Muon of muon-optimizer has."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"])


class WithoutSkips(torch.optim.SGD):
    """Needs gradients at every step; a run skips updates that teach nothing."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["size"] = p.grad.norm()
        return loss


class Orthogonalized(torch.optim.SGD):
    """Steps matrices only, as the Muon of muon-optimizer does."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                assert p.grad is None or p.grad.ndim >= 2
        return loss
'''


def refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, more: Sequence[str] = (), **options: Any
) -> str:
    """The message of ``gspo fit`` with an optimizer; before any rollout."""
    optimizer = json.dumps({"class_path": name, "init_args": options})
    argv = [
        "fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, f"--plugins+={PLUGIN}",
        f"--model.optimizer={optimizer}", f"--trainer.default_root_dir={tmp_path}", *more,
    ]  # fmt: skip
    assert main(argv) == 2
    assert not list(tmp_path.rglob("*.ckpt"))
    return capsys.readouterr().err


def test_an_optimizer_that_evaluates_other_weights_than_it_trains_is_refused_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused("ScheduleFree", tmp_path, capsys)
    assert "model.optimizer: ScheduleFree evaluates other weights than it trains (its train() and eval())" in message
    assert "EMAWeightAveraging" in message


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Lookahead", "Lookahead goes on otherwise after a checkpoint: it keeps something outside of its state_dict"),
        ("Forgetful", "Forgetful goes on otherwise after a checkpoint: it keeps something outside of its state_dict"),
        (
            "FromZero",
            "FromZero forgets what a model has learned: where the gradient is 0, a step moves its weights by 100%",
        ),
        ("KeepsObjects", "KeepsObjects keeps state that no checkpoint can be read with"),
    ],
)
def test_an_optimizer_that_does_not_go_on_from_what_it_is_given_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(name, tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "ScaledByFirst",
            "ScaledByFirst moves weights whose first gradient is 0, as of matrix A of every adapter, 0 times as far",
        ),
        ("InProportion", "InProportion moves weights that begin at 0, as matrix B of every adapter, 0 times as far"),
    ],
)
def test_an_optimizer_that_leaves_half_of_an_adapter_untrained_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(name, tmp_path, capsys, more=["--model.lora.r=2"], lr=1e-2)
    optimizer = json.dumps({"class_path": name, "init_args": {"lr": 1e-2}})
    runs.fit(tmp_path / "whole", *runs.UNTAUGHT, f"--plugins+={PLUGIN}", f"--model.optimizer={optimizer}")


def test_any_exception_of_a_packages_constructor_is_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bitsandbytes")
    message = refused("bitsandbytes.optim.SGD", tmp_path, capsys, lr=1e-3)
    assert "model.optimizer: SGD refuses the model's weights or a setting: SGD without momentum" in message


@pytest.mark.parametrize("name", [n for n in dir(torch.optim) if n not in ("Optimizer", "SparseAdam")])
def test_optimizers_of_torch_step_and_resume_exactly(name: str) -> None:
    kind = getattr(torch.optim, name)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        return
    torch.manual_seed(0)
    layer = nn.Linear(9, 13, bias=False)
    try_steps(lambda weights: kind(weights, lr=1e-3), nn.ModuleDict({"lora_A": nn.ModuleDict({"default": layer})}))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``of_a_package`` importable."""
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "of_a_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(packages))


def test_a_step_without_arguments_is_that_of_the_same_rule_with_a_closure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    weights = []
    for name in ("torch.optim.SGD", "of_a_package.Bare"):
        optimizer = json.dumps({"class_path": name, "init_args": {"lr": 0.1}})
        run = runs.fit(tmp_path / name, *runs.UNTAUGHT, f"--model.optimizer={optimizer}")
        weights.append(runs.weights(run))
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("SecondOrder", "SecondOrder cannot step here: element 0 of tensors does not require grad"),
        (
            "WithoutSkips",
            "WithoutSkips cannot step without gradients, as in an update that is skipped: 'NoneType' object",
        ),
        ("Orthogonalized", "Orthogonalized cannot step weights of 1 dimension, which the model has: AssertionError"),
    ],
)
def test_an_optimizer_of_a_package_that_cannot_step_the_weights_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    assert f"model.optimizer: {problem}" in refused(f"of_a_package.{name}", tmp_path, capsys, lr=1e-3)
