"""Run the model's program in a process of tests: its own ``__main__``, its own stdin and stdout, nothing of ours.

Everything that this report says about the outcome is the program's own claim. It can only lower the score, because the
printed or returned value is compared outside with the expected one.
"""

from __future__ import annotations

import atexit
import builtins
import marshal
import os
import sys

from gspo_lightning.rewards.sandbox.inside.encode import encode, text_of

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REPORT = 3
"""File descriptor of the report: the return value of a call, or how the program failed."""
CHANNEL = 5
"""File descriptor of the other side of a script."""
TEST = 6
"""File descriptor of the next test."""
GO = 7
"""File descriptor of the word that the next test is there."""
OVER = 8
"""File descriptor of the word that a test is over."""
_MOST_DIGITS = 50_000
"""Decimal digits of an integer that can be read and written: as many as in LiveCodeBench's evaluation."""

PREAMBLE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, itertools, functools, operator
import io, sys, json
sys.setrecursionlimit(50000)
"""
"""Preamble of every program in LiveCodeBench's evaluation; sites that ask for a ``class Solution`` use much of it.

``builtins`` comes late, as it does there: ``pow``, ``open`` and ``sum`` are Python's own.
"""
_STREAMS = (("stdin", "r", "surrogateescape"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))
_WRITERS = ("fdopen", "open(", "TextIOWrapper", "BufferedWriter", "FileIO")
"""Names that a program must use to hold a file that the interpreter would flush at its end."""


def run(test: Mapping[str, Any], source: str) -> int:
    """Run the program on one test, report, and return an exit code: 0 unless the program failed.

    Args:
        test: ``{"stdin": true}`` runs a program that reads and prints; ``{"entry", "arguments"}`` calls a function
            with JSON values; ``{"expression", "setup"}`` evaluates an expression after the program and the set-up code;
            ``{"serve": true}`` answers calls of a script, ``{"examine": ...}`` runs the script instead of a program.
            ``files`` (name -> text) and ``argv`` are given to the program, ``preamble`` asks for :data:`PREAMBLE`.
        source: the program.
    """
    prepare()
    report, code = _outcome(_Program(source), test)
    try:
        _finish(source)
    except BaseException as error:  # from exit handlers or threads of the program
        report = failure(type(error).__name__, error)
        code = 1
    _write(report)
    return code


def run_in_turn(test: Mapping[str, Any], source: str) -> int:
    """Run the program on tests one after another in this process, until a test ends it; return an exit code.

    The program is loaded once, its function is looked up once, and a statement of the set-up code runs once.
    """
    prepare()
    program = _Program(source)
    while True:
        report, code = _outcome(program, test)
        _write(report)
        if code:
            return code
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os.write(OVER, b"1")
        if not os.read(GO, 1):
            return 0
        test = marshal.loads(os.pread(TEST, os.fstat(TEST).st_size, 0))


def _outcome(program: _Program, test: Mapping[str, Any]) -> tuple[str, int]:
    """Return the report (JSON) of a test, and the exit code, which is 0 if the process can go on."""
    try:
        return program.test(test)
    except (SystemExit, MemoryError, KeyboardInterrupt) as error:
        return failure(type(error).__name__, error), 1
    except BaseException as error:
        return failure(type(error).__name__, error), 0 if program.loaded and test.get("shares") else 1


def _write(report: str) -> None:
    data = report.encode("ascii")
    os.lseek(REPORT, 0, os.SEEK_SET)
    os.ftruncate(REPORT, 0)
    while data:
        data = data[os.write(REPORT, data) :]


def prepare() -> None:
    """Prepare the program's process: its own streams, no environment, ``exit`` and ``quit`` as from ``site``."""
    for number, (name, mode, errors) in enumerate(_STREAMS):
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    builtins.__dict__.update(exit=_quit, quit=_quit)
    os.environ.clear()
    sys.set_int_max_str_digits(_MOST_DIGITS)


def load(name: str, source: str, preamble: str = "") -> dict[str, Any]:
    """Return the namespace of a module made of the program; the program's own exceptions pass through.

    Raises:
        SyntaxError: the source is not Python, whatever :func:`compile` raises for it.
    """
    module = type(sys)(name)
    sys.modules[name] = module
    namespace = module.__dict__
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError, UnicodeError) as error:
        raise SyntaxError(str(error)) from error
    if preamble:
        exec(preamble, namespace)
    exec(code, namespace)
    return namespace


class _Program:
    """A program that is loaded for its first test.

    Args:
        source: its text.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.loaded = False
        self.namespace: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}
        self.prepared = set[str]()

    def test(self, test: Mapping[str, Any]) -> tuple[str, int]:
        """Return the report (JSON) and the exit code; exceptions of the program pass through."""
        if "examine" in test:
            from gspo_lightning.rewards.sandbox.inside.examine import examine

            return _value(examine(test["examine"], self.source)), 0
        try:
            if not self.loaded:
                self._load(test)
            if "serve" in test:
                from gspo_lightning.rewards.sandbox.inside.serve import serve

                serve(self.find)
            if "entry" in test:
                return _value(self.find(test["entry"])(*test["arguments"])), 0
            if "expression" in test:
                for key, text in test["setup"]:
                    if key not in self.prepared:
                        exec(compile(text, "tests.py", "exec", dont_inherit=True), self.namespace)
                        self.prepared.add(key)
                return _value(eval(compile(test["expression"], "tests.py", "eval"), self.namespace)), 0
        except SystemExit as error:
            code = error.code if error.code is None or isinstance(error.code, int) else 1
            if "stdin" in test and not code:
                return "{}", 0
            return failure("SystemExit", error), 1
        return "{}", 0

    def _load(self, test: Mapping[str, Any]) -> None:
        for name, text in test.get("files", {}).items():
            with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        sys.argv = ["program.py", *test.get("argv", ())]
        stdin = "stdin" in test
        preamble = ""
        if test.get("preamble"):  # statistics is slow to import, and LiveCodeBench's only
            preamble = f"from statistics import *\nimport statistics\n{PREAMBLE}"
        elif not stdin and "class Solution" in self.source:
            preamble = PREAMBLE
        self.namespace = load("__main__" if stdin else "program", self.source, preamble)
        self.loaded = True

    def find(self, entry: str) -> Any:
        """Return a function of the program, looked up once: a method's object serves all tests of the process."""
        if entry not in self.functions:
            self.functions[entry] = _find(self.namespace, entry)
        return self.functions[entry]


def _quit(code: object = None) -> None:
    """Exit as ``site`` does."""
    if sys.stdin is not None:
        sys.stdin.close()
    raise SystemExit(code)


def _find(namespace: dict[str, Any], entry: str) -> Any:
    """Return the function: a method of class ``Solution`` if it has one, else a function; ``A.f`` is a method of A.

    ``A().f`` is evaluated as written, as in LeetCode's tests.
    """
    if "(" in entry:
        return eval(entry, namespace)
    if "." in entry:
        owner, _, name = entry.partition(".")
        return getattr(namespace[owner](), name)
    solution = namespace.get("Solution")
    if solution is not None and hasattr(solution, entry):
        return getattr(solution(), entry)
    if entry not in namespace:
        raise NameError(f"the program defines no {entry}")
    return namespace[entry]


def _finish(source: str) -> None:
    """Do what the interpreter would do at its end: wait for threads, call exit handlers, flush open files."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()
    if any(word in source for word in _WRITERS):
        _flush_files()


def _flush_files() -> None:
    """Flush the files that a program leaves open: text before the bytes below it."""
    import gc
    import io

    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [item for item in gc.get_objects() if type(item) in kinds]
    for file in sorted(files, key=lambda file: type(file) is not io.TextIOWrapper):
        try:
            if not file.closed and file.writable():
                file.flush()
        except (OSError, ValueError):  # closed below, or never meant to be written
            continue


def _value(value: object) -> str:
    return f'{{"value": {encode(value)}}}'


def failure(name: str, error: BaseException) -> str:
    """Return the report of a program that failed."""
    try:
        text = str(error)[:300]
    except BaseException:  # an error of the program's own making
        text = ""
    return f'{{"error": {text_of(name)}, "text": {text_of(text)}}}'
