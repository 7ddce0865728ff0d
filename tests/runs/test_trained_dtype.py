"""Weights that are trained are float32: bfloat16 and float16 are refused, with the fix, except under adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests.runs import runs
from tests.runs.processes import run_module
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_strategies import weights
from tests.training.reward_models import runs as reward_runs

ONE = "--trainer.max_epochs=1"
BFLOAT16 = "--model.dtype=bfloat16"
NARROW = [*runs.UNTAUGHT, BFLOAT16, "--model.lora={r: 4, alpha: 8}", "--model.optimizer.init_args.lr=0.003"]
IDS = torch.arange(3, 30)[None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The untrained model in three dtypes, as models are published."""
    folders = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        folders[name] = tmp_path_factory.mktemp("models") / name
        policy = load_policy(ModelSettings("tiny-qwen3", seed=1))
        policy.model.to(dtype)
        policy.save_pretrained(folders[name])
    return folders


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("option", "field"),
    [("--trainer.precision=bf16-true", "trainer.precision: is 'bf16-true'"), (BFLOAT16, "model.dtype: is 'bfloat16'")],
)
def test_a_run_and_its_plan_refuse_bfloat16_weights_in_the_same_words(
    option: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, option, code=2)
    assert not list(tmp_path.iterdir())
    refused = capsys.readouterr().err
    assert field in refused
    assert "fix: use trainer.precision: bf16-mixed with model.dtype: float32, or train adapters" in refused
    assert main(["plan", f"--config={runs.QUICKSTART}", option]) == 2
    assert capsys.readouterr().err == refused
    adapters = "--model.lora={r: 4}"
    assert main(["plan", f"--config={runs.QUICKSTART}", option, adapters, "--model.cold_start=null"]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_file_in_a_narrow_dtype_is_refused_before_the_first_rollout(
    dtype: str, saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*runs.UNTAUGHT, f"--model.name_or_path={saved[dtype]}", "--model.dtype=auto"]
    runs.fit(tmp_path, *argv, code=2)
    assert not list(tmp_path.iterdir())  # its config says so, before it is loaded
    refused = capsys.readouterr().err
    assert f"to train in {dtype}, which rounds small updates away" in refused
    assert "trainer.precision: bf16-mixed" in refused
    assert main(["plan", f"--config={runs.QUICKSTART}", *argv]) == 2
    assert capsys.readouterr().err == refused
    assert main(["plan", f"--config={runs.QUICKSTART}", *argv, "--model.lora={r: 4}"]) == 0
    assert "weights (float32" not in capsys.readouterr().out


@pytest.mark.thorough
def test_a_cold_start_of_all_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, BFLOAT16, "--model.lora={r: 4}", code=2)
    assert "set model.cold_start.adapters: true" in capsys.readouterr().err
    run = runs.fit(tmp_path, BFLOAT16, "--model.lora={r: 4}", "--model.cold_start.adapters=true",
                   "--model.cold_start.steps=2", ONE)  # fmt: skip
    assert {weight.dtype for weight in runs.weights(run).values()} == {torch.float32}


def test_a_critic_in_bfloat16_is_refused(
    saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*runs.UNTAUGHT, f"--model.name_or_path={saved['float32']}", "--model.dtype=auto", "--model.objective=PPO"]
    argv += ["--data.advantages=GAE", "--model.critic=ValueModel"]
    runs.fit(tmp_path, *argv, f"--model.critic.name_or_path={saved['bfloat16']}", code=2)
    assert "model.critic: leaves policy.model" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_reward_model_in_bfloat16_is_refused_but_for_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, val = (reward_runs.write(tmp_path / f"{n}.jsonl", reward_runs.planted(23, n)) for n in (0, 1))
    assert main(reward_runs.command(tmp_path / "refused", train, f"--data.val={val}", BFLOAT16)) == 2
    assert "model.dtype: is 'bfloat16'" in capsys.readouterr().err
    run = reward_runs.fit_reward(tmp_path / "runs", train, f"--data.val={val}", BFLOAT16, "--model.lora.r=4",
                                 "--trainer.max_steps=2")  # fmt: skip
    state = runs.checkpoint(run)["state_dict"]
    assert {name.rpartition(".lora_")[1] or name for name in state} == {".lora_", "model.score.weight"}
    assert {weight.dtype for weight in state.values()} == {torch.float32}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, saved: dict[str, Path]) -> Path:
    """Two iterations of adapters on bfloat16 weights, with a KL term."""
    options = [f"--model.name_or_path={saved['float32']}", "--model.objective.kl_coef=0.1"]
    return runs.fit(tmp_path_factory.mktemp("narrow"), *NARROW, *options)


@pytest.mark.thorough
def test_adapters_on_bfloat16_weights_are_float32_and_so_is_their_optimizer(narrow: Path) -> None:
    saved = runs.checkpoint(narrow)
    assert all(".lora_" in name for name in saved["state_dict"])
    assert {weight.dtype for weight in saved["state_dict"].values()} == {torch.float32}
    moments = [state[name] for state in saved["optimizer_states"][0]["state"].values() for name in ("exp_avg_sq",)]
    assert {moment.dtype for moment in moments} == {torch.float32}
    kl = dict(runs.scalars(narrow)["kl/policy_reference_k3"])
    assert kl[1] == 0.0
    assert kl[2] > 0.0
    assert dict(runs.scalars(narrow)["ratio/log_sequence_std"])[1] == 0.0  # one code path


@pytest.mark.thorough
def test_peft_reads_adapters_of_bfloat16_weights(narrow: Path, saved: dict[str, Path], tmp_path: Path) -> None:
    policy = load_policy(ModelSettings(str(saved["float32"]), dtype="bfloat16", lora=LoRA(r=4, alpha=8)))
    state = {name.removeprefix("policy."): weight for name, weight in runs.weights(narrow).items()}
    assert not policy.load_state_dict(state, strict=False).unexpected_keys
    assert main(["export", str(narrow), str(tmp_path / "alone"), "--adapter"]) == 0
    base = AutoModelForCausalLM.from_pretrained(saved["float32"], dtype=torch.bfloat16)
    by_peft = PeftModel.from_pretrained(base, tmp_path / "alone").eval()
    assert main(["export", str(narrow), str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").eval()
    with torch.no_grad():
        expected = policy.model.eval()(IDS).logits
        assert torch.equal(by_peft(IDS).logits, expected)
        gap = (merged(IDS).logits.log_softmax(-1) - expected.log_softmax(-1)).abs()
    assert merged.dtype == torch.bfloat16
    assert gap.mean() < 0.02  # merged weights are rounded


@pytest.mark.thorough
@pytest.mark.parametrize("overlay", ["ddp", "fsdp2"])
def test_two_ranks_train_adapters_on_bfloat16_weights(overlay: str, tmp_path: Path) -> None:
    run = fit_on_ranks(tmp_path / "two", *NARROW, ONE, overlay=overlay)
    one = runs.fit(tmp_path / "one", *NARROW, ONE)
    trained = weights(run / "checkpoints" / "last.ckpt")
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    assert runs.largest_difference(trained, runs.weights(one)) < 1e-3  # bfloat16 beside them rounds sums of gradients


@pytest.mark.thorough
def test_fsdp_flattens_weights_of_one_dtype_only(tmp_path: Path) -> None:
    overlay = runs.ROOT / "configs" / "fsdp.yaml"
    argv = ["fit", f"--config={runs.QUICKSTART}", f"--config={overlay}", *runs.SMALL, *NARROW]
    argv += ["--trainer.accelerator=cpu", "--trainer.devices=2", f"--trainer.default_root_dir={tmp_path}"]
    ended = run_module("gspo_lightning", *argv)
    assert ended.returncode == 2
    assert "trainer.strategy: FSDPStrategy flattens the weights of a layer into one tensor" in ended.stderr
    assert "use FSDP2Strategy (--config fsdp2)" in ended.stderr


def test_why_adamw_in_bfloat16_is_refused() -> None:
    """Of a constant gradient of 1, the second moment grows to 1 in float32, and is stuck below in bfloat16."""
    reached = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.zeros(8, dtype=dtype))
        optimizer = torch.optim.AdamW([weight], lr=0.0, fused=True)
        for _ in range(4000):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        reached[dtype] = float(optimizer.state[weight]["exp_avg_sq"][0])
    assert reached[torch.float32] == pytest.approx(1 - 0.999**4000, rel=1e-3)
    assert reached[torch.bfloat16] <= 0.5
