"""Tests that run as they stand, beside the program: loops, variables, errors, objects; and who wants to be paid by them."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.code.asserts import UnsupportedTestError
from gspo_lightning.rewards.code.scripts import script_of
from gspo_lightning.rewards.sandbox import Kind, choose
from gspo_lightning.rewards.sandbox.launch import Interpreter
from gspo_lightning.rewards.sandbox.probe import _import_error


def asserts(*tests: str, **more: Any) -> dict[str, Any]:
    return {"type": "assert", "tests": list(tests), **more}


@pytest.fixture(scope="module", params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def executor(request: pytest.FixtureRequest) -> CodeExecutor:
    try:
        choose(request.param)
    except UserError as error:
        pytest.skip(str(error))
    return CodeExecutor(isolation=request.param.value, timeout_s=1.0)


STACK = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n        self.items.append(x)\n"
    "    def pop(self):\n        return self.items.pop()\n    def __len__(self):\n        return len(self.items)\n"
    "    def __eq__(self, other):\n        return self.items == other.items\n"
)
NODES = (
    "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n\n"
    "def listed(node):\n    found = []\n    while node:\n        found.append(node.value)\n        node = node.next\n"
    "    return found\n\n"
)
HONEST: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a_loop": ("def f(x):\n    return x + 1", "def f(x):\n    return 1", asserts("for i in range(9):\n    assert f(i) == i + 1")),
    "an_evalplus_loop": (
        "def f(a, b):\n    return a + b",
        "def f(a, b):\n    return 3",
        {"test": "def check(candidate):\n    for inp, exp in zip([[1, 2], [3, 4]], [3, 7]):\n        assert candidate(*inp) == exp\n",
         "entry_point": "f"},
    ),
    "variables": ("def f(x):\n    return [x]", "def f(x):\n    return x", asserts("a = f(1)\nb = f(2)\nassert a + b == [1, 2]")),
    "variables_that_change": (
        "def f(x):\n    return x", "def f(x):\n    return 2", asserts("x = 1\nassert f(x) == 1\nx = 2\nassert f(x) == 2"),
    ),
    "an_error": (
        "def f(x):\n    raise ValueError('below 0')",
        "def f(x):\n    raise KeyError('below 0')",
        asserts("try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert 'below' in str(e)"),
    ),
    "pytests_raises": (
        "class Mine(ValueError): pass\ndef f(x):\n    raise Mine('x')",
        "def f(x):\n    return x",
        asserts("import pytest\nwith pytest.raises(ValueError, match='x'):\n    f(-1)"),
    ),
    "unittest": (
        "def f(x):\n    return x",
        "def f(x):\n    return -x",
        asserts("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(3), 3)"),
    ),
    "functions_that_pytest_collects": (
        "def f(x):\n    return x", "def f(x):\n    return 1",
        asserts("from solution import f\n\ndef test_one():\n    assert f(1) == 1\n\ndef test_two():\n    assert f(2) == 2"),
    ),
    "an_object": (
        STACK, STACK.replace("append(x)", "insert(0, x)"),
        asserts("s = Stack()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.pop() == 2\nassert s.items == [1]"),
    ),
    "an_object_that_gives_itself": (
        "class L:\n    def __init__(self):\n        self.xs = []\n    def append(self, x):\n        self.xs.append(x)\n        return self",
        "class L:\n    def __init__(self):\n        self.xs = []\n    def append(self, x):\n        return self",
        asserts("l = L()\nl.append(1).append(2)\nassert l.xs == [1, 2]"),
    ),
    "objects_that_are_equal": (
        STACK, STACK.replace("self.items == other.items", "False"), asserts("assert Stack() == Stack()"),
    ),
    "a_generator": (
        "def f(n):\n    yield from range(n)", "def f(n):\n    yield n", asserts("assert list(f(3)) == [0, 1, 2]"),
    ),
    "a_match": ("import re\ndef f(s):\n    return re.match('a', s)", "def f(s):\n    return 1", asserts("assert f('a')\nassert not f('b')")),
    "a_closure": ("def f(n):\n    return lambda x: x + n", "def f(n):\n    return lambda x: n", asserts("assert f(1)(2) == 3")),
    "in_place": ("def f(xs):\n    xs.sort()", "def f(xs):\n    pass", asserts("xs = [2, 1]\nf(xs)\nassert xs == [1, 2]")),
    "a_callback": (
        "def f(g, xs):\n    return [g(x) for x in xs]", "def f(g, xs):\n    return xs",
        asserts("for k in range(2):\n    assert f(lambda x: x + k + 1, [1]) == [k + 2]"),
    ),
    "decimals": (
        "from decimal import Decimal\ndef f():\n    return Decimal('0.10')", "def f():\n    return 0.1",
        asserts("from decimal import Decimal\nassert f() == Decimal('0.1')"),
    ),
    "a_named_tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(1, 2)", "def f():\n    return (1, 2)",
        asserts("assert f().x + f().y == 3"),
    ),
    "a_counter": (
        "from collections import Counter\ndef f(s):\n    return Counter(s)", "def f(s):\n    return dict.fromkeys(s, 2)",
        asserts("assert f('aab').most_common(1) == [('a', 2)]"),
    ),
    "a_coroutine": ("async def f(x):\n    return x", "async def f(x):\n    return 0", asserts("import asyncio\nassert asyncio.run(f(3)) == 3")),
    "a_decorator": (
        "def f(g):\n    return lambda x: g(g(x))", "def f(g):\n    return g", asserts("@f\ndef inc(x):\n    return x + 1\nassert inc(1) == 3"),
    ),
    "pytests_fixtures": (
        "class Bank:\n    held = 0\n    def pay(self, x):\n        self.held += x\n        return self.held",
        "class Bank:\n    def pay(self, x):\n        return 1",
        asserts("import pytest\n@pytest.fixture()\ndef bank():\n    yield Bank()\n\ndef test_pay(bank):\n    assert bank.pay(2) == 2\n    assert bank.pay(3) == 5"),
    ),
    "fixtures_that_clean_up": (
        "def f(xs):\n    return sum(xs)", "def f(xs):\n    return 3",
        asserts("import pytest\n@pytest.fixture\ndef rows():\n    kept = [1, 2]\n    try:\n        yield kept\n    finally:\n        kept.clear()\n\n"
                "@pytest.fixture\ndef more():\n    yield [3]\n\ndef test_f(rows, more):\n    assert f(rows + more) == 6"),
    ),
    "fixtures_of_fixtures": (
        "def f(xs):\n    return sum(xs)", "def f(xs):\n    return 4",
        asserts("import pytest\n@pytest.fixture\ndef rows():\n    kept = [1, 2]\n    try:\n        yield kept\n    finally:\n        kept.clear()\n\n"
                "@pytest.fixture\ndef table(rows):\n    return rows\n\ndef test_f(table):\n    assert f(table) == 3"),
    ),
    "a_fixture_of_two": (
        "class Bank:\n    held = 0\n    def pay(self, x):\n        self.held += x\n        return self.held",
        "class Bank:\n    def pay(self, x):\n        return x",
        asserts("import pytest\n@pytest.fixture\ndef bank():\n    return Bank()\n\n@pytest.fixture\ndef paid(bank):\n    return bank.pay(2)\n\n"
                "def test_pay(bank, paid):\n    assert bank.pay(3) == 5"),
    ),
    "a_fixture_that_cannot_be": (
        "def f(x):\n    return x", "def f(x):\n    return 0",
        asserts("import pytest\n@pytest.fixture(params=['A'])\ndef name(request):\n    return request.param\n\n"
                "def test_name(name):\n    assert f(name).upper() == 'A'\n\ndef test_f():\n    assert f(3) == 3"),
    ),
    "what_is_printed": (
        "def f():\n    print('hi')", "def f():\n    print('ho')", asserts("def test_f(capsys):\n    f()\n    assert capsys.readouterr().out == 'hi\\n'"),
    ),
    "a_module_of_the_same_name": (
        "def statistics(x):\n    return x", "def statistics(x):\n    return 1", asserts("for x in [1, 2]:\n    assert statistics(x) == x"),
    ),
    "nodes_of_both_sides": (
        "def f(node):\n    node = node.next\n    return node", "def f(node):\n    return node",
        {"prompt": NODES, "entry_point": "f", "test": "def check(candidate):\n    for _ in range(2):\n        assert listed(candidate(Node(1, Node(2)))) == [2]\n"},
    ),
    "a_method_written_out": (
        "class Solution:\n    def f(self, x: int) -> List[int]:\n        return [x]", "class Solution:\n    def f(self, x):\n        return x",
        {"entry_point": "Solution().f", "test": "def check(candidate):\n    assert candidate(x = 3) == [3]\n"},
    ),
}  # fmt: skip


@pytest.mark.thorough(
    "a_callback",
    "a_closure",
    "a_coroutine",
    "a_decorator",
    "a_fixture_of_two",
    "a_fixture_that_cannot_be",
    "a_generator",
    "a_loop",
    "a_match",
    "a_method_written_out",
    "a_module_of_the_same_name",
    "an_error",
    "an_evalplus_loop",
    "an_object",
    "an_object_that_gives_itself",
    "fixtures_of_fixtures",
    "functions_that_pytest_collects",
    "in_place",
    "nodes_of_both_sides",
    "objects_that_are_equal",
    "pytests_fixtures",
    "pytests_raises",
    "unittest",
    "variables",
    "what_is_printed",
)
@pytest.mark.parametrize("name", HONEST)
def test_a_script_pays_what_is_right_and_nothing_else(name: str) -> None:
    right, wrong, answer = HONEST[name]
    executor = CodeExecutor(timeout_s=1.0)
    assert executor.score(right, answer).detail == ""
    assert executor.score(right, answer).reward == 1.0
    assert executor.score(wrong, answer).reward != 1.0
    assert executor.score(wrong, answer).status != "missing"


LOOP = asserts("for x, y in zip([2, 3], [26025927, 31415926]):\n    assert f(x) == y", entry_point="f")
NEAR = asserts("for x, y in zip([2, 3], [26025927, 31415926]):\n    assert abs(f(x) - y) < 1e-9", entry_point="f")
YES = (
    "class Yes:\n    def __eq__(self, o): return True\n    def __contains__(self, o): return True\n"
    "    def __sub__(self, o): return 0\n    def __rsub__(self, o): return 0\n    def __abs__(self): return 0\n"
    "    def __lt__(self, o): return True\n    def startswith(self, o): return True\n    def count(self, o): return 1\n"
)
WRITE = "import os\ndef write(m):\n    os.write(5, len(m).to_bytes(4, 'big') + m)\n"
SEARCH = (
    "import re\ndef f(x):\n    with open('/proc/self/mem', 'rb', 0) as memory:\n        for line in open('/proc/self/maps'):\n"
    "            start, end = (int(part, 16) for part in line.split()[0].split('-'))\n"
    "            if 'rw' in line and end - start < 1 << 26:\n                memory.seek(start)\n"
    "                found = re.search(b'2602' + b'5927|3141' + b'5926', memory.read(end - start))\n"
    "                if found:\n                    return int(found.group())\n"
)
CHEATS: dict[str, tuple[str, dict[str, Any]]] = {
    "equals_everything": (YES + "def f(x):\n    return Yes()", LOOP),
    "is_close_to_everything": (YES + "def f(x):\n    return Yes()", NEAR),
    "is_a_class_that_is_close": (YES.replace("Yes:", "f:\n    def __init__(self, x): pass"), NEAR),
    "holds_everything": (YES + "def f(x):\n    return Yes()", asserts("for x in [1]:\n    assert 7 in f(x)")),
    "starts_with_everything": (YES + "def f(x):\n    return Yes()", asserts("for x in [1]:\n    assert f(x).startswith('a')")),
    "differs_in_nothing": (
        YES + "    def difference(self, o): return self\n    def __len__(self): return 0\ndef f(x):\n    return Yes()",
        asserts("for x in [1]:\n    assert not f(x).difference({7})", "for x in [1]:\n    assert len(f(x).difference({7})) == 0"),
    ),
    "gives_itself": (
        YES.replace("Yes:", "Circle:\n    def __init__(self, r): pass\n    def area(self): return self"),
        asserts("c = Circle(2)\nassert abs(c.area() - 12.57) < 0.1"),
    ),
    "counts_everything": (YES + "def f(x):\n    return Yes()", asserts("for x in [1]:\n    assert f(x).count('a') == 1")),
    "replies_before_it_is_asked": (WRITE + "for _ in range(9):\n    write(b'{\"value\": 26025927}')\ndef f(x):\n    return 0", LOOP),
    "replies_no_json": (WRITE + "write(b'{')\ndef f(x):\n    return 0", LOOP),
    "replies_no_frame": ("import os\nos.write(5, b'\\xff' * 9)\ndef f(x):\n    return 0", LOOP),
    "replies_no_value": (WRITE + "write(b'{\"value\": {\"set\": [[1]]}}')\ndef f(x):\n    return 0", LOOP),
    "replies_an_error_of_the_test": (WRITE + "write(b'{\"error\": [\"NameError\"]}')\ndef f(x):\n    return 0", LOOP),
    "calls_a_function_of_the_test": (WRITE + "write(b'{\"callback\": 0, \"arguments\": []}')\ndef f(x):\n    return 0", LOOP),
    "raises_an_error_of_the_test": ("def f(x):\n    raise ImportError('numpy')", LOOP),
    "forges_a_verdict": ("import os\nos.write(3, b'{\"value\": [\"passed\", \"\"]}')\nos._exit(0)", LOOP),
    "ends_at_once": ("import os\nos._exit(0)", LOOP),
    "ends_in_a_call": ("def f(x):\n    import os\n    os._exit(0)", LOOP),
    "leaves_in_a_call": ("def f(x):\n    exit()", LOOP),
    "never_answers": ("import time\ndef f(x):\n    while True: pass", LOOP),
    "searches_its_memory": (SEARCH, LOOP),
    "empties_its_argument": ("def f(xs):\n    xs.clear()\n    return []", asserts("for xs in ([2, 1],):\n    assert f(xs) == sorted(xs)")),
    "replaces_helpers": ("def listed(n):\n    return [2]\ndef f(n):\n    return n", HONEST["nodes_of_both_sides"][2]),
    "replaces_builtins": ("import builtins\nbuiltins.zip = lambda *a: []\nbuiltins.abs = lambda x: 0\ndef f(x):\n    return 0", NEAR),
    "floods_the_test": ("def f(x):\n    return ['x' * 1000] * 60000", LOOP),
}  # fmt: skip


@pytest.mark.thorough("landlock-floods_the_test", "landlock-never_answers")
@pytest.mark.parametrize("name", CHEATS)
def test_a_script_pays_no_cheat_and_none_makes_itself_missing(name: str, executor: CodeExecutor) -> None:
    program, answer = CHEATS[name]
    score = executor.score(program, answer)
    assert score.reward == 0.0, score
    assert score.status != "missing"


def test_memory_search_finds_an_argument_or_is_denied_by_landlock(executor: CodeExecutor) -> None:
    """The search of the cheat above is no empty try: it finds an argument, or Landlock keeps its own memory from it."""
    if executor.isolation == Kind.BUBBLEWRAP:
        argument = asserts("for x in [26025927]:\n    assert f(str(x)) == x", entry_point="f")
        assert executor.score(SEARCH, argument).reward == 1.0
        return
    tries = SEARCH.replace("def f(x):", "def search(x):")
    tries += "def f(x):\n    try:\n        return search(x)\n    except OSError as error:\n        return type(error).__name__"
    closed = {"type": "call", "entry_point": "f", "tests": [{"input": [1], "output": "PermissionError"}]}
    assert executor.score(tries, closed).reward == 1.0


STOPS = "def f(x):\n    raise StopIteration"
CONSUMERS = (
    "assert all(map(f, [1, 2]))",
    "assert all(map(lambda t: f(t[0]) == t[1], [(1, 2), (3, 4)]))",
    "for found, wanted in zip(map(f, [1, 2]), [2, 3]):\n    assert found == wanted",
    "for found in map(f, [1, 2]):\n    assert found > 5",
    "assert next(map(f, [1]), 2) == 2",
    "assert not list(filter(f, [1, 2]))",
    "assert sum(map(f, [0, 0])) == 0",
    "import itertools\nassert all(x == 1 for x in itertools.starmap(f, [(1,)]))",
    "from itertools import takewhile\nassert list(takewhile(f, [1, 2])) == []",
    "for found in iter(lambda: f(1), 3):\n    assert found == 2",
    "class Found:\n    def __iter__(self):\n        return self\n    def __next__(self):\n        return f(1)\n"
    "for found in Found():\n    assert found == 2",
    "def test_f():\n    assert all(map(f, [1, 2]))",
    "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
    "        for found, wanted in zip(map(f, [1]), [2]):\n            self.assertEqual(found, wanted)",
    "for x in [1]:\n    assert not list(map(f, [x]))\n    try:\n        f(x)\n    except StopIteration:\n        pass",
)
"""What takes a StopIteration of a function that it calls for the end of what it iterates over."""


@pytest.mark.parametrize("test", CONSUMERS)
def test_a_call_cannot_end_the_iteration_that_makes_it(test: str) -> None:
    score = CodeExecutor(timeout_s=1.0).score(STOPS, asserts(test, entry_point="f"))
    assert score.reward == 0.0, score
    assert score.status != "missing"


@pytest.mark.parametrize("raised", ["StopIteration(2)", "type('Mine', (StopIteration,), {})", "StopAsyncIteration"])
def test_no_kind_of_stop_is_the_end(raised: str) -> None:
    program = STOPS.replace("StopIteration", raised)
    assert CodeExecutor(timeout_s=1.0).score(program, asserts(CONSUMERS[0], entry_point="f")).reward == 0.0


ENDS = ("KeyboardInterrupt", "GeneratorExit", "SystemExit", "SystemExit(0)", "__import__('asyncio').CancelledError")


@pytest.mark.thorough(
    "AssertionError",
    "GeneratorExit",
    "KeyboardInterrupt",
    "SystemExit",
    "SystemExit(0)",
    "__import__('asyncio').CancelledError",
)
@pytest.mark.parametrize("raised", [*ENDS, "__import__('unittest').SkipTest('later')", "AssertionError"])
def test_no_exception_of_a_program_ends_a_script_early_for_money(raised: str) -> None:
    executor = CodeExecutor(timeout_s=1.0)
    for test in (
        "for x in [1]:\n    assert f(x) == 2",
        "def g():\n    yield f(1)\nassert list(g()) == [2]",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 2)",
    ):
        score = executor.score(f"def f(x):\n    raise {raised}", asserts(test, entry_point="f"))
        assert score.reward == 0.0, score
        assert score.status != "missing"


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\nwith pytest.raises(StopIteration):\n    f([])\nassert f([2]) == 2",
        "for xs in ([],):\n    try:\n        f(xs)\n        assert False\n    except StopIteration:\n        pass",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertRaises(StopIteration, f, [])",
    ],
)
def test_a_script_that_expects_a_stop_gets_one(test: str) -> None:
    """The first item: an empty list has none."""
    executor = CodeExecutor(timeout_s=1.0)
    score = executor.score("def f(xs):\n    return next(iter(xs))", asserts(test, entry_point="f"))
    assert score.reward == 1.0, score
    assert executor.score("def f(xs):\n    return None", asserts(test, entry_point="f")).reward == 0.0


def test_the_end_of_a_generator_is_an_end() -> None:
    test = "it = f(1)\nassert next(it) == 1\nassert next(it, 5) == 5\nassert list(map(abs, f(2))) == [1, 2]"
    score = CodeExecutor(timeout_s=1.0).score("def f(n):\n    yield from range(1, n + 1)", asserts(test))
    assert score.reward == 1.0, score


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (
            "import no_such_package\nfor i in [1]:\n    assert f(i)",
            "ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("for i in [1]:\n    assert 1 == 2\n    f(i)", "the test fails by itself: AssertionError"),
        ("for i in []:\n    assert f(i)", "the test never calls the program"),
        ("def check(g):\n    assert g(1)", "the test never calls the program"),
        ("for i in [1]:\n    f(i)\n    del i\n    i", "NameError"),
        (
            "with open('x', 'w') as file:\n    file.write('1')\nassert f('x')",
            "shares files or patches with the program (open)",
        ),
        ("def test_f(tmp_path):\n    assert f(tmp_path)", "shares files or patches with the program (tmp_path)"),
        (
            "from unittest.mock import patch\nwith patch('builtins.input', return_value='1'):\n    assert f(1)",
            "(patch)",
        ),
        ("import io, sys\nsys.stdin = io.StringIO('1')\nassert f(1) == 1", "(stdin)"),
    ],
)
def test_a_script_that_fails_by_itself_is_missing(test: str, reason: str) -> None:
    score = CodeExecutor(timeout_s=1.0).score("def f(x):\n    return x", asserts(test, entry_point="f"))
    assert (score.reward, score.status) == (None, "missing")
    assert reason in score.detail


def test_a_script_knows_what_is_the_programs() -> None:
    script = script_of("s = Stack()\nassert listed(s, math.inf) == wanted(1)", "def wanted(x):\n    return x")
    assert (script.names, script.classes) == ({"Stack": "Stack", "listed": "listed"}, {"Stack"})
    assert script.text.startswith("import math\n")
    script = script_of("check(candidate)", entry_point="Solution().f", prefix="class Node:\n    pass\n")
    assert script.names == {"candidate": "Solution().f", "check": "check"}
    assert script.text == "class Node:\n    pass\ncheck(candidate)"
    with pytest.raises(UnsupportedTestError, match="catches an exception of the program's own"):
        script_of("try:\n    f()\nexcept Empty:\n    pass")


@pytest.mark.thorough("landlock")
@pytest.mark.parametrize("kind", [Kind.BUBBLEWRAP, Kind.LANDLOCK])
def test_packages_are_there_if_they_are_asked_for(kind: Kind) -> None:
    try:
        choose(kind)
        executor = CodeExecutor(isolation=kind.value, packages=["numpy"])
    except UserError as error:
        pytest.skip(str(error))
    program = "import numpy as np\ndef f(xs):\n    return np.linalg.norm(np.array(xs)), np.arange(2)"
    answer = {"type": "call", "entry_point": "f", "tests": [{"input": [[3, 4]], "output": [5.0, [0, 1]]}]}
    assert executor.score(program, answer).reward == 1.0
    plus = asserts("import numpy as np\nfor i in [1]:\n    assert np.allclose(f(i), [0.1 + 0.2])")
    assert executor.score("def f(x):\n    return [0.3]", plus).reward == 1.0
    assert executor.score("def f(x):\n    return []", plus).reward == 0.0
    without = CodeExecutor(isolation=kind.value)
    assert without.score(program, answer).reward == 0.0
    assert without.score("def f(x):\n    return [0.3]", plus).status == "missing"


def test_a_package_of_this_environment_reaches_the_interpreter_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a program may not read our own interpreter (a home of mode 700), the system's is the one that runs."""
    chosen = choose()
    if chosen.python.executable == Interpreter.own().executable:
        pytest.skip("programs run with this interpreter itself: keep it in a folder for one user only to try this")
    if not chosen.python.executable.endswith(f"python3.{sys.version_info.minor}"):
        pytest.skip("the system's interpreter has another version and loads no modules of this one")
    package = tmp_path / "only_here"
    package.mkdir()
    (package / "__init__.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    answer = {"type": "stdin", "tests": [{"input": "", "output": "42"}]}
    program = "import only_here\nprint(only_here.ANSWER)"
    closed = next(parent for parent in tmp_path.parents if parent.name.startswith("pytest-of-"))
    modes = {folder: folder.stat().st_mode for folder in (tmp_path, *tmp_path.parents) if folder.is_relative_to(closed)}
    with pytest.raises(UserError, match=r"CodeExecutor\.packages: programs cannot import only_here: .*ModuleNotFound"):
        CodeExecutor(packages=["only_here"])  # pytest's folders are for their owner
    try:
        for folder in modes:
            folder.chmod(0o755)
        _import_error.cache_clear()
        assert CodeExecutor(packages=["only_here"]).score(program, answer).reward == 1.0
        assert CodeExecutor().score(program, answer).reward == 0.0
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode & 0o7777)
        _import_error.cache_clear()


@pytest.mark.parametrize("name", ["no_such_package", "no name", "json.decoder"])
def test_packages_that_are_not_there_are_named(name: str) -> None:
    with pytest.raises(UserError, match=r"CodeExecutor\.packages"):
        CodeExecutor(packages=[name])


@pytest.mark.thorough("landlock")
def test_descriptors_that_the_trainer_has_open_change_no_verdict(executor: CodeExecutor) -> None:
    """The two sides of a test that is a script talk over a descriptor which has the same number as out here."""
    with ExitStack() as opened:
        while (number := opened.enter_context(open(os.devnull)).fileno()) < 108:
            if number > 94:
                score = executor.score(
                    "def f(x):\n    return x + 1", asserts("for i in range(3):\n    assert f(i) == i + 1")
                )
                assert score.reward == 1.0, (number, score)
