"""The share of sequences that bfloat16 puts outside of the clip range: counted by hand, and on a toy model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.smollm2 import bfloat16
from experiments.smollm2.bfloat16 import compare, main
from gspo_lightning.rewards import Score
from tests.support.model_families import COMMON

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama with a tokenizer of bytes and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    words = ["<end>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = COMMON | {"vocab_size": len(words), "max_position_embeddings": 1024}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return str(folder)


def test_sequences_are_counted_on_both_sides_of_the_range() -> None:
    exact = torch.tensor([1e-4, 5e-4, -2e-4, -9e-4]).double()
    found = compare(exact, exact + torch.tensor([4e-4, -4e-4, -2e-4, 0.0]).double())
    assert (found.sequences, found.exact_outside, found.outside) == (4, 2, 3)
    assert (found.wrongly_outside, found.wrongly_inside) == (2, 1)
    assert found.error == pytest.approx(3e-4)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the toy model answer with at most 8 tokens."""
    config = bfloat16.load_yaml(bfloat16.CONFIG.read_text(encoding="utf-8"))
    short = config | {"data": config["data"] | {"max_response_tokens": 8, "max_prompt_tokens": 512}}
    monkeypatch.setattr(bfloat16, "load_yaml", lambda _: short)


def test_float32_follows_float64_and_bfloat16_does_not(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shorten(monkeypatch)
    monkeypatch.setattr(bfloat16.MathVerifier, "score", lambda _, text, answer: Score(float(len(text) % 2)))
    output = tmp_path / "bfloat16.json"
    argv = ["--model", model, "--prompts", "4", "--group", "4", "--seeds", "1", "--output", str(output)]
    assert main(argv) == 0
    counts = json.loads(output.read_text())["counts"]
    assert set(counts) == {"2e-05", "1e-06"}
    for by in counts.values():
        assert by["float32"]["sequences"] == by["bf16-mixed"]["sequences"] == 8  # the second of two mini-batches
        assert by["float32"]["error"] < 1e-6 < 0.1 * by["bf16-mixed"]["error"]
    assert counts["2e-05"]["float32"]["spread"] > counts["1e-06"]["float32"]["spread"] > 0
    assert capsys.readouterr().out.count("| 2e-05 |") == 2


def test_interruption_keeps_the_seeds_before_it(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    answers = itertools.count(1)

    def score(_: object, text: str, answer: str) -> Score:
        if next(answers) > 8:  # of the second seed
            raise KeyboardInterrupt
        return Score(float(len(text) % 2))

    monkeypatch.setattr(bfloat16.MathVerifier, "score", score)
    output = tmp_path / "bfloat16.json"
    with pytest.raises(KeyboardInterrupt):
        main(["--model", model, "--prompts", "2", "--group", "4", "--seeds", "1", "2", "--output", str(output)])
    written = json.loads(output.read_text())
    assert written["seeds"] == [1]
    assert written["counts"]["1e-06"]["float32"]["sequences"] == 4
