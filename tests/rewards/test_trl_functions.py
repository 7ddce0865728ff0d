"""Reward functions written for TRL run unchanged: stand-ins with its signatures, its own where TRL is installed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import FunctionReward, RewardRunner, Sample, SampleScore
from tests.rewards import trl_functions
from tests.runs import runs

HERE = "tests.rewards.trl_functions"


def sample(text: str, ids: tuple[int, ...] = (1, 2, 3), **columns: Any) -> Sample:
    return Sample(str(len(text)), "1+1?", text, ids, columns, step=30, total_steps=120)


def scored(parts: dict[str, FunctionReward], samples: list[Sample]) -> list[SampleScore]:
    """By the real path: pickled, sent to a worker, and back."""
    with RewardRunner(parts, num_workers=1, deadline_s=20) as runner:
        return runner.score(samples)


# what a function sees ------------------------------------------------------------------------------------------------


def test_conversational_functions_get_messages() -> None:
    scores = scored({"format": FunctionReward(f"{HERE}.thinks")}, [sample("<think>a</think>"), sample("b")])
    assert [score.reward for score in scores] == [1.0, 0.0]


def test_functions_without_annotations_get_text_and_are_told_how_to_get_messages() -> None:
    with pytest.raises(UserError, match="reads completions as lists of messages, but gets text") as caught:
        FunctionReward(f"{HERE}.unannotated").score_batch([sample("x")])
    assert caught.value.fix == f"write init_args: {{function: {HERE}.unannotated, completions: messages}}"
    told = FunctionReward(f"{HERE}.unannotated", completions="messages")
    assert told.score_batch([sample("please"), sample("now")]) == [1.0, 0.0]


def test_prompts_and_conversations_are_messages_too() -> None:
    seen: list[Any] = []

    def look(prompts: list[list[dict[str, str]]], completions: list[list[dict[str, str]]]) -> list[float]:
        seen.extend([prompts, completions])
        return [0.0] * len(prompts)

    asked = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    said = [*asked, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "3"}]
    FunctionReward(look).score_batch(
        [
            Sample("0", "hi", "yes"),
            Sample("1", "<rendered>", "a", (), {"messages": said, "environment_reward": 0.0}, prompt_messages=asked),
        ]
    )
    prompts, completions = seen
    assert prompts == [[{"role": "user", "content": "hi"}], list(asked)]
    assert completions == [[{"role": "assistant", "content": "yes"}], said[2:]]


def test_trl_function_gets_trainer_state_by_name_and_in_kwargs() -> None:
    assert FunctionReward(f"{HERE}.shaped").score_batch([sample("x")]) == [0.75]  # 1 - 30 / 120
    trl_functions.SEEN.clear()
    (score,) = FunctionReward(f"{HERE}.by_kwargs").score_batch([sample("x", level=3)])
    assert (score.reward, score.logged) == (30.0, {"called": 1.0})
    assert trl_functions.SEEN[0]["level"] == [3]
    assert trl_functions.SEEN[0].keys() == {
        "prompts", "completion_ids", "level", "trainer_state", "log_extra", "log_metric",
    }  # fmt: skip


def test_async_callables_run() -> None:
    assert FunctionReward(f"{HERE}.waits").score_batch([sample("abc")]) == [3.0]


# factories -----------------------------------------------------------------------------------------------------------


def test_a_factory_is_called_with_its_arguments_in_every_worker() -> None:
    parts = {
        "short": FunctionReward(f"{HERE}.make_penalty", arguments={"size": 2}),
        "double": FunctionReward(f"{HERE}.make_penalty", arguments={"size": 3, "penalty": -2.0}),
    }
    scores = scored(parts, [sample("a", (1, 2)), sample("ab", (1, 2, 3)), sample("abc", (1, 2, 3, 4))])
    assert [[part.reward for part in score.parts.values()] for score in scores] == [[0, 0], [-1, 0], [-1, -2]]


@pytest.mark.parametrize(
    ("path", "arguments", "message", "fix"),
    [
        ("make_penalty", None, "makes a reward function and is none itself", "arguments: {...}"),
        ("make_penalty", {}, "missing a required argument: 'size'", "it takes size, penalty"),
        ("make_penalty", {"sise": 2}, "argument", "it takes size, penalty"),
        ("make_penalty", {"size": 0}, "refuses them: size 0 should be positive", None),
        ("thinks", {"completions": []}, "makes no function of them but a list", "leave arguments out"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    path: str, arguments: dict[str, Any] | None, message: str, fix: str | None
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        FunctionReward(f"{HERE}.{path}", arguments=arguments)
    assert fix is None or fix in str(caught.value.fix)


# what a function logs ------------------------------------------------------------------------------------------------


def test_logs_of_a_trl_function_come_back_from_the_worker() -> None:
    samples = [sample("4", solution="4"), sample("5", solution="4"), sample("6", solution=None)]
    scores = scored({"right": FunctionReward(f"{HERE}.accurate")}, samples)
    assert [score.reward for score in scores] == [1.0, 0.0, None]
    parts = [score.parts["right"] for score in scores]
    assert [part.extra for part in parts] == [{"said": "4"}, {"said": "5"}, {"said": "6"}]
    assert [part.detail for part in parts] == ["", "", "the reward returned None"]
    assert all(part.logged["known"] in (1.0, 0.0, pytest.approx(2 / 3)) for part in parts)


def test_a_log_of_another_length_is_refused() -> None:
    with pytest.raises(UserError, match=r"log_extra\('only'\): got 1 values for 2 completions"):
        FunctionReward(f"{HERE}.logs_too_few").score_batch([sample("a"), sample("b")])


def test_a_run_logs_and_records_what_functions_log(tmp_path: Path) -> None:
    rewards = {
        "right": {"class_path": "FunctionReward", "init_args": {"function": f"{HERE}.accurate"}},
        "shaped": {"class_path": "FunctionReward", "init_args": {"function": f"{HERE}.shaped"}},
    }
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "{i}+1:", "solution": "{i + 1}"}}\n' for i in range(8)))
    small = ["--data.prompts_per_rollout=4", "--data.group_size=2", "--data.val=null", "--data.record_rollouts=true"]
    base = tmp_path / "quickstart.yaml"
    loaded = yaml.safe_load(runs.QUICKSTART.read_text())
    loaded["data"] |= {"val": None, "rewards": rewards, "train": str(tmp_path / "p.jsonl"), "reward_weights": [1, 0.5]}
    base.write_text(yaml.safe_dump(loaded))
    run = runs.fit(tmp_path, "--model.cold_start=null", *small, config=base)
    rows = [json.loads(line) for file in sorted((run / "rollouts").glob("*.jsonl")) for line in file.open()]
    assert len(rows) == 2 * 4 * 2
    assert all(row["reward_extra"] == {"said": row["completion"]} for row in rows)
    # four updates in all: the first iteration is answered after 0 of them, the second after 2
    assert [row["reward_parts"]["shaped"] for row in rows] == [1.0] * 8 + [0.5] * 8
    assert [row["reward"] for row in rows] == [
        row["reward_parts"]["right"] + 0.5 * row["reward_parts"]["shaped"] for row in rows
    ]
    assert [value for _, value in runs.scalars(run)["reward/logged/known"]] == [1.0] * 4


@pytest.mark.parametrize(
    ("weights", "message"), [("[1.0]", "a list of 1 weights for 2 rewards"), ("[1, 2, 3]", "of 3")]
)
def test_a_list_of_weights_has_one_for_each_reward(
    weights: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = {name: {"class_path": "ExactMatch"} for name in ("a", "b")}
    (tmp_path / "rewards.yaml").write_text(yaml.safe_dump({"data": {"rewards": rewards}}))
    argv = [f"--config={runs.QUICKSTART}", f"--config={tmp_path / 'rewards.yaml'}", f"--data.reward_weights={weights}"]
    assert main(["fit", *argv, f"--trainer.default_root_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "give one weight for each reward in this order" in error


# TRL's own -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def trl() -> Any:
    if os.environ.get("GSPO_TESTS_EXPECT") == "trl":
        import trl.rewards as found
    else:
        found = pytest.importorskip("trl.rewards")
    return found


GOOD, BAD = r"<think>2</think> The answer is $\boxed{\frac{1}{3}}$.", r"It is $\boxed{\frac{1}{2}}$."


def trl_samples() -> list[Sample]:
    answers = [(GOOD, (1, 2, 3, 4)), (BAD, (5, 5, 5, 5, 5, 5, 5, 5, 5)), (GOOD, tuple(range(20)))]
    solutions = [r"$\frac{1}{3}$", r"$\frac{1}{3}$", "no formula at all"]
    return [
        Sample(str(i), "p", text, ids, {"solution": solution})
        for i, ((text, ids), solution) in enumerate(zip(answers, solutions, strict=True))
    ]


def test_trls_own_functions_give_what_they_give_under_trl(trl: Any) -> None:
    makers: dict[str, dict[str, Any] | None] = {
        "think_format_reward": None,
        "accuracy_reward": None,
        "reasoning_accuracy_reward": None,
        "get_cosine_scaled_reward": {"max_len": 10},
        "get_repetition_penalty_reward": {"ngram_size": 2},
        "get_soft_overlong_punishment": {"max_completion_len": 16, "soft_punish_cache": 8},
    }
    assert set(makers) == {name for names in trl._import_structure.values() for name in names}
    samples = trl_samples()
    parts = {name: FunctionReward(f"trl.rewards.{name}", arguments=made) for name, made in makers.items()}
    scores = scored(parts, samples)
    messages = [[{"role": "assistant", "content": s.completion}] for s in samples]
    for name, made in makers.items():
        function = getattr(trl, name) if made is None else getattr(trl, name)(**made)
        wanted = function(
            prompts=[s.prompt for s in samples],
            completions=messages,
            completion_ids=[list(s.completion_ids) for s in samples],
            solution=[s.columns["solution"] for s in samples],
        )
        assert [score.parts[name].reward for score in scores] == wanted, name
    found = {name: [score.parts[name].reward for score in scores] for name in makers}
    assert found["think_format_reward"] == [1.0, 0.0, 1.0]
    assert found["accuracy_reward"] == [1.0, 0.0, None]
    assert found["get_soft_overlong_punishment"] == [0.0, -1 / 8, -1.0]
    assert found["get_repetition_penalty_reward"] == [0.0, -7 / 8, 0.0]
    right = 0.5 + 0.25 * (1 + math.cos(0.4 * math.pi))  # 4 of 10 tokens: from 1 down to 0.5
    wrong = -0.5 - 0.25 * (1 + math.cos(0.9 * math.pi))  # 9 of 10 tokens: from -1 up to -0.5
    assert found["get_cosine_scaled_reward"] == [pytest.approx(right), pytest.approx(wrong), None]
    extra = scores[0].parts["accuracy_reward"].extra
    assert extra.keys() == {"solution", "gold_parsed", "answer_parsed"}


def test_trls_functions_pass_the_check_before_the_first_rollout(trl: Any) -> None:
    parts = {
        "format": FunctionReward("trl.rewards.think_format_reward"),
        "right": FunctionReward("trl.rewards.accuracy_reward"),
    }
    with RewardRunner(parts, num_workers=1, deadline_s=20) as runner:
        runner.check({"solution": "$4$"})
        with pytest.raises(UserError, match="needs the column 'solution'"):
            runner.check({"answer": "4"})


def test_a_factory_of_trls_without_arguments_is_refused(trl: Any) -> None:
    with pytest.raises(UserError, match="makes a reward function and is none itself"):
        FunctionReward("trl.rewards.get_repetition_penalty_reward")
    FunctionReward("trl.rewards.get_repetition_penalty_reward", arguments={})
