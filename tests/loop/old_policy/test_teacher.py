"""A teacher in this process: its log-probabilities, the exact KL to it, and vocabularies that differ."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MicroBatch, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.old_policy.teacher import LocalTeacher, check_outputs, check_vocabulary
from gspo_lightning.policy import policy as policy_module
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.states import vocabulary_kl
from gspo_lightning.policy.tiny import character_tokenizer
from tests.support.model_families import build_policy

TEMPERATURE = 0.7
CPU = torch.device("cpu")


def batch() -> MicroBatch:
    """Prompts and responses of different lengths; one row has tokens that are not the policy's."""
    rollouts = []
    for i, count in enumerate((5, 2, 7, 3)):
        ids = torch.arange(count) * (3 + i) % 30 + 4
        mask = torch.tensor([j != 1 for j in range(count)]) if i == 2 else torch.ones(count, dtype=torch.bool)
        prompt = Prompt(i // 2, "p", tuple(range(4, 7 + i // 2)))
        rollouts.append(Rollout(prompt, i % 2, ids, None, mask, FinishReason.STOP, 0, reward=1.0))
    return make_micro_batch(rollouts)


@torch.no_grad()
def logprobs_by_hand(policy: Policy, part: MicroBatch) -> list[Tensor]:
    """[response, V] of each row, float64, from the model's own logits, a row at a time."""
    found = []
    lengths = part.prompt_lengths.tolist(), part.response_lengths.tolist()
    for row, start, count in zip(part.input_ids, *lengths, strict=True):
        logits = policy.model(row[: start + count].unsqueeze(0)).logits[0].double() / TEMPERATURE
        found.append(logits.log_softmax(-1)[start - 1 : start + count - 1])
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_log_probabilities_are_those_of_its_own_logits(packed: bool) -> None:
    own = build_policy("qwen3", 1).train()
    own.packed = packed
    teacher, part = LocalTeacher(own), batch()
    (filled,) = teacher.fill([MiniBatch([part])], TEMPERATURE, CPU)
    (found,) = filled.micro_batches
    assert found.teacher_logprobs is not None
    assert found.teacher_logprobs.dtype == torch.float32
    for values, rows, ids in zip(found.teacher_logprobs, logprobs_by_hand(own, part), part.response_ids, strict=True):
        wanted = rows.gather(1, ids[: len(rows)].unsqueeze(1)).squeeze(1)
        assert values[: len(rows)].tolist() == pytest.approx(wanted.tolist(), abs=2e-5)
    assert found.ref_logprobs is None
    assert not any(p.requires_grad for p in teacher.policy.parameters())
    assert not teacher.policy.training


@pytest.mark.parametrize("layouts", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("chunk", [None, 3])
def test_the_exact_kl_is_the_sum_over_the_vocabulary(
    layouts: tuple[bool, bool], chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the layouts of the two, and with logits in one piece or three tokens at a time."""
    if chunk is not None:
        monkeypatch.setattr(policy_module.Policy, "_chunk", lambda self, count: chunk)
    policy, own = build_policy("qwen3", 0), build_policy("qwen3", 1)
    policy.packed, own.packed = layouts
    part = batch()
    against = LocalTeacher(own, exact=True).distribution(part)
    logprobs, entropies, kl = policy(part, TEMPERATURE, against)
    plain = policy(part, TEMPERATURE)
    assert torch.equal(logprobs, plain[0])
    assert torch.equal(entropies, plain[1])
    for values, mine, theirs in zip(kl, logprobs_by_hand(policy, part), logprobs_by_hand(own, part), strict=True):
        wanted = (mine.exp() * (mine - theirs)).sum(-1)
        assert values[: len(wanted)].tolist() == pytest.approx(wanted.tolist(), abs=2e-5)
        assert float(values[len(wanted) :].abs().sum()) == 0.0
    assert float(kl.max()) > 0.1


def test_gradient_of_the_exact_kl_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    own, part, found = build_policy("qwen3", 1), batch(), []
    for chunk in (1000, 3):
        monkeypatch.setattr(policy_module.Policy, "_chunk", lambda self, count, chunk=chunk: chunk)
        policy = build_policy("qwen3", 0)
        *_, kl = policy(part, TEMPERATURE, LocalTeacher(own, exact=True).distribution(part))
        kl.sum().backward()
        found.append({name: p.grad for name, p in policy.named_parameters()})
    for name, gradient in found[0].items():  # up to 40: rounding is relative
        assert torch.allclose(gradient, found[1][name], atol=2e-6 * float(gradient.abs().max())), name
    assert all(p.grad is None for p in own.parameters())


def test_vocabulary_kl_by_finite_differences() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.randn(3, 5, dtype=torch.float64)
    same = torch.nn.Identity()
    assert torch.autograd.gradcheck(lambda x: vocabulary_kl((same, same), (x, theirs), 0.7, 2), (mine,))


def test_a_teacher_that_is_the_policy_has_no_kl() -> None:
    policy, part = build_policy("qwen3-moe").train(), batch()
    twin = policy.frozen_copy()
    (filled,) = LocalTeacher(twin).fill([MiniBatch([part])], TEMPERATURE, CPU)
    assert torch.equal(filled.micro_batches[0].teacher_logprobs, policy(part, TEMPERATURE)[0].detach())
    *_, kl = policy(part, TEMPERATURE, LocalTeacher(twin, exact=True).distribution(part))
    assert float(kl.abs().max()) < 1e-6


def test_nothing_is_evaluated_ahead_where_whole_distributions_are_compared() -> None:
    teacher, part = LocalTeacher(build_policy("qwen3", 1), exact=True), batch()
    assert teacher.fill([MiniBatch([part])], TEMPERATURE, CPU)[0].micro_batches[0].teacher_logprobs is None
    assert LocalTeacher(build_policy("qwen3", 1)).distribution(part) is None


def test_teacher_logprobs_survive_the_state_dict_of_a_micro_batch() -> None:
    part = dataclasses.replace(batch(), teacher_logprobs=torch.arange(28.0).reshape(4, 7))
    again = MicroBatch.from_state_dict(part.state_dict())
    assert torch.equal(again.teacher_logprobs, part.teacher_logprobs)
    state = part.state_dict()
    del state["teacher_logprobs"]  # of a checkpoint from before there were teachers
    assert MicroBatch.from_state_dict(state).teacher_logprobs is None
    with pytest.raises(ValueError, match="teacher_logprobs must have shape"):
        dataclasses.replace(part, teacher_logprobs=torch.zeros(4, 6))


def test_another_vocabulary_is_refused_by_its_first_token() -> None:
    mine = character_tokenizer()
    vocabulary = {("y" if token == "x" else "x" if token == "y" else token): i for token, i in mine.get_vocab().items()}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    check_vocabulary(mine, character_tokenizer())
    first = mine.get_vocab()["x"]
    with pytest.raises(
        UserError, match=rf"model.teacher: .* token {first} is 'y' to the teacher and 'x' to the policy"
    ):
        check_vocabulary(mine, theirs)


def test_outputs_of_another_size_are_refused_where_they_are_compared() -> None:
    policy, own = build_policy("qwen3", 0), build_policy("qwen3", 1)
    own.model.config.vocab_size += 8  # padding, as the larger models of a family have it
    check_outputs(policy, own, exact=False)
    with pytest.raises(UserError, match="distill_exact: compares whole distributions"):
        check_outputs(policy, own, exact=True)
    own.model.config.vocab_size = len(policy.tokenizer) - 1
    with pytest.raises(UserError, match=r"model.teacher: has \d+ logits"):
        check_outputs(policy, own, exact=False)
