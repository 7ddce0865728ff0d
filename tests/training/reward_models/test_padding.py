"""Rewards are read at the last token of a text, whatever the model's config and the tokenizer take for padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from gspo_lightning.cli import main
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards import Sample, SequenceClassificationReward
from tests.training.reward_models import runs

SIZES: dict[str, Any] = {
    "vocab_size": len(character_tokenizer()), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
PAD, EOS, UNKNOWN = 0, 1, 2
CONFIGS = {
    "Qwen3": (Qwen3Config, {"eos_token_id": EOS, "head_dim": 16}, None, PAD),
    "Qwen2.5-Instruct": (Qwen2Config, {"eos_token_id": EOS, "bos_token_id": UNKNOWN}, None, PAD),
    "Llama-3.1-Instruct": (LlamaConfig, {"eos_token_id": [EOS, UNKNOWN]}, None, EOS),
    "another": (Qwen3Config, {"eos_token_id": EOS, "head_dim": 16}, UNKNOWN, PAD),
    "Llama 1": (LlamaConfig, {"eos_token_id": EOS}, -1, PAD),
}
"""Class, fields and padding token of a config as these models have it, and the token that pads rows; Llama 3.1's
tokenizer has none of its own."""
SHORT = ["--data.batch_size=10", "--model.optimizer.lr=1e-2", "--trainer.max_epochs=2"]


def save(folder: Path, family: str, kind: Any) -> str:
    """A model of random weights with a tokenizer whose padding token is not its config's."""
    config_class, fields, pad, _ = CONFIGS[family]
    torch.manual_seed(0)
    config = config_class(**SIZES, **fields, num_labels=1)
    model: PreTrainedModel = kind.from_config(config)
    model.save_pretrained(folder)
    tokenizer = character_tokenizer()
    if family == "Llama-3.1-Instruct":
        tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": pad}))
    return str(folder)


def alone(folder: str | Path, text: str) -> float:
    """By the model as it was saved."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return float(model.eval()(**tokenizer(text, return_tensors="pt")).logits[0, 0])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of answers of very different lengths."""
    folder = tmp_path_factory.mktemp("pairs")
    train, val = (runs.write(folder / f"{n}.jsonl", runs.planted(23, n)) for n in (0, 1))
    return train, f"--data.val={val}"


@pytest.mark.parametrize("family", CONFIGS)
def test_a_reward_in_a_batch_is_the_reward_alone(family: str, tmp_path: Path) -> None:
    folder = save(tmp_path, family, AutoModelForSequenceClassification)
    answers = ["7", "12+30=42", "5<eos>", "1+1=2;2+3=5<eos>", "3<pad>", "9<unk>"]
    expected = [alone(folder, f"1+1:{answer}") for answer in answers]
    assert min(abs(a - b) for i, a in enumerate(expected) for b in expected[:i]) > 1e-3
    lines = [{"id": i, "prompt": "1+1:", "completion": answer} for i, answer in enumerate(answers)]
    source, target = runs.write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    asked = f"SequenceClassificationReward:{json.dumps({'name_or_path': folder})}"
    assert main(["score", "--reward", asked, "--input", source, "--output", str(target)]) == 0
    found = [json.loads(line)["reward"] for line in target.read_text().splitlines()]
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("family", CONFIGS)
def test_trained_and_exported_reward_model_reads_the_last_token(
    family: str, pairs: tuple[str, str], tmp_path: Path
) -> None:
    """Held-out results do not depend on the cut, and are those of each answer alone by the exported model."""
    model = save(tmp_path / "start", family, AutoModelForCausalLM)
    options = [pairs[1], f"--model.name_or_path={model}", *SHORT]
    whole, cut = (
        runs.fit_reward(tmp_path / str(size), pairs[0], *options, f"--data.micro_batch_size={size}") for size in (10, 1)
    )
    one, other = runs.results(whole)["held_out"], runs.results(cut)["held_out"]
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert one["spread"] > 0.1  # something was learnt at all
    config = json.loads((whole / "model" / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    assert config["pad_token_id"] == tokenizer.pad_token_id == CONFIGS[family][3]
    judged = [
        (alone(whole / "model", r["prompt"] + r[s]), s) for r in runs.planted(23, 1) for s in ("chosen", "rejected")
    ]
    mean = sum(value if side == "chosen" else -value for value, side in judged) / 23
    assert one["margin"] == pytest.approx(mean, abs=1e-4)
    samples = [Sample("0", "1+1:", answer) for answer in ("7", "AB7xyzAB7", "<eos>")]
    scores = SequenceClassificationReward(str(whole / "model")).score_batch(samples)
    assert [s.reward for s in scores] == pytest.approx(
        [alone(whole / "model", s.prompt + s.completion) for s in samples], abs=1e-5
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_model_that_reads_padding_is_refused(
    precision: str,
    pairs: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that takes the last column, as if rows were padded on the left."""

    def last_column(self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> Any:
        states = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        return SequenceClassifierOutputWithPast(logits=self.score(states)[:, -1])

    monkeypatch.setattr(Qwen3ForSequenceClassification, "forward", last_column)
    model = save(tmp_path / "causal", "Qwen3", AutoModelForCausalLM)
    more = [pairs[1], f"--model.name_or_path={model}", f"--trainer.precision={precision}"]
    assert main(runs.command(tmp_path, pairs[0], *more)) == 2
    said = "Qwen3ForSequenceClassification judges a text otherwise beside a longer one than alone: it reads padding"
    assert f"error: model.name_or_path: {said}" in capsys.readouterr().err
    folder = save(tmp_path / "classifier", "Qwen3", AutoModelForSequenceClassification)
    lines = [{"id": i, "prompt": "1+1:", "completion": answer} for i, answer in enumerate(["7", "12+30=42"])]
    source = runs.write(tmp_path / "in.jsonl", lines)
    asked = f"SequenceClassificationReward:{json.dumps({'name_or_path': folder})}"
    assert main(["score", "--reward", asked, "--input", source, "--output", str(tmp_path / "out.jsonl")]) == 2
    assert f"error: SequenceClassificationReward.name_or_path: {said}" in capsys.readouterr().err


def test_a_padding_token_that_the_model_lacks_is_refused(
    pairs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path / "start", "Qwen3", AutoModelForCausalLM)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(model)
    assert main(runs.command(tmp_path, pairs[0], pairs[1], f"--model.name_or_path={model}")) == 2
    known = SIZES["vocab_size"]
    said = f"pads rows with token {known} of its tokenizer, but the model knows tokens below {known} only"
    assert f"error: model.name_or_path: {said}" in capsys.readouterr().err
