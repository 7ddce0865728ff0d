"""Answers of a chat server in every form, and a server that gives none."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gspo_lightning.cli import main
from gspo_lightning.rollouts.serving.answers import Answer, BadReplyError, checked
from gspo_lightning.rollouts.serving.chat_requests import ChatAnswer, ChatRequests
from gspo_lightning.rollouts.serving.client import ServerError
from gspo_lightning.rollouts.serving.request_monitor import RequestMonitor

SUITE = """\
about: sums
reward: {class_path: ExactMatch}
columns: {id: id, prompt: q, answer: a}
samples: 1
sampling: {max_response_tokens: 8}
metrics: [avg]
data: sums.jsonl
"""


class Stub:
    """In the place of a client."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def chat(self, body: dict[str, Any]) -> Any:
        return self.reply


def spoken(content: Any, usage: Any = None) -> tuple[list[ChatAnswer], dict[str, Any]]:
    reply = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "usage": usage}
    return asyncio.run(ChatRequests(Stub(reply), "m").ask([{"role": "user", "content": "q"}], {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("4", "4"),
        (None, ""),
        ([{"type": "text", "text": "4"}], "4"),
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
    ],
)
def test_chat_answer_text_is_read_from_every_content_form(content: Any, text: str) -> None:
    assert spoken(content)[0] == [ChatAnswer(text, False)]


@pytest.mark.parametrize("content", [4, 4.5, True, {"text": "4"}, [], ["4"], [{"type": "image"}], [{"text": 4}]])
def test_an_answer_that_is_no_text_is_the_servers_fault(content: Any) -> None:
    with pytest.raises(ServerError, match="it sent no answer"):
        spoken(content)


def test_counts_that_are_none_are_left_out() -> None:
    counts = {"completion_tokens": 3, "prompt_tokens": "7", "a": 10**400, "b": -1, "c": [1], "d": True}
    assert spoken("4", counts)[1] == {"completion_tokens": 3}


@pytest.mark.parametrize("value", [-(10**400), 10**400, float("nan"), "-1", None, True])
def test_a_logprob_that_is_none_is_the_servers_fault(value: Any) -> None:
    asked = {"max_tokens": 1, "stop_token_ids": [1], "stop": []}
    with pytest.raises(BadReplyError, match="its log-probabilities are none"):
        checked(Answer([1], [value]), "stop", asked, 2)


class Server(BaseHTTPRequestHandler):
    """Names its model, unless it is deaf, and answers one question in ``form``; none while ``held`` is not set."""

    form: ClassVar[Any] = "4"
    held: ClassVar[threading.Event] = threading.Event()
    deaf: ClassVar[bool] = False
    asked: ClassVar[int] = 0

    def do_GET(self) -> None:
        if Server.deaf and Server.asked:
            Server.held.wait(30)
        self._send({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        Server.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        Server.held.wait(30)
        self._send({"choices": [{"message": {"content": Server.form}, "finish_reason": "stop"}]})

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, content: Any) -> None:
        body = json.dumps(content).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # nobody waits any more
            self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("form", "4"), ("held", threading.Event()), ("deaf", False), ("asked", 0)):
        monkeypatch.setattr(Server, name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        Server.held.set()
        serving.shutdown()
        thread.join()


def evaluate(server: str, folder: Path, code: int) -> None:
    (folder / "sums.yaml").write_text(SUITE.replace("sums.jsonl", str(folder / "sums.jsonl")))
    (folder / "sums.jsonl").write_text('{"id": "1", "q": "2+2", "a": "4"}\n')
    argv = ["--suite", str(folder / "sums.yaml"), "--server", server, "--output", str(folder / "out"), "--workers=1"]
    assert main(["evaluate", *argv]) == code


@pytest.mark.parametrize("form", [[{"type": "text", "text": "2+2#4"}], 4, {"a": 4}])
def test_an_evaluation_takes_parts_and_names_what_is_no_text(
    form: Any, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gspo_lightning.commands.evaluate.served._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(Server, "form", form)
    Server.held.set()
    evaluate(server, tmp_path, 0 if isinstance(form, list) else 1)
    error = capsys.readouterr().err
    assert "did not expect" not in error
    assert isinstance(form, list) or "does not answer any more: it sent no answer" in error
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert not isinstance(form, list) or results["sums"]["avg@1"]["value"] == 1.0


def test_a_server_that_hangs_is_said_long_before_its_deadline(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert RequestMonitor.QUIET_S == 60.0
    monkeypatch.setattr(RequestMonitor, "QUIET_S", 0.05)
    waits = Server.held.wait

    def until_said(timeout: float | None = None) -> bool:
        while not any("answered none of 1 requests" in record.getMessage() for record in caplog.records):
            waits(0.01)
        return True

    monkeypatch.setattr(Server.held, "wait", until_said)
    evaluate(server, tmp_path, 0)  # it was only slow
    assert "it names its model, so it may be busy" in caplog.text


def test_a_server_that_does_nothing_any_more_is_given_up(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(RequestMonitor, "QUIET_S", 0.05)
    monkeypatch.setattr("gspo_lightning.commands.evaluate.served._HEALTH_S", 0.2)
    monkeypatch.setattr(Server, "deaf", True)
    with caplog.at_level(logging.WARNING):
        evaluate(server, tmp_path, 1)
    assert "it does not name its model either: GET /v1/models took more than 0.2 s" in caplog.text
    assert "does not answer any more: nothing for" in capsys.readouterr().err
