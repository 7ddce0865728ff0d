"""No row of a packed micro-batch reaches another one, and what is not exact is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch, Prompt, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks import checks as policy_checks
from gspo_lightning.policy.model_checks.checks import check_head, choose_layout
from gspo_lightning.policy.model_checks.row_isolation import Probe, carried_state
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests.policy.model_checks.test_checks import PACKED, batch
from tests.support.exact_families import exact_model
from tests.support.model_families import build_model

LONGEST = 23
STATEFUL = ["lfm2", "falcon_h1", "jamba", "qwen3_next"]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
ROWS = {5: [6, 1, 4], 9: [14], 12: [3, 9]}


def policy_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(model.to(dtype), character_tokenizer()).train()


@torch.no_grad()
def largest_gap(policy: Policy, rows: MicroBatch) -> float:
    """From ``log_softmax(model(one row).logits / T)``, a forward of each row alone without padding; nats."""
    found, _ = policy(rows, 0.7)
    gaps = []
    for i, (width, count) in enumerate(zip(rows.prompt_lengths, rows.response_lengths, strict=True)):
        ids = rows.input_ids[i, : width + count]
        expected = (policy.model(ids[None], use_cache=False).logits[0] / 0.7).log_softmax(-1)[width - 1 : -1]
        gaps.append(float((found[i, :count] - expected.gather(-1, ids[width:, None])[:, 0]).abs().max()))
    return max(gaps)


@DTYPES
@pytest.mark.parametrize("family", STATEFUL)
def test_stateful_model_is_never_packed(
    family: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, and by what it does: each alone is enough."""
    model = exact_model(family)
    policy = policy_of(model, dtype)
    assert carried_state(model) is not None
    assert "when other rows change" in str(leak(policy)) or "those of padded rows" in str(leak(policy))
    for name_known in (True, False):
        if not name_known:
            monkeypatch.setattr(policy_checks, "carried_state", lambda model: None)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            choose_layout(policy, "auto", LONGEST)
        assert not policy.packed
        assert len(caplog.records) == 1
    if dtype == torch.float32:
        assert largest_gap(policy, batch(ROWS)) <= 1e-5


def leak(policy: Policy) -> str | None:
    return Probe(policy, LONGEST).why_not_packed()


class Shifting(LlamaForCausalLM):
    """Every token sees a little of the one before it, wherever that comes from; nothing in it says so."""

    share = 0.05

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers[0].register_forward_pre_hook(self._shift)

    def _shift(self, module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0]
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        return hidden + self.share * before, *args[1:]


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)], ids=["float32", "bfloat16"]
)
def test_a_leak_that_no_name_tells_is_found(dtype: torch.dtype, share: float, caplog: pytest.LogCaptureFixture) -> None:
    model = Shifting(build_model("llama").config)
    model.share = share
    model.load_state_dict(build_model("llama").state_dict())
    policy = policy_of(model, dtype)
    assert carried_state(model) is None
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", LONGEST)
    assert not policy.packed
    assert "nats" in caplog.text
    if dtype == torch.float32:
        assert largest_gap(policy, batch(ROWS)) <= 1e-5


@DTYPES
@pytest.mark.parametrize("family", PACKED)
def test_packed_rows_stay_as_they_are_when_all_others_change(family: str, dtype: torch.dtype) -> None:
    """One response to the second prompt is kept; its siblings and all about the first and third are other tokens."""
    policy = policy_of(build_model(family), dtype)
    choose_layout(policy, "auto", LONGEST)
    assert policy.packed
    rows, lengths = batch({5: [6, 1, 4], 9: [14, 3], 12: [3, 9]}), 23
    others = batch({5: [6, 1, 4], 9: [14, 3], 12: [3, 9]}, seed=5)
    assert rows.input_ids.shape[1] == lengths
    kept = 4
    others.input_ids[3:5, :9] = rows.input_ids[kept, :9]
    others.input_ids[kept] = rows.input_ids[kept]
    with torch.no_grad():
        first, second = policy(rows)[0], policy(others)[0]
    assert not torch.allclose(first[:kept], second[:kept], atol=1e-2)
    bound = (
        0.0 if family != "qwen3-moe" else 1e-6 if dtype == torch.float32 else 0.02
    )  # experts: products of other sizes
    assert float((first[kept] - second[kept]).abs().max()) <= bound


@pytest.mark.parametrize("named", [True, False])
def test_a_window_that_no_layer_says_is_found(
    named: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM3 masks by ``layer_types``; its layers say that they have no window."""
    policy = policy_of(exact_model("smollm3"))
    if not named:
        monkeypatch.setattr(policy_checks, "windows", lambda backbone: [])
    choose_layout(policy, "auto", 8)
    assert policy.packed
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", LONGEST)
    assert not policy.packed
    assert ("a sliding window of 8 tokens" if named else "those of padded rows") in caplog.text
    assert largest_gap(policy, batch(ROWS)) <= 1e-5


@pytest.mark.parametrize("family", ["llama4", "mllama"])
def test_text_classes_whose_base_model_is_themselves_are_exact(family: str) -> None:
    policy = policy_of(exact_model(family))
    check_head(policy)
    choose_layout(policy, "auto", LONGEST)
    assert policy.backbone is policy.model.model
    assert largest_gap(policy, batch(ROWS)) <= 1e-5
    policy(batch(ROWS))[0].sum().backward()
    assert all(p.grad is not None for name, p in policy.model.named_parameters() if "cross" not in name)


def test_layers_that_attend_twice_are_padded_and_can_be_sampled(caplog: pytest.LogCaptureFixture) -> None:
    """The cache of shared prompts has one place for a layer."""
    policy = policy_of(exact_model("diffllama"))
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", LONGEST)
    assert "layers that attend more than once" in caplog.text
    assert largest_gap(policy, batch(ROWS)) <= 1e-5
    prompts = [Prompt(0, "", (5, 9, 4, 7)), Prompt(1, "", tuple(range(3, 10)))]
    groups = GroupedSampler().generate(
        policy.eval(), prompts, group_size=2, sampling=SamplingParams(12), draws=Draws(1), version=0
    )
    with torch.no_grad():
        again, _ = policy(make_micro_batch([row for group in groups for row in group]))
    for i, row in enumerate(row for group in groups for row in group):
        assert row.logprobs is not None
        torch.testing.assert_close(again[i, : len(row.logprobs)], row.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("deepseek_v32", "DeepseekV32ForCausalLM attends to 8 selected tokens"),
        ("xlm", r"XLMWithLMHeadModel gives a padded row log-probabilities that are \d"),
        ("bert", "BertLMHeadModel computes its logits in a way this package does not know"),
        ("rembert", "RemBertForCausalLM cannot be trained: its forward pass on a few tokens fails: .*mat1 and mat2"),
    ],
)
def test_inexact_model_family_is_refused_by_name(family: str, reason: str) -> None:
    policy = policy_of(exact_model(family))

    def checked() -> None:
        check_head(policy)
        choose_layout(policy, "padded", LONGEST)

    with pytest.raises(UserError, match=reason) as caught:
        checked()
    assert caught.value.field == "model.name_or_path"
    assert len(str(caught.value).splitlines()) == 2


def test_selected_tokens_are_exact_where_all_are_selected() -> None:
    policy = policy_of(exact_model("deepseek_v32"))
    choose_layout(policy, "auto", 8)
    assert not policy.packed
    assert largest_gap(policy, batch({3: [5, 2], 4: [1, 4]})) <= 1e-5


class Backwards(LlamaForCausalLM):
    """Sees what is still to come, as a model of masked language does."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.embed_tokens.register_forward_hook(lambda module, args, out: out + 0.5 * out.mean(1, keepdim=True))


def test_a_model_that_looks_ahead_is_refused() -> None:
    policy = policy_of(Backwards(build_model("llama").config))
    check_head(policy)
    with pytest.raises(UserError, match="Backwards gives a padded row log-probabilities"):
        choose_layout(policy, "auto", LONGEST)


class Neighbourly(LlamaForCausalLM):
    """Frequencies of its own that follow the longest position of a call, as older code of model repositories has."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        rotary = self.model.rotary_emb
        plain = rotary.inv_freq.clone()

        def follow(module: Any, args: tuple[Tensor, ...]) -> None:
            module.inv_freq = plain * (1.0 if int(args[1].max()) < 16 else 0.5)

        rotary.register_forward_pre_hook(
            lambda m, a, k: follow(m, (a[0], k.get("position_ids", a[-1]))), with_kwargs=True
        )


def test_a_model_that_looks_at_the_positions_of_other_rows_is_refused() -> None:
    policy = policy_of(Neighbourly(build_model("llama").config))
    choose_layout(policy, "auto", 16)
    with pytest.raises(UserError, match=r"Neighbourly moves a row's log-probabilities by .* nats when another row"):
        choose_layout(policy, "auto", LONGEST)


class FromTheFuture(PretrainedConfig):
    """Of a family that cannot be built from it."""

    model_type = "from_the_future"


class FromTheFutureForCausalLM(LlamaForCausalLM):
    """As a release of transformers may have one."""

    config_class = FromTheFuture

    def __init__(self, config: Any) -> None:
        raise KeyError("full_attention")


def test_a_family_that_cannot_be_built_is_refused_by_name(tmp_path: Path) -> None:
    AutoConfig.register("from_the_future", FromTheFuture, exist_ok=True)
    AutoModelForCausalLM.register(FromTheFuture, FromTheFutureForCausalLM, exist_ok=True)
    FromTheFuture(vocab_size=39).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="cannot be loaded: 'full_attention'"):
        load_policy(ModelSettings(str(tmp_path)))
