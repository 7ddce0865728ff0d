"""Commands as agents: what they find, what they return, and what hostile ones cannot do in either kind of sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.rewards.sandbox import choose
from gspo_lightning.rewards.sandbox.inside import landlock
from gspo_lightning.rollouts import AgentRollouts
from gspo_lightning.rollouts.agents import CommandAgent
from gspo_lightning.rollouts.agents.agent import Outcome
from gspo_lightning.rollouts.gateway.address import Address
from tests.rollouts.agents.test_agent_rollouts import DRAWS, SAMPLING
from tests.support import model_families

KINDS = ("bubblewrap", "landlock")
PYTHON = {"bubblewrap": "python", "landlock": "/usr/bin/python3"}
"""With Landlock an agent of root runs as nobody, who may not be able to read this interpreter."""
ORDINARY = 4242
ASK = """
import json, os, sys, time, urllib.request

def ask(said, path="/chat/completions"):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps(said).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, body, key)
    return json.load(urllib.request.urlopen(request, timeout=20))
"""


class Stub(BaseHTTPRequestHandler):
    """A gateway that notes what it is told."""

    told: list[Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.told.append(body)
        answer = json.dumps({"path": self.path, "key": self.headers["Authorization"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        pass


class Place:
    """A folder for an agent, a gateway, and a kind of isolation."""

    def __init__(self, kind: str, folder: Path, port: int, told: list[Any]) -> None:
        self.kind, self.folder, self.port, self.told = kind, folder, port, told
        self.address = Address(f"http://127.0.0.1:{port}/s/one/v1", "secret-key")

    def agent(self, text: str, **options: Any) -> CommandAgent:
        file = self.folder / "agent" / "agent.py"
        file.write_text(ASK + text)
        file.chmod(0o644)
        return CommandAgent([PYTHON[self.kind], str(file)], isolation=self.kind, **options)  # type: ignore[arg-type]

    def run(self, text: str, record: Any = None, deadline_s: float = 60.0, **options: Any) -> Outcome:
        async def work() -> Outcome:
            agent = self.agent(text, **options)
            await agent.open()
            try:
                return await asyncio.wait_for(agent.run(record or {"prompt": "2+3?"}, self.address), deadline_s)
            finally:
                await agent.close()

        return asyncio.run(work())


@pytest.fixture
def parent() -> str:
    """Where the agent's folder is made."""
    return "/var/tmp"


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, parent: str) -> Iterator[Place]:
    kind = request.param
    try:
        choose(kind)
    except UserError:
        pytest.skip(f"{kind} does not work here: make sandbox; gspo doctor")
    if kind == "landlock" and landlock.abi() < landlock.AGENTS_ABI:
        pytest.skip("agents need Landlock of version 4")
    folder = Path(tempfile.mkdtemp(prefix="gspo-agent-", dir=parent))
    folder.chmod(0o755)
    (folder / "agent").mkdir(mode=0o755)
    told: list[Any] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Told", (Stub,), {"told": told})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Place(kind, folder, server.server_address[1], told)
        server.shutdown()
        thread.join()
    shutil.rmtree(folder)


def test_command_agent_gets_its_record_and_the_gateways_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPO_TEST_SECRET", "secret")
    reward = place.run(
        """
record = json.load(sys.stdin)
answer = ask({"record": record, "env": dict(os.environ), "here": os.getcwd(), "own": os.listdir(".")})
assert answer == {"path": "/s/one/v1/chat/completions", "key": "Bearer secret-key"}, answer
with open(os.environ["HOME"] + "/notes", "w") as file:
    file.write("mine")
print("some words")
print(json.dumps({"reward": 0.25}))
""",
        {"prompt": "2+3?", "answer": "5"},
        environment={"MORE": "yes"},
    )
    assert reward == {"reward": 0.25}
    (found,) = place.told
    assert found["record"] == {"prompt": "2+3?", "answer": "5"}
    assert found["own"] == ["agent.py"]
    env = found["env"]
    assert env["OPENAI_BASE_URL"] == env["ANTHROPIC_BASE_URL"] + "/v1"
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == "secret-key"
    assert env["MORE"] == "yes"
    assert "GSPO_TEST_SECRET" not in env


COVERED = ("/tmp", "/dev/shm")
"""Folders that bubblewrap's sandbox has files of its own in, which covered those of the agent."""


@pytest.mark.parametrize("parent", ["/var/tmp", *COVERED])
def test_agent_and_interpreter_may_lie_anywhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is that of a virtual environment, by a link to a link to an installation, as uv lays them."""
    base = Path(os.path.realpath(sys.executable if place.kind == "bubblewrap" else "/usr/bin/python3"))
    environment, installed = place.folder / "venv", place.folder / "installed"
    (environment / "bin").mkdir(parents=True)
    installed.symlink_to(base.parents[1])
    (environment / "bin" / "python").symlink_to(installed / "bin" / base.name)
    (environment / "pyvenv.cfg").write_text(f"home = {installed / 'bin'}\n")
    for path in (environment, environment / "bin", environment / "pyvenv.cfg"):
        path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python"))
    monkeypatch.setitem(PYTHON, place.kind, "python")
    place.run("""
with open(os.environ["HOME"] + "/notes", "w") as file:
    file.write("mine")
ask({"prefix": sys.prefix, "file": __file__, "own": os.listdir(".")})
assert os.path.samefile(os.path.dirname(__file__), ".")
""")
    (found,) = place.told
    agent = place.folder / "agent"
    assert found == {"prefix": str(environment), "file": str(agent / "agent.py"), "own": ["agent.py"]}


HOSTILE = """
import ctypes, glob, socket, subprocess
from pathlib import Path
target = json.load(sys.stdin)

def listing(folder):
    if os.listdir(folder) == ["agent"]:
        raise OSError("its own folder only")

def connect(family, kind, where, protocol=0):
    with socket.socket(family, kind, protocol) as one:
        one.settimeout(2)
        one.connect(where)
        one.send(b"x")
        if kind == socket.SOCK_DGRAM:
            one.recv(1)

def open_fast(port):
    with socket.socket() as one:
        one.sendto(b"x", 0x20000000, ("127.0.0.1", port))  # MSG_FASTOPEN
        one.getpeername()

def call(number, *arguments):
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), "call")

tries = {
    "read": lambda: open(target["secret"]).read(),
    "list": lambda: listing(os.path.dirname(target["secret"])),
    "read another's environment": lambda: open(f"/proc/{target['pid']}/environ", "rb").read(1),
    "read passwords": lambda: open("/etc/shadow").read(),
    "change itself": lambda: open(__file__, "a").write("#"),
    "change the interpreter": lambda: open(os.__file__, "a").write("#"),
    "write": lambda: open(target["secret"], "r+").write("x"),
    "another port": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["tcp"])),
    "another port, fast": lambda: open_fast(target["tcp"]),
    "another protocol": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["tcp"]), 262),
    "datagrams": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", target["udp"])),
    "a socket file": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, target["unix"]),
    "an abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + target["abstract"]),
    "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "signal": lambda: os.kill(target["pid"], 0),
    "become root": lambda: os.setuid(0),
    "trace": lambda: call(101, 0x4206, target["pid"], 0, 0),  # PTRACE_SEIZE
    "namespaces": lambda: call(272, 0x10000000),
    "add to its folder": lambda: open(os.path.dirname(__file__) + "/more", "x"),
    "uncover its folder": lambda: call(166, os.path.dirname(__file__).encode(), 2),  # MNT_DETACH
    "mount": lambda: call(165, b"tmpfs", os.path.dirname(__file__).encode(), b"tmpfs", 0, None),
    "the gateway's own socket": lambda: connect(
        socket.AF_UNIX, socket.SOCK_STREAM, next(iter(glob.glob("/tmp/gspo-sandbox-*/gateway")), "/nowhere")
    ),
}
found = {}
for name, attempt in tries.items():
    try:
        attempt()
    except (OSError, subprocess.SubprocessError) as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = "it worked"
found["programs"] = subprocess.run([sys.executable, "-c", "print(6*7)"], capture_output=True, text=True).stdout
ask(found)
"""


@pytest.fixture
def targets(place: Place) -> Iterator[dict[str, Any]]:
    """What a hostile agent is aimed at: files, listeners and the process of the trainer."""
    secret = place.folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    name = place.folder.name
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        udp.bind(("127.0.0.1", 0))
        threading.Thread(target=_echo, args=(udp,), daemon=True).start()
        named.bind(str(place.folder / "socket"))
        named.listen()
        (place.folder / "socket").chmod(0o777)
        hidden.bind(f"\0{name}")
        hidden.listen()
        told = {
            "secret": str(secret), "pid": os.getpid(), "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1],
            "unix": str(place.folder / "socket"), "abstract": name,
        }  # fmt: skip
        yield told
        udp.sendto(b"", udp.getsockname())
    assert secret.read_text() == "secret"


def worked(found: dict[str, str], kind: str) -> list[str]:
    """What a hostile agent has done."""
    assert found.pop("programs") == "42\n"
    if kind == "bubblewrap":  # the number is that of a process of its own, or of none
        found.pop("signal")
    return [name for name, said in found.items() if said == "it worked"]


@pytest.mark.thorough("landlock-/tmp")
@pytest.mark.parametrize("parent", ["/var/tmp", *COVERED])
def test_a_hostile_agent_reaches_nothing_but_the_gateway(place: Place, targets: dict[str, Any]) -> None:
    place.run(HOSTILE, targets)
    (found,) = place.told
    assert worked(found, place.kind) == []


OUTSIDE = """
import json, os, sys
from gspo_lightning.rewards.sandbox.agents import AgentSandbox
from gspo_lightning.rewards.sandbox.launch import Interpreter, Kind
from gspo_lightning.rewards.sandbox.limits import Limits
kind, file, told = json.load(sys.stdin)
told["pid"] = os.getpid()
limits = Limits(20, 2048, tasks=128)
box = AgentSandbox(Kind(kind), Interpreter.own(), [os.path.dirname(file)], limits, port=told["port"])
ended = box.run([sys.executable, file], {"HOME": box.folder}, box.folder, json.dumps(told))
box.close()
print(ended.stdout or ended)
"""


@pytest.mark.parametrize("parent", ["/var/tmp", "/tmp"])
@pytest.mark.parametrize("isolated", [True, False], ids=["sandbox", "limits only"])
def test_a_hostile_agent_of_an_ordinary_user_is_stopped_too(
    place: Place, targets: dict[str, Any], isolated: bool
) -> None:
    """Agent and trainer are then of one user. Without isolation, what it tries works."""
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    file = place.folder / "agent" / "agent.py"
    file.write_text(ASK + HOSTILE.replace("ask(found)", "print(json.dumps(found))"))
    file.chmod(0o644)
    package = Path(sys.modules["gspo_lightning"].__file__ or "").parents[1]
    for path in (place.folder, *place.folder.rglob("*")):
        os.chown(path, ORDINARY, ORDINARY)
    kind = place.kind if isolated else "unsafe"
    ran = subprocess.run(
        ["/usr/bin/python3", "-B", "-c", OUTSIDE],
        input=json.dumps([kind, str(file), targets | {"port": place.port}]),
        env={"PYTHONPATH": str(package)}, user=ORDINARY, group=ORDINARY, extra_groups=[], cwd="/", text=True,
        capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    found = worked(json.loads(ran.stdout), kind)
    if isolated:
        assert found == []
    else:
        assert {
            "read", "list", "read another's environment", "change itself", "write", "another port", "datagrams",
            "a socket file", "an abstract socket", "signal",
        } <= {*found}  # fmt: skip
        (place.folder / "secret").write_text("secret")


def _echo(udp: socket.socket) -> None:
    while (piece := udp.recvfrom(8))[0]:
        udp.sendto(*piece)


DAEMON = """
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                ask("alive")
                time.sleep(0.05)
        os._exit(0)
    os.wait()

daemon()
"""


def silent(place: Place) -> bool:
    """True if nothing of an agent is alive any more."""
    time.sleep(0.3)  # a request that was on its way
    before = len(place.told)
    time.sleep(0.5)
    return len(place.told) == before


def test_background_processes_end_with_their_agent(place: Place) -> None:
    place.run(DAEMON + "time.sleep(0.5)")
    assert "alive" in place.told
    assert silent(place)


@pytest.mark.thorough
def test_no_process_of_an_agent_outlives_its_deadline(place: Place) -> None:
    with pytest.raises(TimeoutError):
        place.run(
            "import threading\nthreading.Thread(target=lambda: None).start()" + DAEMON + "time.sleep(60)", deadline_s=2
        )
    assert "alive" in place.told
    assert silent(place)


@pytest.mark.thorough
def test_no_process_of_an_agent_outlives_a_killed_trainer(place: Place) -> None:
    place.agent(DAEMON + "time.sleep(60)")
    program = f"""
import asyncio
from gspo_lightning.rollouts.gateway.address import Address
from gspo_lightning.rollouts.agents import CommandAgent
async def work():
    command = [{PYTHON[place.kind]!r}, {str(place.folder / "agent" / "agent.py")!r}]
    agent = CommandAgent(command, isolation={place.kind!r})
    await agent.open()
    await agent.run({{}}, Address({place.address.base_url!r}, "k"))
asyncio.run(work())
"""
    trainer = subprocess.Popen([sys.executable, "-c", program])
    try:
        until = time.monotonic() + 240  # its imports take 10 s alone, and a minute on a busy machine
        while "alive" not in place.told and trainer.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert "alive" in place.told
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    assert silent(place)
    for folder in Path(tempfile.gettempdir()).glob(f"gspo-*-{trainer.pid}-*"):  # what a later run sweeps
        shutil.rmtree(folder)


@pytest.mark.thorough(
    "landlock-for _ in range(100): sys.stdout.write('x' * (1 << 20))-options0-printed more than 8 MiB",
    "landlock-while True: pass-options1-more than 1 s of CPU time",
    "landlock-while True:\\n    if os.fork() == 0: time.sleep(30)-options3-Error|processes",
)
@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("for _ in range(100): sys.stdout.write('x' * (1 << 20))", {}, "printed more than 8 MiB"),
        ("while True: pass", {"cpu_s": 1.0}, "more than 1 s of CPU time"),
        ("x = bytearray(400 << 20)\ntime.sleep(20)", {"memory_mb": 100}, "more than 100 MiB"),
        ("while True:\n    if os.fork() == 0: time.sleep(30)", {}, "Error|processes"),
        ("sys.exit('no idea')", {}, "exit code 1: no idea"),
        ("os.kill(os.getpid(), 9)", {}, "signal SIGKILL|exit code 137"),
        ("print(json.dumps({'reward': 1, 'parts': [2]}))", {}, r"parts is \[2\], which is no object of numbers"),
        ("print(json.dumps({'reward': 'high'}))", {}, "reward is 'high', which is no finite number"),
        ("print('{\"reward\": NaN}')", {}, "reward is nan, which is no finite number"),
    ],
)  # fmt: skip
def test_exceeded_limit_or_bad_output_is_the_agents_failure(
    place: Place, text: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((RuntimeError, ValueError), match=complaint) as error:
        place.run(text, **options)
    assert not isinstance(error.value, InfrastructureError)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("", None),
        ("print('{\"reward\": 1}')\nprint('later words')", None),
        ("print('{\"score\": 1}')", None),
        ("print('{\"reward\": ')", None),
        ("print('{\"reward\": -2}')\nprint('')", {"reward": -2}),
        ('print(\'{"reward": 1, "parts": {"steps": 2}}\')', {"reward": 1, "parts": {"steps": 2}}),
    ],
)
def test_only_the_last_line_is_a_reward(place: Place, text: str, reward: Outcome) -> None:
    assert place.run(text) == reward


@pytest.mark.thorough("landlock")
def test_rollouts_of_a_command_are_trained_on(place: Place) -> None:
    """Through the gateway itself."""
    agent = place.agent("""
record = json.load(sys.stdin)
talk = [{"role": "user", "content": record["prompt"]}]
first = ask({"messages": talk, "max_tokens": 6})["choices"][0]["message"]
second = ask({"messages": [*talk, first, {"role": "user", "content": "+1="}]})["choices"][0]["message"]
print(json.dumps({"reward": len(second["content"])}))
""")
    source = AgentRollouts(agent, deadline_s=60)
    prompts = [Prompt(i, "1+1=", (3, 4, 5)) for i in range(2)]
    policy = model_families.build_policy("qwen3", 0, 3.0)
    with closing(source):
        groups = source.generate(policy, prompts, group_size=2, sampling=SAMPLING, draws=DRAWS, version=1)
    rollouts = [rollout for group in groups for rollout in group]
    assert [r.lost for r in rollouts] == [""] * 4
    assert [len(r.turn_ends) for r in rollouts] == [2] * 4
    assert [sum(r.turn_rewards) for r in rollouts] == [len(r.messages[-1]["content"]) for r in rollouts]


@pytest.mark.parametrize("relative", [False, True])
def test_the_file_may_be_a_link_out_of_its_folder(place: Place, relative: bool) -> None:
    """The file that it leads to is shown, and nothing beside that."""
    (place.folder / "real").mkdir(mode=0o755)
    (place.folder / "real" / "secret").write_text("secret")
    real = place.folder / "real" / "agent.py"
    link = place.folder / "agent" / "agent.py"
    link.symlink_to("../real/second.py" if relative else real)
    (place.folder / "real" / "second.py").symlink_to("agent.py")
    place.agent(f"""
try:
    open({str(real.with_name("secret"))!r}).close()
    print(json.dumps({{"reward": 1}}))
except OSError:
    print(json.dumps({{"reward": 0}}))
""")
    assert real.is_file()
    agent = CommandAgent([PYTHON[place.kind], str(link)], isolation=place.kind)  # type: ignore[arg-type]

    async def work() -> Outcome:
        await agent.open()
        try:
            return await agent.run({"prompt": "x"}, place.address)
        finally:
            await agent.close()

    assert asyncio.run(work()) == {"reward": 0}


def test_an_agent_of_another_language_runs(place: Place) -> None:
    script = place.folder / "agent" / "agent.sh"
    script.write_text("#!/bin/sh\nread record\ncase $record in *prompt*) echo '{\"reward\": 0.5}';; esac\n")
    script.chmod(0o755)

    async def work() -> Outcome:
        agent = CommandAgent([str(script)], isolation=place.kind)  # type: ignore[arg-type]
        await agent.open()
        try:
            return await agent.run({"prompt": "x"}, place.address)
        finally:
            await agent.close()

    assert asyncio.run(work()) == {"reward": 0.5}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs agents as himself")


@needs_root
@pytest.mark.parametrize("name", ["agent", "agent/agent.py"])
def test_a_file_that_the_sandbox_cannot_read_is_named_before_the_first_rollout(place: Place, name: str) -> None:
    agent = place.agent("")
    closed = place.folder / name
    closed.chmod(0o700 if closed.is_dir() else 0o600)
    with pytest.raises(UserError, match=rf"names {closed}, which user 65534 \(nobody\) cannot read\n") as error:
        asyncio.run(agent.open())
    assert f"(chmod -R a+rX {closed})" in str(error.value)


@needs_root
@pytest.mark.parametrize("owner", [0, ORDINARY])
def test_the_folder_that_is_closed_is_named(place: Place, owner: int) -> None:
    """One of root keeps nothing from bubblewrap, as with model-written programs, but is closed to Landlock's user."""
    closed = place.folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "agent").mkdir(mode=0o755)
    os.chown(closed, owner, owner)
    inner = Place(place.kind, closed, place.port, place.told)
    if place.kind == "bubblewrap" and owner == 0:
        assert inner.run("print('{\"reward\": 1}')") == {"reward": 1}
        return
    with pytest.raises(
        UserError, match=f"a folder that .* may not enter: {closed}, on the way to {closed}/agent"
    ) as error:
        asyncio.run(inner.agent("").open())
    assert f"(chmod a+x {closed})" in str(error.value)
    assert ("install bubblewrap" in str(error.value)) == (place.kind == "landlock")


def test_an_older_landlock_is_refused_with_what_to_install(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = place.agent("")
    monkeypatch.setattr(landlock, "abi", lambda: 3)
    if place.kind == "landlock":
        with pytest.raises(UserError, match="cannot restrict connections to a port") as error:
            asyncio.run(agent.open())
        assert "install bubblewrap" in str(error.value)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ([], "is not a list of words"),
        (["no-such-program"], "no program here"),
        (["python", "/etc/hosts"], "would show all of /etc"),
        (["python", "/"], "would show all of /"),
        (["python", os.path.expanduser("~")], "would show all of"),
    ],
)
def test_commands_that_show_too_much_or_do_not_exist_are_refused(command: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        CommandAgent(command)
