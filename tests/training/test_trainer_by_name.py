"""``GSPOTrainer``: columns by name, other objectives, evaluation, and going on where another one stopped."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.objectives import CISPO, DAPO, GSPO, DrGRPO
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.rewards import ExactMatch, FunctionReward
from gspo_lightning.rewards.signature import BUILT_IN
from gspo_lightning.training.trainer_config import fitting
from tests import ROOT
from tests.training.test_trainer import QUERIES, SHORT, graded, same, weights

RECORDS = [{"prompt": query, "answer": str(i), "level": i} for i, query in enumerate(QUERIES)]


@pytest.fixture
def model() -> PreTrainedModel:
    return build_tiny_model("tiny-qwen3", seed=0)


# the words of gspo fit -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_settings_of_gspo_fit_train_as_the_config_with_these_values(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("""
        seed_everything: 5
        trainer: {max_epochs: 3, gradient_clip_val: null}
        model:
          name_or_path: tiny-qwen3
          objective: {class_path: GSPO, init_args: {clip_low: 0.1, clip_high: 0.2}}
          optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1e-3, weight_decay: 0.1}}
        data:
          train: x.jsonl
          rewards: ExactMatch
          rollouts: {class_path: GroupedSampler, init_args: {max_rows: 4}}
          max_response_tokens: 8
          max_prompt_tokens: 40
    """)
    config = GSPOConfig(
        learning_rate=1e-3, weight_decay=0.1, left_clip_range=0.1, right_clip_range=0.2, group_size=8, minibatches=4,
        max_response_tokens=8, max_prompt_tokens=40, max_rows=4, seed=5, gradient_clip=None,
    )  # fmt: skip
    trainer = GSPOTrainer(model, tokenizer, config)
    trainer.train_step(QUERIES[:4], graded)
    for given in (file, str(file), load_yaml(file.read_text())):
        again = GSPOTrainer(build_tiny_model("tiny-qwen3", seed=0), tokenizer, given)
        again.train_step(QUERIES[:4], graded)
        assert same(weights(model), weights(again.policy.model))


def test_a_shipped_config_of_a_real_model_is_taken(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    file = ROOT / "configs" / "smollm2.yaml"
    config, written = GSPOTrainer(model, tokenizer, file).config, load_yaml(file.read_text())
    assert config.learning_rate == written["model"]["optimizer"]["init_args"]["lr"]
    assert (config.temperature, config.minibatches) == (
        written["data"]["temperature"], written["data"]["minibatches_per_rollout"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"model": {"lora": {"r": 4}}}, "model.lora.r"),
        ({"trainer.precision": "bf16-mixed"}, "trainer.precision"),
        ({"model.optimizer.class_path": "torch.optim.SGD"}, "model.optimizer.class_path"),
        ({"data.grup_size": 4}, "data.grup_size"),
        ({"data.group_size": 1}, "group_size"),
        ({"model.optimizer.lr": None}, "model.optimizer.lr"),
    ],
)
def test_a_setting_that_the_trainer_does_not_have_is_refused(
    words: dict[str, Any], field: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(UserError) as refused:
        GSPOTrainer(model, tokenizer, {"model.optimizer.lr": 1e-3} | words)
    assert refused.value.field == field


def test_a_file_that_cannot_be_read_is_named(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    (tmp_path / "broken.yaml").write_text("model: [")
    for name in ("nowhere.yaml", "broken.yaml"):
        with pytest.raises(UserError, match=f"{name}' cannot be read"):
            GSPOTrainer(model, tokenizer, tmp_path / name)


# columns -------------------------------------------------------------------------------------------------------------


def test_a_function_asks_for_columns_by_name(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    seen: list[tuple[Any, ...]] = []

    def reward(response: str, answer: str, query: str, level: int = 7, rest: str = "default") -> float:
        seen.append((query, answer, level, rest))
        return graded(query, response)

    by_name = GSPOTrainer(model, tokenizer, SHORT).train_step(RECORDS, reward)
    assert seen == [(r["prompt"], r["answer"], r["level"], "default") for r in RECORDS for _ in range(4)]
    again = GSPOTrainer(build_tiny_model("tiny-qwen3", seed=0), tokenizer, SHORT)
    by_position = again.train_step(QUERIES, graded)
    assert by_name["reward/mean"] == by_position["reward/mean"]
    assert same(weights(model), weights(again.policy.model))


def test_every_name_of_a_sample_is_known_and_kwargs_take_the_columns(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    calls: list[dict[str, Any]] = []

    def reward(
        prompt: str,
        completion: str,
        completion_ids: Any,
        truncated: bool,
        sample: Any,
        query: str,
        response: str,
        **rest: Any,
    ) -> float:
        calls.append(rest | {"same": (prompt, completion) == (query, response) == (sample.prompt, sample.completion)})
        return float(truncated) + len(completion_ids)

    GSPOTrainer(model, tokenizer, SHORT).train_step(RECORDS[:1], reward)
    assert calls == [{"answer": "0", "level": 0, "same": True}] * 4
    assert set(BUILT_IN) == {"prompt", "completion", "completion_ids", "truncated", "unfinished_thought", "sample"}


def test_rewards_of_the_package_and_functions_of_trls_kind_judge(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT)

    def lengths(completions: list[str], level: list[int], **kwargs: Any) -> list[float | None]:
        return [None if at == 3 else float(len(c)) for c, at in zip(completions, level, strict=True)]

    found = trainer.train_step(RECORDS, FunctionReward(lengths, where="trainer"))
    assert found["reward/missing"] == 0.25
    exact = trainer.train_step(RECORDS, ExactMatch())
    assert exact["reward/mean"] == 0.0
    with pytest.raises(UserError, match="asks for 'answer', which not every query has"):
        trainer.train_step(QUERIES, ExactMatch())


@pytest.mark.parametrize(
    ("queries", "reward", "message"),
    [
        (RECORDS, lambda response, answre: 0.0, "asks for 'answre', which not every query has; did you mean answer"),
        ([*RECORDS[:3], {"prompt": "1:"}], lambda response, answer: 0.0, "asks for 'answer'"),
        ([{"question": "1:"}], lambda response: 0.0, "queries: is .* or of records with a prompt"),
        ([*RECORDS, "1:"], lambda response: 0.0, "or of records with a prompt"),
        ({"prompt": "1:"}, lambda response: 0.0, "or of records with a prompt"),
        (RECORDS, lambda *both: 0.0, r"takes \*both by position"),
    ],
)
def test_trainer_refuses_queries_that_do_not_fit_the_reward(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, queries: Any, reward: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        GSPOTrainer(model, tokenizer, SHORT).train_step(queries, reward)


# objectives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["CISPO", CISPO, CISPO()])
def test_an_objective_is_a_name_a_class_or_an_instance(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, given: Any
) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT, objective=given)
    assert trainer.objective == CISPO()
    assert trainer.train_step(QUERIES, graded)["ratio/mean"] == 1.0


@pytest.mark.thorough
def test_the_objective_decides_what_is_learnt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    config = dataclasses.replace(SHORT, epochs=2)
    trained = {}
    for name, objective in {"none": None, "same": GSPO(3e-4, 4e-4), "other": DAPO()}.items():
        trainer = GSPOTrainer(build_tiny_model("tiny-qwen3", seed=0), tokenizer, config, objective)
        trainer.train_step(QUERIES, graded)
        trained[name] = weights(trainer.policy.model)
    assert same(trained["none"], trained["same"])
    assert not same(trained["none"], trained["other"])


def test_a_kl_term_is_measured_to_the_start(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    trainer = GSPOTrainer(model, tokenizer, SHORT, objective=GSPO(kl_coef=0.5))
    before, found = weights(model), [trainer.train_step(QUERIES, graded) for _ in range(3)]
    assert trainer.reference is not None
    assert same(weights(trainer.reference.policy.model), before)
    assert found[0]["kl/policy_reference_k3"] == pytest.approx(0.0, abs=1e-9)
    assert found[2]["kl/policy_reference_k3"] > 1e-6


@pytest.mark.parametrize(
    ("objective", "config", "message"),
    [
        ("GSPPO", SHORT, "did you mean GSPO"),
        (DrGRPO, SHORT, "DrGRPO needs max_response_tokens"),
        (int, SHORT, "objective: is <class 'int'>"),
        (DAPO(), GSPOConfig(left_clip_range=0.2), "has its own clip range"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, objective: Any, config: GSPOConfig, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        GSPOTrainer(model, tokenizer, config, objective)


# evaluation and resume -----------------------------------------------------------------------------------------------


def test_an_evaluation_counts_and_changes_nothing(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    trainer, other = (GSPOTrainer(m, tokenizer, SHORT) for m in (model, build_tiny_model("tiny-qwen3", seed=0)))
    asked: list[str] = []

    def reward(response: str, level: int) -> float:
        asked.append(response)
        return float(level)

    found = trainer.evaluate(RECORDS, reward)
    assert len(asked) == 4
    assert found["val/reward"] == (0 + 1 + 2 + 3) / 4
    assert found["val/accuracy"] == 3 / 4  # a reward of 1 or more
    assert 1 <= found["val/response_length"] <= 8
    assert [e["completion"] for e in trainer.examples] == asked
    assert trainer.evaluate(RECORDS, reward) == found  # greedy
    several = trainer.evaluate(RECORDS[:1], reward, temperature=1.0, samples=8)
    assert several["val/reward"] == 0.0
    assert len(set(asked[-8:])) > 1
    with pytest.raises(UserError, match="greedy decoding gives the same response every time"):
        trainer.evaluate(RECORDS, reward, samples=2)
    assert trainer.train_step(QUERIES, graded)["reward/mean"] == other.train_step(QUERIES, graded)["reward/mean"]
    assert same(weights(model), weights(other.policy.model))


def test_any_number_of_queries_can_be_evaluated(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    trainer = GSPOTrainer(model, tokenizer, dataclasses.replace(SHORT, minibatches=2))
    assert trainer.evaluate(QUERIES[:3], lambda *_: 1.0)["val/accuracy"] == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("objective", [None, GSPO(kl_coef=0.1)])
def test_a_trainer_goes_on_exactly_where_another_stopped(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, objective: GSPO | None
) -> None:
    config = dataclasses.replace(SHORT, minibatches=2)
    whole = GSPOTrainer(model, tokenizer, config, objective)
    steps = [whole.train_step(QUERIES, graded) for _ in range(2)]
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    steps += [whole.train_step(QUERIES, graded) for _ in range(2)]
    file.seek(0)
    resumed = GSPOTrainer(build_tiny_model("tiny-qwen3", seed=5), tokenizer, config, objective)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.iteration == 2
    for wanted in steps[2:]:
        found = resumed.train_step(QUERIES, graded)
        timed = ("time/", "throughput/")
        assert {k: v for k, v in found.items() if not k.startswith(timed)} == {
            k: v for k, v in wanted.items() if not k.startswith(timed)
        }
    assert same(weights(resumed.policy.model), weights(model))


@pytest.mark.parametrize("older", [False, True])
def test_a_state_keeps_which_tokens_are_never_sampled(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, older: bool
) -> None:
    """A state without them is of a version that sampled rows of the vocabulary without a token, too."""
    rows = 2 * len(tokenizer)
    padding = tuple(range(len(tokenizer), rows))
    model.resize_token_embeddings(rows, mean_resizing=False)
    trainer = GSPOTrainer(model, tokenizer, SHORT, GSPO(kl_coef=0.1))
    assert trainer.policy.unsaid == padding
    assert not trainer.policy.sayable(torch.ones(1, rows))[0, : len(tokenizer)].ne(1).any()
    state = trainer.state_dict()
    assert tuple(state["unsaid"]) == padding
    if older:
        del state["unsaid"]
    else:
        state["unsaid"] = [5, rows - 1]
    trainer.load_state_dict(state)
    assert trainer.reference is not None
    for policy in (trainer.policy, trainer.reference.policy):
        suppressed = policy.sayable(torch.ones(1, rows))[0].ne(1).nonzero().flatten().tolist()
        assert suppressed == ([] if older else [5, rows - 1])
        assert policy.unsaid == tuple(suppressed)


def test_a_shorter_limit_of_a_small_context_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="gspo_lightning"):
        assert fitting(GSPOConfig(max_response_tokens=512), 512).max_response_tokens == 256
        assert fitting(GSPOConfig(max_response_tokens=511), 512).max_response_tokens == 511
        assert fitting(GSPOConfig(max_response_tokens=512), 1024).max_response_tokens == 512
    assert [record.getMessage() for record in caplog.records] == [
        "max_response_tokens is 256: half of the model's context of 512, not 512"
    ]


def test_the_state_of_another_objective_is_refused(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    state = GSPOTrainer(model, tokenizer, SHORT).state_dict()
    with pytest.raises(UserError, match="is of an objective with another kl_coef"):
        GSPOTrainer(model, tokenizer, SHORT, GSPO(kl_coef=0.1)).load_state_dict(state)
