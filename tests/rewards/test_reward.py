from __future__ import annotations

import decimal
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import ExactMatch, FormatReward, FunctionReward, Reward, Sample, Score
from gspo_lightning.rewards.scores import check_batch, to_score
from tests import ROOT
from tests.rewards import misbehaving


def sample(completion: str = "text", truncated: bool = False, **columns: Any) -> Sample:
    return Sample("7", "the prompt", completion, (1, 2), columns, truncated)


@pytest.mark.parametrize(
    ("completion", "truncated", "reward"),
    [
        ("7+5=2;2*3=6;6-4=2;#2", False, 1.0),
        ("#2", False, 1.0),
        ("#2", True, 0.0),
        ("#3", False, 0.0),
        ("2", False, 0.0),
        ("", False, 0.0),
        ("#", False, 0.0),
        ("#2#", False, 0.0),
        ("#1#2", False, 0.0),
        ("##2", False, 0.0),
        ("# 2", False, 0.0),
        ("#2 ", False, 0.0),
        ("#22", False, 0.0),
        ("#2\x00", False, 0.0),
    ],
)
def test_exact_match_pays_only_one_terminated_exact_answer(completion: str, truncated: bool, reward: float) -> None:
    assert ExactMatch().score_one(sample(completion, truncated, answer="2")).reward == reward


def test_exact_match_options() -> None:
    assert ExactMatch(exactly_one=False).score_one(sample("#1#2", answer="2")).reward == 1.0
    assert ExactMatch(require_terminated=False).score_one(sample("#2", True, answer="2")).reward == 1.0
    assert ExactMatch(marker="").score_one(sample(" 2\n", answer=2)).reward == 1.0


def test_format_reward() -> None:
    pattern = r"<think>.*</think>\n\d+"
    assert FormatReward(pattern).score("<think>a\nb</think>\n42") == 1.0
    assert FormatReward(pattern).score("<think>a</think>\n42 ") == 0.0
    assert FormatReward(pattern, full_match=False).score("so <think>a</think>\n42 then") == 1.0
    with pytest.raises(UserError, match=r"FormatReward.pattern.*regular expression"):
        FormatReward("(")


def test_arguments_are_injected_by_name() -> None:
    class _Asks(Reward):
        def score(
            self, sample: Sample, truncated: bool, prompt: str, level: int, answer: str = "?", **rest: object
        ) -> float:
            assert (sample.id, truncated, prompt, level, answer, rest) == ("7", False, "the prompt", 3, "?", {"x": 1})
            return 1.0

    assert _Asks().score_one(sample(level=3, x=1)).reward == 1.0
    assert _Asks().required_columns() == ("level",)
    assert _Asks().missing_column(sample()) == "the record has no column 'level'"


def test_an_answer_of_none_is_missing() -> None:
    assert "null" in str(ExactMatch().missing_column(sample(answer=None)))


def test_a_wrong_signature_is_refused_when_the_class_is_defined() -> None:
    with pytest.raises(UserError, match=r"_Star.score: takes \*texts by position"):

        class _Star(Reward):
            def score(self, *texts: str) -> float:
                return 0.0

    with pytest.raises(UserError, match=r"_Nothing\.score: takes no arguments"):

        class _Nothing(Reward):
            def score(self) -> float:
                return 0.0

    with pytest.raises(UserError, match="is a float, not a method"):

        class _NoMethod(Reward):
            score = 1.0

    with pytest.raises(UserError, match=r"_Elsewhere\.where: is 'gpu'"):

        class _Elsewhere(Reward):
            where = "gpu"  # type: ignore[assignment]

            def score(self, completion: str) -> float:
                return 0.0


def test_a_reward_without_score_is_abstract() -> None:
    class _Half(Reward):
        pass

    with pytest.raises(TypeError, match="abstract"):
        _Half()  # type: ignore[abstract]


@pytest.mark.parametrize("value", [1, 0.5, True, np.float32(0.5), np.int64(3), np.bool_(True), decimal.Decimal("0.5")])
def test_numbers_of_all_kinds_are_rewards(value: object) -> None:
    assert to_score(value, "R", "1").reward == float(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["1", b"1", [1.0], {}, 1j, object(), float("nan"), float("-inf"), Score(float("inf"))]
)
def test_nonfinite_or_nonnumeric_reward_is_refused_with_its_sample(value: object) -> None:
    with pytest.raises(UserError, match=r"rewards\.correct: sample 7: returned"):
        to_score(value, "correct", "7")


def test_reward_of_none_is_missing() -> None:
    assert to_score(None, "R", "1").status == "missing"


def test_a_batch_of_wrong_length_is_refused() -> None:
    with pytest.raises(UserError, match=r"rewards\.R: returned 1 values for 2 samples"):
        check_batch([1.0], "R", [sample(), sample()])
    with pytest.raises(UserError, match="must return a list"):
        check_batch(1.0, "R", [sample(), sample()])


def test_function_reward_takes_dotted_paths_and_functions() -> None:
    samples = [sample("a", answer="a", other=1), sample("b", answer="a")]
    for function in ("tests.rewards.misbehaving.trl_style", misbehaving.trl_style):
        reward = FunctionReward(function)
        assert reward.score_batch(samples) == [1.0, 0.0]
        assert reward.required_columns() == ("answer",)
    assert FunctionReward("tests.rewards.misbehaving.trl_async").score_batch([sample(""), sample("x")]) == [None, 1.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.rewards.misbehaving.trl_stile", "did you mean trl_style"),
        ("no_such_module.f", "there is no module 'no_such_module'"),
        ("f", "not a dotted path"),
        ("json.decoder", "cannot be called"),
        ("broken_module.f", "importing broken_module raised ZeroDivisionError: division by zero"),
    ],
)
def test_function_reward_says_why_a_path_leads_nowhere(
    path: str, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=message):
        FunctionReward(path)


def test_a_worker_imports_no_reward_that_it_does_not_judge_with_and_the_registry_finds_all() -> None:
    code = """
        import sys
        from gspo_lightning.core.registry import components
        from gspo_lightning.rewards import Reward
        from gspo_lightning.rewards.workers import worker
        print(sorted({"asyncio", "torch", "gspo_lightning.rewards.math.verifier"} & sys.modules.keys()))
        print({"ExactMatch", "MathVerifier", "CodeExecutor"} <= components("rewards").keys())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:2] == ["[]", "True"]
