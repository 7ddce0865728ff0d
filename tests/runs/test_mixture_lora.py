"""Adapters in a mixture of experts: none for experts and routers, and an export that PEFT and a new run read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from gspo_lightning.cli import main
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests.runs import runs
from tests.runs.test_strategies import Case, assert_same_run

MIXTURE = [*runs.UNTAUGHT, "--config=moe", "--model.optimizer.init_args.lr=0.003"]
ADAPTERS = [*MIXTURE, "--model.lora={r: 4, alpha: 8}", "--model.objective.kl_coef=0.1"]
ONE = "--trainer.max_epochs=1"
IDS = torch.arange(3, 30)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained mixture in transformers' format."""
    folder: Path = tmp_path_factory.mktemp("base") / "model"
    load_policy(ModelSettings("tiny-qwen3-moe", seed=1)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """Two iterations with a KL term, which is measured to the model with its adapters off."""
    return runs.fit(tmp_path_factory.mktemp("whole"), *ADAPTERS, f"--model.name_or_path={base}")


def logprobs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits.log_softmax(-1)
    return found


def trained_model(run: Path, base: Path) -> PreTrainedModel:
    policy = load_policy(ModelSettings(str(base), lora=LoRA(r=4, alpha=8)))
    state = {name.removeprefix("policy."): weight for name, weight in runs.weights(run).items()}
    assert not policy.load_state_dict(state, strict=False).unexpected_keys
    policy.model.eval()
    return policy.model


@pytest.mark.thorough
def test_experts_and_routers_get_no_adapters_and_the_reference_is_the_base(whole: Path) -> None:
    saved = runs.checkpoint(whole)["state_dict"]
    assert {name.split(".")[-4] for name in saved} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    kl = dict(runs.scalars(whole)["kl/policy_reference_k3"])
    assert kl[1] == 0.0
    assert kl[2] > 0.0


@pytest.mark.thorough
def test_exports_are_the_policy_to_transformers_and_to_peft(whole: Path, base: Path, tmp_path: Path) -> None:
    expected = logprobs(trained_model(whole, base))
    untrained = AutoModelForCausalLM.from_pretrained(base).eval()
    assert (logprobs(untrained) - expected).abs().max() > 1e-4  # training has moved them
    assert main(["export", str(whole), str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert (logprobs(merged) - expected).abs().max() < 1e-6
    assert main(["export", str(whole), str(tmp_path / "alone"), "--adapter"]) == 0
    by_peft = PeftModel.from_pretrained(untrained, tmp_path / "alone").eval()
    assert torch.equal(logprobs(by_peft), expected)
    again = load_policy(ModelSettings(str(base), lora=LoRA(start_from=str(tmp_path / "alone"))))
    assert torch.equal(logprobs(again.model.eval()), expected)


@pytest.mark.thorough
def test_a_run_says_so_in_one_line_and_starts_from_its_export(
    whole: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(whole), str(tmp_path / "alone"), "--adapter"]) == 0
    capsys.readouterr()
    start = f"--model.lora={{start_from: {tmp_path / 'alone'}}}"
    run = runs.fit(tmp_path, *MIXTURE, ONE, f"--model.name_or_path={base}", start)
    messages = capsys.readouterr().err
    line = "model.lora: experts and routers of Qwen3MoeForCausalLM get no adapters (mlp.experts, mlp.gate)"
    assert messages.count(line) == 1
    assert "decoding goes through the modules" not in messages  # but through the fast decoder
    assert "RuntimeWarning" not in messages
    assert runs.checkpoint(run)["state_dict"].keys() == runs.checkpoint(whole)["state_dict"].keys()


def test_asking_for_them_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *MIXTURE, "--model.lora={target_modules: [q_proj, gate_proj, up_proj, down_proj]}", code=2)
    message = capsys.readouterr().err
    assert "model.lora.target_modules" in message
    assert "experts and routers of Qwen3MoeForCausalLM get no adapters" in message
    assert "use all-linear, or a list of: k_proj, o_proj, q_proj, v_proj" in message


@pytest.mark.thorough
def test_plan_counts_what_a_run_trains(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [f"--config={runs.QUICKSTART}", "--config=moe", "--model.lora={r: 4, alpha: 8}", "--trainer.accelerator=cpu"]
    assert main(["plan", *argv]) == 0
    count = sum(weight.numel() for weight in runs.checkpoint(whole)["state_dict"].values())
    assert count == 2 * 4 * 4 * (64 + 64)  # layers, products, rank, both sides
    planned = capsys.readouterr()
    assert f"{count / 1000:.2f}k of them trained (LoRA)" in planned.out
    assert "get no adapters" not in planned.err


@pytest.mark.thorough
@pytest.mark.parametrize("overlay", ["ep", "fsdp"])
def test_two_ranks_are_one_process(overlay: str, tmp_path: Path) -> None:
    case = Case(overlay, [*MIXTURE, "--model.lora={r: 4}"])
    assert_same_run(case, case.run(tmp_path / "two"), tmp_path / "one")


@pytest.mark.thorough
def test_four_bits_leave_experts_and_routers_alone(tmp_path: Path, base: Path) -> None:
    options = [f"--model.name_or_path={base}", "--model.lora={r: 4, alpha: 8, base: 4bit}", ONE]
    run = runs.fit(tmp_path, *MIXTURE, *options)
    assert main(["export", str(run), str(tmp_path / "merged")]) == 0
    merged = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").named_parameters())
    before = dict(AutoModelForCausalLM.from_pretrained(base).named_parameters())
    same = {name for name, weight in merged.items() if torch.equal(weight, before[name])}
    assert {re.sub(r"^.*\d\.", "", name) for name in before.keys() - same} == {
        f"self_attn.{part}_proj.weight" for part in "qkvo"
    }
