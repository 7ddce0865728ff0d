"""Who is let in by a server: whoever has its key, which others on the machine and on the network do not see."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import pwd
import stat
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, VLLMServer
from gspo_lightning.rollouts.serving.endpoint import KEY, PrivateFolder, on_port, on_socket
from gspo_lightning.rollouts.vllm import inside
from gspo_lightning.rollouts.vllm.inside.gspo_require_key import RequireKey
from gspo_lightning.rollouts.vllm.local import GUARD, LocalVLLM
from tests.rollouts.toy_server import ToyServer

SECRET = "a-key-of-32-letters-or-so"
Sent = list[MutableMapping[str, Any]]


def asked(scope: dict[str, Any]) -> tuple[bool, Sent]:
    """Whether a request came through to the application, and what was sent without it."""
    reached, sent = [], []

    async def app(*_: Any) -> None:
        reached.append(True)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(RequireKey(app)(scope, None, send))  # type: ignore[arg-type]
    return bool(reached), sent


GOOD = (b"authorization", f"Bearer {SECRET}".encode())
STRANGERS: dict[str, list[tuple[bytes, bytes]]] = {
    "no key": [],
    "another key": [(b"authorization", b"Bearer another")],
    "its beginning": [(b"authorization", GOOD[1][:-1])],
    "more than it": [(b"authorization", GOOD[1] + b"x")],
    "another scheme": [(b"authorization", f"Basic {SECRET}".encode())],
    "an empty one": [(b"authorization", b"Bearer ")],
    "two of them": [(b"authorization", b"Bearer another"), GOOD],
    "bytes that are no text": [(b"authorization", b"Bearer \xff\xfe")],
    "elsewhere": [(b"x-api-key", SECRET.encode())],
}


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_request_without_the_key_gets_401_and_reaches_nothing(
    monkeypatch: pytest.MonkeyPatch, who: str, method: str
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    scope = {"type": "http", "method": method, "path": "/collective_rpc", "headers": STRANGERS[who]}
    reached, (start, body) = asked(scope)
    assert (reached, start["status"], json.loads(body["body"])) == (False, 401, {"error": "Unauthorized"})


def test_requests_with_the_key_and_the_servers_own_events_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    assert asked({"type": "http", "path": "/health", "headers": [GOOD]}) == (True, [])
    assert asked({"type": "lifespan"}) == (True, [])
    assert asked({"type": "websocket", "path": "/v1/realtime", "headers": [GOOD]}) == (True, [])
    reached, (close,) = asked({"type": "websocket", "path": "/v1/realtime", "headers": []})
    assert (reached, close["type"]) == (False, "websocket.close")


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_nothing_is_served(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv(KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY, key)
    with pytest.raises(RuntimeError, match=f"{KEY} is not set"):
        RequireKey(lambda *_: None)  # type: ignore[arg-type, return-value]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that writes down with what it was started."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\necho "$@" > {tmp_path}/line.new\n')
    with script.open("a") as file:
        file.write(f"mv {tmp_path}/line.new {tmp_path}/line\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("where", ["socket", "port"])
def test_a_server_gets_its_key_where_ps_does_not_show_it(tmp_path: Path, python: str, where: str) -> None:
    private = PrivateFolder()
    with closing(private):
        folder = private.make()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        endpoint = on_socket(folder, 0) if where == "socket" else on_port("127.0.0.1")
        assert endpoint.key
        assert len(endpoint.key) >= 40
        assert endpoint.key not in repr(endpoint)
        local = LocalVLLM(python, None, None, {}, {"PYTHONPATH": "/theirs"})
        process = local.start(tmp_path, endpoint, folder, number=0, device="cpu", dtype="float32")
        process.process.wait(60)
        process.discard()
        line = (tmp_path / "line").read_text().split()
        environment = dict(
            row.split("=", 1) for row in (tmp_path / "environment").read_text().splitlines() if "=" in row
        )
    assert endpoint.key not in " ".join(line)
    assert environment[KEY] == endpoint.key
    assert environment["PYTHONPATH"] == f"{inside.__path__[0]}:/theirs"
    assert environment["VLLM_RPC_BASE_PATH"] == str(folder)
    assert line[-2:] == ["--middleware", GUARD]
    if where == "socket":
        assert line[line.index("--uds") + 1] == str(folder / "0.sock")
        assert "--port" not in line
    else:
        assert endpoint.url == f"http://127.0.0.1:{line[line.index('--port') + 1]}"
    assert not folder.exists()


def test_the_servers_interpreter_finds_the_guard_without_this_package() -> None:
    module, name = GUARD.rsplit(".", 1)
    code = f"import sys; from {module} import {name}; print([m for m in sys.modules if 'gspo_lightning' in m])"
    line = [sys.executable, "-S", "-P", "-c", code]  # no site-packages, no working directory
    found = subprocess.run(line, env={"PYTHONPATH": inside.__path__[0]}, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert importlib.util.find_spec(module) is None  # and here it has its own place


def test_rollouts_come_through_a_socket_with_the_key_and_not_without(
    policy: Policy, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that the user has started, whose key is in the environment."""
    with closing(PrivateFolder()) as private, ToyServer(path=str(private.make() / "0.sock"), key=SECRET) as toy:
        for wrong in (None, "another"):
            monkeypatch.setenv(KEY, wrong) if wrong else monkeypatch.delenv(KEY, raising=False)
            with closing(VLLMServer([toy.url])) as source, pytest.raises(UserError, match=f"another key .* set {KEY}"):
                source.open(64)
        assert toy.refused == 2
        monkeypatch.setenv(KEY, SECRET)
        with closing(VLLMServer([toy.url])) as source:
            source.open(64)
            source.sync_weights(policy, 0)
            draws, sampling = Draws(3), SamplingParams(8)
            groups = source.generate(policy, prompts, group_size=2, sampling=sampling, draws=draws)
            assert [len(group) for group in groups] == [2] * len(prompts)
        assert toy.refused == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can try it as somebody else")
def test_another_user_of_the_machine_does_not_reach_the_socket() -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with closing(PrivateFolder()) as private:
        path = private.make() / "0.sock"
        with ToyServer(path=str(path)):
            path.chmod(0o777)  # the folder is what keeps others out
            line = ["/usr/bin/env", "python3", "-c", code, str(path)]
            assert subprocess.run(line, check=False, cwd="/").returncode == 0
            other = subprocess.run(line, check=False, user=nobody, cwd="/", capture_output=True, text=True)
    assert "PermissionError" in other.stderr


def test_a_long_temporary_folder_does_not_make_the_path_of_a_socket_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 90)))
    with closing(PrivateFolder()) as private, ToyServer(path=str(private.make() / "0.sock")):
        assert stat.S_IMODE(private.make().stat().st_mode) == 0o700


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "plain http": ({"urls": ["http://node5:8000"]}, "would get the key of VLLM_API_KEY unencrypted"),
    "an address": ({"urls": ["http://10.0.0.7:8000/v1"]}, "would get the key of VLLM_API_KEY unencrypted"),
    "looks local": ({"urls": ["http://127.0.0.1.example.org"]}, "would get the key of VLLM_API_KEY unencrypted"),
    "no address": ({"urls": ["http://[::1"]}, "'http://[::1' is not a URL"),
    "no host": ({"urls": ["http://"]}, "'http://' is not a URL"),
    "a password": ({"urls": ["https://me:secret@node5"]}, "the URL of node5 holds a password"),
    "host": ({"host": "0.0.0.0"}, "anyone who can read that network would see the key"),
    "key as option": ({"options": {"api_key": "k"}}, "names api_key"),
    "written otherwise": ({"options": {"api-key": "k"}}, "names api-key"),
    "socket as option": ({"options": {"uds": "/tmp/x"}}, "names uds"),
    "host as option": ({"options": {"host": "0.0.0.0"}}, "names host"),
    "key in the config": ({"environment": {KEY: "k"}}, f"names {KEY}, and a run saves its config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_would_leak_the_server_key_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(KEY, SECRET)
    settings, complaint = REFUSED[name]
    with pytest.raises(UserError) as error:
        VLLMServer(**settings)
    assert complaint in str(error.value)
    assert "secret" not in str(error.value)
    assert SECRET not in str(error.value)


def test_neither_a_redirect_nor_a_proxy_gets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(307 if self.server is first else 200)
            self.send_header("Location", f"http://127.0.0.1:{second.server_address[1]}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    first, second = (ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) for _ in range(2))
    with first, second:
        for server in (first, second):
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{second.server_address[1]}")
        url = f"http://127.0.0.1:{first.server_address[1]}"
        with closing(VLLMServer([url])) as source, pytest.raises(UserError, match="status 307"):
            source.open(64)
        first.shutdown()
        second.shutdown()
    assert seen == [f"Bearer {SECRET}"]


def test_other_hosts_are_asked_over_https_without_a_key_or_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    VLLMServer(["https://node5:8000", "http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1", "unix:/run/x"])
    VLLMServer(["http://node5:8000"], plain_http=True)
    VLLMServer(host="0.0.0.0", plain_http=True)
    monkeypatch.delenv(KEY)
    VLLMServer(["http://node5:8000"])
