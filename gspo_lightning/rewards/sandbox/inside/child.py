"""Confined child process of the driver, which runs one test, or tests that share a process in order.

The driver watches the child and kills it if it must end. What the child reports about a test is read from files, so it
can neither block the driver nor answer for a test that it has not been given.
"""

from __future__ import annotations

import binascii
import marshal
import os
import select
import time

from gspo_lightning.rewards.sandbox.inside import program, system
from gspo_lightning.rewards.sandbox.inside.confine import confine
from gspo_lightning.rewards.sandbox.inside.disk import empty, overfull
from gspo_lightning.rewards.sandbox.inside.usage import family, others, used

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TICK_MS = 20
_AGENT_TICK_MS = 100
"""Milliseconds between two looks at an agent, which runs for minutes beside many others."""
_SIGKILL = 9
_ERRORS_SHOWN = 2000


class Child:
    """A confined child process and its tests: one, or all tests with ``shares`` until one of them ends it."""

    def __init__(self, setup: Mapping[str, Any], test: dict[str, Any], number: int, own_processes: int) -> None:
        self.setup = setup
        self.test = test
        self.limits = setup["limits"]
        self.shares = bool(test.get("shares"))
        self.alive = False
        self.confined = False
        self.own_processes = own_processes
        self.compiles = setup["role"] == "compiler"
        self.agent = setup["role"] == "agent"
        self.known = [1, os.getpid()]
        self.directory = "/tmp" if setup["namespaces"] else os.path.join(setup["directory"], f"test{number}")
        self.files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr", "report")]
        self.started_read, self.started_write = os.pipe()
        if self.shares:
            self.next_test = os.memfd_create("test", os.MFD_CLOEXEC)
            self.go_read, self.go_write = os.pipe()
            self.over_read, self.over_write = os.pipe()
            os.set_blocking(self.go_write, False)  # a child that never reads cannot hold this process
        self.cpu = 0.0
        self.spent = 0.0
        self.looks = 0
        self.awake = 0

    def outcome(self, test: dict[str, Any]) -> dict[str, Any]:
        """Run a test, return its report, and remove everything that it left, unless the child goes on."""
        self.spent = self.cpu
        self.looks = 0
        self.awake = 0
        if self.alive:
            self._send_test(test)
        else:
            self._start()
        end = self._watch(self.pid)
        status = 0
        if self.alive:
            self.cpu = max(self.cpu, used(self._processes(self.pid)).cpu)
        else:
            _, status, usage = os.wait4(self.pid, 0)
            # rusage lacks children that the process did not wait for
            self.cpu = max(self.cpu, usage.ru_utime + usage.ru_stime)
        cpu = self.cpu - self.spent
        if end == "" and cpu > self.limits["cpu_s"]:
            end = "overran"
        report: dict[str, Any] = {"end": end, "status": status, "cpu": cpu, **self._written()}
        if self.alive and (end or report["full"]):
            self._kill()
        if not self.confined:
            self.confined = os.read(self.started_read, 1) == b"1"
        if not self.alive:
            self._clean()
        return report | {"confined": self.confined, "alive": self.alive}

    def close(self) -> None:
        """End a child that waits for another test."""
        self._kill()
        self._clean()

    def _start(self) -> None:
        """Fork the child, with the first test."""
        write_all(self.files[0], self.test.pop("input", "").encode("utf-8", "surrogateescape"))
        os.lseek(self.files[0], 0, os.SEEK_SET)
        if not self.setup["namespaces"]:
            os.mkdir(self.directory, 0o700)
        if self.agent and self.test["socket"]:
            from gspo_lightning.rewards.sandbox.inside import agent

            self.known.append(agent.forward(self.test["socket"], self.test["port"]))
        self.pid = self._fork()
        os.close(self.started_write)
        if self.shares:
            os.close(self.go_read)
            os.close(self.over_write)
            self.alive = True

    def _send_test(self, test: dict[str, Any]) -> None:
        """Give the waiting child another test, by a file: the child cannot block it, and may have ended."""
        os.ftruncate(self.next_test, 0)
        os.lseek(self.next_test, 0, os.SEEK_SET)
        write_all(self.next_test, marshal.dumps(test, 4))
        try:
            os.write(self.go_write, b"1")
        except OSError:  # it has ended, which is how the test ends
            return

    def _written(self) -> dict[str, Any]:
        """Return what the child wrote in this test, and empty the files for the next."""
        room = self.limits["file_mb"] << 20
        _, out, err, claim = self.files
        report: dict[str, Any] = {"full": any(os.fstat(file).st_size >= room for file in (out, err, claim))}
        for name, file, most in (("out", out, room), ("err", err, _ERRORS_SHOWN), ("report", claim, room)):
            start = max(0, os.fstat(file).st_size - most) if self.agent else 0  # its last words say why it failed
            report[name] = binascii.b2a_base64(os.pread(file, most, start), newline=False).decode("ascii")
            if self.alive:
                os.ftruncate(file, 0)
                os.lseek(file, 0, os.SEEK_SET)
        return report

    def _kill(self) -> None:
        os.kill(self.pid, _SIGKILL)
        os.waitpid(self.pid, 0)
        self.alive = False

    def _clean(self) -> None:
        """Close the files and empty the folder of a child that has ended."""
        if not self.setup["namespaces"]:
            empty(self.directory)
        os.close(self.started_read)
        for file in self.files:
            os.close(file)
        if self.shares:
            for file in (self.next_test, self.go_write, self.over_read):
                os.close(file)

    def _fork(self) -> int:
        if self.own_processes >= 0 and "processes" in self.setup["layers"]:
            system.unshare(system.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            code = 125
            try:
                code = self._child()
            finally:
                os._exit(code)
        if self.own_processes >= 0 and "processes" in self.setup["layers"]:
            system.call("setns", self.own_processes, system.CLONE_NEWPID)
        return pid

    def _child(self) -> int:
        descriptors = dict(enumerate([*self.files, self.started_write]))
        if self.setup["channel"] >= 0:  # first: its number from outside may be one of those below
            descriptors = {program.CHANNEL: self.setup["channel"], **descriptors}
        if self.shares:
            descriptors |= {program.TEST: self.next_test, program.GO: self.go_read, program.OVER: self.over_write}
        for target, file in descriptors.items():
            os.dup2(file, target + 100)
        for target in range(program.OVER + 1):
            if target in descriptors:
                os.dup2(target + 100, target)
            else:
                os.closerange(target, target + 1)
        os.closerange(program.OVER + 1, 1 << 16)
        try:
            confine(self.setup, self.directory, several=self.shares)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            return 125
        os.write(4, b"1")
        os.close(4)
        if self.agent:
            from gspo_lightning.rewards.sandbox.inside import agent

            return agent.run(self.test)
        if self.compiles:
            from gspo_lightning.rewards.sandbox.inside import compiler

            return compiler.run(self.test, self.setup["program"])
        if self.setup["library"]:
            from gspo_lightning.rewards.sandbox.inside import native

            return native.run(self.setup["library"])
        run = program.run_in_turn if self.shares else program.run
        return run(self.test, self.setup["program"])

    def _watch(self, pid: int) -> str:
        """Wait for the end of the test, kill the child if it must end, and return the reason or ""."""
        ended = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        begun = time.monotonic()
        reason = ""
        if self.agent:
            poll.register(0, select.POLLIN)  # nothing is to come but the end, also that of the process outside
        if self.shares:
            poll.register(self.over_read, select.POLLIN)
        while True:
            ready = dict(poll.poll(_AGENT_TICK_MS if self.agent else _TICK_MS))
            if self.shares and ready.get(self.over_read, 0) & select.POLLIN:
                os.read(self.over_read, 1)  # the test is over, whatever becomes of the child
                break
            if ended in ready:
                self.alive = False
                break
            if self.shares and self.over_read in ready:
                poll.unregister(self.over_read)  # it has closed its side: only its end is to come
            reason = "stopped" if 0 in ready else self._too_much(pid, time.monotonic() - begun)
            if reason:
                kill = os.killpg if self.compiles and not self.setup["namespaces"] else os.kill
                kill(pid, _SIGKILL)
                self.alive = False
                break
        os.close(ended)
        if self.agent and not self.setup["namespaces"]:
            from gspo_lightning.rewards.sandbox.inside import agent

            agent.end_all(pid)
        return reason

    def _too_much(self, pid: int, wall: float) -> str:
        """Return why a child must end now, or "".

        A child is asleep if at half of the samples it neither used a CPU nor waited for one. A child that a busy
        machine starves gets more time, and in the end nobody is at fault.
        """
        limits = self.limits
        layers = self.setup["layers"]
        usage = used(self._processes(pid))
        self.cpu = usage.cpu
        self.looks += 1
        self.awake += usage.awake
        if usage.cpu - self.spent > limits["cpu_s"] and "watch" in layers:
            return "timeout"
        if self.agent and usage.processes > limits["tasks"]:
            return "processes"
        if (usage.processes > 1 or self.agent) and usage.resident_mb > limits["memory_mb"] and "watch" in layers:
            return "memory"
        if not self.setup["namespaces"] and "disk" in layers and overfull(self.directory, pid, limits):
            return "disk"
        if wall > limits["wall_s"] and not self.agent:
            if self.awake < self.looks / 2:
                return "asleep"
            if wall > limits["patience_s"]:
                return "starved"
        return ""

    def _processes(self, pid: int) -> list[int]:
        """Return the processes of the test."""
        if self.setup["namespaces"]:
            return others(*self.known)
        if self.agent:
            from gspo_lightning.rewards.sandbox.inside import agent

            return agent.descendants(os.getpid())
        return family(pid) if self.compiles else [pid]


def write_all(target: int, data: bytes) -> None:
    """Write all bytes to a file descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
