"""Models in GGUF train and are exported as the models they were written from."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from gspo_lightning.cli import main
from gspo_lightning.commands.export.gguf_file import write_gguf
from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.tasks.chain import ChainTask
from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.gguf_config import config_of
from gspo_lightning.policy.load.gguf_tokenizer import tokenizer_of
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.unsaid import padding_of
from gspo_lightning.training.cold_start import ColdStart
from tests import ROOT
from tests.commands.export.paths import assert_no_paths
from tests.runs.runs import UNTAUGHT, fit

gguf = pytest.importorskip("gguf", reason="needs gguf")

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
LETTERS = [chr(code) for code in range(33, 127)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġ", "Ċ", "12"]
TOKENS += [f"<unused{number}>" for number in range(128 - len(TOKENS))]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gspo_lightning" / "gguf"


def llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **settings,
            vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()  # fmt: skip


def add(writer: Any, name: str, value: Any) -> None:
    """Add a field; None leaves it out."""
    if isinstance(value, list):
        writer.add_array(name, value)
    elif value is not None:
        kind = {bool: "bool", int: "uint32", float: "float32", str: "string"}[type(value)]
        getattr(writer, f"add_{kind}")(name, value)


def write(
    model: LlamaForCausalLM,
    file: Path,
    quantised: bool = False,
    family: str = "llama",
    fields: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a model as llama.cpp's converter does: other names, and rotary halves interleaved in queries and keys."""
    config = model.config
    writer = gguf.GGUFWriter(file, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS}
    metadata |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, **(fields or {})}
    for name, value in metadata.items():
        add(writer, name, value)
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = {"<": 3, "[": 5}  # control tokens, and rows without a token
    writer.add_token_types([kinds.get(token[0], 1) if len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges(["1 2"])
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        values = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                values = values.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
        written = names.get_name(name, try_suffixes=(".weight",))
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(written, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, np.ascontiguousarray(values))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def test_a_file_and_its_folder_load_as_the_model_that_was_written(tmp_path: Path, cache: Path) -> None:
    model = llama()
    folder = tmp_path / "model"
    folder.mkdir()
    write(model, folder / "tiny.gguf")
    for name in (folder / "tiny.gguf", folder):
        policy = load_policy(ModelSettings(str(name)))
        torch.testing.assert_close(logits(policy.model), logits(model), rtol=1e-5, atol=1e-6)
        assert policy.tokenizer.chat_template == TEMPLATE
        assert policy.tokenizer.eos_token == "<|im_end|>"
        assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1  # converted once


def test_quantised_weights_are_what_their_blocks_say(tmp_path: Path) -> None:
    """Q8_0 stores blocks of 32 numbers as a scale, the largest magnitude over 127, times a signed byte."""
    model = llama()
    write(model, tmp_path / "tiny.gguf", quantised=True)
    read = load_policy(ModelSettings(str(tmp_path / "tiny.gguf"))).model.state_dict()
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 2:
            blocks = tensor.reshape(-1, 32)
            scale = blocks.abs().amax(-1, keepdim=True) / 127
            expected = ((blocks / scale).round() * scale.half().float()).reshape(tensor.shape)
            off = (read[name] - expected).abs().reshape(-1, 32) / scale
            assert off.max() < 1.01  # a tie may round to the other byte
            assert (off > 0.02).float().mean() < 1e-3
        assert read[name].dtype == torch.float32


LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
WAVELENGTHS = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)
DIVISORS = np.array(
    [1 if w < 2048 else 8 if w > 8192 else 1 / (7 / 8 * (8192 / w - 1) / 3 + 1 / 8) for w in WAVELENGTHS]
)


@pytest.mark.parametrize(
    ("rope", "fields", "tensors"),
    [
        (
            {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {},
        ),
        (
            YARN,
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {},
        ),
        (LLAMA3, {}, {"rope_freqs.weight": DIVISORS.astype(np.float32)}),
    ],
    ids=["linear", "yarn", "llama3"],
)
def test_scaled_positions_are_those_of_the_model(
    tmp_path: Path, rope: dict[str, Any], fields: dict[str, Any], tensors: dict[str, np.ndarray]
) -> None:
    """transformers reads these files as if positions were not scaled; its own model of the config is the judge."""
    model = llama(rope_parameters=rope)
    write(model, tmp_path / "tiny.gguf", fields=fields, tensors=tensors)
    read = load_policy(ModelSettings(str(tmp_path / "tiny.gguf"))).model
    torch.testing.assert_close(logits(read), logits(model), rtol=1e-5, atol=1e-6)
    frequencies = read.model.rotary_emb.inv_freq
    torch.testing.assert_close(frequencies, model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)
    assert not torch.allclose(frequencies, llama().model.rotary_emb.inv_freq)


@pytest.mark.parametrize(
    "padding",
    [
        pytest.param((126, 127), id="at the end"),
        pytest.param((100, 127), id="with a gap", marks=pytest.mark.thorough),
    ],
)
def test_rows_without_a_token_are_never_said(tmp_path: Path, padding: tuple[int, ...]) -> None:
    """llama.cpp's converter writes ``[PAD151669]`` and so on where a model has more rows than its tokenizer tokens."""
    tokens = [f"[PAD{row}]" if row in padding else token for row, token in enumerate(TOKENS)]
    file = tmp_path / "padded.gguf"
    write(llama(), file, fields={"tokenizer.ggml.tokens": tokens})
    policy = load_policy(ModelSettings(str(file)))
    assert policy.unsaid == padding
    for row, token in enumerate(tokens):
        assert policy.tokenizer.convert_ids_to_tokens(row) == (None if row in padding else token)
    text = "a[PAD127] 12b<|im_end|>"
    ids = policy.tokenizer(text)["input_ids"]
    assert policy.tokenizer.decode(ids) == text
    assert not set(padding).intersection(ids)
    write_gguf(policy.model, file, tmp_path / "exported.gguf", "F16")
    again = load_policy(ModelSettings(str(tmp_path / "exported.gguf")))
    assert again.unsaid == padding
    assert again.tokenizer(text)["input_ids"] == ids


@pytest.mark.parametrize(("special", "padding"), [({}, (6, 7)), ({"tokenizer.ggml.padding_token_id": 6}, (7,))])
def test_a_vocabulary_of_scores_has_no_padding_either(special: dict[str, int], padding: tuple[int, ...]) -> None:
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a", "[PAD1]", "[PAD2]"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -2.0, -3.0, -1.0, -1000.0, -1000.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 5, 5],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = tokenizer_of(fields | special)
    assert padding_of(tokenizer, 8) == padding
    assert len(tokenizer) == 8 - len(padding)
    assert tokenizer("a")["input_ids"] == [1, 5]


def test_special_tokens_keep_their_ids(tmp_path: Path) -> None:
    """DeepSeek spells them with a full-width bar, which is not in the byte alphabet."""
    tokens = [*TOKENS]
    tokens[1:3] = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.add_bos_token": True}
    write(llama(), tmp_path / "tiny.gguf", fields=fields)
    tokenizer = load_policy(ModelSettings(str(tmp_path / "tiny.gguf"))).tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (1, 2, len(TOKENS))
    assert tokenizer(f"a{tokens[2]}")["input_ids"] == [1, TOKENS.index("a"), 2]  # the file adds the first one
    assert tokenizer.decode([TOKENS.index("a"), 2]) == f"a{tokens[2]}"


LONG = {"rope_factors_long.weight": np.full(8, 2.0), "rope_factors_short.weight": np.ones(8)}
STRETCHED = {"phi3.rope.scaling.original_context_length": 64}
YARN_KEYS = {**STRETCHED, "phi3.rope.scaling.type": "yarn", "phi3.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "tensors", "says"),
    [
        ({}, LONG, "rope_factors_long.weight, but no rope.scaling.original_context_length"),
        (STRETCHED, {"rope_factors_long.weight": np.ones(8)}, "has no rope_factors_short.weight"),
        (STRETCHED, {"rope_factors_short.weight": np.ones(8)}, "has no rope_factors_long.weight"),
        ({**STRETCHED, "phi3.rope.scaling.type": "longrope"}, {}, "'longrope', but it has no rope_factors_long.weight"),
        (YARN_KEYS, LONG, "rope_factors_long.weight beside positions scaled by 'yarn'"),
        (YARN_KEYS, {"rope_freqs.weight": DIVISORS}, "rope_freqs.weight beside positions scaled by 'yarn'"),
        ({**STRETCHED, "phi3.rope.scaling.type": "longrope"}, LONG, None),
        (STRETCHED, LONG, None),
    ],
)
def test_a_part_of_scaled_positions_is_refused_by_name(
    fields: dict[str, Any], tensors: dict[str, np.ndarray], says: str | None
) -> None:
    sizes = {
        "context_length": 256, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 4, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 16,
    }  # fmt: skip
    whole = {"general.architecture": "phi3", **{f"phi3.{key}": value for key, value in sizes.items()}, **fields}
    whole |= {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.padding_token_id": 0}
    if says is None:
        rope = config_of(whole, tensors, 100, True).rope_parameters
        assert (rope["rope_type"], rope["long_factor"], rope["factor"]) == ("longrope", [2.0] * 8, 4.0)
        return
    with pytest.raises(UserError, match=re.escape(says)):
        config_of(whole, tensors, 100, True)


VECTORS = json.loads((Path(__file__).parent / "gguf_vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VECTORS["vocabularies"])
def test_texts_are_split_as_llama_cpp_splits_them(name: str) -> None:
    """llama.cpp's own texts and tokens (its models/*.inp and *.out), with what they need of each vocabulary.

    Those of SmolLM2 are llama.cpp's answers for the file of docs/real_model.md.
    """
    vocabulary = VECTORS["vocabularies"][name]
    fields = {f"tokenizer.ggml.{key}": value for key, value in vocabulary["fields"].items()}
    tokenizer = tokenizer_of(fields)
    for text, ids in zip(VECTORS["texts"], vocabulary["ids"], strict=False):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"family": "rwkv7"}, "family 'rwkv7'"),
        ({"fields": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}}, "scaled by 'yarn'"),
        ({"fields": {"llama.logit_scale": 0.5}}, "llama.logit_scale = 0.5"),
        ({"fields": {"split.count": 2}}, "one of 2 parts"),
        ({"fields": {"tokenizer.ggml.pre": "of-tomorrow"}}, "splits text as 'of-tomorrow' says"),
        ({"fields": {"tokenizer.ggml.pre": None}}, "in a way that it does not say"),
        ({"fields": {"tokenizer.ggml.model": "bert"}}, "of the kind 'bert'"),
        ({"tensors": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}}, "Llama 3's rule does not give"),
        ({"tensors": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, "such as blk.0.attn_q.bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_metadata_and_tensors_are_refused_by_name(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    write(llama(), tmp_path / "tiny.gguf", **change)
    with pytest.raises(UserError, match=says) as raised:
        load_policy(ModelSettings(str(tmp_path / "tiny.gguf")))
    assert raised.value.fix


@pytest.mark.thorough
def test_training_and_export_give_a_plain_folder(tmp_path: Path) -> None:
    write(llama(), tmp_path / "tiny.gguf", quantised=True)
    (tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{a}+{a}=", "answer": str(2 * a)}) + "\n" for a in range(8))
    )
    run = fit(
        tmp_path, "--model.name_or_path", str(tmp_path / "tiny.gguf"), *UNTAUGHT,
        "--data.train", str(tmp_path / "sums.jsonl"), "--data.val=null", "--trainer.max_epochs=1",
        "--data.group_size=4", "--data.prompts_per_rollout=4", "--data.minibatches_per_rollout=1", small=False,
    )  # fmt: skip
    out = tmp_path / "exported"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(out)]) == 0
    exported = AutoModelForCausalLM.from_pretrained(out)
    before = load_policy(ModelSettings(str(tmp_path / "tiny.gguf"))).model
    assert not torch.equal(logits(exported), logits(before))
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATE
    _exports_gguf(run, exported, tmp_path)


def _exports_gguf(run: Path, exported: torch.nn.Module, folder: Path) -> None:
    """``--gguf`` writes the weights that a folder has, and the metadata of the file that the run began with."""
    checkpoint = str(run / "checkpoints" / "last.ckpt")
    for kind, allowed in (("F16", 1 / 2048), ("Q8_0", 1 / 127)):  # of the largest of a row: half a step, with its scale
        out = folder / f"back-{kind}"
        assert main(["export", checkpoint, str(out), "--gguf", kind]) == 0
        assert {path.name for path in out.iterdir()} >= {f"{out.name}.{kind}.gguf", "README.md"}
        again = load_policy(ModelSettings(str(out))).model
        for name, tensor in again.state_dict().items():
            gap = (tensor - exported.get_parameter(name)).abs().max() if "lm_head" not in name else torch.zeros(())
            assert gap <= allowed * exported.state_dict()[name].abs().max()
        written = gguf.GGUFReader(out / f"{out.name}.{kind}.gguf").fields
        for name, field in gguf.GGUFReader(folder / "tiny.gguf").fields.items():
            if not name.startswith(("GGUF.", "general.")):
                assert written[name].contents() == field.contents(), name
        assert_no_paths(out, folder)
    assert_no_paths(folder / "exported", folder)
    assert "matrices in Q8_0" in (out / "README.md").read_text(encoding="utf-8")


def test_a_reward_model_begins_with_a_file_and_no_table_of_missing_weights(tmp_path: Path) -> None:
    write(llama(), tmp_path / "tiny.gguf")
    pairs = [{"prompt": f"{a}+{a}=", "chosen": str(2 * a), "rejected": str(2 * a + 1)} for a in range(8)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    try:
        assert main([
            "fit-reward", f"--config={ROOT / 'configs' / 'reward_model.yaml'}", "--trainer.max_epochs=1",
            f"--trainer.default_root_dir={tmp_path}", f"--model.name_or_path={tmp_path / 'tiny.gguf'}",
            f"--data.train={tmp_path / 'pairs.jsonl'}", f"--data.val={tmp_path / 'pairs.jsonl'}",
        ]) == 0  # fmt: skip
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert not any("MISSING" in line for line in said)
    (made,) = tmp_path.glob("**/model/model.safetensors")
    trained = AutoModelForSequenceClassification.from_pretrained(made.parent)
    assert trained.score.weight.abs().max() > 0  # the head begins at zero, so one update moves nothing else
    assert torch.equal(trained.model.embed_tokens.weight, llama().model.embed_tokens.weight)


def test_inspect_reads_a_file_and_holds_one_model_however_often_it_asks(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from gspo_lightning.commands.inspect.sampled import InProcess

    write(llama(), tmp_path / "tiny.gguf")
    first, second = InProcess(str(tmp_path / "tiny.gguf")), InProcess(str(tmp_path / "tiny.gguf"))
    assert first.policy is second.policy
    torch.testing.assert_close(logits(first.policy.model), logits(llama()), rtol=1e-5, atol=1e-6)
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "missing.gguf", "does not exist"),
        (lambda folder: _bytes(folder / "empty.gguf", b""), "cannot be read as GGUF"),
        (lambda folder: _bytes(folder / "text.gguf", b"<!DOCTYPE html>" * 100), "cannot be read as GGUF"),
        (lambda folder: _cut(folder / "cut.gguf"), "cannot be read as GGUF"),
        (lambda folder: _bytes(_bytes(folder / "a.gguf", b"x").with_name("b.gguf"), b"x").parent, "holds 2 GGUF files"),
    ],
    ids=["missing", "empty", "page", "truncated", "two"],
)
def test_unreadable_gguf_is_refused_in_one_sentence(tmp_path: Path, cache: Path, make: object, says: str) -> None:
    name = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(UserError, match=says) as raised:
        load_policy(ModelSettings(str(name)))
    assert raised.value.field == "model.name_or_path"
    assert "\n" not in str(raised.value.problem)
    assert not cache.exists() or not any(path.is_dir() for path in cache.iterdir())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_lightning.policy.load.gguf.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .*gguf"):
        loadable_name(str(_bytes(tmp_path / "a.gguf", b"x")))


def _bytes(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def _cut(file: Path) -> Path:
    write(llama(), file)
    return _bytes(file, file.read_bytes()[:60_000])


def test_a_cold_start_is_made_anew_for_another_file_of_the_same_name(tmp_path: Path) -> None:
    file, start = tmp_path / "tiny.gguf", ColdStart(ChainTask("cold_start", 64))
    write(llama(), file)
    before = start.key(ModelSettings(str(file)))
    assert start.key(ModelSettings(str(file))) == before
    write(llama(), file, quantised=True)
    assert start.key(ModelSettings(str(file))) != before
