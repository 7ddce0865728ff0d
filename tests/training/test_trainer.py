"""``GSPOTrainer``: the article's call works, and a step of it is a step of ``gspo fit``."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import gspo_lightning.loop.experience.iteration
from gspo_lightning import GSPOConfig, GSPOModule, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.core.types import MiniBatch, Prompt, Rollout
from gspo_lightning.loop.experience.collect import collect
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.rollouts import GroupedSampler, RolloutSource
from tests.runs import runs
from tests.support.model_families import FAMILIES, build_model

QUERIES = ["7+5*3-4:", "1:", "9-9:", "2*2*2*2*2:"]
SHORT = GSPOConfig(learning_rate=1e-3, group_size=4, max_response_tokens=8)


@pytest.fixture
def model() -> PreTrainedModel:
    return build_tiny_model("tiny-qwen3", seed=0)


def graded(query: str, response: str) -> float:
    """``tests/runs/graded.py``, the reward of an untaught model, as a function of the caller."""
    return (sum(i * ord(c) for i, c in enumerate(response, 1)) % 7) / 7


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def gradient_descent(trainer: GSPOTrainer, lr: float = 1.0) -> GSPOTrainer:
    """Plain gradient descent: weights show gradients as they are (AdamW turns a float's rounding into a whole step)."""
    trainer.optimizer = torch.optim.SGD(trainer.optimizer.param_groups[0]["params"], lr=lr)  # type: ignore[assignment]
    return trainer


class Replay(RolloutSource):
    """Gives back recorded responses."""

    def __init__(self, groups: list[list[Rollout]]) -> None:
        self.groups = groups

    def generate(self, policy: Any, prompts: Sequence[Prompt], **_: Any) -> list[list[Rollout]]:
        assert [p.token_ids for p in prompts] == [g[0].prompt.token_ids for g in self.groups]
        return [
            [dataclasses.replace(r, prompt=prompt, reward=None, reward_statuses={}, advantage=0.0) for r in group]
            for prompt, group in zip(prompts, self.groups, strict=True)
        ]


class Recorder(GroupedSampler):
    """Remembers what was sampled."""

    def generate(self, *args: Any, **kwargs: Any) -> list[list[Rollout]]:
        self.groups = super().generate(*args, **kwargs)
        return self.groups


# the call ------------------------------------------------------------------------------------------------------------


def test_the_call_of_the_article(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    asked: list[tuple[str, str]] = []

    def reward_function(query: str, response: str) -> float:
        asked.append((query, response))
        return float(len(asked))

    queries = QUERIES[:2]
    statistics = GSPOTrainer(
        model, tokenizer, GSPOConfig(learning_rate=1e-7, left_clip_range=0.002, right_clip_range=0.002, group_size=4)
    ).train_step(queries, reward_function)
    assert [query for query, _ in asked] == [queries[0]] * 4 + [queries[1]] * 4
    assert len({response for _, response in asked}) == 8
    assert not any(special in response for _, response in asked for special in ("<eos>", "<pad>"))
    assert statistics["reward/mean"] == pytest.approx(4.5)
    assert statistics["reward/std"] == pytest.approx(math.sqrt(sum((i - 4.5) ** 2 for i in range(1, 9)) / 8))
    assert statistics["reward/dead_groups"] == 0.0
    assert statistics["optim/lr"] == 1e-7
    assert statistics["ratio/mean"] == 1.0
    assert statistics["loss"] == pytest.approx(0.0, abs=1e-6)
    assert statistics["optim/gradient_norm"] > 0


def test_statistics_have_the_tags_of_the_metric_table(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    statistics = GSPOTrainer(model, tokenizer, SHORT).train_step(QUERIES, graded)
    assert [tag for tag in statistics if lookup(tag) is None] == []
    assert all(math.isfinite(value) for value in statistics.values())
    wanted = {"reward/mean", "response/length", "ratio/mean", "clip/sequences", "kl/old_new_k3", "policy/entropy"}
    assert wanted | {"loss", "optim/gradient_norm", "data/tokens_per_update", "time/update_s"} <= statistics.keys()


def test_response_and_token_counts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT)
    trainer.rollouts = Recorder()
    statistics = trainer.train_step(QUERIES, graded)
    rollouts = [r for group in trainer.rollouts.groups for r in group]
    lengths = [len(r.token_ids) for r in rollouts]
    assert len(rollouts) == 16
    assert statistics["response/length"] == sum(lengths) / 16
    assert (
        statistics["response/truncated"] == sum(int(r.token_ids[-1]) != tokenizer.eos_token_id for r in rollouts) / 16
    )
    assert statistics["data/tokens_per_update"] == sum(lengths) + 4 * sum(len(q) for q in QUERIES)
    shown = [e["completion"] for e in trainer.examples if e["shown_as"] == "sample"]
    assert shown == [r.text for g in trainer.rollouts.groups for r in g[:2]]


@pytest.mark.thorough
def test_a_trivial_reward_is_learnt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Prefer the character 7: one of 38 tokens at the start."""
    config = GSPOConfig(learning_rate=3e-3, group_size=16, max_response_tokens=8)
    trainer = GSPOTrainer(model, tokenizer, config)
    means = [
        trainer.train_step(["1+1:", "2+2:"], lambda _, response: response.count("7") / 8)["reward/mean"]
        for _ in range(25)
    ]
    assert means[0] < 0.1
    assert means[-1] > 0.8


# what construction and a step leave as they are ----------------------------------------------------------------------


def gpt2() -> GPT2LMHeadModel:
    """Another family, with dropout as it comes."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=38, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1)
    assert config.resid_pdrop == 0.1
    return GPT2LMHeadModel(config)


def test_construction_changes_nothing_but_dropout(tokenizer: PreTrainedTokenizerFast) -> None:
    model = gpt2().double()
    model.eval()
    model.transformer.h[0].train()
    model.transformer.wpe.requires_grad_(False)
    before, modes = weights(model), [m.training for m in model.modules()]
    trainable = [p.requires_grad for p in model.parameters()]
    trainer = GSPOTrainer(model, tokenizer, SHORT)
    assert trainer.policy.model is model
    assert same(weights(model), before)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == trainable
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.0}
    assert trainer.train_step(QUERIES, graded)["ratio/mean"] == 1.0
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model.transformer.wpe.weight, before["transformer.wpe.weight"])
    assert not same(weights(model), before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_any_family_starts_every_step_at_ratio_one(family: str, tokenizer: PreTrainedTokenizerFast) -> None:
    trainer = GSPOTrainer(build_model(family), tokenizer, SHORT)
    for _ in range(2):
        statistics = trainer.train_step(QUERIES, graded)
        assert (statistics["ratio/mean"], statistics["ratio/max"]) == (1.0, 1.0)
        assert statistics["noise/sampler_logprob_gap"] < 1e-4


def test_saved_model_loads(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT)
    trainer.train_step(QUERIES, graded)
    trainer.save_pretrained(tmp_path / "saved")
    assert same(weights(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), weights(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("7+5:")["input_ids"] == tokenizer("7+5:")["input_ids"]


# the step itself -----------------------------------------------------------------------------------------------------


def test_a_step_with_loss_zero_moves_every_weight_by_the_learning_rate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The first step of AdamW is lr * g / (|g| + eps), whatever the size of the gradient."""
    before = weights(model)
    statistics = GSPOTrainer(model, tokenizer, SHORT).train_step(QUERIES, graded)
    assert statistics["loss"] == pytest.approx(0.0, abs=1e-6)
    moved = torch.cat([(value - before[name]).flatten().abs() for name, value in weights(model).items()])
    assert float(moved.max()) == pytest.approx(1e-3, rel=1e-3)
    assert float((moved > 0.99e-3).float().mean()) > 0.8  # the rest: characters that never occurred


def test_equal_rewards_leave_the_weights_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    before = weights(model)
    statistics = GSPOTrainer(model, tokenizer, SHORT).train_step(QUERIES, lambda query, response: 0.1)
    assert (statistics["reward/dead_groups"], statistics["optim/gradient_norm"]) == (1.0, 0.0)
    assert same(weights(model), before)


@pytest.mark.parametrize(
    "values",
    [
        (0.1 + 0.2, 0.3),
        (torch.tensor(1.0000001), torch.tensor(1.0)),  # ten times 0.1, added up in float32, and 1
        (np.float32(1.0000001), np.float32(1.0)),
        (-1e30, -1e30 * (1 + 1e-10)),
    ],
)
def test_rewards_that_differ_by_rounding_leave_the_weights_alone(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, values: tuple[Any, Any]
) -> None:
    earned: set[float] = set()

    def reward_function(query: str, response: str) -> Any:
        reward = values[sum(map(ord, response)) % 2]
        earned.add(float(reward))
        return reward

    before = weights(model)
    statistics = GSPOTrainer(model, tokenizer, SHORT).train_step(QUERIES, reward_function)
    assert len(earned) == 2
    assert (statistics["reward/dead_groups"], statistics["reward/std"]) == (1.0, 0.0)
    assert same(weights(model), before)


@pytest.mark.parametrize("values", [(1.0, 1.0000001), (torch.tensor(1.0), torch.tensor(1.00001)), (0.0, 1e-12)])
def test_rewards_that_differ_by_more_than_rounding_count(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, values: tuple[Any, Any]
) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT)
    statistics = trainer.train_step(QUERIES, lambda query, response: values[sum(map(ord, response)) % 2])
    assert statistics["reward/dead_groups"] < 1.0


def test_on_policy_gradient_is_that_of_reinforce(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """-mean_i A_i / n_i sum_t log pi(y_it), computed row by row from the model's own logits; responses only."""
    reference = copy.deepcopy(model).eval()
    trainer = gradient_descent(GSPOTrainer(model, tokenizer, dataclasses.replace(SHORT, gradient_clip=None)))
    trainer.rollouts = Recorder()
    trainer.train_step(QUERIES, graded)
    loss = torch.zeros(())
    for group in trainer.rollouts.groups:
        rewards = torch.tensor([graded("", r.text) for r in group])
        for rollout, advantage in zip(group, (rewards - rewards.mean()) / (rewards.std() + 1e-6), strict=True):
            prompt, response = list(rollout.prompt.token_ids), rollout.token_ids
            logits = reference(torch.tensor([prompt + response.tolist()])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.log_softmax(-1).gather(-1, response.unsqueeze(-1))
            loss = loss - advantage * chosen.mean() / 16
    loss.backward()
    moved = dict(model.named_parameters())
    for name, parameter in reference.named_parameters():
        assert torch.allclose(moved[name], parameter - parameter.grad, rtol=0, atol=1e-6), name
    assert max(float(p.grad.abs().max()) for p in reference.parameters()) > 0.01


@pytest.mark.thorough
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_step_is_an_iteration_of_the_lightning_module(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """The same weights, responses, rewards and optimizer: the same losses and weights after 2 or 4 updates."""
    groups: list[list[Rollout]] = []
    start: list[PreTrainedModel] = []
    training_step = GSPOModule.training_step

    def recording_collect(found: RolloutBatch, *args: Any, **kwargs: Any) -> Any:
        groups.extend(found.groups)
        return collect(found, *args, **kwargs)

    def recording_step(module: GSPOModule, batch: MiniBatch, batch_idx: int) -> Tensor:
        if not start:
            start.append(copy.deepcopy(module.policy.model))
        return training_step(module, batch, batch_idx)

    monkeypatch.setattr(gspo_lightning.loop.experience.iteration, "collect", recording_collect)
    monkeypatch.setattr(GSPOModule, "training_step", recording_step)
    cut = ["--data.max_tokens_per_micro_batch=100", f"--data.epochs_per_rollout={epochs}", "--trainer.max_epochs=1"]
    run = runs.fit(tmp_path, *runs.UNTAUGHT, *cut, "--data.val=null", "--model.optimizer.lr=0.001")
    logged = {tag: [value for _, value in points] for tag, points in runs.scalars(run).items()}

    config = GSPOConfig(
        learning_rate=1e-3,
        group_size=4,
        minibatches=2,
        epochs=epochs,
        seed=1,
        max_response_tokens=12,
        max_tokens_per_micro_batch=100,
    )
    trainer = GSPOTrainer(start[0], tokenizer, config)
    trainer.rollouts = Replay(groups)
    statistics = trainer.train_step([g[0].prompt.text for g in groups], graded)
    learnt = {f"policy.model.{name}": value for name, value in weights(start[0]).items()}
    assert runs.largest_difference(runs.weights(run), learnt) <= 1e-6
    assert len(logged["loss"]) == 2 * epochs
    assert max(abs(loss) for loss in logged["loss"]) > 1e-4
    for tag in ("loss", "optim/gradient_norm", "data/tokens_per_update", "data/micro_batches", "clip/sequences"):
        assert statistics[tag] == pytest.approx(sum(logged[tag]) / len(logged[tag]), rel=1e-5, abs=1e-6), tag
    for tag in ("reward/mean", "reward/std", "reward/dead_groups", "response/length", "response/truncated"):
        assert statistics[tag] == pytest.approx(logged[tag][0], rel=1e-5), tag
    assert statistics["ratio/max"] == pytest.approx(max(logged["ratio/max"]), rel=1e-5)


def test_update_does_not_depend_on_the_token_budget(tokenizer: PreTrainedTokenizerFast) -> None:
    def run(budget: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        model = build_tiny_model("tiny-qwen3", seed=0)
        config = dataclasses.replace(SHORT, max_tokens_per_micro_batch=budget)
        statistics = gradient_descent(GSPOTrainer(model, tokenizer, config)).train_step(QUERIES, graded)
        return weights(model), statistics

    (whole, one), (cut, many) = run(4096), run(20)
    assert one["data/micro_batches"] == 1
    assert many["data/micro_batches"] >= 8
    assert runs.largest_difference(whole, cut) < 2e-6
    for tag in ("loss", "policy/entropy", "optim/gradient_norm", "response/length"):
        assert one[tag] == pytest.approx(many[tag], abs=1e-5), tag


def test_gradient_is_clipped_to_the_norm_and_reported_before(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    before = weights(model)
    trainer = gradient_descent(GSPOTrainer(model, tokenizer, dataclasses.replace(SHORT, gradient_clip=1e-2)))
    norm = trainer.train_step(QUERIES, graded)["optim/gradient_norm"]
    moved = math.sqrt(sum(float((v - before[k]).double().square().sum()) for k, v in weights(model).items()))
    assert norm > 0.1
    assert moved == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("changes", [{"minibatches": 4}, {"epochs": 3}])
def test_several_updates_can_clip(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, changes: dict[str, int]
) -> None:
    def step(clip: float) -> dict[str, float]:
        settings: dict[str, Any] = {"learning_rate": 1e-4, "temperature": 0.7, **changes}
        config = dataclasses.replace(SHORT, left_clip_range=clip, right_clip_range=clip, **settings)
        return GSPOTrainer(copy.deepcopy(model), tokenizer, config).train_step(QUERIES, graded)

    narrow, wide = step(1e-4), step(0.9)
    assert narrow["clip/sequences"] > 0.1
    assert wide["clip/sequences"] == 0.0
    assert narrow["ratio/max"] > 1.001
    assert narrow["noise/sampler_logprob_gap"] < 1e-4  # sampled at the temperature that log-probabilities use


# randomness ----------------------------------------------------------------------------------------------------------


def responses_of(trainer: GSPOTrainer, steps: int) -> list[tuple[str, ...]]:
    seen: list[str] = []

    def remember(query: str, response: str) -> float:
        seen.append(response)
        return graded(query, response)

    for _ in range(steps):
        trainer.train_step(["1:", "1:"], remember)
    return [tuple(seen[i : i + 4]) for i in range(0, len(seen), 4)]


def test_draws_are_fresh_in_every_step_and_the_same_for_a_seed(tokenizer: PreTrainedTokenizerFast) -> None:
    def trainer(**changes: Any) -> GSPOTrainer:
        return GSPOTrainer(build_tiny_model("tiny-qwen3", 0), tokenizer, dataclasses.replace(SHORT, **changes))

    first, again = trainer(), trainer()
    torch.manual_seed(0)
    groups = responses_of(first, 2)
    torch.manual_seed(1)
    assert responses_of(again, 2) == groups
    assert same(weights(first.policy), weights(again.policy))
    assert len(set(groups)) == 4  # neither the second step nor the second of two equal queries repeats draws
    assert responses_of(trainer(seed=1), 1) != groups[:2]
    assert first.iteration == 2


def test_the_iteration_decides_the_draws(tokenizer: PreTrainedTokenizerFast) -> None:
    still = dataclasses.replace(SHORT, learning_rate=1e-30)
    first = GSPOTrainer(build_tiny_model("tiny-qwen3", 0), tokenizer, still)
    other = GSPOTrainer(build_tiny_model("tiny-qwen3", 0), tokenizer, still)
    groups = responses_of(first, 2)
    other.iteration = 1
    assert responses_of(other, 1) == groups[2:]


# what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "1.0", "good", float("nan"), float("-inf"), [1.0], torch.ones(2), 1j, 10**400])
def test_a_reward_that_is_no_finite_number_is_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, value: Any
) -> None:
    before, trainer = weights(model), GSPOTrainer(model.eval(), tokenizer, SHORT)
    with pytest.raises(UserError, match=r"^reward_function: returned .* for the query '9-9:'") as caught:
        trainer.train_step(QUERIES, lambda query, response: value if query == "9-9:" else 0.5)
    assert caught.value.fix == "return a finite number"
    assert same(weights(model), before)
    assert not any(m.training for m in model.modules())
    assert trainer.iteration == 0
    assert trainer.train_step(QUERIES, graded)["data/iteration"] == 0.0


@pytest.mark.parametrize("value", [1e300, -1e39, torch.tensor(2e38)])
def test_a_reward_beyond_what_float32_can_compare_is_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, value: Any
) -> None:
    with pytest.raises(UserError, match=r"^reward_function: returned .*") as caught:
        GSPOTrainer(model, tokenizer, SHORT).train_step(QUERIES, lambda *_: value)
    assert caught.value.fix == "return a finite number, at most 1e+38"


@pytest.mark.parametrize("value", [1, True, torch.tensor(1.0), torch.tensor([1.0]).double().numpy()[0]])
def test_scalars_of_every_kind_are_rewards(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, value: Any
) -> None:
    assert GSPOTrainer(model, tokenizer, SHORT).train_step(["1:"], lambda *_: value)["reward/mean"] == 1.0


def test_trainer_passes_on_an_exception_of_the_reward_function(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    def broken(query: str, response: str) -> float:
        raise KeyError("mine")

    trainer, before = GSPOTrainer(model, tokenizer, SHORT), weights(model)
    with pytest.raises(KeyError, match="mine"):
        trainer.train_step(QUERIES, broken)
    assert same(weights(model), before)
    with pytest.raises(UserError, match="reward_function: is 'f', but must be a function"):
        trainer.train_step(QUERIES, "f")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queries", "changes", "message"),
    [
        ("1+1:", {}, "queries: is '1\\+1:', but must be a list"),
        ([], {}, "queries: is \\[\\], but must be a list"),
        (["1:", 2], {}, "queries: is \\['1:', 2\\], but must be a list"),
        (["1:", ""], {}, "record 2: the prompt has no tokens"),
        (["1:", "ä:"], {}, "record 2: the tokenizer does not know every character"),
        (["1:", "1+1:"], {"max_prompt_tokens": 3}, "number 1, '1\\+1:', has 4 tokens, but may have 3: max_prompt_tok"),
        (["1" * 505], {}, "has 505 tokens, but may have 504: the model's context - max_response_tokens = 512 - 8"),
        (["1:"], {"max_response_tokens": 511}, "may have 1: the model's context - max_response_tokens = 512 - 511"),
        (["1+1:"], {"max_tokens_per_micro_batch": 11}, "may have 3: max_tokens_per_micro_batch - max_response_tok"),
        (["1:", "2:", "3:"], {"minibatches": 2}, "queries: 3 groups cannot be dealt evenly to 2 mini-batches"),
    ],
)
def test_queries_that_cannot_be_trained_on_are_refused(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    queries: Any,
    changes: dict[str, int],
    message: str,
) -> None:
    trainer = GSPOTrainer(model, tokenizer, dataclasses.replace(SHORT, **changes))
    with pytest.raises(UserError, match=message):
        trainer.train_step(queries, graded)
    assert trainer.iteration == 0


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("group_size", 1, "compared with the others of its group\n  fix: use at least 2"),
        ("group_size", 2.0, "must be a whole number >= 1"),
        ("minibatches", 0, "must be a whole number >= 1"),
        ("epochs", True, "must be a whole number >= 1"),
        ("deal", "rows", "is 'rows'\n  fix: use one of stratified, shuffled, groups"),
        ("max_response_tokens", -1, "must be a whole number >= 1"),
        ("max_prompt_tokens", 0, "must be a whole number >= 1"),
        ("learning_rate", 0.0, "must be a finite number > 0"),
        ("learning_rate", math.nan, "must be a finite number > 0"),
        ("left_clip_range", 1.0, "must be a finite number >= 0 and < 1"),
        ("right_clip_range", -0.1, "must be a finite number >= 0"),
        ("temperature", 0.0, "must be a finite number > 0"),
        ("gradient_clip", 0.0, "must be a finite number > 0"),
        ("weight_decay", -1.0, "must be a finite number >= 0"),
    ],
)
def test_settings_outside_their_range_are_refused(setting: str, value: float, rule: str) -> None:
    with pytest.raises(UserError) as caught:
        GSPOConfig(**{setting: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{setting}: is {value!r}")
    assert rule in str(caught.value)


def test_a_clip_range_of_any_scale_is_allowed() -> None:
    assert GSPOConfig(left_clip_range=0.2, right_clip_range=5.0).right_clip_range == 5.0


def frozen() -> PreTrainedModel:
    model: PreTrainedModel = build_tiny_model("tiny-qwen3", 0).requires_grad_(False)
    return model


def encoder() -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(vocab_size=38, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )


def encoder_decoder() -> T5ForConditionalGeneration:
    return T5ForConditionalGeneration(T5Config(vocab_size=38, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nn.Linear(2, 2), "model: is Linear, but must be a causal language model"),
        (encoder, "model: is BertForMaskedLM, but must be a causal language model"),
        (encoder_decoder, "model: is T5ForConditionalGeneration, but must be a causal language model"),
        (frozen, "model: has no parameter that requires a gradient"),
        (lambda: build_tiny_model("tiny-qwen3", 0).half(), "model: leaves .* to train in float16"),
        (lambda: build_tiny_model("tiny-qwen3", 0).bfloat16(), "model: leaves .* to train in bfloat16(.|\n)*float"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(
    tokenizer: PreTrainedTokenizerFast, wrong: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        GSPOTrainer(wrong(), tokenizer, SHORT)


def test_a_tokenizer_without_an_end_is_refused(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    with pytest.raises(UserError, match="tokenizer: has no end-of-sequence token"):
        GSPOTrainer(model, tokenizer, SHORT)


def test_a_gradient_that_is_not_finite_changes_no_weight(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT)
    with torch.no_grad():
        model.lm_head.weight[5, 3] = math.nan
    before = weights(model)
    with pytest.raises(UserError, match="model: has a gradient norm of nan; this update was not applied"):
        trainer.train_step(QUERIES, graded)
    assert all(torch.equal(value.nan_to_num(), before[name].nan_to_num()) for name, value in weights(model).items())


# chat templates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [True, False])
def test_chat_template_wraps_what_the_model_reads_and_not_what_the_reward_sees(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, use: bool
) -> None:
    template = "<{{ messages[0]['content'] }}>{% if add_generation_prompt %}:{% endif %}"
    tokenizer.chat_template = template
    trainer = GSPOTrainer(model, tokenizer, dataclasses.replace(SHORT, use_chat_template=use))
    trainer.rollouts = Recorder()
    asked: set[str] = set()
    trainer.train_step(["1+1"], lambda query, response: asked.add(query) or graded(query, response))
    read = trainer.rollouts.groups[0][0].prompt.token_ids
    assert tokenizer.decode(list(read)) == ("<1+1>:" if use else "1+1")
    assert asked == {"1+1"}
    assert tokenizer.chat_template == template


def test_worked_examples_of_a_config_precede_every_query(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.chat_template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
    examples = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    settings = {"model.optimizer.lr": 1e-3, "data": {"max_response_tokens": 8, "system_prompt": examples}}
    trainer = GSPOTrainer(model, tokenizer, settings)
    trainer.rollouts = Recorder()
    trainer.train_step(["1+1"] * 4, graded)
    read = trainer.rollouts.groups[0][0].prompt.token_ids
    assert tokenizer.decode(list(read)) == "<2+2><4><1+1>"
    with pytest.raises(UserError, match="system_prompt: is set, but use_chat_template is False"):
        GSPOConfig(system_prompt="Think.", use_chat_template=False)
