"""The benchmark of the real model at toy size: both sides take the same work, and the table pairs their rounds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks import real, real_side
from benchmarks.peers.trl import trl_version
from gspo_lightning.policy.kernels import linear
from tests.support.model_families import COMMON

TOY = ["--prompts", "2", "--group", "2", "--updates", "1", "--tokens", "6", "8", "--micro", "2"]
needs_trl = pytest.mark.skipif(trl_version() is None, reason="TRL is not installed: make test-trl")
LENGTHS = (5, 6, 6, 8)
"""Quantiles of the distribution around 6 tokens, the longest of them 8."""
SIDES = ["ours", pytest.param("trl", marks=needs_trl)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama with a tokenizer of bytes, whose first token is none of a text, as in the real model."""
    folder = tmp_path_factory.mktemp("model")
    words = ["<end>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**COMMON | {"vocab_size": len(words)})).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("precision", real_side.PRECISIONS)
@pytest.mark.parametrize("side", SIDES)
def test_a_side_takes_a_step_on_the_word_problems(side: str, precision: str, model: str) -> None:
    words = ["--model", model, *TOY, "--precision", precision]
    found = {method: real_side.main([side, method, *words]) for method in real_side.METHODS}
    for step in found.values():
        assert step["response_tokens"] == sum(LENGTHS)
        assert step["prompt_tokens"] > 150  # characters
        assert 0 < step["phases"]["generate"] < step["cpu"]
        assert step["peak_mib"] >= step["before_mib"]
        assert {"forward", "backward", "optimizer"} < set(step["phases"])
    assert found["lora"]["trained"] < found["adamw"]["trained"] == found["adamw8bit"]["trained"]


def test_lengths_of_the_default_lie_between_64_and_128_tokens(model: str) -> None:
    parser = argparse.ArgumentParser()
    real_side.add_work(parser)
    work = real_side.make_work(parser.parse_args([]), AutoTokenizer.from_pretrained(model))
    assert 56 <= int(work.lengths.min()) < int(work.lengths.max()) <= 128
    assert work.prompt_lengths == [len(p.token_ids) for p in work.make_prompts(0)]


@pytest.mark.parametrize(("side", "whose"), [("trl", {"torch", "transformers"}), ("ours", {"gspo_lightning"})])
def test_trl_trains_transformers_own_modules(
    side: str, whose: set[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    parser = argparse.ArgumentParser()
    real_side.add_work(parser)
    given = parser.parse_args(["--model", model, *TOY])
    given.side, given.method = side, "adamw"
    loaded, _, _ = real_side.load(given)
    bases = {base.__module__.split(".")[0] for m in loaded.modules() for base in type(m).__mro__ if base is not object}
    assert whose <= bases
    assert ("gspo_lightning" in bases) == (side == "ours")


class Sides:
    """Steps with made-up numbers, slower with each round."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, words: Sequence[str]) -> dict[str, Any]:
        side, method = words[:2]
        if side == "bounds":
            seconds = {"generate_by_flops_s": 1.0, "generate_by_bandwidth_s": 0.5, "train_by_flops_s": 3.0}
            sizes = {"weights_bytes": 4e6, "decode_steps": 7, "matmul_gflops": 100.0, "read_gb_per_s": 20.0}
            return seconds | sizes
        self.asked.append((side, method))
        turn = self.asked.count((side, method))
        cpu = {"ours": 8.0, "trl": 16.0 * turn}[side]
        phases = {"generate": cpu / 2, "forward": cpu / 8, "backward": cpu / 4, "optimizer": cpu / 16}
        more = {"wall": 2 * cpu, "phases": phases, "response_tokens": 40}
        return {"side": side, "method": method, "cpu": cpu, "peak_mib": {"ours": 300.0, "trl": 500.0}[side]} | more


def test_sides_alternate_and_ratios_are_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = Sides()
    argv = ["--model", "tiny-qwen3", "--methods", "adamw", "lora", "--output", str(tmp_path)]
    assert real.main(argv, sides) == 0
    assert sides.asked[:6] == [
        ("ours", "adamw"), ("trl", "adamw"), ("ours", "lora"), ("trl", "lora"), ("trl", "adamw"), ("ours", "adamw"),
    ]  # fmt: skip
    saved = json.loads((tmp_path / "real.json").read_text())
    adamw = saved["methods"]["adamw"]
    assert adamw["cpu_ratio"] == [4.0, 2.0, 6.0]
    assert adamw["memory_ratio"] == [0.6] * 3
    assert adamw["ours"]["sampled_per_cpu_s"] == adamw["ours"]["trained_per_cpu_s"] == [10.0] * 3
    assert adamw["ours"]["over_flops"] == 2.0
    assert saved["methods"]["lora"]["ours"]["over_flops"] == pytest.approx(8 / 3)  # no gradients of the weights
    text = (tmp_path / "real.md").read_text()
    assert "| adamw | 4.00 (2.00-6.00) | 4 | 0.60 (0.60-0.60) | 0.7 |" in text
    assert "4 MB of weights in each of 7 steps: 0.5 s, 80 tokens/s" in text
    assert text.rstrip().endswith(capsys.readouterr().out.rstrip())


def test_an_interruption_keeps_the_steps_before_it(tmp_path: Path) -> None:
    sides = Sides()

    def interrupted(words: Sequence[str]) -> dict[str, Any]:
        if len(sides.asked) == 3:
            raise KeyboardInterrupt
        return sides(words)

    with pytest.raises(KeyboardInterrupt):
        real.main(["--model", "tiny-qwen3", "--output", str(tmp_path)], interrupted)
    saved = json.loads((tmp_path / "real.json").read_text())
    assert [(r["side"], r["method"]) for r in saved["rounds"]] == sides.asked
    assert "cpu_ratio" in saved["methods"]["adamw"]
    assert "cpu_ratio" not in saved["methods"]["lora"]


def test_this_package_alone_has_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    sides = Sides()
    assert real.main(["--model", "tiny-qwen3", "--only-ours", "--rounds", "1"], sides) == 0
    assert [side for side, _ in sides.asked] == ["ours"] * 3
    assert "trl" not in capsys.readouterr().out.replace("TRL / ours", "")


def test_a_missing_model_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert real.main([], Sides()) == 2
    assert capsys.readouterr().err == "error: the model is not there; run: make real-model\n"
