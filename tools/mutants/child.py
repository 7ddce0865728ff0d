"""What a child does: it serves changed files to the import system and runs pytest."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

NOT_RUN = (
    "tests/objectives/test_against_trl.py",  # needs an extra; the rest has to be enough
    "test_imports_without_lightning_or_transformers",  # another process: it would see the unchanged source
)


class Served(importlib.abc.MetaPathFinder):
    """Serves other code for some files below ``root``."""

    def __init__(self, root: Path, changed: dict[str, CodeType]) -> None:
        self.root = root
        self.changed = {f.removesuffix(".py").removesuffix("/__init__").replace("/", "."): f for f in changed}
        self.code = changed

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find a changed module by its source in memory."""
        if fullname not in self.changed:
            return None
        file = self.changed[fullname]
        code = self.code[file]

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        place = self.root / file
        return importlib.util.spec_from_file_location(fullname, place, loader=Loader(fullname, str(place)))


class Watch:
    """A pytest plug-in: only these tests, in this order; which one runs, how long it takes, which one failed first."""

    def __init__(self, wanted: Sequence[str] | None) -> None:
        self.place = None if wanted is None else {name: i for i, name in enumerate(wanted)}
        self.now, self.failed = "", ""
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Choose and sort."""
        items[:] = [i for i in items if not any(name in i.nodeid for name in NOT_RUN)]
        if self.place is not None:
            place = {i: self.place.get(i.nodeid, self.place.get("", -1)) for i in items}
            items[:] = sorted((i for i in items if place[i] >= 0), key=lambda i: place[i])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the test that begins."""
        self.now = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note how long it took and whether it failed."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_pytest(tests: Sequence[str], options: Sequence[str], plugins: list[Any]) -> int:
    """The exit code of pytest."""
    import pytest

    try:
        from hypothesis import Phase, settings
    except ImportError:
        pass
    else:  # the same examples for every mutant, and no search for the smallest one
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")
    ignored = [f"--ignore={name}" for name in NOT_RUN if name.endswith(".py")]
    common = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:doctest", "--no-header", *ignored]
    return int(pytest.main([*tests, *common, *options], plugins=plugins))
