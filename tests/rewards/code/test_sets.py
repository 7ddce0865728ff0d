"""Records as data sets write them: LiveCodeBench's private tests, CodeContests, APPS, Codeforces, checkers."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.code import shapes
from gspo_lightning.rewards.code.answer import BadAnswerError, read_answer
from gspo_lightning.rewards.code.compare import Comparison

ADD = "a, b = map(int, input().split())\nprint(a + b)"


def packed(value: Any, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def lcb(private: Any, kind: str = "stdin") -> dict[str, Any]:
    public = [{"input": "1 2\n", "output": "3\n", "testtype": kind}]
    return {"public_test_cases": json.dumps(public), "private_test_cases": private, "metadata": "{}"}


PRIVATE = json.dumps([{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}])


@pytest.fixture(scope="module")
def executor() -> CodeExecutor:
    return CodeExecutor(timeout_s=2.0)


@pytest.mark.parametrize(
    "private", [packed(PRIVATE), packed(PRIVATE, 2), packed(PRIVATE, 0), PRIVATE], ids=["4", "2", "0", "json"]
)
def test_livecodebenchs_private_tests_are_judged_with_the_public_ones(private: str) -> None:
    cases = read_answer(lcb(private)).cases
    assert [(c.frame["input"], c.expected) for c in cases] == [("1 2\n", ("3\n",)), ("5 6\n", ("11\n",))]


def test_program_of_the_public_test_is_not_paid_for_private_tests(executor: CodeExecutor) -> None:
    assert executor.score(ADD, lcb(packed(PRIVATE))).reward == 1.0
    assert executor.score("print(3)", lcb(packed(PRIVATE))).reward == 0.5


class _Runs:
    """A pickle that would run a command."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def test_a_pickle_that_does_anything_is_refused_by_name(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(BadAnswerError, match=r"posix\.system, which is refused"):
        read_answer(lcb(packed(_Runs(str(target)))))
    assert not target.exists()


@pytest.mark.parametrize(
    ("private", "reason"),
    [
        (packed([{"input": "1", "output": "1"}]), "a pickle of list, not of text"),
        (packed(b"[]"), r"refused|a pickle of bytes"),
        (packed({1}), r"a pickle of set|refused"),
        (packed(Comparison()), "Comparison, which is refused|refused"),
        ("no base64!", "neither JSON nor base64 of zlib"),
        (base64.b64encode(b"no zlib").decode(), "neither JSON nor base64 of zlib"),
        (base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode(), r"os\.system, which is refused"),
        (base64.b64encode(zlib.compress(b"garbage")).decode(), "no pickle of text"),
        (base64.b64encode(zlib.compress(b"")).decode(), "no pickle of text"),
        (base64.b64encode(zlib.compress(b"\x80\x04\x95")).decode(), "no pickle of text"),
        (packed("no json"), "Expecting value"),
    ],
)
def test_private_tests_that_are_none_are_refused(private: str, reason: str) -> None:
    with pytest.raises(BadAnswerError, match=reason):
        read_answer(lcb(private))


def test_private_tests_that_unpack_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_BYTES", 1 << 20)
    assert shapes.unpack_tests(packed("[" + " " * (1 << 19) + "]")) == []
    with pytest.raises(ValueError, match="larger than 1048576 bytes"):
        shapes.unpack_tests(packed("[" + " " * (1 << 21) + "]"))


def test_the_name_of_a_method_comes_from_the_metadata_or_the_starter_code() -> None:
    test = [{"input": "[1]\n2", "output": "3", "testtype": "functional"}]
    starter = "class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        "
    answer = {"public_test_cases": test, "starter_code": starter, "metadata": "{}"}
    assert read_answer(answer).cases[0].frame == {"entry": "total", "arguments": [[1], 2]}
    assert read_answer(answer | {"metadata": '{"func_name": "f"}'}).cases[0].frame["entry"] == "f"
    with pytest.raises(BadAnswerError, match="need an entry_point"):
        read_answer(answer | {"starter_code": ""})


GROUP = {"input": ["3 4\n"], "output": ["7\n"]}
CONTESTS = {"public_tests": GROUP, "private_tests": {"input": ["1 1\n"], "output": ["2\n"]}, "generated_tests": None}


def test_codecontests_tests_time_limit_and_comparison() -> None:
    task = read_answer(CONTESTS | {"time_limit": {"seconds": 2, "nanos": 500_000_000}})
    assert [c.expected for c in task.cases] == [("7\n",), ("2\n",)]
    assert task.timeout_s == 2.5
    assert task.comparison == Comparison("tolerance", 1e-5, relative=False, any_case=True)
    assert read_answer(CONTESTS | {"time_limit": None}).timeout_s is None
    assert read_answer(CONTESTS | {"time_limit": {"seconds": 1, "nanos": None}, "timeout_s": 7}).timeout_s == 7
    with pytest.raises(BadAnswerError, match=r"reads and writes files \(input_file\)"):
        read_answer(CONTESTS | {"input_file": "input.txt"})


@pytest.mark.parametrize(
    "mark",
    [
        {"interactive": True},
        {"interaction_format": "The judge picks a number."},
        {"cf_tags": ["games", "interactive"]},
        {"raw_tags": "['binary search', 'interactive']"},
        {"tags": ["*interactive"]},
    ],
)
def test_interactive_problems_are_refused_by_name(executor: CodeExecutor, mark: dict[str, Any]) -> None:
    score = executor.score(ADD, CONTESTS | mark)
    assert (score.reward, score.status) == (None, "missing")
    assert f"the problem is interactive ({next(iter(mark))})" in score.detail
    assert read_answer(CONTESTS | {"cf_tags": ["math"], "interactive": False, "interaction_format": None})


def test_apps_keys_numbers_and_columns() -> None:
    task = read_answer({"fn_name": "f", "inputs": [[{"1": 2}, {"a": 1}]], "outputs": [[{"3": 4}]]})
    assert task.cases[0].frame["arguments"] == [{1: 2}, {"a": 1}]
    assert task.cases[0].expected == ([{"3": 4}], {3: 4})
    columns = {"input_output": json.dumps({"inputs": ["1"], "outputs": ["0.5"]}), "tags": "['math']"}
    task = read_answer(columns)
    assert (task.kind, task.comparison) == ("stdin", Comparison("tolerance", 1e-5))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"comparison": "fuzzy"},
            "comparison is 'fuzzy'; it must be one of lines, tokens, exact, unordered, tolerance",
        ),
        ({"comparison": "tolerance", "tolerance": -1}, "tolerance is -1"),
        ({"comparison": "tolerance", "tolerance": "1e-3"}, "tolerance is '1e-3'"),
        ({"checker": 7}, "checker must be the text of a Python program"),
    ],
)
def test_rules_that_are_none_are_named(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadAnswerError, match=reason):
        read_answer({"type": "stdin", "tests": [{"input": "", "output": "1"}], **more})


def test_a_record_names_its_rule(executor: CodeExecutor) -> None:
    for rule, tolerance, pays in (("tolerance", 1e-3, 1.0), ("tolerance", 1e-9, 0.0), ("tokens", None, 0.0)):
        answer = {"tests": [{"input": "", "output": "0.33333"}], "type": "stdin", "comparison": rule}
        assert executor.score("print(1 / 3)", answer | {"tolerance": tolerance}).reward == pays


FUNCTION = (
    "def check(input, expected, output):\n    a, b = map(int, output.split())\n"
    "    return a + b == int(input) and min(a, b) > 0\n"
)
SCRIPT = (
    "import sys\ngiven, expected, found = (open(path).read() for path in sys.argv[1:])\nwords = found.split()\n"
    "print('judging', expected.strip())\n"
    "print(int(len(words) == 2 and sum(map(int, words)) == int(given) and min(map(int, words)) > 0))\n"
)


def special(checker: str) -> dict[str, Any]:
    return {"type": "stdin", "tests": [{"input": "5\n", "output": "2 3\n"}], "checker": checker}


@pytest.mark.parametrize("checker", [FUNCTION, SCRIPT], ids=["function", "script"])
def test_a_checker_judges_what_a_program_prints(executor: CodeExecutor, checker: str) -> None:
    assert executor.score("print(1, 4)", special(checker)).reward == 1.0
    assert executor.score("print(0, 5)", special(checker)).reward == 0.0
    nonsense = executor.score("print('x y')", special(checker))  # the checker raises, and is right about the rest
    assert (nonsense.reward, nonsense.status) == (0.0, "ok")


@pytest.mark.parametrize(
    "checker", ["def check(", "def check(i, e, o):\n    1 / 0", "import sys\nsys.exit(3)", "print('maybe')", "pass"]
)
def test_a_checker_that_fails_to_run_is_missing_and_never_0(executor: CodeExecutor, checker: str) -> None:
    score = executor.score("print(2, 3)", special(checker))
    assert (score.reward, score.status) == (None, "missing")
    assert "the checker fails on the expected output" in score.detail


def test_codeforces_checkers_and_files() -> None:
    record = {"official_tests": [{"input": "5\n", "output": "2 3\n"}], "generated_checker": SCRIPT, "time_limit": 2.0}
    task = read_answer(record | {"input_mode": "stdio", "interaction_format": None})
    assert (task.checker, task.timeout_s) == (SCRIPT, 2.0)
    with pytest.raises(BadAnswerError, match="input_mode"):
        read_answer(record | {"input_mode": "file"})
