"""Tests as data sets write them, turned into this package's shape: APPS, MBPP, HumanEval, LiveCodeBench.

======================= ============================================================================================
APPS, TACO              ``{"inputs": [...], "outputs": [...], "fn_name"?}``
MBPP                    ``{"test_list": ["assert ..."], "test_setup_code"? | "test_imports"?}``
HumanEval               ``{"test": "def check(candidate): ...", "entry_point", "prompt"?}``
LiveCodeBench           ``[{"input", "output", "testtype": "stdin" | "functional"}]`` under ``public_test_cases``,
                        with ``metadata: {"func_name"}``
======================= ============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gspo_lightning.rewards.code.asserts import check_function

__all__ = ["from_apps", "from_humaneval", "from_livecodebench", "from_mbpp", "plain_shape"]


def plain_shape(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer in this package's shape, whichever it came in.

    Raises:
        ValueError, KeyError, TypeError: it looks like a known shape but does not hold what that needs.
    """
    if "type" in answer or "tests" in answer:
        return answer
    for mark, convert in (
        ("inputs", from_apps),
        ("test_list", from_mbpp),
        ("test", from_humaneval),
        ("public_test_cases", from_livecodebench),
    ):
        if mark in answer:
            found = convert(answer)
            return found | ({"timeout_s": answer["timeout_s"]} if "timeout_s" in answer else {})
    return answer


def from_apps(answer: Mapping[str, Any]) -> dict[str, Any]:
    """APPS' ``input_output``. A called function's result may be written as it is, or in a list of one: either counts.

    >>> from_apps({"inputs": ["1\\n"], "outputs": ["2\\n"]})["tests"]
    [{'input': '1\\n', 'output': '2\\n'}]
    """
    pairs = list(zip(answer["inputs"], answer["outputs"], strict=True))
    if not answer.get("fn_name"):
        return {"type": "stdin", "tests": [{"input": _text(i), "output": _text(o)} for i, o in pairs]}
    tests = [{"input": i, "outputs": [o, *(o if isinstance(o, list) and len(o) == 1 else [])]} for i, o in pairs]
    return {"type": "call", "entry_point": answer["fn_name"], "tests": tests}


def from_mbpp(answer: Mapping[str, Any]) -> dict[str, Any]:
    """MBPP's assert statements, with the code that they need."""
    setup = [answer.get("test_setup_code") or "", *(answer.get("test_imports") or [])]
    tests = [*answer["test_list"], *(answer.get("challenge_test_list") or [])]
    return {"type": "assert", "tests": tests, "setup": "\n".join(filter(None, setup))}


def from_humaneval(answer: Mapping[str, Any]) -> dict[str, Any]:
    """HumanEval's ``check``; its prompt, where the record has it, goes in front of the program that continues it."""
    entry = answer["entry_point"]
    tests = [check_function(answer["test"], entry)]
    return {"type": "assert", "entry_point": entry, "tests": tests, "prefix": answer.get("prompt", "")}


def from_livecodebench(answer: Mapping[str, Any]) -> dict[str, Any]:
    """LiveCodeBench's public tests: arguments are one JSON value a line."""
    tests, metadata = _json(answer["public_test_cases"]), _json(answer.get("metadata") or {})
    if not any(test.get("testtype") == "functional" for test in tests):
        return {"type": "stdin", "tests": [{"input": t["input"], "output": t["output"]} for t in tests]}
    called = [
        {"input": [json.loads(line) for line in t["input"].split("\n")], "output": json.loads(t["output"])}
        for t in tests
    ]
    return {"type": "call", "entry_point": metadata["func_name"], "tests": called}


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
