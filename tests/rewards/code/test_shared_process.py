"""Tests of a record share a process of the program, in order: what that pays, what it does not, and who abuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.commands.score import main as score_main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import Kind, choose

SECRET = 26025927


def asserts(*tests: str, **more: Any) -> dict[str, Any]:
    return {"type": "assert", "tests": list(tests), **more}


def calls(*pairs: tuple[list[Any], Any], entry: str = "f") -> dict[str, Any]:
    return {"type": "call", "entry_point": entry, "tests": [{"input": i, "output": o} for i, o in pairs]}


@pytest.fixture(scope="module", params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def executor(request: pytest.FixtureRequest) -> CodeExecutor:
    try:
        choose(request.param)
    except UserError as error:
        pytest.skip(str(error))
    return CodeExecutor(isolation=request.param.value, timeout_s=0.5)


TRIPLE = asserts("assert f(2) == 6", "assert f(5) == 15")
TRIPLES = calls(([2], 6), ([5], 15))
CHECK = {
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(2) == 6\n    assert candidate(5) == 15\n",
}
LOOPED = asserts("for x, y in [(2, 6)]:\n    assert f(x) == y", "for x, y in [(5, 15)]:\n    assert f(x) == y")
MIXED = asserts("assert f(2) == 6", "for x, y in [(5, 15)]:\n    assert f(x) == y")
METHOD = "class Solution:\n    {0}\n    def f(self, x):\n        return self.kept.setdefault(0, 3 * x)\n"
FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "in_a_module": ("kept = {}\ndef f(x):\n    return kept.setdefault(0, 3 * x)", TRIPLE),
    "in_a_default": ("def f(x, kept=[]):\n    kept.append(3 * x)\n    return kept[0]", CHECK),
    "in_an_attribute": ("def f(x):\n    f.kept = getattr(f, 'kept', 3 * x)\n    return f.kept", TRIPLES),
    "in_a_class": (METHOD.format("kept = {}"), TRIPLES),
    "in_an_object": (METHOD.format("def __init__(self):\n        self.kept = {}"), TRIPLES),
    "in_a_builtin": ("import builtins\ndef f(x):\n    return builtins.__dict__.setdefault('kept', 3 * x)", TRIPLE),
    "in_its_folder": (
        "def f(x):\n    try:\n        return int(open('kept').read())\n    except OSError:\n"
        "        open('kept', 'w').write(str(3 * x))\n    return 3 * x",
        TRIPLES,
    ),
    "seen_by_scripts": ("kept = {}\ndef f(x):\n    return kept.setdefault(0, 3 * x)", LOOPED),
    "seen_by_an_assert_and_a_script": ("kept = {}\ndef f(x):\n    return kept.setdefault(0, 3 * x)", MIXED),
    "of_objects": (
        "class Box:\n    def __init__(self, x):\n        self.value = x\nkept = {}\n"
        "def f(x):\n    return kept.setdefault(0, Box(3 * x))",
        asserts("assert f(2).value == 6", "assert f(5).value == 15", "assert f(7).value == 21"),
    ),
    "of_a_plain_value_and_an_object": (
        "from types import SimpleNamespace\nkept = {}\ndef f(x):\n    return kept.setdefault(0, 3 * x)\n"
        "def g(x):\n    return SimpleNamespace(value=f(x))",
        asserts("assert f(2) == 6", "assert g(5).value == 15"),
    ),
    "that_counts": ("count = 0\ndef f(x):\n    global count\n    count += 1\n    return x + 4 * count", TRIPLE),
}  # fmt: skip
"""Programs whose first answer is right, and stays."""


@pytest.mark.thorough("landlock-of_objects")
@pytest.mark.parametrize("name", FIRST)
def test_an_answer_that_stays_pays_for_the_first_test_only(name: str, executor: CodeExecutor) -> None:
    program, answer = FIRST[name]
    score = executor.score(program, answer)
    assert score.status != "missing"
    assert score.reward in (1 / 2, 1 / 3), score


@pytest.mark.thorough("landlock-scripts")
@pytest.mark.parametrize(
    "answer", [TRIPLE, TRIPLES, CHECK, LOOPED, MIXED], ids=["asserts", "calls", "check", "scripts", "mixed"]
)
def test_state_that_changes_no_answer_costs_nothing(answer: dict[str, Any], executor: CodeExecutor) -> None:
    kept = "from functools import cache\nseen = []\n@cache\ndef f(x):\n    seen.append(x)\n    return 3 * x"
    score = executor.score(kept, answer)
    assert (score.reward, score.detail) == (1.0, "")


ENDS = {
    "exits": "import os; os._exit(0)",
    "leaves": "exit()",
    "crashes": "import os; os.abort()",
    "does_not_end": "while True: pass",
    "takes_all_memory": "return len('x' * (1 << 33))",
    "prints_too_much": "print('x' * (9 << 20))",
}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_is_that_of_one_test_and_the_others_go_on(how: str, executor: CodeExecutor) -> None:
    """The set-up of the record runs again in the new process, and only the new process has forgotten."""
    program = "count = 0\ndef f(x, y):\n    global count\n    count += 1\n"
    program += f"    if x == 2:\n        {ENDS[how]}\n    return x + y, count"
    tests = [f"assert f({x}, unit()) == ({x + 1}, {count})" for x, count in [(0, 1), (1, 2), (2, 3), (3, 1), (4, 2)]]
    score = executor.score(program, asserts(*tests, setup="def unit():\n    return 1"))
    assert score.reward == 4 / 5, score
    kind = {"does_not_end": "timeout", "takes_all_memory": "memory", "prints_too_much": "output_limit"}
    assert score.detail == f"{kind.get(how, 'runtime_error')} in test 3 of 5, 4 passed"


def test_the_reward_sets_the_memory_of_a_program(executor: CodeExecutor) -> None:
    program = "def f(x):\n    return len(b'x' * (x << 20))"
    large = CodeExecutor(isolation=executor.isolation, timeout_s=10)  # 200 MiB take their time on a busy machine
    small = CodeExecutor(isolation=executor.isolation, memory_mb=64, timeout_s=10)
    answer = calls(([20], 20 << 20), ([200], 200 << 20), ([30], 30 << 20))
    assert large.score(program, answer).reward == 1.0
    score = small.score(program, answer)
    assert (score.reward, score.detail) == (2 / 3, "memory in test 2 of 3, 2 passed")


def test_an_exception_ends_no_process(executor: CodeExecutor) -> None:
    program = "count = 0\ndef f(x):\n    global count\n    count += 1\n    return [1, 1 // x, count][2]"
    assert executor.score(program, calls(([1], 1), ([0], 0), ([1], 3))).reward == 2 / 3


def test_arguments_are_fresh_for_each_call_and_not_compared_afterwards(executor: CodeExecutor) -> None:
    program = "def f(xs, d):\n    xs.append(0)\n    d.clear()\n    return len(xs)"
    assert executor.score(program, calls(([[1], {"a": 1}], 2), ([[1], {"a": 1}], 2))).reward == 1.0


NAMED = "x = [3, 1, 2]\nassert f(x) == 3\nassert x == [3, 1, 2]"
SORTS = "def f(xs):\n    xs.sort()\n    return xs[-1]"


@pytest.mark.thorough("landlock")
def test_statements_of_an_assert_are_one_program(executor: CodeExecutor) -> None:
    for program, pays in (("def f(xs):\n    return max(xs)", 1.0), (SORTS, 0.0)):
        score = executor.score(program, asserts(NAMED))
        assert (score.reward, score.status) == (pays, "ok"), program
    twice = asserts("x = [1, 2]\nassert f(x) == 2\nassert f(x) == 2")
    assert executor.score("def f(xs):\n    return len(xs)", twice).reward == 1.0
    assert executor.score("def f(xs):\n    return len(xs) + len([xs.pop()]) - 1", twice).reward == 0.5
    looks = asserts("x = [2, 1]\nassert f([0]) == [0]\nassert f(x) == [1, 2]\nassert g(3) == x[0]")
    assert executor.score("def f(xs):\n    return sorted(xs)\ndef g(n):\n    return 2", looks).reward == 1.0
    assert executor.score("def f(xs):\n    xs.sort()\n    return xs\ndef g(n):\n    return 2", looks).reward == 0.0


@pytest.mark.thorough("landlock")
def test_a_change_of_an_argument_must_neither_help_nor_be_hidden(executor: CodeExecutor) -> None:
    """The expected value is computed from an argument that a program empties; and one that looks at it afterwards."""
    for test in (
        "xs = [2, 1]\nfound = f(xs)\nassert found == sorted(xs)",
        "for xs in [[2, 1]]:\n    assert f(xs) == sorted(xs)",
    ):
        assert executor.score("def f(xs):\n    xs.clear()\n    return []", asserts(test)).reward == 0.0
        assert executor.score("def f(xs):\n    xs.sort()\n    return xs", asserts(test)).reward == 1.0
    kept = asserts("xs = [2, 1]\nfound = f(xs)\nassert found == [1, 2] and xs == [2, 1]")
    assert executor.score("def f(xs):\n    xs.sort()\n    return xs", kept).reward == 0.0
    assert executor.score("def f(xs):\n    return sorted(xs)", kept).reward == 1.0


KEPT = "kept = {}\ndef first(x):\n    return kept.setdefault(0, 3 * x)\n"
LATER = "import os, threading, time\ndef later(act):\n    threading.Timer(0.05, act).start()\n"
HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "says_that_all_tests_are_over": ("import os\ndef f(x):\n    os.write(8, b'1' * 60)\n    return 0", TRIPLES),
    "answers_before_it_is_asked": (
        "import os\ndef f(x):\n    os.write(3, b'{\"value\": 15}')\n    os.write(8, b'11')\n    while True: pass",
        TRIPLES,
    ),
    "closes_what_tests_come_by": ("import os\ndef f(x):\n    os.closerange(4, 64)\n    return 0", TRIPLES),
    "says_nothing": ("import os\ndef f(x):\n    os.dup2(2, 8)\n    return 0", TRIPLES),
    "reads_no_further_test": ("import os, time\nos.read = lambda *_: time.sleep(60)\ndef f(x):\n    return 0", TRIPLES),
    "replaces_the_harness": (
        "import sys, os, marshal\n"
        "def f(x):\n    for module in list(sys.modules.values()):\n"
        "        for name in ('encode', '_outcome', '_value', '_write', 'loads', 'text_of'):\n"
        "            if getattr(module, '__name__', '').startswith(('gspo', 'marshal')) and hasattr(module, name):\n"
        "                setattr(module, name, lambda *a, **k: '{\"value\": true}')\n    return True",
        TRIPLES,
    ),
    "replaces_builtins_for_later_tests": (
        "import builtins\ndef f(x):\n    builtins.abs = lambda _: 0\n    builtins.bool = lambda _: True\n    return 0",
        asserts("assert abs(f(2) - 6) < 1", "assert abs(f(5) - 15) < 1", "assert bool(f(1) == 3)"),
    ),
    "replaces_the_set_up": (
        "def f(x):\n    globals()['wanted'] = globals()['near'] = lambda *_: True\n    return 0",
        asserts("assert near(f(2), wanted(2))", "assert near(f(5), wanted(5))",
                setup="def wanted(x):\n    return 3 * x\ndef near(a, b):\n    return abs(a - b) < 1e-6"),
    ),
    "searches_its_memory_for_later_tests": (
        "import gc, re\ndef f(x):\n    pattern = '2602' + '[5]927'\n"
        "    for kept in gc.get_objects():\n        for text in re.findall(pattern, repr(kept)[:100000]):\n"
        "            return int(text)",
        calls(([1], SECRET), ([2], SECRET), ([3], SECRET)),
    ),
    "reads_the_file_of_tests": (
        "import os, re\ndef f(x):\n    for fd in range(64):\n        try:\n            data = os.pread(fd, 1 << 20, 0)\n"
        "        except OSError:\n            continue\n        if (26025927).to_bytes(4, 'little') in data:\n            return 26025927",
        calls(([1], SECRET), ([2], SECRET), ([3], SECRET)),
    ),
    "answers_the_script_before_it_asks": (
        "import os\ndef f(x):\n    m = b'{\"value\": 15}'\n    os.write(5, len(m).to_bytes(4, 'big') + m)\n    return 0", LOOPED,
    ),
}  # fmt: skip
PARTLY: dict[str, tuple[str, dict[str, Any]]] = {
    "sleeps_to_be_tried_in_a_fresh_process": (
        KEPT + "import time\ndef f(x):\n    if kept:\n        time.sleep(60)\n    return first(x)", TRIPLES,
    ),
    "ends_its_process_between_tests": (KEPT + LATER + "def f(x):\n    later(lambda: os._exit(0))\n    return first(x)", TRIPLES),
    "ends_its_process_between_scripts": (KEPT + LATER + "def f(x):\n    later(lambda: os._exit(0))\n    return first(x)", LOOPED),
    "raises_to_get_a_fresh_process": (KEPT + "def f(x):\n    if kept:\n        raise SystemExit\n    return first(x)", TRIPLES),
    "leaves_a_thread_that_burns_time": (
        KEPT + LATER + "def burn():\n    while True: pass\ndef f(x):\n    later(burn)\n    return first(x)", TRIPLES,
    ),
}  # fmt: skip
"""The first answer is right in each new process: none of these gets one for its second test."""


@pytest.mark.thorough("landlock-says_nothing")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_earn_nothing_in_a_shared_process(name: str, executor: CodeExecutor) -> None:
    program, answer = HOSTILE[name]
    score = executor.score(program, answer)
    assert score.reward == 0.0, score
    assert score.status != "missing"
    assert executor.score("def f(x):\n    return 3 * x", TRIPLES).reward == 1.0  # the next program is none the worse


@pytest.mark.thorough("landlock-ends_its_process_between_scripts", "landlock-sleeps_to_be_tried_in_a_fresh_process")
@pytest.mark.parametrize("name", PARTLY)
def test_program_that_needs_a_fresh_process_per_test_is_paid_in_part(name: str, executor: CodeExecutor) -> None:
    program, answer = PARTLY[name]
    tests = [*answer["tests"]] * 2
    score = executor.score(program, answer | {"tests": tests[:3]})
    assert score.status != "missing"
    assert score.reward in (1 / 3, 2 / 3), score
    assert (
        CodeExecutor("all_or_nothing", timeout_s=0.5, isolation=executor.isolation).score(program, answer).reward == 0.0
    )  # type: ignore[arg-type]
    assert executor.score("def f(x):\n    return 3 * x", TRIPLES).reward == 1.0


def test_processes_of_an_earlier_test_count_for_the_later_one() -> None:
    """With namespaces a program may have processes, which live as long as the first of them: their time is counted.

    From the second test on a call uses three quarters of its time; the process that is left over doubles that.
    """
    try:
        choose(Kind.BUBBLEWRAP)
    except UserError as error:
        pytest.skip(str(error))
    program = (
        "import os, time\ndef f(x):\n    if x == 1 and os.fork() == 0:\n        while True: pass\n"
        "    end = time.process_time() + 0.3\n    while x > 1 and time.process_time() < end: pass\n    return x"
    )
    score = CodeExecutor(isolation="bubblewrap", timeout_s=0.4).score(program, calls(*[([x], x) for x in (1, 2, 3, 4)]))
    assert (score.reward, score.detail) == (3 / 4, "timeout in test 2 of 4, 3 passed")


@pytest.mark.thorough("landlock")
def test_integers_of_many_digits_are_read_printed_and_returned(tmp_path: Path, executor: CodeExecutor) -> None:
    long = 10**6000 + 7
    for answer, program in (
        ({"type": "stdin", "tests": [{"input": f"{long}\n", "output": f"{long + 1}\n"}]}, "print(int(input()) + 1)"),
        (calls(([long], long + 1)), "def f(x):\n    return x + 1"),
        (asserts(f"assert f({long}) == {long + 1}", f"assert f({long}) - {long} == 1"), "def f(x):\n    return x + 1"),
        (asserts(f"for x in [{long}]:\n    assert f(str(x)) == x + 1"), "def f(x):\n    return int(x) + 1"),
    ):
        score = executor.score(program, answer)
        assert (score.reward, score.detail) == (1.0, "")
        assert executor.score(program, json.dumps(answer)).reward == 1.0
    record = {"id": 1, "completion": "def f(x):\n    return x + 1", "answer": calls(([long], long + 1))}
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(record) + "\n")
    assert score_main(["--reward", "CodeExecutor", "--input", str(source), "--output", str(target)]) == 0
    assert json.loads(target.read_text())["reward"] == 1.0


@pytest.mark.parametrize(("printed", "expected", "pays"), [
    ("7", "7", 1.0), ("7.0", "7", 1.0), ("\uff17", "7", 0.0), ("\u0667.0", "7", 0.0), ("1_0", "10", 0.0), ("1e1", "10", 1.0),
])  # fmt: skip
def test_printed_numbers_have_ascii_digits(printed: str, expected: str, pays: float, executor: CodeExecutor) -> None:
    for rule in ("lines", "tolerance"):
        answer = {"type": "stdin", "tests": [{"input": "", "output": expected}], "comparison": rule}
        assert executor.score(f"print({printed!r})", answer).reward == pays
