"""First tokens that all prompts share are computed once: the same values and gradients, from fewer tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from gspo_lightning.cli import main
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.attention import PackedLayout, attention_plan, check_attention, plans
from gspo_lightning.policy.attention.flex import FlexPlan
from gspo_lightning.policy.attention.interface import UnsupportedAttentionError
from gspo_lightning.policy.attention.plans import PrefixPlan, dense_attention
from gspo_lightning.policy.packing import rows
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import routers_of
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests.support import model_families

CPU = torch.device("cpu")
TEXT = "(1+2)*3=9, (2+3)*4=20, "
"""More than 16 tokens of a tokenizer of characters."""


def group(number: int, prompt: tuple[int, ...], lengths: list[int]) -> list[Rollout]:
    return [
        Rollout(Prompt(number, "", prompt), k, torch.arange(3 + k, 3 + k + n), torch.zeros(n),
                torch.ones(n).bool(), FinishReason.STOP, 0, reward=float(k), advantage=k - 0.5)
        for k, n in enumerate(lengths)
    ]  # fmt: skip


def groups(prefix: int = 20) -> list[list[Rollout]]:
    first = tuple(range(4, 4 + prefix))
    return [group(0, (*first, 7, 8, 9), [4, 1, 6]), group(1, (*first, 5), [2, 9]), group(2, (*first, 7, 8), [3])]


@contextlib.contextmanager
def tokens_forwarded(policy: Policy) -> Iterator[list[int]]:
    found: list[int] = []
    embeddings = policy.model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, inputs, __: found.append(inputs[0].numel()))
    yield found
    hook.remove()


def test_a_small_layout_by_hand() -> None:
    batch = make_micro_batch([*group(0, (1, 2, 3), [3, 1]), *group(1, (1, 2, 5, 6), [2])], prefix=2)
    layout = PackedLayout.of(batch, batch.common_prefix)
    # prefix 1 2, the rest of prompts 3 | 5 6, then the responses 3 4 5 | 4 | 3 4 without their last tokens
    assert layout.token_ids.tolist() == [1, 2, 3, 5, 6, 3, 4, 3]
    assert layout.positions.tolist() == [0, 1, 2, 2, 3, 3, 4, 4]
    assert layout.sources.tolist() == [0, 0, 0, 2, 2, 0, 0, 2]
    assert layout.predicts.tolist() == [2, 5, 6, 2, 4, 7]
    assert layout.targets.tolist() == [3, 4, 5, 4, 3, 4]
    assert layout.segments == [(0, 2), (2, 1), (3, 2), (5, 2), (7, 1)]
    assert layout.crossings == [(5, 2, 2, 1), (7, 1, 3, 2)]
    assert (layout.prefix, layout.longest) == (2, 6)
    one = make_micro_batch(group(0, (1, 2, 3), [3, 1]), prefix=2)
    assert PackedLayout.of(one, 2).prefix == 0  # a prompt is computed once in any case


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("prefix", [1, 20, 150])
def test_attention_is_that_of_the_definition(prefix: int, heads: tuple[int, int]) -> None:
    batch = make_micro_batch([row for own in groups(prefix) for row in own], prefix=prefix)
    layout = PackedLayout.of(batch, prefix)
    torch.manual_seed(0)
    size = len(layout.token_ids)
    inputs = [torch.randn(size, h, 8, dtype=torch.float64, requires_grad=True) for h in (heads[0], heads[1], heads[1])]
    places = layout.segments, layout.crossings
    plan = attention_plan(*places, layout.longest, CPU, prefix=prefix)
    ours, theirs = plan.attend(0, *inputs, 0.3), dense_attention(*places, *inputs, 0.3, prefix=prefix)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn_like(ours)
    mine, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs))
    for gradient, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-11)
    mask = FlexPlan(*places, layout.longest, CPU, prefix=prefix).mask
    whole = mask.seq_lengths[0]
    seen: Tensor = create_mask(mask.mask_mod, 1, 1, whole, whole, device="cpu")[0, 0]
    assert torch.equal(seen[:size, :size], _visible(layout))


def _visible(layout: PackedLayout) -> Tensor:
    """Which tokens see which, from rows and positions alone: what comes before in any row that holds the token."""
    tokens = list(zip(layout.sources.tolist(), layout.positions.tolist(), strict=True))
    seen = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    prompts = {0: 0, 1: 0, 2: 0, 3: 3, 4: 3, 5: 5}  # row -> the row that its prompt is read from
    starts = {0: 3, 3: 1, 5: 2}  # row -> tokens of its prompt behind the prefix
    for i, (row, place) in enumerate(tokens):
        for j, (other, before) in enumerate(tokens):
            own = other == row or (other == prompts[row] and before < layout.prefix + starts[prompts[row]])
            seen[i, j] = before <= place and (own or before < layout.prefix)
    return seen


def test_the_check_of_a_device_notices_a_kernel_that_forgets_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    check_attention(CPU, (4, 2), 16, torch.float32)
    monkeypatch.setattr(plans, "PrefixPlan", lambda *given: PrefixPlan(*given[:4]))
    with pytest.raises(UnsupportedAttentionError, match="whose values are off"):
        check_attention(CPU, (4, 2), 16, torch.float32)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3-moe", "granite"])
def test_log_probabilities_and_gradients_are_those_of_padded_rows(family: str) -> None:
    policy = model_families.build_policy(family, 0, 3.0)
    parts = [row for own in groups() for row in own]
    found = []
    for packed, prefix in ((False, 0), (True, 0), (True, 20)):
        policy.packed = packed
        policy.zero_grad()
        with tokens_forwarded(policy) as tokens:
            logprobs, entropies = policy(make_micro_batch(parts, prefix=prefix))
        (logprobs.sin() + entropies).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        found.append((logprobs.detach(), entropies.detach(), gradient, tokens))
    inner = sum(len(row.token_ids) - 1 for row in parts)
    assert [tokens for *_, tokens in found[1:]] == [[23 + 21 + 22 + inner], [20 + 3 + 1 + 2 + inner]]
    for ours in found[1:]:
        for mine, expected in zip(ours[:3], found[0][:3], strict=True):
            assert (mine - expected).norm() <= 1e-5 * expected.norm()


def test_measured_routers_and_pictures_share_no_prefix() -> None:
    policy = model_families.build_policy("qwen3-moe", 0, 3.0)
    policy.packed = True
    assert policy.shares_prefix
    policy.routing = routers_of(policy.backbone, "off", metrics=True)
    assert policy.routing is not None
    assert not policy.shares_prefix
    batch = make_micro_batch([row for own in groups() for row in own], prefix=20)
    with tokens_forwarded(policy) as tokens:
        policy(batch)
    assert tokens == [23 + 21 + 22 + 19]


def test_a_micro_batch_pays_once_for_what_all_its_prompts_share() -> None:
    def cut(shares: bool, budget: int) -> list[int]:
        made = RolloutBatch.of(groups(), mini_batches=1, max_tokens=budget, packed=True, shares_prefix=shares)
        parts = made.mini_batches[0].micro_batches
        assert sum(part.input_ids.shape[0] for part in parts) == 6
        assert {part.common_prefix for part in parts} == {20 * shares}
        return [part.input_ids.shape[0] for part in parts]

    whole = 20 + (3 + 11) + (1 + 11) + (2 + 3)
    assert cut(True, whole) == [6]
    assert len(cut(True, whole - 1)) == 2
    assert len(cut(False, whole)) == 3
    batch = make_micro_batch([row for own in groups() for row in own], prefix=20)
    assert cut_rows(batch, whole, packed=True) == [batch]
    assert [len(part.input_ids) for part in cut_rows(batch, whole - 1, packed=True)] == [3, 3]


@pytest.mark.thorough("llama-2", "qwen3-2", "qwen3-moe-2")
@pytest.mark.parametrize("most", [2, 5, 100])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3-moe"])
def test_the_sampler_draws_the_same_responses(family: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model_families.build_policy(family, 0, 3.0)
    policy.packed = True
    texts = [f"{TEXT}{'1+' * (i % 3)}{i}+5:" for i in range(6)]
    prompts = [Prompt(i, text, tuple(policy.tokenizer(text)["input_ids"])) for i, text in enumerate(texts)]
    sampling, draws = SamplingParams(24, stop_token_ids=(1, 5, 9)), Draws.of(3, Purpose.TRAIN_SAMPLING, 1)
    found, tokens = [], []
    for shortest in (16, 1000):
        monkeypatch.setattr(rows, "SHORTEST", shortest)
        with tokens_forwarded(policy) as forwarded:
            made = GroupedSampler(most, decode="model").generate(
                policy, prompts, group_size=2, sampling=sampling, draws=draws
            )
        found.append([one for own in made for one in own])
        tokens.append(sum(forwarded))
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        assert mine.logprobs is not None
        assert theirs.logprobs is not None
        torch.testing.assert_close(mine.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    assert tokens[0] < tokens[1] if most > 2 else tokens[0] == tokens[1]
    if most == 100:
        assert tokens[1] - tokens[0] == 5 * len(policy.tokenizer(TEXT)["input_ids"])


@pytest.mark.thorough
def test_a_run_is_the_same_but_for_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"prompt": f"{TEXT}{i}+{i % 3}=", "answer": str(i + i % 3)} for i in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "run.yaml").write_text(f"""
        seed_everything: 3
        trainer: {{max_epochs: 2, accelerator: cpu, devices: 1}}
        model:
          name_or_path: tiny-qwen3
          objective: {{class_path: GSPO, init_args: {{kl_coef: 0.01}}}}
          optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.1}}}}
        data:
          train: {tmp_path}/train.jsonl
          rewards:
            odd: {{class_path: FunctionReward, init_args: {{function: tests.policy.attention.test_common_prefix.odd}}}}
          group_size: 4
          prompts_per_rollout: 4
          minibatches_per_rollout: 2
          max_prompt_tokens: 64
          max_response_tokens: 12
    """)
    found = []
    for shortest in (16, 1000):
        monkeypatch.setattr(rows, "SHORTEST", shortest)
        folder = tmp_path / str(shortest)
        assert main(["fit", "--config", str(tmp_path / "run.yaml"), "--trainer.default_root_dir", str(folder)]) == 0
        found.append(torch.load(next(folder.rglob("last.ckpt")), weights_only=True)["state_dict"])
    assert any(not torch.equal(found[0][name], found[1][name]) for name in found[0])  # the sums have another order
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=0, atol=1e-5)


def odd(completions: list[str], **_: object) -> list[float]:
    return [float(len(completion) % 3) for completion in completions]
