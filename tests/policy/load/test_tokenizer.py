"""A tokenizer splits and joins text as its ``tokenizer.json`` says, whatever class its config names."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
)

from gspo_lightning.cli import main
from gspo_lightning.policy.load.loading import load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.tokenizer import SAMPLES, read_tokenizer
from gspo_lightning.rewards.classifier import SequenceClassificationReward
from tests.runs import runs

LETTERS = "What is 12 + 345? 7+5*3-4: The answer is #2; 2*3=6;6-4=2;\n\n def f(x): return x ** 2"


def byte_level(folder: Path, tokenizer_class: str = "LlamaTokenizerFast", **config: object) -> Path:
    """Write a tokenizer in the layout of DeepSeek-R1-Distill-Llama: byte-level BPE under Llama 2's class.

    From transformers 5.24 on that class gives way to the file by itself; others, such as Qwen 2's, do not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
    tokenizer.train_from_iterator(
        [LETTERS] * 4, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special)
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": tokenizer_class, "bos_token": special[0], "eos_token": special[1]}
    written |= config
    (folder / "tokenizer_config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def small_llama(folder: Path) -> Path:
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = LlamaConfig(
        vocab_size=tokens, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.thorough
def test_a_run_reads_and_writes_text_as_the_file_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_llama(byte_level(tmp_path / "model", "Qwen2TokenizerFast"))
    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with caplog.at_level(logging.WARNING):
        run = runs.fit(
            tmp_path / "runs", f"--model.name_or_path={folder}", *runs.UNTAUGHT, "--data.record_rollouts=true"
        )
    lines = [m for m in caplog.messages if "names the class Qwen2Tokenizer" in m]
    assert len(lines) == 1
    assert "'What is 12 + 345?' in another way than its tokenizer.json: the file is used" in lines[0]
    rows = [json.loads(line) for line in (run / "rollouts" / "000000.jsonl").read_text().splitlines()]
    assert len(rows) == 32
    for row in rows:
        assert row["prompt_ids"] == written.encode(row["prompt"], add_special_tokens=False).ids
        assert row["completion"] == written.decode(row["completion_ids"])
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]) == 0
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")  # as any reader of the export does
    for sample in SAMPLES:
        ids = written.encode(sample, add_special_tokens=False).ids
        assert exported(sample, add_special_tokens=False)["input_ids"] == ids
        assert exported.decode(ids) == written.decode(ids)


def test_a_tokenizer_that_agrees_with_its_file_keeps_its_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = byte_level(tmp_path, "PreTrainedTokenizerFast", pad_token="!")
    with caplog.at_level(logging.WARNING):
        found = load_tokenizer(ModelSettings(str(small_llama(folder))))
    assert found.pad_token == "!"
    assert "the file is used" not in caplog.text


def test_special_tokens_that_only_the_class_knows_are_kept(tmp_path: Path) -> None:
    """GPT-2's class has an end of text that configs rarely repeat."""
    folder = byte_level(tmp_path, "GPT2Tokenizer")
    content = json.loads((folder / "tokenizer.json").read_text())
    pattern = {"Regex": r"\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}  # not GPT-2's, as GPT-4o's
    for token in content["added_tokens"]:
        token["content"] = token["content"].replace("<｜end▁of▁sentence｜>", "<|endoftext|>")
    content["model"]["vocab"]["<|endoftext|>"] = content["model"]["vocab"].pop("<｜end▁of▁sentence｜>")
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    by_class = AutoTokenizer.from_pretrained(folder)
    assert any(by_class(text)["input_ids"] != written.encode(text).ids for text in SAMPLES)
    found = load_tokenizer(ModelSettings(str(small_llama(folder))))
    assert [found(text)["input_ids"] for text in SAMPLES] == [written.encode(text).ids for text in SAMPLES]
    assert found.eos_token_id == written.token_to_id("<|endoftext|>")


def test_a_reward_model_reads_text_as_the_file_says(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = Qwen3Config(
        vocab_size=written.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, num_labels=1, pad_token_id=1,
    )  # fmt: skip
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    reward = SequenceClassificationReward(str(folder))
    _, tokenizer, _ = reward._load()
    assert tokenizer("What is 12 + 345?")["input_ids"] == written.encode("What is 12 + 345?").ids


def test_tokens_that_the_config_adds_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are no contradiction: whoever reads the folder has them."""
    size = Tokenizer.from_file(str(byte_level(tmp_path) / "tokenizer.json")).get_vocab_size()
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
    config = {"added_tokens_decoder": {str(size): {"content": "12 +", "normalized": True, **flags}}}
    plain = read_tokenizer(str(byte_level(tmp_path / "plain", "PreTrainedTokenizerFast", **config)))
    assert plain.decode([size]) == "12 +"
    assert size in plain("What is 12 + 345?")["input_ids"]
    with caplog.at_level(logging.WARNING):
        found = read_tokenizer(str(byte_level(tmp_path / "qwen", "Qwen2TokenizerFast", **config)))
    assert [found(text)["input_ids"] for text in SAMPLES] == [plain(text)["input_ids"] for text in SAMPLES]
    assert "the file is used" in caplog.text
