"""What samples computes what is trained, or is replaced, or refused: by measurement, whatever the model is called."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, EnvironmentRollouts, GroupedSampler, TransformersGenerate, verify
from gspo_lightning.rollouts.sampler.decoding import PaddedDecoder, SharedDecoder
from gspo_lightning.rollouts.source import ResponsePrefix
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.training.trainer import GSPOTrainer
from gspo_lightning.training.trainer_config import GSPOConfig
from tests.support import model_families
from tools.models import tiny

LONGEST = 40
SHARP = 300.0


def policy_of(family: str, dtype: torch.dtype = torch.float32, **fields: Any) -> Policy:
    policy = Policy(tiny.build(family, **fields).to(dtype), character_tokenizer()).eval()
    choose_layout(policy, "auto", LONGEST)
    return policy


def verified(
    policy: Policy, source: Any = None, longest: int = LONGEST, temperature: float = 0.7, **options: Any
) -> str | None:
    verify_decoding(policy, source or GroupedSampler(), temperature=temperature, longest=longest, **options)
    return policy.decoding.way


def mistral(window: int | None) -> Policy:
    """Padded where it has a window."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MistralForCausalLM(MistralConfig(**model_families.COMMON | {"sliding_window": window}))
    policy = Policy(model, character_tokenizer()).eval()
    policy.packed = window is None
    return policy


def off(gap: float, monkeypatch: pytest.MonkeyPatch, kind: type = PaddedDecoder, after: int = 0) -> None:
    """Let a decoder's steps have other logits than the model: for one token, at positions from ``after`` on."""
    own = kind.step  # type: ignore[attr-defined]

    def step(self: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = own(self, tokens, positions)
        wrong = logits + gap * torch.linspace(-1, 1, logits.shape[-1])
        return torch.where(positions.unsqueeze(1) >= after, wrong, logits)

    monkeypatch.setattr(kind, "step", step)


@pytest.mark.thorough("1.0-falcon_h1", "1.0-mamba2", "1e-09-falcon_h1", "1e-09-mamba2")
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text", "lfm2", "falcon_h1", "jamba", "mamba2"])
@pytest.mark.parametrize("compact_at", [1e-9, 1.0])
def test_states_are_those_of_their_rows(family: str, compact_at: float) -> None:
    """Prompts of different lengths, rows that leave: log-probabilities are those of each whole row alone."""
    policy = policy_of(family)
    contexts = [tuple((5 * t + i) % 30 + 3 for t in range(width)) for i, width in enumerate((9, 2, 14))]
    rows = [ResponsePrefix(Prompt(i, "", c), k, c, 0, 3 + 4 * k) for i, c in enumerate(contexts) for k in range(3)]
    source = GroupedSampler(compact_at=compact_at)
    draws = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
    for rollout in source.extend(policy, rows, sampling=SamplingParams(1, temperature=0.7), draws=draws):
        ids = torch.tensor([[*rollout.prompt.token_ids, *rollout.token_ids.tolist()]])
        with torch.no_grad():
            wanted = (policy.model(ids, use_cache=False).logits[0] / 0.7).log_softmax(-1)
        wanted = wanted[-len(rollout.token_ids) - 1 : -1].gather(1, rollout.token_ids.unsqueeze(1)).squeeze(1)
        assert len(wanted) == 3 + 4 * rollout.sample
        # a state of a context with another first token is .46 nats off or more; float32 sums in another order, step by
        # step and in pieces, are 1.2e-4 apart on a processor without vector instructions
        torch.testing.assert_close(rollout.logprobs, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "way"),
    [("qwen3", "shared"), ("gemma2", "padded"), ("qwen3_next", "padded"), ("mamba", "padded"), ("minimax", "generate")],
)
def test_the_fastest_way_that_is_right_is_taken(family: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_of(family)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert verified(policy) == way
    assert (way == "generate") is ("transformers' generate" in caplog.text)
    assert not policy.training
    assert policy.frozen_copy().decoding.way == way  # what samples may be a copy


def test_a_cache_that_the_fast_decoder_does_not_know_is_left_to_the_padded_one() -> None:
    """Differential attention doubles the keys' heads: training is packed, decoding is not."""
    policy = policy_of("diffllama")
    policy.packed = True
    assert verified(policy) == "padded"
    assert policy.packed


@pytest.mark.thorough("generate-zamba2-Zamba2ForCausalLM", "sampler-zamba2-Zamba2ForCausalLM")
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("rwkv", "RwkvForCausalLM"),  # knows no cache of this kind
        ("moshi", "MoshiForCausalLM"),  # its step with a cache is another function
        ("nemotron_h", "NemotronHForCausalLM"),
        ("zamba2", "Zamba2ForCausalLM"),
    ],
)
@pytest.mark.parametrize("source", [GroupedSampler(), TransformersGenerate()], ids=["sampler", "generate"])
def test_model_that_no_decoder_handles_exactly_is_refused_by_name(family: str, name: str, source: Any) -> None:
    with pytest.raises(UserError, match=f"{name}.* nats") as found:
        verified(policy_of(family), source)
    assert found.value.field == "model.name_or_path"


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_an_index_of_selected_tokens_is_refused_where_rows_go_beyond_it(family: str) -> None:
    """Sixteen heads score every token apart from the others; two leave ties, which padding breaks another way."""
    assert verified(policy_of(family, index_n_heads=2, index_topk=64)) == "padded"
    with pytest.raises(UserError, match=r"attends to \d+ selected tokens, and in rows of up to \d+ their choice"):
        verified(policy_of(family, index_n_heads=2))


def test_refusal_gives_the_errors_of_decoding_and_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    off(0.01, monkeypatch)
    policy = mistral(None)
    policy.packed = False
    monkeypatch.setattr(GroupedSampler, "local", lambda self: _Padded())
    with pytest.raises(UserError, match=r"off by 0.01\d nats from whole rows of 6 to 16 tokens, where training is by"):
        verified(policy)


class _Padded(TransformersGenerate):
    """A source of one's own: it has no other way."""

    def extend(self, policy: Policy, *args: Any, **options: Any) -> Any:
        policy.decoding.way = "padded"
        return GroupedSampler().extend(policy, *args, **options)


@pytest.mark.parametrize(("gap", "way"), [(1e-4, "shared"), (0.02, "padded")])
def test_a_decoder_that_is_off_by_more_than_rounding_is_ruled_out(
    gap: float, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    off(gap, monkeypatch, SharedDecoder)
    with caplog.at_level(logging.WARNING):
        assert verified(mistral(None)) == way
    assert ("prompts shared: off by" in caplog.text) is (way == "padded")


@pytest.mark.parametrize(("gap", "way"), [(0.0, "shared"), (1.0, "padded")])
def test_a_difference_grows_with_the_logits_that_rounding_moves(
    gap: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of a few hundred, as some published models have, in a model of nothing but right operations."""
    policy = mistral(None)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(SHARP)
    off(gap * SHARP, monkeypatch, SharedDecoder)
    assert verified(policy, temperature=0.1) == way


@pytest.mark.parametrize(("longest", "way"), [(20, "padded"), (33, "padded"), (34, "generate"), (200, "generate")])
def test_lengths_beyond_a_window_are_looked_at_where_rows_reach_them(
    longest: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = mistral(25)
    off(1.0, monkeypatch, after=25)
    assert verified(policy, longest=longest) == way


def test_a_window_that_takes_too_long_to_fill_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verify, "OPERATIONS", {True: 1e6, False: 1e6})
    off(1.0, monkeypatch, after=25)
    with caplog.at_level(logging.INFO):
        assert verified(mistral(25)) == "padded"
    assert "decoding beyond its 25 tokens is not verified" in caplog.text


@pytest.mark.thorough("qwen3_moe", "qwen3_next")
@pytest.mark.parametrize("family", ["qwen3", "qwen3_next", "gemma2", "lfm2", "qwen3_moe"])
def test_half_precision_does_not_rule_out_exact_decoders(family: str) -> None:
    policy = policy_of(family, torch.bfloat16)
    assert verified(policy) in ("shared", "padded")
    exact = policy_of(family)
    assert verified(exact, context=lambda: torch.autocast("cpu", torch.bfloat16)) in ("shared", "padded")


@pytest.mark.thorough
def test_a_cache_that_is_ignored_shows_in_half_precision_too() -> None:
    for family in ("rwkv", "moshi"):
        with pytest.raises(UserError, match="nats on average"):
            verified(policy_of(family, torch.bfloat16))


def test_decoder_that_fails_only_under_autocast_is_ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PaddedDecoder.step

    def step(self: PaddedDecoder, tokens: Tensor, positions: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("expected scalar type BFloat16 but found Float")
        return own(self, tokens, positions)

    monkeypatch.setattr(PaddedDecoder, "step", step)
    assert verified(mistral(25)) == "padded"
    assert verified(mistral(25), context=lambda: torch.autocast("cpu", torch.bfloat16)) == "generate"


@pytest.mark.parametrize(("after", "said"), [(20, ["6 to 58"]), (0, ["6 to 58", "6 to 16"])])
def test_out_of_memory_does_not_change_the_chosen_decoder(
    after: int, said: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = PaddedDecoder.step

    def step(self: PaddedDecoder, tokens: Tensor, positions: Tensor) -> Tensor:
        if int(positions.max()) >= after:
            torch.empty(1 << 60)
        return own(self, tokens, positions)

    monkeypatch.setattr(PaddedDecoder, "step", step)
    with caplog.at_level(logging.WARNING):
        way = verified(mistral(25), longest=200)
    assert way == ("padded" if after else None)
    assert [m for m in caplog.messages if m.startswith("out of memory")] == [
        f"out of memory: decoding of rows of {lengths} tokens is not verified" for lengths in said
    ]


def test_decoder_check_runs_once_and_changes_no_state() -> None:
    policy, seen = policy_of("qwen3"), []
    policy.train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    state = torch.get_rng_state()
    policy.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(2):
        verified(policy)
    assert len(seen) == 1
    assert policy.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(p.grad is None for p in policy.parameters())


def test_sources_that_decode_elsewhere_are_not_asked() -> None:
    class Elsewhere(GroupedSampler):
        def local(self) -> Any:
            return None

        def extend(self, *args: Any, **options: Any) -> Any:
            raise AssertionError

    assert verified(mistral(None), Elsewhere()) is None
    inner = GroupedSampler()
    assert EnvironmentRollouts.local(type("", (), {"source": inner})()) is inner  # type: ignore[arg-type]


def rewards(query: str, response: str) -> float:
    return float(len(set(response)))


@pytest.mark.thorough
def test_the_trainer_of_a_notebook_refuses_and_falls_back_too() -> None:
    with pytest.raises(UserError, match="RwkvForCausalLM"):
        GSPOTrainer(tiny.build("rwkv"), character_tokenizer())
    for family, way in (("qwen3_next", "padded"), ("minimax", "generate")):
        trainer = GSPOTrainer(tiny.build(family), character_tokenizer(), GSPOConfig(max_response_tokens=8))
        assert trainer.policy.decoding.way == way
        step = trainer.train_step(["1+1:", "2*3-1:"], rewards)
        assert step["noise/sampler_logprob_gap"] < 2e-5


def lengths(rows: Sequence[ResponsePrefix]) -> list[int]:
    return sorted({len(row.context) for row in rows})


def test_rows_fit_into_the_models_positions() -> None:
    policy = mistral(None)
    policy.model.config.max_position_embeddings = 10
    assert lengths(verify._rows(policy, 100)) == [2]
    assert lengths(verify._rows(mistral(25), 200)) == [3, 8, 23, 50]
