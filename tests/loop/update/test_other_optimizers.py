"""Optimizers of packages and of one's own, named in a config: those that cannot train here are refused by name."""

from __future__ import annotations

import json
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
'''


def refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """The message of ``gspo fit`` with an optimizer; before any rollout."""
    optimizer = json.dumps({"class_path": name, "init_args": options})
    argv = [
        "fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, f"--plugins+={PLUGIN}",
        f"--model.optimizer={optimizer}", f"--trainer.default_root_dir={tmp_path}",
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
        ("Forgetful", "Forgetful goes on otherwise after a checkpoint: it keeps something outside of its state_dict"),
        ("KeepsObjects", "KeepsObjects keeps state that no checkpoint can be read with"),
    ],
)
def test_an_optimizer_that_does_not_resume_exactly_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(name, tmp_path, capsys)


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
    try_steps(lambda weights: kind(weights, lr=1e-3), nn.Linear(9, 13, bias=False))


def test_an_optimizer_of_a_package_that_needs_more_than_gradients_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "second_order.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(packages))
    message = refused("second_order.SecondOrder", tmp_path, capsys, lr=1e-3)
    assert "model.optimizer: SecondOrder cannot step here: element 0 of tensors does not require grad" in message
