"""Adapters in PEFT's format: exports that PEFT loads, and runs that start from them, with that start as reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.training.reward_models.model import load_reward_model
from tests.commands.export.paths import assert_no_paths
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

START, ONE = "--model.lora.start_from", "--trainer.max_epochs=1"
TRAINED = [*runs.UNTAUGHT, "--model.optimizer.init_args.lr=0.003"]
KL = ["--model.objective.kl_coef=0.1"]
TIED = "--model.config_overrides={tie_word_embeddings: true}"
IDS = torch.arange(3, 30)[None]


def peft_model(**config: Any) -> Any:
    """The quickstart's untrained model with adapters that PEFT made, and which do something."""
    base = load_policy(ModelSettings("tiny-qwen3", seed=1)).model
    model = get_peft_model(base, LoraConfig(**({"r": 3, "lora_alpha": 5, "target_modules": ["q_proj"]} | config)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.05 * torch.arange(weight.numel()).view_as(weight).cos())
    return model.eval()


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of other ranks in some layers and rank-stabilised scale, as PEFT itself saves them."""
    folder: Path = tmp_path_factory.mktemp("sft") / "adapter"
    options = {"target_modules": ["q_proj", "up_proj"], "rank_pattern": {"up_proj": 2}, "use_rslora": True}
    peft_model(**options, lora_dropout=0.1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, sft: Path) -> Path:
    """Two iterations from these adapters, with a KL term, without a break."""
    return runs.fit(tmp_path_factory.mktemp("whole"), *TRAINED, *KL, f"{START}={sft}")


def logits_of(folder: Path) -> Tensor:
    base = load_policy(ModelSettings("tiny-qwen3", seed=1)).model
    with torch.no_grad():
        found: Tensor = PeftModel.from_pretrained(base, folder).eval()(IDS).logits
    return found


def export(run: Path, output: Path, *options: str) -> Path:
    assert main(["export", str(run), str(output), *options]) == 0
    return output


def test_training_starts_from_the_adapters_that_peft_wrote(sft: Path) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(start_from=str(sft))))
    with torch.no_grad():
        assert torch.equal(policy.model(IDS).logits, logits_of(sft))
    assert not torch.equal(logits_of(sft), load_policy(ModelSettings("tiny-qwen3", seed=1)).model(IDS).logits)
    assert {n.split(".")[-4] for n, p in policy.model.named_parameters() if p.requires_grad} == {"q_proj", "up_proj"}


@pytest.mark.thorough
def test_kl_is_measured_to_the_start_and_a_resume_is_exact(whole: Path, sft: Path, tmp_path: Path) -> None:
    kl = dict(runs.scalars(whole)["kl/policy_reference_k3"])
    assert kl[1] == 0.0  # to adapters that are on: to the base model it is not
    assert kl[2] > 0.0
    runs.fit(tmp_path, *TRAINED, *KL, f"{START}={sft}", ONE)
    resumed = runs.fit(tmp_path, *TRAINED, *KL, f"{START}={sft}", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(whole)) == 0.0
    assert runs.scalars(resumed)["kl/policy_reference_k3"] == runs.scalars(whole)["kl/policy_reference_k3"]


@pytest.mark.thorough
def test_an_export_alone_is_the_policy_to_peft_and_the_merged_one_too(whole: Path, tmp_path: Path, sft: Path) -> None:
    alone = export(whole, tmp_path / "adapter", "--adapter")
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(start_from=str(sft))))
    state = {n.removeprefix("policy."): w for n, w in runs.weights(whole).items()}
    assert not policy.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        expected = policy.model(IDS).logits
        merged = load_policy(ModelSettings(str(export(whole, tmp_path / "merged")))).model(IDS).logits
    assert torch.equal(logits_of(alone), expected)
    assert torch.allclose(merged, expected, atol=1e-5)
    assert not torch.allclose(logits_of(sft), expected, atol=1e-4)  # training has moved them
    written, given = (json.loads((folder / "adapter_config.json").read_text()) for folder in (alone, sft))
    for field in ("r", "lora_alpha", "rank_pattern", "use_rslora", "peft_type", "bias"):
        assert written[field] == given[field]
    assert sorted(written["target_modules"]) == ["q_proj", "up_proj"]
    assert (written["task_type"], written["inference_mode"], written["lora_dropout"]) == ("CAUSAL_LM", True, 0.0)
    assert load_file(alone / "adapter_model.safetensors").keys() == load_file(sft / "adapter_model.safetensors").keys()
    card = (alone / "README.md").read_text()
    assert "library_name: peft" in card
    assert str(sft.parent) not in card
    assert (alone / "tokenizer_config.json").is_file()
    assert not list(alone.glob("model*.safetensors"))


@pytest.mark.thorough
def test_a_run_continues_from_its_own_export(whole: Path, tmp_path: Path) -> None:
    alone = export(whole, tmp_path / "adapter", "--adapter")
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(start_from=str(alone))))
    own = {n.removeprefix("policy."): w for n, w in runs.weights(whole).items()}
    found = {n: w for n, w in policy.state_dict().items() if n in own}
    assert runs.largest_difference(found, own) == 0.0


@pytest.mark.thorough
def test_a_base_that_is_not_on_the_hub_is_beside_the_adapters(tmp_path: Path) -> None:
    base = tmp_path / "base"
    load_policy(ModelSettings("tiny-qwen3", seed=1)).save_pretrained(base)
    run = runs.fit(tmp_path, *TRAINED, ONE, f"--model.name_or_path={base}", "--model.lora={r: 4}")
    merged, alone = export(run, tmp_path / "merged"), export(run, tmp_path / "adapter", "--adapter")
    assert json.loads((alone / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(alone / "base"), alone).eval()
    whole = AutoModelForCausalLM.from_pretrained(merged).eval()
    torch.testing.assert_close(beside(IDS).logits, whole(IDS).logits, rtol=1e-4, atol=1e-5)
    assert "FOLDER/base" in (alone / "README.md").read_text()
    for folder in (merged, alone):
        assert_no_paths(folder, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("overlay", ["ddp", "fsdp2"])
def test_two_ranks_start_from_the_same_adapters_and_reference(overlay: str, tmp_path: Path, sft: Path) -> None:
    """Under FSDP2 one rank has the weights at first, and all must agree on what the reference is."""
    run = fit_on_ranks(tmp_path / "runs", *TRAINED, *KL, f"{START}={sft}", ONE, overlay=overlay)
    one = runs.fit(tmp_path / "one", *TRAINED, *KL, f"{START}={sft}", ONE)
    assert runs.largest_difference(runs.weights(run), runs.weights(one)) < 1e-5
    kl, expected = (dict(runs.scalars(r)["kl/policy_reference_k3"]) for r in (run, one))
    assert kl[1] == 0.0
    assert kl[2] == pytest.approx(expected[2], rel=1e-3)
    found, alone = (logits_of(export(r, tmp_path / f"of_{r.parts[-3]}", "--adapter")) for r in (run, one))
    assert torch.allclose(found, alone, atol=1e-5)  # of shards, too


def test_a_reward_model_starts_from_them_with_a_head_to_train(sft: Path) -> None:
    settings = ModelSettings("tiny-qwen3", seed=1, lora=LoRA(start_from=str(sft)))
    trained = {n: p for n, p in load_reward_model(settings).named_parameters() if p.requires_grad}
    weights = load_file(sft / "adapter_model.safetensors")
    own = {n.removeprefix("base_model.model."): w for n, w in weights.items()}
    assert trained.keys() - {n.replace(".weight", ".default.weight") for n in own} == {"score.weight"}
    assert all(torch.equal(trained[n.replace(".weight", ".default.weight")], w) for n, w in own.items())


def test_a_hub_id_is_downloaded_at_its_revision(sft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def download(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repository, revision))
        return str(sft)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(start_from="me/adapter@v2")))
    with torch.no_grad():
        assert torch.equal(policy.model(IDS).logits, logits_of(sft))
    assert asked == [("me/adapter", "v2")]


def refused(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    runs.fit(root, *TRAINED, *arguments, code=2)
    assert not (root / "quickstart").exists()  # before anything is written
    return capsys.readouterr().err


@pytest.mark.thorough(
    "config0-use_dora: True",
    "config1-bias: lora_only",
    "config2-modules_to_save",
    "config3-has changed the frozen weights",
)
@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"use_dora": True}, "use_dora: True"),
        ({"bias": "lora_only"}, "bias: lora_only"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "has changed the frozen weights"),
        ({"peft_type": "ADALORA"}, "only LoRA is trained"),
    ],
)
def test_adapters_of_other_kinds_are_refused_first(
    config: dict[str, Any], hint: str, sft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(sft, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    message = refused(capsys, tmp_path, f"{START}={folder}")
    assert "model.lora.start_from" in message
    assert hint in message
    assert "merge" in message


@pytest.mark.thorough
def test_mistakes_name_the_setting(sft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(capsys, tmp_path, f"{START}=/nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no adapter_config.json" in refused(capsys, tmp_path, f"{START}={tmp_path / 'empty'}")
    (tmp_path / "old").mkdir()
    shutil.copy(sft / "adapter_config.json", tmp_path / "old")
    (tmp_path / "old" / "adapter_model.bin").touch()
    assert "safe_serialization" in refused(capsys, tmp_path, f"{START}={tmp_path / 'old'}")
    assert "model.lora.r: is 8" in refused(capsys, tmp_path, f"{START}={sft}", "--model.lora.r=8")
    cold = f"--model.cold_start={{demonstrations: {tmp_path / 'x.jsonl'}}}"
    assert "leave out one of the two" in refused(capsys, tmp_path, f"{START}={sft}", cold)


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["a layer more", "a layer less", "another width"])
def test_adapters_of_another_model_are_refused(
    change: str, sft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(sft, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    if change == "a layer more":
        weights[name.replace("layers.1", "layers.7")] = weights[name].clone()
    elif change == "a layer less":
        del weights[name]
    else:
        weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, folder / "adapter_model.safetensors")
    runs.fit(tmp_path, *TRAINED, f"{START}={folder}", code=2)
    message = capsys.readouterr().err
    assert "does not fit Qwen3ForCausalLM" in message
    assert "layers.7" in message or "q_proj" in message


@pytest.mark.thorough
def test_a_resume_refuses_other_adapters_in_the_same_place(
    tmp_path: Path, sft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "start"
    shutil.copytree(sft, folder)
    runs.fit(tmp_path, *TRAINED, f"{START}={folder}", ONE)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: weight + 0.01 for name, weight in weights.items()}, folder / "adapter_model.safetensors")
    runs.fit(tmp_path, *TRAINED, f"{START}={folder}", "--ckpt_path=last", code=2)
    assert "model.lora.start_from: its content differs" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_tied_head_gets_no_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *TRAINED, "--model.lora={target_modules: [lm_head]}", TIED, code=2)
    assert "tied to the embedding" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_checkpoint_without_adapters_has_none_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *TRAINED, ONE)
    assert main(["export", str(run), str(tmp_path / "out"), "--adapter"]) == 2
    assert "holds none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
