"""Arguments of a component are those of its own class, unless a config or the command line wrote them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.cli import Parser
from gspo_lightning.training.build import build_optimizers
from gspo_lightning.training.module import GSPOModule
from gspo_lightning.training.reward_models import RewardModule

ADAMW = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-4, "weight_decay": 0.1, "betas": [0.8, 0.9]}}
CLASSES = ["Adam", "SGD", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Muon", "LBFGS"]


@pytest.fixture
def parsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function: the config that a command makes of ``model`` sections of files, and of arguments."""

    def parse(*models: Any, arguments: tuple[str, ...] = (), command: str = "fit") -> dict[str, Any]:
        files = []
        for number, model in enumerate(models):
            file = tmp_path / f"{number}.yaml"
            file.write_text(yaml.safe_dump({"model": model}))
            files.append(f"--config={file}")
        capsys.readouterr()
        assert main([command, *files, *arguments, "--print_config"]) == 0
        config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return config

    return parse


def defaults_of(name: str) -> dict[str, Any]:
    """PyTorch's own defaults of an optimizer, but for the weight decay."""
    parameters = inspect.signature(getattr(torch.optim, name)).parameters
    values = {key: parameter.default for key, parameter in parameters.items() if key != "params"}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return lists | ({"weight_decay": 0.0} if "weight_decay" in lists else {})


@pytest.mark.parametrize(
    ("command", "name"), [*(("fit", name) for name in CLASSES), ("fit-reward", "Adam"), ("fit-reward", "AdamW")]
)
def test_an_optimizer_has_its_own_defaults_and_decays_nothing(parsed: Any, command: str, name: str) -> None:
    chosen = parsed({}, arguments=(f"--model.optimizer=torch.optim.{name}",), command=command)["model"]["optimizer"]
    assert chosen == {"class_path": f"torch.optim.{name}", "init_args": defaults_of(name)}


@pytest.mark.parametrize(
    ("models", "arguments", "name", "written"),
    [
        ([{}], (), "AdamW", {}),
        ([{"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-4}}}], (), "Adam", {"lr": 1e-4}),
        ([{"optimizer": "torch.optim.Adam"}], (), "Adam", {}),
        ([{"optimizer": {"init_args": {"lr": 1e-4}}}], (), "AdamW", {"lr": 1e-4}),
        ([{"optimizer": {"init_args": {"lr": 1e-4}}}], ("--model.optimizer=torch.optim.SGD",), "SGD", {"lr": 1e-4}),
        ([{}], ("--model.optimizer.lr=1e-4",), "AdamW", {"lr": 1e-4}),
        ([{}], ("--model.optimizer.class_path=torch.optim.SGD",), "SGD", {}),
        # written values go on, those that the other class lacks are dropped
        ([{"optimizer": ADAMW}], (), "AdamW", ADAMW["init_args"]),
        ([{"optimizer": ADAMW}], ("--model.optimizer=torch.optim.AdamW",), "AdamW", ADAMW["init_args"]),
        ([{"optimizer": ADAMW}], ("--model.optimizer=torch.optim.Adam",), "Adam", ADAMW["init_args"]),
        ([{"optimizer": ADAMW}, {"optimizer": "torch.optim.SGD"}], (), "SGD", {"lr": 1e-4, "weight_decay": 0.1}),
        (
            [{"optimizer": ADAMW}, {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}}}],
            ("--model.optimizer.weight_decay=0.2",), "SGD", {"lr": 1.0, "weight_decay": 0.2},
        ),
        # the class in between has defaults of its own: its momentum does not reach the last one
        (
            [{"optimizer": "torch.optim.Muon"}, {"optimizer": "torch.optim.RMSprop"}],
            ("--model.optimizer=torch.optim.SGD",), "SGD", {},
        ),
    ],
)  # fmt: skip
def test_only_written_values_go_on_to_another_class(
    parsed: Any, models: list[Any], arguments: tuple[str, ...], name: str, written: dict[str, Any]
) -> None:
    chosen = parsed(*models, arguments=arguments)["model"]["optimizer"]
    assert chosen == {"class_path": f"torch.optim.{name}", "init_args": defaults_of(name) | written}


@pytest.mark.parametrize("command", ["fit", "fit-reward"])
def test_a_short_name_is_that_of_pytorch_whatever_is_imported(parsed: Any, command: str) -> None:
    eight_bits = {"class_path": "bitsandbytes.optim.AdamW8bit", "init_args": {"lr": 1e-4}}  # its package has an AdamW
    for name in ("AdamW", "SGD", "RMSprop"):
        chosen = parsed({"optimizer": eight_bits}, {"optimizer": name}, command=command)["model"]["optimizer"]
        assert chosen == {"class_path": f"torch.optim.{name}", "init_args": defaults_of(name) | {"lr": 1e-4}}
    lion = parsed({"optimizer": eight_bits}, arguments=("--model.optimizer=Lion8bit",), command=command)
    assert lion["model"]["optimizer"]["class_path"] == "bitsandbytes.optim.Lion8bit"


def test_a_printed_config_means_the_same(parsed: Any) -> None:
    first = parsed({"optimizer": "torch.optim.RMSprop"})
    assert parsed(first["model"])["model"] == first["model"]


class Nested:
    """A component with a component of its own, as a plug-in may have."""

    def __init__(self, build: OptimizerCallable = torch.optim.AdamW) -> None:
        self.build = build


def test_a_component_within_another_starts_from_its_own_defaults() -> None:
    parser = Parser(exit_on_error=False)
    parser.add_argument("--outer", type=Nested)
    chosen = {"class_path": f"{__name__}.Nested", "init_args": {"build": "torch.optim.RMSprop"}}
    outer = parser.parse_args([f"--outer={json.dumps(chosen)}"]).outer
    assert outer.init_args.build.init_args.as_dict() == defaults_of("RMSprop")


def built(module: GSPOModule | RewardModule) -> torch.optim.Optimizer:
    """The optimizer of a module over weights that need no model."""
    weights: Any = nn.Linear(1, 1)
    if isinstance(module, GSPOModule):
        optimizer = build_optimizers(weights, module.build_optimizer, None, lambda *_: None)
    else:
        module.model = weights
        optimizer = module.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


@pytest.mark.parametrize("module", [GSPOModule, RewardModule])
@pytest.mark.parametrize("build", [None, torch.optim.AdamW, torch.optim.SGD])
def test_modules_made_in_python_decay_nothing_either(module: Any, build: Any) -> None:
    assert built(module() if build is None else module(optimizer=build)).defaults["weight_decay"] == 0.0


@pytest.mark.parametrize("module", [GSPOModule, RewardModule])
def test_optimizer_factory_keeps_its_own_weight_decay(module: Any) -> None:
    decayed = module(optimizer=lambda weights: torch.optim.AdamW(weights, weight_decay=0.1))
    assert built(decayed).defaults["weight_decay"] == 0.1
