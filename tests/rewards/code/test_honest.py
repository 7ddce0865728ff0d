"""Honest programs pass, however they read, print, recurse and compute."""

from __future__ import annotations

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import Kind, choose

SUM = ("3 4", "7")
HONEST = {
    "input": ("a, b = map(int, input().split())\nprint(a + b)", *SUM),
    "reads_all_of_stdin": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", *SUM),
    "reads_lines": (
        "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
        "3 4\n5 6\n",
        "7\n11",
    ),
    "reads_bytes": ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))", *SUM),
    "opens_descriptor_0": ("print(sum(map(int, open(0).read().split())))", *SUM),
    "opens_dev_stdin": ("print(sum(map(int, open('/dev/stdin').read().split())))", *SUM),
    "reads_until_the_end": (
        "total = 0\nwhile True:\n    try:\n        total += int(input())\n"
        "    except EOFError:\n        break\nprint(total)",
        "1\n2\n3",
        "6",
    ),
    "writes_to_descriptor_1": ("import os\nos.write(1, b'7\\n')", *SUM),
    "ends_with_sys_exit": ("import sys\nprint(7)\nsys.exit(0)", *SUM),
    "ends_with_exit": ("print(7)\nexit()", *SUM),
    "ends_with_quit_in_a_function": ("def main():\n    print(7)\n    quit(0)\nmain()", *SUM),
    "prints_to_the_stream_it_began_with": ("import sys\nsys.__stdout__.write('7')", *SUM),
    "leaves_a_file_on_descriptor_1_open": ("import os\nout = os.fdopen(1, 'w')\nout.write('7')", *SUM),
    "leaves_a_file_on_descriptor_1_open_in_bytes": ("out = open(1, 'wb', closefd=False)\nout.write(b'7')", *SUM),
    "wraps_its_output": (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint(7)",
        *SUM,
    ),
    "prints_at_its_end_what_it_collected": (
        "import atexit, io, os, sys\nsys.stdout = kept = io.StringIO()\n"
        "atexit.register(lambda: os.write(1, kept.getvalue().encode()))\nprint(7)",
        *SUM,
    ),
    "collects_in_a_class_with_flush": (
        "import os, sys\nfrom io import BytesIO, IOBase\nclass Fast(IOBase):\n    def __init__(self):\n"
        "        self.kept = BytesIO()\n    def write(self, text):\n        self.kept.write(text.encode())\n"
        "    def flush(self):\n        os.write(1, self.kept.getvalue())\n        self.kept.truncate(0)\n"
        "        self.kept.seek(0)\nsys.stdout = Fast()\nprint(7)",
        *SUM,
    ),
    "fails_only_at_its_end": ("import atexit\natexit.register(lambda: 1 / 0)\nprint(7)", *SUM),
    "main_guard": (
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        *SUM,
    ),
    "recurses_deeply": (
        "import sys\nsys.setrecursionlimit(10**6)\n"
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(50000))",
        "",
        "50000",
    ),
    "recurses_in_a_thread_with_a_large_stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
        "thread = threading.Thread(target=lambda: print(f(100000)))\nthread.start()\nthread.join()",
        "",
        "100000",
    ),
    "raises_its_stack_limit": (
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 28, resource.RLIM_INFINITY))\nprint(7)",
        *SUM,
    ),
    "prints_from_a_thread_that_main_does_not_join": (
        "import threading, time\ndef late():\n    time.sleep(0.1)\n    print(7)\nthreading.Thread(target=late).start()",
        *SUM,
    ),
    "prints_at_its_end": ("import atexit\natexit.register(print, 7)", *SUM),
    "takes_much_memory": ("kept = [0] * (40 << 20)\nprint(len(kept) >> 20)", "", "40"),
    "unicode": ("text = input()\nprint(text[::-1], len(text), 'ﬆ→𐍈')", "äß€𐍈", "𐍈€ßä 4 ﬆ→𐍈"),
    "prints_much": ("for i in range(200000):\n    print(i)", "", "\n".join(map(str, range(200000)))),
    "asyncio": (
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    print(7)\nasyncio.run(main())",
        *SUM,
    ),
    "temporary_file": (
        "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as file:\n"
        "    file.write('7')\n    file.seek(0)\n    print(file.read())",
        *SUM,
    ),
    "file_of_its_own": ("open('x.txt', 'w').write('7')\nprint(open('x.txt').read())", *SUM),
    "discards_output": ("import os, sys\nprint('noise', file=open(os.devnull, 'w'))\nprint(7)", *SUM),
    "writes_to_stderr": ("import sys\nprint('debug', file=sys.stderr)\nprint(7)", *SUM),
    "alarm": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print(7))\nsignal.alarm(1)\nsignal.pause()",
        *SUM,
    ),
    "exact_numbers": (
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "print(Decimal('0.1') + Decimal('0.2'), Fraction(1, 3))",
        "",
        "0.3 1/3",
    ),
    "standard_library": (
        "import bisect, heapq, itertools, math, re, collections, functools, random, string, json, datetime\n"
        "heap = [3, 1, 2]\nheapq.heapify(heap)\nprint(heapq.heappop(heap), math.comb(5, 2), re.sub('a', 'b', 'aa'))",
        "",
        "1 10 bb",
    ),
    "pickles_its_own_class": (
        "import pickle\nclass Point:\n    pass\nprint(type(pickle.loads(pickle.dumps(Point()))).__name__)",
        "",
        "Point",
    ),
}
PROCESSES = {
    "multiprocessing_with_shared_values": (
        "from multiprocessing import Array, Lock, Process, Value\n"
        "def work(total, items, lock):\n    with lock:\n        total.value += 1\n        items[0] += 2\n"
        "if __name__ == '__main__':\n    total, items, lock = Value('i', 0), Array('d', 3), Lock()\n"
        "    workers = [Process(target=work, args=(total, items, lock)) for _ in range(3)]\n"
        "    for worker in workers:\n        worker.start()\n"
        "    for worker in workers:\n        worker.join()\n"
        "    print(total.value, items[0])",
        "",
        "3 6.0",
    ),
    "futures_in_processes": (
        "from concurrent.futures import ProcessPoolExecutor\ndef square(n):\n    return n * n\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(2) as pool:\n"
        "        print(sum(pool.map(square, range(5))))",
        "",
        "30",
    ),
    "multiprocessing": (
        "from multiprocessing import Pool\ndef square(n):\n    return n * n\n"
        "if __name__ == '__main__':\n    with Pool(2) as pool:\n        print(sum(pool.map(square, range(10))))",
        "",
        "285",
    ),
    "fork": (
        "import os\nif os.fork() == 0:\n    os.write(1, b'child ')\n    os._exit(0)\nos.wait()\nprint('parent')",
        "",
        "child parent",
    ),
}


@pytest.fixture(scope="module", params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def executor(request: pytest.FixtureRequest) -> CodeExecutor:
    try:
        choose(request.param)
    except UserError as error:
        pytest.skip(str(error))
    return CodeExecutor(isolation=request.param.value)


@pytest.mark.parametrize("name", HONEST)
def test_honest_program_passes(name: str, executor: CodeExecutor) -> None:
    program, text, expected = HONEST[name]
    score = executor.score(program, {"type": "stdin", "tests": [{"input": text, "output": expected}]})
    assert (score.reward, score.detail) == (1.0, "")


@pytest.mark.parametrize("name", PROCESSES)
def test_honest_program_of_several_processes_passes_where_they_are_allowed(name: str, executor: CodeExecutor) -> None:
    program, text, expected = PROCESSES[name]
    score = executor.score(program, {"type": "stdin", "tests": [{"input": text, "output": expected}]})
    allowed = executor.isolation == Kind.BUBBLEWRAP
    assert score.reward == float(allowed), score.detail


@pytest.mark.parametrize("entry", ["f", "Solution.f"])
def test_functions_and_methods_are_called(entry: str, executor: CodeExecutor) -> None:
    method = "class Solution:\n    def f(self, x: List[int], y: Optional[int] = None):\n        return [Counter(x)[y]]"
    answer = {"type": "call", "entry_point": entry, "tests": [{"input": [[1, 1, 2], 1], "output": [2]}]}
    assert executor.score(method, answer).reward == 1.0
    if entry == "f":
        assert executor.score("def f(x, y):\n    return (x.count(y),)", answer).reward == 1.0
