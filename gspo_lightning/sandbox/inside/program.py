"""Running the model's program in a test's process: its own ``__main__``, its own stdin and stdout, nothing of ours.

Whatever is written here about the outcome is the program's own claim: it can only lower what it is worth, because what
it printed or returned is compared outside with what was expected.
"""

from __future__ import annotations

import atexit
import os
import sys

from gspo_lightning.sandbox.inside.encode import encode, text_of

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["REPORT", "run"]

REPORT = 3
"""The descriptor for the report: what a call returned, or how the program failed."""

_PREAMBLE = """
from typing import *
from collections import *
from heapq import *
from bisect import *
from itertools import *
from functools import *
from math import *
from string import *
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
"""
"""What sites that ask for a ``class Solution`` import beforehand."""


def run(test: Mapping[str, Any], source: str) -> int:
    """Run it, report, and return an exit code: 0 unless the program failed.

    Args:
        test: ``{"stdin": true}`` runs a program that reads and prints; ``{"entry", "arguments"}`` calls a function
            with JSON values; ``{"expression", "setup"}`` evaluates an expression after the program and the set-up code.
        source: the program.
    """
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    sys.argv = ["program.py"]
    try:
        report, code = _execute(test, source), 0
    except BaseException as error:
        report, code = _failure(type(error).__name__, error), 1
    try:
        _finish()
    except BaseException as error:  # what the program left behind for its end
        report, code = _failure(type(error).__name__, error), 1
    data = report.encode("ascii")
    os.lseek(REPORT, 0, os.SEEK_SET)
    os.ftruncate(REPORT, 0)
    while data:
        data = data[os.write(REPORT, data) :]
    return code


def _execute(test: Mapping[str, Any], source: str) -> str:
    """The report: JSON."""
    name = "__main__" if "stdin" in test else "program"
    module = type(sys)(name)
    sys.modules[name] = module
    namespace = module.__dict__
    if "entry" in test and "class Solution" in source:
        exec(_PREAMBLE, namespace)
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError, UnicodeError) as error:
        return _failure("SyntaxError", error)
    try:
        exec(code, namespace)
        if "entry" in test:
            return _value(_find(namespace, test["entry"])(*test["arguments"]))
        if "expression" in test:
            exec(compile(test["setup"], "tests.py", "exec", dont_inherit=True), namespace)
            return _value(eval(compile(test["expression"], "tests.py", "eval"), namespace))
    except SystemExit as error:
        return "{}" if "stdin" in test else _failure("SystemExit", error)
    return "{}"


def _find(namespace: dict[str, Any], entry: str) -> Any:
    """The function: a method of a class ``Solution`` if there is one, else a function; ``A.f`` is a method of A."""
    if "." in entry:
        owner, _, name = entry.partition(".")
        return getattr(namespace[owner](), name)
    solution = namespace.get("Solution")
    if solution is not None and hasattr(solution, entry):
        return getattr(solution(), entry)
    if entry not in namespace:
        raise NameError(f"the program defines no {entry}")
    return namespace[entry]


def _finish() -> None:
    """What the interpreter would do at its end: wait for threads, call what was registered, flush."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _value(value: object) -> str:
    return f'{{"value": {encode(value)}}}'


def _failure(name: str, error: BaseException) -> str:
    try:
        text = str(error)[:300]
    except BaseException:  # an error of the program's own making
        text = ""
    return f'{{"error": {text_of(name)}, "text": {text_of(text)}}}'
