"""What servers are sent: neutral sampling, what they still decide, and thoughts that their templates open."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.inspect.provider import Remote
from gspo_lightning.commands.inspect.request import Request
from gspo_lightning.core.neutral_sampling import NEUTRAL
from gspo_lightning.rewards import LLMJudge, Sample
from tests.support.loopback import LoopbackServer

Body = dict[str, Any]
SUITE = """\
about: sums
reward: {class_path: MathVerifier, init_args: {answer_type: integer}}
columns: {id: id, prompt: q, answer: a}
samples: 1
sampling: {max_response_tokens: 8, temperature: 0.5, top_p: 0.9}
metrics: [avg]
data: sums.jsonl
"""


@dataclass
class ChatServer(LoopbackServer):
    """Answers every chat with the same message and writes down what it was asked."""

    owner: str = "vllm"
    refuses: tuple[str, ...] = ()
    """Fields that it does not know, one named in each refusal, as OpenAI's own server does."""
    prompt_end: str | None = None
    """End of what ``/detokenize`` gives back; None: no such route."""
    message: Body = field(default_factory=lambda: {"content": r"\boxed{4}"})
    asked: list[Body] = field(default_factory=list)

    def reply(self, path: str, body: Body) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": self.owner}]}
        if path == "/health":
            return 200, {}
        if path == "/tokenize" and self.prompt_end is not None:
            return 200, {"tokens": [5, 6, 7]}
        if path == "/detokenize" and self.prompt_end is not None:
            return 200, {"prompt": self.prompt_end}
        if path != "/v1/chat/completions":
            return 404, {"error": path}
        self.asked.append(body)
        if unknown := [name for name in self.refuses if name in body]:
            return 400, {"error": {"message": f"Unrecognized request argument supplied: {unknown[0]}"}}
        return 200, {"choices": [{"message": self.message, "finish_reason": "length"}], "usage": {}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: Body) -> None:
                status, found = served.reply(self.path, body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "sums.jsonl").write_text('{"id": "1", "q": "2+2?", "a": "4"}\n{"id": "2", "q": "1+3?", "a": "4"}\n')
    (tmp_path / "sums.yaml").write_text(SUITE)
    return tmp_path / "sums.yaml"


def evaluated(server: ChatServer, suite: Path, output: Path) -> dict[str, Any]:
    words = [f"--suite={suite}", f"--data={suite.parent}", f"--output={output}", "--workers=1"]
    assert main(["evaluate", *words, f"--server={server.url}"]) == 0
    found: dict[str, Any] = json.loads((output / "results.json").read_text())
    return found


def test_every_field_of_sampling_is_sent_and_what_the_server_decides_is_named(suite: Path, tmp_path: Path) -> None:
    with ChatServer() as server:
        run = evaluated(server, suite, tmp_path / "out")["run"]
    assert len(server.asked) == 3  # one to see what it takes
    for body in server.asked[1:]:
        assert {name: body[name] for name in NEUTRAL} == NEUTRAL | {"top_p": 0.9}
        assert body["temperature"] == 0.5
    assert run["answers"] == {
        "served": "m", "engine": "vllm", "neutral": NEUTRAL, "server_decides": ["chat template", "end tokens"],
        "server_may_ignore": [], "thought_opened_by_template": None,
    }  # fmt: skip


def test_a_key_in_a_suite_is_not_written_into_results(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-proj-0123456789abcdefghij"
    suite.write_text(SUITE.replace("answer_type: integer", f"answer_type: {key}"))
    words = [f"--suite={suite}", f"--data={suite.parent}", f"--output={tmp_path / 'out'}", "--workers=1"]
    assert main(["evaluate", *words, "--server=http://127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert "reward.init_args.answer_type: holds a password or a key" in said
    assert key not in said


def test_half_a_character_of_a_problem_is_escaped(suite: Path, tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text('{"id": "1", "q": "2+2 \\ud83d", "a": "4"}\n')
    with ChatServer(message={"content": "\ud83d \\boxed{4}"}) as server:
        evaluated(server, suite, tmp_path / "out")
    assert server.asked[-1]["messages"][-1]["content"].endswith("2+2 \\ud83d")


def test_fields_that_a_server_refuses_are_left_out_and_named(suite: Path, tmp_path: Path) -> None:
    with ChatServer(owner="someone", refuses=("top_k", "min_p")) as server:
        answers = evaluated(server, suite, tmp_path / "out")["run"]["answers"]
    assert answers["server_decides"] == ["chat template", "end tokens", "min_p", "top_k"]
    assert answers["server_may_ignore"] == ["repetition_penalty"]
    assert all("top_k" not in body and "min_p" not in body for body in server.asked[3:])


def test_a_value_that_the_suite_asks_for_is_not_left_out(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.write_text(SUITE.replace("top_p: 0.9", "top_p: 0.9, top_k: 20"))
    words = [f"--suite={suite}", f"--data={suite.parent}", f"--output={tmp_path / 'out'}", "--workers=1"]
    with ChatServer(refuses=("top_k",)) as server:
        assert main(["evaluate", *words, f"--server={server.url}"]) == 2
    assert "top_k" in capsys.readouterr().err


def test_a_comparison_says_where_sampling_differs(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServer() as server, ChatServer(owner="x", refuses=("top_k",)) as other:
        evaluated(server, suite, tmp_path / "a")
        evaluated(other, suite, tmp_path / "b")
        suite.write_text(SUITE.replace("temperature: 0.5", "temperature: 0.0"))
        evaluated(server, suite, tmp_path / "c")
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    for name in [name for name in results["run"]["answers"] if name != "served"]:
        del results["run"]["answers"][name]
    assert main(["evaluate", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'b'}: the server decided, or may have, top_k, min_p, repetition_penalty" in said
    assert f"{tmp_path / 'a'}: the server" not in said
    assert main(["evaluate", "--compare", str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    assert "sampled with different settings: temperature 0.5 and 0.0" in capsys.readouterr().out
    (tmp_path / "a" / "results.json").write_text(json.dumps(results))  # as an older version wrote it
    assert main(["evaluate", "--compare", str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    assert "the server may have set top_k, min_p and penalties" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompt_end", "message", "right"),
    [
        ("<think>\n", {"content": r"so \boxed{4}"}, 0.0),
        ("<think>\n", {"content": r"so</think>\boxed{4}"}, 1.0),
        ("<think>\n", {"content": r"\boxed{4}", "reasoning": "so"}, 1.0),  # a server with a reasoning parser
        ("assistant\n", {"content": r"so \boxed{4}"}, 1.0),
    ],
)
def test_a_cut_thought_that_the_servers_template_opened_is_no_answer(
    prompt_end: str, message: Body, right: float, suite: Path, tmp_path: Path
) -> None:
    with ChatServer(prompt_end=prompt_end, message=message) as server:
        found = evaluated(server, suite, tmp_path / "out")
    assert found["sums"]["avg@1"]["value"] == right
    assert found["run"]["answers"]["thought_opened_by_template"] == prompt_end.startswith("<think>")


def judge(url: str, **options: Any) -> LLMJudge:
    return LLMJudge(url, "m", {"right": "Is it?"}, response_format="text", retries=0, timeout_s=5, **options)


def test_a_judge_is_asked_with_neutral_sampling_or_what_options_say() -> None:
    with ChatServer(refuses=("min_p",)) as server:
        judge(server.url, options={"top_p": 0.5, "presence_penalty": None}).score_batch([Sample("0", "q", "4")])
    first, second = server.asked
    wanted = {**NEUTRAL, "top_p": 0.5}
    del wanted["presence_penalty"]
    assert {name: first[name] for name in NEUTRAL if name in first} == wanted
    assert first["temperature"] == 0.0
    del wanted["min_p"]
    assert {name: second[name] for name in NEUTRAL if name in second} == wanted


def test_inspect_sends_neutral_sampling_and_shows_scorers_an_open_thought() -> None:
    with ChatServer(prompt_end="<think>\n") as server:
        remote = Remote(server.url)
        try:
            told = remote.ask(Request((("user", "2+2?"),), None, None, None, 8, (), 0, 1, False)).result(timeout=30)
        finally:
            remote.close()
    assert {name: server.asked[-1][name] for name in NEUTRAL} == NEUTRAL
    assert server.asked[-1]["temperature"] == 1.0
    assert [choice.text for choice in told.choices] == ["<think>\n\\boxed{4}"]
