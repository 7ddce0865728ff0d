"""Conversion of data sets' test formats to this package's, with each set's own comparison rules.

======================= ============================================================================================
APPS, TACO              ``{"inputs": [...], "outputs": [...], "fn_name"?}``
MBPP                    ``{"test_list": ["assert ..."], "test_setup_code"? | "test_imports"?}``
HumanEval, EvalPlus,    ``{"test": "def check(candidate): ...", "entry_point", "prompt"?}``; without ``entry_point`` the
LeetCodeDataset         test is a script (MBPP+)
LiveCodeBench           ``[{"input", "output", "testtype": "stdin" | "functional"}]`` under ``public_test_cases`` and
                        ``private_test_cases``, with ``metadata: {"func_name"}`` or ``starter_code``
CodeContests            ``{"input": [...], "output": [...]}`` under ``public_tests``, ``private_tests`` and
                        ``generated_tests``, with ``time_limit``
Codeforces (Open-R1)    ``[{"input", "output"}]`` under ``official_tests``, with ``generated_checker``
======================= ============================================================================================
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import pickle
import re
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

from gspo_lightning.core.parsing import load_json
from gspo_lightning.rewards.code.asserts import UnsupportedTestError, check_function

_KEPT = ("timeout_s", "comparison", "tolerance", "checker")
"""Keys of this package's format that are kept from a record of any format."""
_METHOD = re.compile(r"def\s+(\w+)\s*\(\s*self")
MOST_BYTES = 1 << 28
"""Maximum size in bytes after unpacking; the largest tests of the data set are some tens of MB."""


def plain_shape(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert an answer in any known format to this package's format.

    Raises:
        ValueError, KeyError, TypeError: the answer looks like a known format but lacks something it needs.
    """
    if "type" in answer or "tests" in answer:
        return answer
    if isinstance(answer.get("input_output"), str) and "inputs" not in answer:  # several columns of APPS and TACO
        answer = {**answer, **load_json(answer["input_output"])}
    for mark, convert in (
        ("inputs", from_apps),
        ("test_list", from_mbpp),
        ("test", from_humaneval),
        ("public_test_cases", from_livecodebench),
        ("private_test_cases", from_livecodebench),
        ("public_tests", from_codecontests),
        ("official_tests", from_codeforces),
    ):
        if mark in answer:
            return convert(answer) | {word: answer[word] for word in _KEPT if answer.get(word) is not None}
    return answer


def from_apps(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert APPS' ``input_output``; a called function's result may be given directly or in a list of one.

    Object keys that are all integers become integers, as in APPS. Printed words are compared with NumPy's default
    tolerance if a decimal number is expected. APPS also accepts any order and number of words; that is left out because
    it rewards wrong output.

    >>> from_apps({"inputs": ["1\\n"], "outputs": ["2\\n"]})["tests"]
    [{'input': '1\\n', 'output': '2\\n'}]
    """
    pairs = list(zip(answer["inputs"], answer["outputs"], strict=True))
    if not answer.get("fn_name"):
        tests = [{"input": _text(i), "output": _text(o)} for i, o in pairs]
        return {"type": "stdin", "tests": tests, "comparison": "tolerance", "tolerance": 1e-5}
    calls = []
    for arguments, output in pairs:
        outputs = [output, *output] if isinstance(output, list) and len(output) == 1 else [output]
        calls.append({"input": list(map(_integer_keys, arguments)), "outputs": list(map(_integer_keys, outputs))})
    return {"type": "call", "entry_point": answer["fn_name"], "tests": calls}


def from_mbpp(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert MBPP's assert statements, with the code that they need."""
    setup = [answer.get("test_setup_code") or "", *(answer.get("test_imports") or [])]
    tests = [*answer["test_list"], *(answer.get("challenge_test_list") or [])]
    return {"type": "assert", "tests": tests, "setup": "\n".join(filter(None, setup))}


def from_humaneval(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert HumanEval's ``check``; the record's prompt, if any, is put in front of the program that continues it.

    A test that cannot be split runs unchanged: ``check`` is called with the program's function.
    """
    entry = answer.get("entry_point")
    test = answer["test"]
    plain: dict[str, Any] = {"type": "assert", "entry_point": entry, "prefix": answer.get("prompt") or ""}
    if not entry:
        return plain | {"tests": [test], "prefix": ""}
    name = entry if entry.isidentifier() else "candidate"
    try:
        statements = check_function(test, entry)
    except UnsupportedTestError:
        if re.search(r"\bcheck\s*\(", test) or "assert" not in test:
            raise
        return plain | {"tests": [test]}
    script = f"{test}\ncheck({name})"
    return plain | {"tests": [script if name == "candidate" else statements], "scripts": [script]}


def from_livecodebench(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert LiveCodeBench's tests, public and private; arguments are one JSON value a line."""
    tests = list(_json(answer.get("public_test_cases") or "[]"))
    private = answer.get("private_test_cases")
    if private:
        tests += unpack_tests(private) if isinstance(private, str) else private
    metadata = _json(answer.get("metadata") or {})
    if not any(test.get("testtype") == "functional" for test in tests):
        plain = [{"input": t["input"], "output": t["output"]} for t in tests]
        return {"type": "stdin", "tests": plain, "preamble": True}
    calls = []
    for test in tests:
        arguments = [load_json(line) for line in test["input"].split("\n")]
        calls.append({"input": arguments, "output": load_json(test["output"])})
    methods = _METHOD.findall(answer.get("starter_code") or "")
    name = metadata.get("func_name") or (methods[-1] if methods else None)
    return {"type": "call", "entry_point": name, "tests": calls, "preamble": True}


def from_codecontests(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert CodeContests' public, private and generated tests, compared as its tester does: words, ignoring case."""
    tests = []
    for column in ("public_tests", "private_tests", "generated_tests"):
        group = _json(answer.get(column) or {"input": [], "output": []})
        tests += [{"input": i, "output": o} for i, o in zip(group["input"], group["output"], strict=True)]
    task: dict[str, Any] = {"type": "stdin", "tests": tests, "comparison": "codecontests"}
    for word in ("input_file", "output_file"):
        if answer.get(word):
            raise ValueError(f"the problem reads and writes files ({word}), which is not supported")
    return task | _limit(answer.get("time_limit"))


def from_codeforces(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Open-R1's Codeforces: official tests, and a checker if several outputs are correct."""
    if (answer.get("input_mode") or "stdio") != "stdio":
        raise ValueError("the problem reads and writes files (input_mode), which is not supported")
    tests = [{"input": t["input"], "output": t["output"]} for t in _json(answer["official_tests"])]
    task: dict[str, Any] = {"type": "stdin", "tests": tests, "comparison": "tolerance"}
    if answer.get("generated_checker"):
        task["checker"] = answer["generated_checker"]
    return task | _limit(answer.get("time_limit"))


def _limit(given: Any) -> dict[str, float]:
    """Read a data set's time limit: ``{"seconds": 2, "nanos": 500000000}``, a number, ``"2.0 seconds"``."""
    if isinstance(given, Mapping):
        seconds = (given.get("seconds") or 0) + (given.get("nanos") or 0) / 1e9
    elif isinstance(given, str):
        number = re.match(r"\s*(\d+(?:\.\d+)?)\s*(?:s\b|sec|$)", given)
        seconds = float(number[1]) if number else 0.0
    else:
        seconds = float(given or 0)
    return {"timeout_s": seconds} if seconds > 0 else {}


def _integer_keys(value: Any) -> Any:
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", key) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(value: Any) -> Any:
    return load_json(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=4)  # the completions of a group come one after another
def unpack_tests(text: str) -> Any:
    """Decode tests from the packed form, or from plain JSON, which some copies of the data set hold.

    Raises:
        ValueError: the text is neither, is too large, or the pickle holds anything but text.

    >>> packed = base64.b64encode(zlib.compress(pickle.dumps('[{"input": "1"}]'))).decode()
    >>> unpack_tests(packed) == unpack_tests('[{"input": "1"}]') == [{"input": "1"}]
    True
    """
    if text.lstrip()[:1] in ("[", "{"):
        return load_json(text)
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the private tests are neither JSON nor base64 of zlib: {error}") from error
    if unzip.unconsumed_tail:
        raise ValueError(f"the private tests are larger than {MOST_BYTES} bytes")
    try:
        unpickled = _OnlyText(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError, TypeError, UnicodeError) as error:
        raise ValueError(f"the private tests are no pickle of text: {error}") from error
    if not isinstance(unpickled, str):
        raise ValueError(f"the private tests are a pickle of {type(unpickled).__name__}, not of text")
    return load_json(unpickled)


class _OnlyText(pickle.Unpickler):
    """Unpickler that builds text only and refuses to look up or call anything."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to look up a class or function.

        Raises:
            pickle.UnpicklingError: always; the message names it.
        """
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse to load a persistent object.

        Raises:
            pickle.UnpicklingError: always.
        """
        raise pickle.UnpicklingError("it asks for something persistent, which is refused")
