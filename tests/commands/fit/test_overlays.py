"""Overlays change what they are for, and say what they need."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.plan.advice import _options
from tests import ROOT
from tests.runs import runs

STRATEGIES = ["ddp", "fsdp", "fsdp2", "hsdp", "ep", "cp"]


@pytest.mark.parametrize("overlay", STRATEGIES)
def test_a_strategy_leaves_the_devices_of_the_users_file(
    overlay: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"trainer": {"devices": 4, "accelerator": "cpu"}, "data": {"train": "ChainTask"}}))
    assert main(["fit", f"--config={mine}", f"--config={overlay}", "--print_config"]) == 0
    trainer = yaml.safe_load(capsys.readouterr().out)["trainer"]
    assert (int(trainer["devices"]), trainer["accelerator"]) == (4, "cpu")
    assert trainer["strategy"] not in (None, "auto")


def test_overlays_of_strategies_set_nothing_else() -> None:
    for overlay in STRATEGIES:
        content = yaml.safe_load((ROOT / "configs" / f"{overlay}.yaml").read_text())
        assert list(content) == ["trainer"]
        assert list(content["trainer"]) == ["strategy"]


def test_a_strategy_on_one_device_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=1"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *few, "--config=ddp")
    said = capsys.readouterr().err
    assert said.count("but there is one (trainer.devices: 1): nothing is spread; give --trainer.devices N") == 1


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_an_overlay_alone_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--config=smollm2_lora"]) == 2
    said = capsys.readouterr().err
    assert "error: data.train: is missing: smollm2_lora sets none, and only changes another config" in said
    assert "fix: name that config first: --config BASE --config smollm2_lora, where BASE is smollm2" in said


@pytest.mark.thorough
def test_adapters_of_experts_that_fit_refuses_are_refused_by_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """By its own words for them; adapters of attention alone are planned."""
    words = [
        "plan",
        "--device=80GB",
        "--config=quickstart",
        "--config=moe",
        "--config=lora",
        "--config=ep",
        "--trainer.devices=2",
    ]
    code = main(words)
    said = capsys.readouterr().err
    assert (code, "has adapters, which would have to be cut with the experts" in said) in (
        (2, True),
        (0, False),
    )
    assert main([*words, '--model.lora.target_modules=["q_proj", "v_proj"]']) < 2  # planned, whether it fits or not
    assert "error: " not in capsys.readouterr().err


def test_a_plan_with_experts_on_their_ranks_advises_adapters_that_fit_takes() -> None:
    job = SimpleNamespace(
        checkpointing=True, longest=8, budget=8, max_rows=1, prompts=8, group_size=8, world=2, in_process=False,
        strategy="fsdp", minibatches=3, precision="bf16-mixed", lora=None, expert_parallel=True,
    )  # fmt: skip
    words = [option.words for option in _options(job)]  # type: ignore[arg-type]
    assert words == ["model.lora: {r: 16, target_modules: [q_proj, k_proj, v_proj, o_proj]}, model.dtype: bfloat16"]
