"""The code reward: what counts as right, data sets' shapes, scores and statuses, and the way through the runner."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest

from gspo_lightning.commands.score import main as score_main
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards import CodeExecutor, RewardRunner, Sample, Score
from gspo_lightning.rewards.code.answer import BadAnswerError, read_answer
from gspo_lightning.rewards.code.asserts import UnsupportedTestError, check_function, parse

ADD = "a, b = map(int, input().split())\nprint(a + b)"


def stdin(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"type": "stdin", "tests": [{"input": i, "output": o} for i, o in pairs], **more}


@pytest.fixture(scope="module")
def executor() -> CodeExecutor:
    return CodeExecutor(timeout_s=2.0)


def test_a_share_of_the_tests_or_all_of_them(executor: CodeExecutor) -> None:
    answer = stdin(("1 2", "3"), ("2 2", "5"), ("5 5", "10"), ("0 0", "0"))
    assert executor.score(ADD, answer) == Score(0.75, detail="wrong_answer in test 2 of 4, 3 passed")
    strict = CodeExecutor("all_or_nothing")
    assert strict.score(ADD, answer) == Score(0.0, detail="wrong_answer in test 2 of 4, 1 passed")
    assert strict.score(ADD, stdin(("1 2", "3"), ("2 2", "4"))) == Score(1.0)
    assert executor.score(f"So:\n```python\n{ADD}\n```", json.dumps(stdin(("1 2", "3")))).reward == 1.0


@pytest.mark.thorough("while True: pass-timeout-timeout in test 1 of 2")
@pytest.mark.parametrize(
    ("program", "status", "detail"),
    [
        ("print(1", "model_error", "syntax_error in test 1 of 2"),
        ("\x00", "model_error", "syntax_error in test 1 of 2"),
        ("\ud800", "model_error", "syntax_error in test 1 of 2"),
        ("(" * 5000, "model_error", "syntax_error in test 1 of 2"),
        ("1 / 0", "model_error", "runtime_error in test 1 of 2"),
        ("import numpy_is_not_here", "model_error", "runtime_error in test 1 of 2"),
        ("raise MemoryError", "model_error", "memory in test 1 of 2"),
        ("while True: pass", "timeout", "timeout in test 1 of 2"),
        ("import os; os._exit(3)", "model_error", "runtime_error in test 1 of 2"),
        ("import os; os.abort()", "model_error", "runtime_error in test 1 of 2"),
        ("while True: print('x' * 10000)", "model_error", "output_limit in test 1 of 2"),
        ("print(3)", "ok", "wrong_answer in test 1 of 2"),
        ("", "model_error", "no_program"),
        (" \n", "model_error", "no_program"),
        ("```python\n```", "model_error", "no_program"),
        ("<think>print(8)", "model_error", "no_program: the thinking has no end"),
        ("print(8)\nexit(1)", "model_error", "runtime_error in test 1 of 2"),
        ("print(8)\nraise SystemExit('done')", "model_error", "runtime_error in test 1 of 2"),
        ("import sys\nprint(8)\nsys.exit(2)", "model_error", "runtime_error in test 1 of 2"),
        ("x" * 1_000_000, "model_error", "runtime_error in test 1 of 2"),
    ],
)
def test_the_models_fault_is_0_with_its_kind(executor: CodeExecutor, program: str, status: str, detail: str) -> None:
    score = executor.score(program, stdin(("1", "8"), ("2", "9"), timeout_s=1))
    assert (score.reward, score.status, score.detail) == (0.0, status, detail)


def test_a_timeout_in_one_test_leaves_the_others_their_credit(executor: CodeExecutor) -> None:
    program = "n = int(input())\nwhile n == 2: pass\nprint(n)"
    score = executor.score(program, stdin(("1", "1"), ("2", "2"), ("3", "3"), timeout_s=0.3))
    assert score == Score(2 / 3, detail="timeout in test 2 of 3, 2 passed")


def test_all_tests_together_have_a_limit() -> None:
    reward = CodeExecutor(timeout_s=0.3, total_timeout_s=0.5)
    score = reward.score("while True: pass", stdin(*[("", "1")] * 50))
    assert (score.reward, score.status, score.detail) == (0.0, "timeout", "timeout in test 1 of 50")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "the answer is a NoneType"),
        ("{", "the answer is not JSON"),
        ("[" * 100_000, "the answer is not JSON"),
        ({}, "the test kind None is unknown; it must be stdin, call or assert"),
        ({"type": "tests", "tests": [1]}, "the test kind 'tests' is unknown"),
        ({"type": "stdin", "tests": []}, "the answer has no tests"),
        ({"type": "stdin", "tests": [{"input": "1"}]}, "test 1 of 1: has no 'output'"),
        ({"type": "stdin", "tests": [{"input": 1, "output": "1"}]}, "must be text"),
        ({"type": "call", "tests": [{"input": [1], "output": 1}]}, "need an entry_point"),
        ({"type": "call", "entry_point": "f", "tests": [{"input": 1, "output": 1}]}, "a list of arguments"),
        ({"type": "assert", "tests": ["x = 1"]}, "uses nothing of the program"),
        ({"type": "assert", "tests": ["assert ("]}, "the test is not Python"),
        ({"type": "assert", "tests": [7]}, "must be text"),
        (
            {"type": "assert", "tests": ["try:\n    f()\nexcept f.Error:\n    pass"]},
            "catches an exception of the program",
        ),
        ({"type": "stdin", "tests": [{"input": "", "output": ""}], "timeout_s": -1}, "timeout_s is -1"),
        ({"inputs": ["1"], "outputs": []}, "the tests cannot be read"),
        ({"test": "def chek(c): pass", "entry_point": "f"}, "defines no check"),
    ],
)
def test_a_record_that_cannot_be_judged_by_is_missing(executor: CodeExecutor, answer: Any, reason: str) -> None:
    score = executor.score("print(1)", answer)
    assert (score.reward, score.status) == (None, "missing")
    assert reason in score.detail
    with pytest.raises(BadAnswerError):
        read_answer(answer)


APPS_STDIN = {"inputs": ["1 2\n", ["3 4", ""]], "outputs": ["3\n", ["7", ""]]}
APPS_CALL = {"fn_name": "pair", "inputs": [[1, 2], [3, 4]], "outputs": [[[1, 2]], [3, 4]]}
MBPP = {
    "test_list": [
        "assert area(2) == 4",
        "assert math.isclose(area(0.5), 0.25, rel_tol=0.001)",
        "assert set_of(1) == {1}",
    ],
    "test_imports": ["import math"],
}
HUMANEVAL = {
    "prompt": 'def helper(x):\n    return x + 1\n\ndef add(a: int) -> int:\n    """Add one."""\n',
    "entry_point": "add",
    "test": (
        "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate(1) == 2, 'one'\n"
        "    assert True, 'easy so far'\n    assert abs(candidate(2) - 3) < 1e-6\n"
        "    assert tuple([candidate(3), candidate(4)]) == (4, 5)\n"
    ),
}
LCB_STDIN = {"public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])}
LCB_CALL = {
    "public_test_cases": [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}],
    "metadata": '{"func_name": "total"}',
}
SOLUTION = "class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        return sum(xs) + y"


@pytest.mark.parametrize(
    ("answer", "right", "wrong", "tests"),
    [
        pytest.param(APPS_STDIN, ADD, "print(3)", 2, id="apps-stdin"),
        pytest.param(
            APPS_CALL, "def pair(a, b):\n    return (a, b)", "def pair(a, b):\n    return a", 2, id="apps-call"
        ),
        pytest.param(
            MBPP,
            "def area(x):\n    return x * x\ndef set_of(x):\n    return {x}",
            "def area(x):\n    return 2 * x\ndef set_of(x):\n    return [x]",
            3,
            id="mbpp",
        ),
        pytest.param(HUMANEVAL, "    return helper(a)\n", "    return a\n", 3, id="humaneval-continued"),
        pytest.param(
            HUMANEVAL, "def add(a):\n    return a + 1\n", "def add(a):\n    return 0\n", 3, id="humaneval-whole"
        ),
        pytest.param(LCB_STDIN, ADD, "print(4)", 1, id="livecodebench-stdin"),
        pytest.param(LCB_CALL, SOLUTION, SOLUTION.replace("+ y", "- y"), 1, id="livecodebench-call"),
        pytest.param(
            {"type": "assert", "tests": ["assert f(2) == (1, 2)\nassert not f(0)", "assert f(1) != f(2)"]},
            "def f(x):\n    return tuple(range(1, x + 1))",
            "def f(x):\n    return [1, 2]",
            3,
            id="asserts",
        ),
    ],
)
def test_data_sets_shapes_are_understood(
    executor: CodeExecutor, answer: dict[str, Any], right: str, wrong: str, tests: int
) -> None:
    assert len(read_answer(answer).cases) == tests
    score = executor.score(right, answer)
    assert (score.reward, score.detail) == (1.0, "")
    assert executor.score(f"```python\n{right}\n```", json.dumps(answer)).reward == 1.0
    assert executor.score(wrong, answer).reward < 0.7  # type: ignore[operator]


def test_the_program_of_several_blocks_defines_what_the_tests_call(executor: CodeExecutor) -> None:
    text = "```python\ndef f(x):\n    return x + 1\n```\nUsage:\n```python\nprint(f(1))\n```"
    assert executor.score(text, {"test_list": ["assert f(1) == 2"]}).reward == 1.0
    assert (
        executor.score(text, {"type": "assert", "tests": ["for i in [1, 2]:\n    assert f(i) == i + 1"]}).reward == 1.0
    )


def test_a_whole_function_may_answer_the_beginning_of_one(executor: CodeExecutor) -> None:
    """The beginning alone would be no Python in front of it."""
    prompt = "def helper(x):\n    return x + 1\n\ndef add(a):\n    # Add one.\n"
    answer = {"prompt": prompt, "entry_point": "add", "test": "def check(candidate):\n    assert candidate(1) == 2\n"}
    for program in ("def add(a):\n    return helper(a)", "    return helper(a)\n"):
        assert executor.score(f"```python\n{program}\n```", answer).reward == 1.0


def test_an_assertion_is_taken_apart_so_that_what_is_expected_stays_outside() -> None:
    setup = "import math\nwanted = [2, 4]\n\ndef double(x):\n    return 2 * x"
    (plain,) = parse("assert f([1, 2], k=3) == {'a': (1, -2.5)}", setup)
    assert (plain.calls, plain.setup, plain.literal, plain.expected) == (
        "(f([1, 2], k=3), )",
        "",
        True,
        {"a": (1, -2.5)},
    )
    (turned,) = parse("assert 3 == f(1)")
    assert (turned.literal, turned.expected) == (True, 3)
    (computed,) = parse("assert f(double(1)) == wanted", setup)
    assert (computed.calls, computed.literal, computed.condition) == ("(f(double(1)), )", False, "_0 == wanted")
    assert computed.setup == "def double(x):\n    return 2 * x"
    assert computed.condition_setup == "wanted = [2, 4]"
    (two,) = parse("assert f(1) + g(2) == 3")
    assert (two.calls, two.condition, two.results) == ("(f(1), g(2), )", "_0 + _1 == 3", 2)
    assert parse("assert True\nassert f(1)", entry_point="f")[0].condition == "_0"
    with pytest.raises(UnsupportedTestError, match="calls the program outside an assert"):
        parse("x = f(1)\nassert x == 2", entry_point="f")


def test_humanevals_check_becomes_statements() -> None:
    text = check_function("METADATA = {}\ndef check(candidate):\n    import math\n    assert candidate(1) == 2", "g")
    assert text == "import math\nassert g(1) == 2"


# through the runner -------------------------------------------------------------------------------------------------


def sample(number: int, completion: str, answer: Any) -> Sample:
    return Sample(str(number), "", completion, columns={"answer": answer})


def test_through_the_runner_its_own_deadline_holds() -> None:
    """More CPU seconds than the runner's default deadline allows, and none of them lost."""
    slow = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\nprint(input())"
    answer = stdin(*[(str(i), str(i)) for i in range(4)])
    with RewardRunner({"code": CodeExecutor()}, num_workers=1, deadline_s=0.5) as runner:
        runner.check({"answer": answer})
        scores = runner.score([sample(0, slow, answer), sample(1, "print(0)", answer), sample(2, "print(", answer)])
    assert [s.reward for s in scores] == [1.0, 0.25, 0.0]
    assert [s.status for s in scores] == ["ok", "ok", "model_error"]


def test_workers_killed_at_random_change_no_reward() -> None:
    answer = stdin(("1 2", "3"), ("4 5", "9"))
    samples = [sample(i, ADD if i % 3 else "print(3)", answer) for i in range(30)]
    over = threading.Event()
    with RewardRunner({"code": CodeExecutor()}, num_workers=2, max_missing_rate=0.0) as runner:
        runner.score(samples[:1])

        def kill() -> None:
            for _ in range(3):
                if over.wait(0.4):
                    return
                for pid in runner.worker_pids()[:1]:
                    os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        scores = runner.score(samples)
        over.set()
        killer.join()
    known = [s.reward for s in scores if s.reward is not None]
    assert len(known) >= 27  # a sample that was hit twice is missing
    assert all(s.reward in (None, 1.0 if i % 3 else 0.5) for i, s in enumerate(scores))


class _Unavailable(CodeExecutor):
    """A sandbox that never starts."""

    def score(self, completion: str, answer: object) -> Score:
        if completion == "down":
            raise InfrastructureError("the sandbox does not start")
        return Score(1.0)


def test_a_sandbox_that_fails_twice_makes_the_sample_missing_and_stops_the_run_above_a_rate() -> None:
    texts = ["fine", "down", "fine", "fine"]
    with RewardRunner({"code": _Unavailable()}, num_workers=1) as runner:
        scores = runner.score([sample(i, text, {}) for i, text in enumerate(texts)])
        assert [s.reward for s in scores] == [1.0, None, 1.0, 1.0]
        assert scores[1].detail == "InfrastructureError: the sandbox does not start, twice"
        with pytest.raises(InfrastructureError, match="5 of 6 samples could not be scored"):
            runner.score([sample(i, "down" if i else "fine", {}) for i in range(6)])


def test_gspo_score_gives_a_status_a_line(tmp_path: Any) -> None:
    answer = stdin(("1 2", "3"))
    records = [
        {"id": 1, "completion": f"```python\n{ADD}\n```", "answer": answer},
        {"id": 2, "completion": "print(4)", "answer": answer},
        {"id": 3, "completion": "", "answer": answer},
        {"id": 4, "completion": "print(4)", "answer": {"type": "what", "tests": []}},
        {"id": 5, "completion": "while True: pass", "answer": answer | {"timeout_s": 0.3}},
        {"id": 6, "completion": "\x00" * 1_000_000, "answer": answer},
        {"id": 7, "completion": "print(3)"},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in records))
    assert score_main(["--reward", "CodeExecutor", "--input", str(source), "--output", str(target)]) == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["reward"] for line in found] == [1.0, 0.0, 0.0, None, 0.0, 0.0, None]
    assert [line["status"] for line in found] == [
        "ok", "ok", "model_error", "missing", "timeout", "model_error", "missing",
    ]  # fmt: skip
