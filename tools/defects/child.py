"""What a child does: it runs tests in a tree of its own and notes how each of them ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Found", "run_tests"]

Found = dict[str, dict[str, str]]
"""Kind of outcome -> id of a test -> what its exception says."""
NO_FAILURE = (ImportError, SyntaxError, NameError)
"""What a patch that does not fit brings about: no test says anything then."""


class _Watch:
    """A pytest plug-in that runs only these tests and notes how they end."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.wanted = {*tests}
        self.found: Found = {"passed": {}, "skipped": {}, "failed": {}, "broken": {}}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Choose. A test that is not there must not keep the others from being run, as an argument would."""
        items[:] = [item for item in items if {item.nodeid, item.nodeid.partition("[")[0]} & self.wanted]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note tests that passed or were skipped."""
        if report.skipped or (report.passed and report.when == "call"):
            self.found["skipped" if report.skipped else "passed"][report.nodeid] = ""

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Note tests that failed themselves, and those that could not be run."""
        own = getattr(report, "when", "collect") == "call" and not issubclass(call.excinfo.type, NO_FAILURE)
        said = " ".join(call.excinfo.exconly().split())
        self.found["failed" if own else "broken"][node.nodeid] = said


def run_tests(root: Path, tests: Sequence[str], output: Path) -> None:
    """Run tests in a tree of their own, in a process that has imported nothing of the package."""
    import pytest

    os.setsid()
    log = os.open(output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path.insert(0, str(root))
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]
    watch, own = _Watch(tests), os.getpid()
    files = sorted({test.partition("::")[0] for test in tests})
    options = ["-q", "-o", "addopts=", "-m", "not long", "-p", "no:cacheprovider", "--tb=short"]
    pytest.main([*files, *options], plugins=[watch])
    if os.getpid() != own:  # a defect may let a forked process come back
        os._exit(1)
    output.write_text(json.dumps(watch.found), encoding="utf-8")
