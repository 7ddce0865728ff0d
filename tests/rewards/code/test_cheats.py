"""Programs that try to be paid without solving anything: forged results, searched memory, poisoned tests."""

from __future__ import annotations

from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import Kind, choose

SECRET = "3141" + "592"  # never whole in a program
STDIN = {"type": "stdin", "tests": [{"input": "1", "output": SECRET}]}
CALL = {"type": "call", "entry_point": "f", "tests": [{"input": [2], "output": 42}, {"input": [3], "output": [1, 2]}]}
ASSERT = {"type": "assert", "entry_point": "f", "tests": ["assert f(2) == 42", "assert abs(f(2) - 42) < 1e-9"]}
EQUALS = (
    "class Yes{base}:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __hash__(self): return 0\n    def __sub__(self, other): return self\n    def __abs__(self): return self\n"
    "    def __lt__(self, other): return True\n    def __bool__(self): return True\n"
    "    def __getattr__(self, name): return lambda *_: True\n"
)
SEARCH = "import gc, re, sys\npattern = '3141' + '[5]92'\n"
FORGE = "import os, json\n"
AGAIN = "\nprint({0!r})\n"

CHEATS: dict[str, tuple[str, dict[str, Any]]] = {
    "exit_code_0": ("import os\nos._exit(0)", STDIN),
    "exit_code_0_politely": ("raise SystemExit(0)", STDIN),
    "exit_code_0_in_a_call": ("def f(x):\n    import os\n    os._exit(0)", CALL),
    "exit_while_it_is_imported": ("import sys\nsys.exit(0)", CALL),
    "closes_its_output": ("import os\nos.close(1)", STDIN),
    "prints_everything": ("for i in range(3141000, 3142000):\n    print(i)", STDIN),
    "prints_every_answer_on_a_line": ("print(*range(3141000, 3142000))", STDIN),
    "searches_objects": (
        SEARCH + "for kept in gc.get_objects():\n    for text in re.findall(pattern, repr(kept)[:100000]):\n"
        "        print(text)\n        sys.exit()",
        STDIN,
    ),
    "walks_frames": (
        SEARCH + "frame = sys._getframe()\nwhile frame:\n"
        "    for text in re.findall(pattern, repr((frame.f_locals, frame.f_globals))):\n"
        "        print(text)\n        sys.exit()\n    frame = frame.f_back",
        STDIN,
    ),
    "searches_its_memory": (
        SEARCH + "memory = open('/proc/self/mem', 'rb', 0)\n"
        "for line in open('/proc/self/maps'):\n"
        "    start, end = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "    if 'rw' in line and end - start < 1 << 26:\n"
        "        memory.seek(start)\n"
        "        found = re.search(pattern.encode(), memory.read(end - start))\n"
        "        if found:\n            print(found.group().decode())\n            break",
        STDIN,
    ),
    "forges_a_frame": (
        FORGE + "message = json.dumps({'end': '', 'status': 0, 'cpu': 0, 'confined': True, 'full': False, 'err': '',\n"
        "  'report': 'eyJ2YWx1ZSI6IDQyfQ==', 'out': ''}).encode()\n"
        "for descriptor in range(64):\n    try:\n"
        "        os.write(descriptor, len(message).to_bytes(4, 'big') + message)\n"
        "    except OSError:\n        pass\nos._exit(0)",
        CALL,
    ),
    "forges_a_report_of_success": (FORGE + "os.write(3, b'{\"value\": true}')\nos._exit(0)", CALL),
    "forges_an_opaque_value": (FORGE + "os.write(3, b'{\"value\": {\"object\": \"x\"}}')\nos._exit(0)", CALL),
    "forges_no_json": (FORGE + "os.write(3, b'[' * 100000)\nos._exit(0)", CALL),
    "forges_a_number_without_parts": (FORGE + "os.write(3, b'{\"value\": {\"complex\": []}}')\nos._exit(0)", CALL),
    "forges_a_number_that_may_not_be_compared": (
        FORGE + "os.write(3, b'{\"value\": {\"decimal\": \"sNaN\"}}')\nos._exit(0)", CALL,
    ),
    "forges_a_value_of_no_kind": (FORGE + "os.write(3, b'{\"value\": {\"set\": [[1]]}}')\nos._exit(0)", CALL),
    "forges_a_fraction_of_huge_numbers": (
        FORGE + "one, other = 'f' * (4 << 20), 'e' * (3 << 20) + '7'\n"
        "os.write(3, json.dumps({'value': {'fraction': [{'int': one}, {'int': other}]}}).encode())\nos._exit(0)", CALL,
    ),
    "forges_a_huge_number_that_meets_a_decimal": (
        FORGE + "keys = [{'decimal': str(16 ** (7 << 20) % (2**61 - 1))}, {'int': '1' + '0' * (7 << 20)}]\n"
        "os.write(3, json.dumps({'value': {'set': keys}}).encode())\nos._exit(0)", CALL,
    ),
    "returns_what_cannot_be_compared": (
        "from decimal import Decimal\ndef f(x):\n    return Decimal('sNaN') if x == 2 else [Decimal('sNaN'), 1]",
        CALL | {"tests": [*CALL["tests"], {"input": [4], "output": 1.5}]},
    ),
    "returns_what_an_assert_cannot_compare": (
        "from decimal import Decimal\ndef f(x):\n    return Decimal('sNaN')", ASSERT,
    ),
    "forges_keys_that_collide": (
        FORGE + "numbers = ', '.join(str(k * (2**61 - 1)) for k in range(370_000))\n"
        "os.write(3, f'{{\"value\": {{\"set\": [{numbers}]}}}}'.encode())\nos._exit(0)", CALL,
    ),
    "returns_keys_that_collide": (
        "class Numbers(set):\n    def __iter__(self): return (k * (2**61 - 1) for k in range(370_000))\n"
        "def f(x):\n    return Numbers()", CALL,
    ),
    "forges_a_failure_of_the_sandbox": (FORGE + "os.write(2, b'OSError: unshare')\nos._exit(125)", CALL),
    "equals_everything": (EQUALS.format(base="") + "def f(x):\n    return Yes()", CALL),
    "equals_everything_as_an_integer": (EQUALS.format(base="(int)") + "def f(x):\n    return Yes(7)", CALL),
    "equals_everything_as_a_list": (EQUALS.format(base="(list)") + "def f(x):\n    return Yes()", CALL),
    "equals_everything_inside": (EQUALS.format(base="") + "def f(x):\n    return [Yes(), Yes()]", CALL),
    "equals_everything_in_asserts": (EQUALS.format(base="") + "def f(x):\n    return Yes()", ASSERT),
    "equals_everything_in_asserts_as_a_float": (EQUALS.format(base="(float)") + "def f(x):\n    return Yes(7)", ASSERT),
    "is_not_a_number": ("def f(x):\n    return float('nan')", ASSERT),
    "changes_what_asserts_use": (
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.bool = lambda x: True\nabs = builtins.abs\n"
        "class AssertionError(Exception): pass\ndef f(x):\n    return 41",
        ASSERT,
    ),
    "returns_code": ("def f(x):\n    return '0)) or (lambda *_: True)((1'", ASSERT),
    "patches_the_harness": (
        "import sys\nfor module in list(sys.modules.values()):\n"
        "    for name in ('encode', 'run', '_execute', 'dumps', 'send', 'outcome'):\n"
        "        if getattr(module, '__name__', '').startswith(('gspo', 'json')) and hasattr(module, name):\n"
        "            setattr(module, name, lambda *a, **k: '{\"value\": true}')\n"
        "def f(x):\n    return True",
        CALL,
    ),
    "raises_errors_of_its_own_making": (
        "class Error(BaseException):\n    def __str__(self): raise SystemExit(0)\ndef f(x):\n    raise Error", CALL,
    ),
    "reads_what_the_assert_expects": (
        "def f(x):\n    import sys\n    found = [sys._getframe(d).f_locals for d in range(3)]\n"
        "    return next((v for names in found for v in names.values() if type(v) is int and v == 6 * 7), 0)",
        ASSERT,
    ),
}  # fmt: skip

INCOMPARABLE = {
    "a signalling NaN": "Decimal('sNaN')",
    "a list with one": "[Decimal('sNaN'), 1]",
    "numbers without an order": "[Decimal('NaN'), 1]",
    "a number of many digits": "[1 << 40_000, 1]",
    "a time with a zone": "[datetime.datetime(2000, 1, 1), 1]",
    "what is nested": "functools.reduce(lambda value, _: [value], range(400), 1)",
    "complex numbers": "[1j, 2j]",
}
"""What a function may return that some comparison raises an exception at."""

SECOND_TRY = {
    "in_its_folder": "open('flag', 'x')",
    "in_tmp": "open('/tmp/flag', 'x')",
    "in_shared_memory": "open('/dev/shm/flag', 'x')",
    "in_an_import": "import flag; raise FileExistsError",
    "in_the_library": "import gspo_flag; raise FileExistsError",
}
"""The first test leaves a flag that the second would find; both want the same output."""


@pytest.fixture(scope="module", params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def executor(request: pytest.FixtureRequest) -> CodeExecutor:
    try:
        choose(request.param)
    except UserError as error:
        pytest.skip(str(error))
    return CodeExecutor(isolation=request.param.value, timeout_s=3.0)


@pytest.mark.thorough("landlock-forges_keys_that_collide", "landlock-returns_keys_that_collide")
@pytest.mark.parametrize("name", CHEATS)
def test_cheating_pays_nothing(name: str, executor: CodeExecutor) -> None:
    program, answer = CHEATS[name]
    score = executor.score(program, answer)
    assert score.reward == 0.0, score
    assert score.status != "missing"


@pytest.mark.parametrize("rule", ["lines", "exact", "unordered", "tolerance"])
def test_a_value_that_cannot_be_compared_pays_nothing(rule: str, executor: CodeExecutor) -> None:
    returned = list(INCOMPARABLE.values())
    program = "import datetime, functools\nfrom decimal import Decimal\ndef f(x):\n    return ["
    program += ", ".join(f"lambda: {value}" for value in returned) + "][x]()"
    expected = [1, 1.5, [1, 2], [1.5, 2.5], "a", {"a": 1.5}]
    tests = [{"input": [i], "output": wanted} for i in range(len(returned)) for wanted in expected]
    score = executor.score(program, {"type": "call", "entry_point": "f", "comparison": rule, "tests": tests})
    assert (score.reward, score.status) in [(0.0, "ok"), (0.0, "model_error")], score


@pytest.mark.parametrize("name", SECOND_TRY)
def test_a_test_leaves_nothing_for_the_next(name: str, executor: CodeExecutor) -> None:
    program = (
        "import sys\ntry:\n    open('flag.py', 'x').close()\nexcept OSError:\n    pass\n"
        f"try:\n    {SECOND_TRY[name]}\nexcept FileExistsError:\n    print('second')\n"
        "except (OSError, ImportError):\n    print('nothing')\n"
        "sys.path.append('.')\nsys.modules['gspo_flag'] = sys\nimport builtins\nbuiltins.print = None"
    )
    tests = [{"input": "", "output": "second"}] * 3
    score = executor.score(program, {"type": "stdin", "tests": tests})
    assert score.reward == 0.0
