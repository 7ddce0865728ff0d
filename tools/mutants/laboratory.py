"""Children that run tests on a changed package."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tools.mutants.child import Served, Watch, run_pytest


@dataclasses.dataclass
class Job:
    """A child at work."""

    pid: int
    output: Path
    deadline: float
    started: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``verdict``: killed, survived, time-out or broken (no test ran, or the system ended it)."""

    verdict: str
    by: str = ""
    seconds: float = 0.0
    extra: Any = None


class Laboratory:
    """Forks children that run tests on a changed package."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self.root, self.limit_s = root, limit_s
        self.scratch = tempfile.TemporaryDirectory(prefix="mutants-")
        self.count = 0

    def prepare(self, tests: Sequence[str]) -> None:
        """Import here what the tests import from elsewhere, so that no child has to."""

        def collect() -> dict[str, Any]:
            before = dict(os.environ)
            run_pytest(tests, ["--collect-only"], [])
            outside = [n for n, m in list(sys.modules.items()) if self._is_foreign(m)]
            return {"modules": outside, "environ": {k: v for k, v in os.environ.items() if before.get(k) != v}}

        found = self.wait(self.start(collect, limit_s=300)).extra
        if found is None:
            raise SystemExit(f"mutants: the tests cannot be collected: {', '.join(tests)}")
        os.environ.update({k: v for k, v in found["environ"].items() if not k.startswith("PYTEST")})
        for name in found["modules"]:
            try:
                importlib.import_module(name)
            except Exception:  # a lazy module of a dependency that is not there
                continue
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)

    def _is_foreign(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return file is not None and ("site-packages" in file or not Path(file).is_relative_to(self.root))

    def test(self, changed: dict[str, CodeType], tests: Sequence[str], watch: Watch) -> Callable[[], Any]:
        """What a child does: run ``tests`` with ``changed`` files."""

        def run() -> dict[str, Any]:
            sys.meta_path.insert(0, Served(self.root, changed))
            return {"code": run_pytest(tests, ["-x"], [watch]), "by": watch.failed}

        return run

    def start(self, task: Callable[[], Any], *, limit_s: float | None = None) -> Job:
        """Fork. The child writes its result as JSON and ends at once."""
        self.count += 1
        output = Path(self.scratch.name) / f"{self.count}.json"
        now = time.monotonic()
        pid = os.fork()
        if pid:
            return Job(pid, output, now + (limit_s or self.limit_s), now)
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.chdir(self.root)
            sys.path.insert(0, str(self.root))
            output.with_suffix(".part").write_text(json.dumps(task()))
            output.with_suffix(".part").replace(output)
        finally:
            os._exit(0)

    def poll(self, job: Job) -> Outcome | None:
        """None while it runs."""
        pid, status = os.waitpid(job.pid, os.WNOHANG)
        seconds = time.monotonic() - job.started
        if pid == 0:
            if time.monotonic() < job.deadline:
                return None
            os.killpg(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)
            return Outcome("time-out", seconds=seconds)
        if not job.output.exists():
            lost = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL  # by the system: memory is short
            return Outcome("broken" if lost else "killed", "the process ended", seconds)
        found = json.loads(job.output.read_text())
        job.output.unlink()
        code = found.get("code") if isinstance(found, dict) else None
        # pytest: 0 passed, 1 failed, 2 interrupted (an import failed), 5 nothing collected
        verdict = {0: "survived", 1: "killed", 2: "killed", 3: "killed"}.get(code, "broken")  # type: ignore[arg-type]
        return Outcome(verdict, found.get("by", "") or "import", seconds, found)

    def wait(self, job: Job) -> Outcome:
        """Block until it ends."""
        while (outcome := self.poll(job)) is None:
            time.sleep(0.02)
        return outcome
