"""A trainer of agents that is killed: nothing of it stays behind, and the resumed run is the undisturbed one."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.temp_files import alive
from gspo_lightning.rewards.sandbox import choose
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.test_agent_run import AGENT, BRIEF

STARTS_PROGRAMS = """
import subprocess
from pathlib import Path

import aiohttp

NOTES = Path(__file__).with_name("processes")


async def solve(record, address):
    program = subprocess.Popen(["sleep", "600"])
    with NOTES.open("a") as file:
        file.write(f"{program.pid}\\n")
    body = {"messages": [{"role": "user", "content": record["prompt"]}]}
    key = {"Authorization": f"Bearer {address.api_key}"}
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(address.socket), headers=key) as http:
            async with http.post(f"{address.base_url}/chat/completions", json=body, raise_for_status=True) as reply:
                said = (await reply.json())["choices"][0]["message"]["content"]
        return float(said[1:2] in "13579")
    finally:
        program.kill()
        program.wait()
"""
SCRIPT = """
import json, os, sys, urllib.request

record = json.load(sys.stdin)
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = json.dumps({"messages": [{"role": "user", "content": record["prompt"]}]}).encode()
answer = urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key))
print(json.dumps({"reward": len(json.load(answer)["choices"][0]["message"]["content"])}))
"""
KILL = "gspo_lightning.rollouts.agents.agent_rollouts:AgentRollouts._sample"


def run(root: Path, options: list[str], kill_at: str = "") -> tuple[int | None, int]:
    """Exit code and process id of a run that begins, or goes on."""
    argv = ["fit", f"--config={AGENT}", *runs.SMALL[1:], *BRIEF, f"--trainer.default_root_dir={root}", *options]
    command = Command([*argv, "--ckpt_path=last"], kill_at=kill_at, log=root / "log").start()
    pid = command.processes[0].pid
    assert pid is not None
    (code,) = command.wait(120)
    return code, pid


def left(notes: Path) -> list[int]:
    """Processes that are still alive a little later, which are ended."""
    pids = [int(line) for line in notes.read_text().split()]
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    found = [pid for pid in pids if alive(pid)]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cold")
    runs.fit(root, *BRIEF, "--trainer.max_epochs=0", "--data.val=null", config=AGENT)
    return root


@pytest.mark.thorough
def test_programs_of_an_agent_end_with_a_killed_trainer_and_the_run_goes_on(tmp_path: Path, cold_start: Path) -> None:
    found = []
    for name, moment in (("whole", ""), ("killed", f"{KILL}:2")):
        root = tmp_path / name
        runs.share_cold_start(cold_start, root)
        (root / "starts.py").write_text(STARTS_PROGRAMS)
        options = [f"--plugins+={root / 'starts.py'}", "--data.rollouts.agent.function=starts.solve"]
        gateway = Path(tempfile.mkdtemp(dir="/tmp"), "gateway")  # a path of a socket is short, tmp_path may be long
        options += [f"--data.rollouts.socket={gateway}"]
        if moment:
            assert run(root, options, moment)[0] == -signal.SIGKILL
            assert left(root / "processes") == []
        code, _ = run(root, options)
        assert code == 0, (root / "log").read_text()
        assert left(root / "processes") == []
        gateway.parent.rmdir()  # empty: the socket is gone
        (folder,) = (root / "agent").iterdir()
        found.append(runs.weights(folder))
    assert runs.largest_difference(*found) < 1e-5


def test_sandboxes_of_a_killed_trainer_are_removed_by_the_next_run(tmp_path: Path, cold_start: Path) -> None:
    try:
        choose("bubblewrap")
    except UserError:
        pytest.skip("bubblewrap does not work here: make sandbox; gspo doctor")
    runs.share_cold_start(cold_start, tmp_path)
    place = Path(tempfile.mkdtemp(prefix="agent-", dir="/var/tmp"))
    place.chmod(0o755)
    (place / "agent.py").write_text(SCRIPT)
    (place / "agent.py").chmod(0o644)
    options = ['--data.rollouts.agent={"class_path": "CommandAgent", "init_args": {"command": ["python", "%s"], '
               '"isolation": "bubblewrap"}}' % (place / "agent.py"), "--data.rollouts.in_flight=2",
               "--data.prompts_per_rollout=2", "--data.evaluation.limit=2", "--trainer.max_epochs=1"]  # fmt: skip
    code, pid = run(tmp_path, options, f"{KILL}:2")
    assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
    folders = list(Path(tempfile.gettempdir()).glob(f"gspo-*-{pid}-*"))
    assert folders
    code, other = run(tmp_path, options)
    assert code == 0, (tmp_path / "log").read_text()
    assert not any(folder.exists() for folder in folders)
    assert not list(Path(tempfile.gettempdir()).glob(f"gspo-*-{other}-*"))
    os.unlink(place / "agent.py")
    place.rmdir()
