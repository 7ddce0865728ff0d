"""One forward behind every log-probability: right whatever the padding, the same bits with and without gradients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.load.loading import context_length, load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import check_head
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model
from tests.support.model_families import FAMILIES, VOCABULARY, build_model, build_policy

ROWS: list[tuple[list[int], list[int]]] = [
    ([10, 13, 8, 17], [5, 9, 1]),
    ([4], [20, 21, 22, 23, 24, 25, 26]),
    ([30, 31, 32, 33, 34, 35, 36, 3, 4], [7]),
    ([8, 17], [11, 11, 1]),
]
"""(prompt, response) token ids."""


def pack(rows: Sequence[tuple[list[int], list[int]]], extra: int = 0, garbage: int = 0) -> MicroBatch:
    """Left-aligned rows, ``extra`` columns wider than needed, with any id in the padding."""
    prompts, responses = (torch.tensor([len(part) for part in column]) for column in zip(*rows, strict=True))
    ids = torch.full((len(rows), int((prompts + responses).max()) + extra), garbage)
    for i, (prompt, response) in enumerate(rows):
        ids[i, : len(prompt) + len(response)] = torch.tensor(prompt + response)
    mask = torch.arange(int(responses.max()) + extra) < responses.unsqueeze(1)
    return MicroBatch(ids, prompts, responses, mask, torch.zeros(len(rows)))


def alone(policy: Policy, row: tuple[list[int], list[int]], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by transformers' own forward of one row without padding."""
    prompt, response = row
    logits = policy.model(torch.tensor([prompt + response]), use_cache=False).logits[0].float() / temperature
    log_p = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    return log_p.gather(-1, torch.tensor(response)[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_equal_a_plain_forward_of_each_row_alone(family: str, temperature: float) -> None:
    policy = build_policy(family)
    with torch.no_grad():
        logprobs, entropies = policy(pack(ROWS), temperature)
        for i, row in enumerate(ROWS):
            expected, entropy = alone(policy, row, temperature)
            count = len(row[1])
            torch.testing.assert_close(logprobs[i, :count], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(entropies[i, :count], entropy, rtol=1e-5, atol=1e-5)
            assert not logprobs[i, count:].any()
            assert not entropies[i, count:].any()
    assert logprobs.shape == (4, 7)


def test_gradients_equal_a_plain_forward_of_each_row_alone() -> None:
    policy = build_policy("qwen3", sharpen=1.0).double()
    batch = pack(ROWS)
    weights = torch.randn(batch.response_mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logprobs, entropies = policy(batch, 0.7)
    found = torch.autograd.grad((logprobs * weights).sum() + 0.1 * entropies.sum(), list(policy.parameters()))
    loss = torch.zeros((), dtype=torch.float64)
    for i, (prompt, response) in enumerate(ROWS):
        logits = policy.model(torch.tensor([prompt + response]), use_cache=False).logits[0] / 0.7
        log_p = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        loss = loss + (log_p.gather(-1, torch.tensor(response)[:, None])[:, 0] * weights[i, : len(response)]).sum()
        loss = loss - 0.1 * (log_p.exp() * log_p).sum()
    expected = torch.autograd.grad(loss, list(policy.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "llama"])
def test_padding_order_and_company_do_not_move_a_value(family: str) -> None:
    policy = build_policy(family, sharpen=1.0)
    order = [2, 0, 3, 1]
    with torch.no_grad():
        first = policy(pack(ROWS))[0]
        wider = policy(pack(ROWS, extra=5))[0]
        shuffled = policy(pack([ROWS[i] for i in order]))[0]
        singles = [policy(pack([row]))[0][0] for row in ROWS]
    assert float((wider[:, :7] - first).abs().max()) <= 1e-6
    assert float((shuffled - first[order]).abs().max()) <= 1e-6
    assert max(float((s - first[i, : len(s)]).abs().max()) for i, s in enumerate(singles)) <= 1e-6


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_ids_in_the_padding_leave_loss_and_gradient_bit_identical(family: str) -> None:
    policy = build_policy(family)
    results = []
    for garbage in (0, VOCABULARY - 1):
        logprobs, entropies = policy(pack(ROWS, extra=3, garbage=garbage))
        loss = -(logprobs * torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)).sum() + 0.1 * entropies.sum()
        results.append([logprobs, loss, *torch.autograd.grad(loss, list(policy.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_unchanged_policy_gives_the_same_bits_with_and_without_gradients(family: str, checkpointing: bool) -> None:
    policy = build_policy(family).train()
    if checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    batch = pack(ROWS)
    with torch.no_grad():
        old, _ = policy(batch, 0.9)
    new, _ = policy(batch, 0.9)
    assert new.requires_grad
    assert torch.equal(new.detach(), old)  # every ratio is exactly 1
    new.sum().backward()
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad) or family == "qwen3-moe"


def test_gradient_checkpointing_does_not_change_gradients() -> None:
    gradients = []
    for checkpointing in (False, True):
        settings = ModelSettings("tiny-qwen3", gradient_checkpointing=checkpointing)
        policy = load_policy(settings).train()
        policy(pack(ROWS))[0].sum().backward()
        gradients.append([p.grad for p in policy.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_the_row_layout_is_read_from_lengths_and_never_from_token_values() -> None:
    """Padding and end ids inside prompt and response are ordinary tokens."""
    policy = build_policy("qwen3")
    rows = [([0, 1, 0], [1, 0, 0]), ([5, 6, 7, 8], [0, 1, 1])]
    with torch.no_grad():
        logprobs, _ = policy(pack(rows, extra=2))
        for i, row in enumerate(rows):
            torch.testing.assert_close(logprobs[i, :3], alone(policy, row)[0], rtol=1e-5, atol=1e-5)


def test_dropout_is_off_in_train_mode_in_all_its_forms() -> None:
    torch.manual_seed(0)
    functional = build_model("llama")
    functional.config.attention_dropout = 0.4
    for layer in functional.model.layers:
        layer.self_attn.attention_dropout = 0.4  # used by the attention function, not by a module
    modules = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, attn_pdrop=0.5)
    )
    for model in (functional, modules):
        before, _ = _twice(model)
        assert not torch.equal(before[0], before[1])  # it is on in the bare model
        policy = Policy(model, build_policy("llama").tokenizer)
        (first, second), still = _twice(policy.model)
        assert torch.equal(first, second)
        assert torch.equal(first, still)
        assert all(m.p == 0 for m in model.modules() if isinstance(m, nn.Dropout))


def _twice(model: nn.Module) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Logits of two forwards in train mode, and of one in eval mode."""
    ids = torch.arange(3, 20).unsqueeze(0)
    with torch.no_grad():
        model.train()
        pair = model(ids, use_cache=False).logits, model(ids, use_cache=False).logits
        model.eval()
        return pair, model(ids, use_cache=False).logits


# the output head ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_known_families_is_accepted(family: str) -> None:
    check_head(build_policy(family))


class ScaledLlama(LlamaForCausalLM):
    """A head that does something which its config does not say."""

    def forward(self, *args: object, **kwargs: object):  # noqa: ANN201
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 1.25
        return out


def test_a_head_that_does_something_unknown_is_refused() -> None:
    policy = Policy(ScaledLlama(build_model("llama").config), build_policy("llama").tokenizer)
    with pytest.raises(UserError, match="ScaledLlama computes its logits in a way this package does not know"):
        check_head(policy)


# ends, context --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "expected"), [(None, (1,)), (7, (1, 7)), ([7, 1, 9], (1, 7, 9))])
def test_ends_are_the_union_of_tokenizer_and_generation_config(
    policy: Policy, generation: int | list[int] | None, expected: tuple[int, ...]
) -> None:
    policy.model.generation_config.eos_token_id = generation
    assert policy.eos_token_ids == expected


@pytest.mark.parametrize("saved", [False, True])
def test_context_length_is_read_from_the_config(saved: bool, policy: Policy, tmp_path: Path) -> None:
    name = "tiny-qwen3"
    if saved:
        policy.model.config.save_pretrained(tmp_path)
        name = str(tmp_path)
    assert context_length(ModelSettings(name)) == 512
    assert context_length(ModelSettings(name, config_overrides={"max_position_embeddings": 64})) == 64


# loading and saving ---------------------------------------------------------------------------------------------------


def test_saved_policy_reloads_with_equal_outputs_and_end_tokens(policy: Policy, tmp_path: Path) -> None:
    policy.model.generation_config.eos_token_id = [1, 9]
    policy.save_pretrained(tmp_path / "model")
    again = load_policy(ModelSettings(str(tmp_path / "model"))).eval()
    assert again.eos_token_ids == (1, 9)
    assert again.tokenizer("7+5:")["input_ids"] == policy.tokenizer("7+5:")["input_ids"]
    with torch.no_grad():
        assert torch.equal(again(pack(ROWS))[0], policy(pack(ROWS))[0])


def test_any_rank_saves_what_it_is_asked_to(policy: Policy, tmp_path: Path) -> None:
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        policy.save_pretrained(tmp_path)
    finally:
        dist.destroy_process_group()
    again = load_policy(ModelSettings(str(tmp_path))).eval()
    with torch.no_grad():
        assert torch.equal(again(pack(ROWS))[0], policy(pack(ROWS))[0])


def test_tiny_models_depend_on_their_seed_and_nothing_else() -> None:
    torch.manual_seed(123)
    first = build_tiny_model("tiny-qwen3", 5)
    state = torch.random.get_rng_state()
    second = build_tiny_model("tiny-qwen3", 5)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is left alone
    other = build_tiny_model("tiny-qwen3", 6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.get_output_embeddings().weight, other.get_output_embeddings().weight)


@pytest.mark.parametrize("saved", [False, True])
def test_config_overrides_reach_the_model(saved: bool, policy: Policy, tmp_path: Path) -> None:
    name = "tiny-qwen3"
    if saved:
        policy.save_pretrained(tmp_path)
        name = str(tmp_path)
    changed = load_policy(ModelSettings(name, config_overrides={"rms_norm_eps": 0.5}))
    assert changed.model.config.rms_norm_eps == 0.5
    with torch.no_grad():
        assert not torch.allclose(changed.eval()(pack(ROWS))[0], policy(pack(ROWS))[0], atol=1e-3)
    with pytest.raises(UserError, match="'rms_eps' is not a field of Qwen3Config") as caught:
        load_policy(ModelSettings(name, config_overrides={"rms_eps": 0.5}))
    assert caught.value.field == "model.config_overrides"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_weights_have_the_requested_dtype(dtype: str, tmp_path: Path) -> None:
    expected = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": torch.bfloat16}[dtype]
    Policy(build_tiny_model("tiny-qwen3", 0, torch.bfloat16), load_tokenizer(ModelSettings())).save_pretrained(tmp_path)
    policy = load_policy(ModelSettings(str(tmp_path), dtype=dtype))  # type: ignore[arg-type]
    assert {p.dtype for p in policy.parameters()} == {expected}
    with torch.no_grad():
        assert policy(pack(ROWS))[0].dtype == torch.float32


def test_a_tokenizer_without_an_end_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    build_tiny_model("tiny-qwen3", 0).config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no end-of-sequence token") as caught:
        load_tokenizer(ModelSettings(str(tmp_path)))
    assert caught.value.field == "model.name_or_path"


def test_a_missing_padding_token_is_no_obstacle(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    build_tiny_model("tiny-qwen3", 0).config.save_pretrained(tmp_path)
    assert load_tokenizer(ModelSettings(str(tmp_path))).pad_token_id == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "the folder '/no/such/folder' does not exist"),
        ("./model", "the folder './model' does not exist"),
        ("runs/quickstart/model", "the folder 'runs/quickstart/model' does not exist"),
        ("tiny-qwen", "'tiny-qwen' is not a built-in model; did you mean tiny-qwen3"),
        ("nobody/no-such-model", "'nobody/no-such-model' cannot be loaded"),  # no network in the tests
    ],
)
def test_a_wrong_name_is_one_clear_message(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_policy(ModelSettings(name))
    assert caught.value.field == "model.name_or_path"
    assert message in caught.value.problem
    assert len(str(caught.value).splitlines()) <= 2


def test_broken_model_folders_are_one_clear_message(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "model")
    folder = ModelSettings(str(tmp_path / "model"))
    weights = tmp_path / "model" / "model.safetensors"

    def refused(settings: ModelSettings) -> None:
        with pytest.raises(UserError, match="cannot be loaded") as caught:
            load_policy(settings)
        assert caught.value.field == "model.name_or_path"

    weights.write_bytes(weights.read_bytes()[:1000])  # a download that was cut
    refused(folder)
    weights.unlink()
    refused(folder)
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "no-such-family"}))
    refused(folder)
    config.write_text("{not json")
    refused(folder)
    (tmp_path / "empty").mkdir()
    refused(dataclasses.replace(folder, name_or_path=str(tmp_path / "empty")))


def test_weights_of_another_shape_are_one_clear_message(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_policy(ModelSettings(str(tmp_path), config_overrides={"intermediate_size": 96}))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    policy = load_policy(ModelSettings())
    state = policy.model.state_dict()
    state.pop("model.layers.1.mlp.up_proj.weight")
    policy.model.save_pretrained(tmp_path, state_dict=state)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"lacks 1 weights .*layers\.1\.mlp\.up_proj"):
        load_policy(ModelSettings(name_or_path=str(tmp_path)))
