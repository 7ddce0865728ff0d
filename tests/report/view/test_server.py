"""The server: what it answers, and to whom; and the page as one file."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.tokens import TOKENS
from gspo_lightning.report.view.index import INDEX
from gspo_lightning.report.view.page import SCRIPTS
from tests.report.view.made import make_run, row
from tests.report.view.serving import served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "secret.txt").write_text("secret")
    return make_run(root / "run", [row(i, sample=k, reward=float(k % 2)) for i in range(3) for k in range(4)])


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served([folder]) as found:
        yield found


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def data(address: str, path: str) -> Any:
    status, _, body = get(address, path)
    assert status == 200, body
    return json.loads(body)


def test_every_answer_forbids_what_the_page_does_not_need(address: str) -> None:
    for path in ("/", "/app.js", "/style.css", "/api/runs", "/none", "/api/run/9/overview"):
        _, headers, _ = get(address, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_view_server_answers_with_the_data_of_the_run(address: str, folder: Path) -> None:
    (overview,) = data(address, "/api/runs")
    assert (overview["updates"], overview["facts"]["rollouts"]) == (40, 12)
    assert data(address, "/api/run/0/rollouts?sort=reward&offset=2")["total"] == 12
    rows = data(address, "/api/run/0/rows?iteration=2&prompt_id=1")["rows"]
    assert [r["sample"] for r in rows] == [0, 1, 2, 3]
    assert rows[0]["tokens"]["text"] == ["a", "b", "c"]
    assert data(address, "/api/run/0/series?tags=reward/mean,none") == {"reward/mean": [list(range(1, 41)), [0.5] * 40]}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../secret.txt", 404), ("/%2e%2e/secret.txt", 404), ("/..%2fsecret.txt", 404), ("/secret.txt", 404),
        ("/api/run/0/../../../secret.txt", 404), ("/api/run/1/overview", 404), ("/api/run/-1/overview", 404),
        ("/api/run/0/__class__", 404), ("/api/run/0/refresh", 404), ("/api/run/0/rollouts?offset=x", 400),
        ("/api/run/0/rollouts?iteration=" + "9" * 400, 400), ("/api/run/0/prompt", 400),
        ("/api/run/0/picture/" + "a" * 64, 404), ("/api/run/0/picture/..%2f..%2fsecret.txt", 404),
        (f"/{TOKENS}", 404), ("/server.py", 404),
        ("/app.js/../../secret.txt", 404),
    ],
)  # fmt: skip
def test_nothing_outside_of_the_page_is_served(address: str, path: str, status: int) -> None:
    found, _, body = get(address, path)
    assert (found, "secret" in body) == (status, False)


def test_view_server_refuses_writes_and_changes_no_file(address: str, folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != INDEX}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(address, "/api/runs", method)[0] == 405
    data(address, "/api/runs")
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != INDEX} == before


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1"])
def test_a_page_of_elsewhere_reads_nothing(address: str, host: str) -> None:
    """Its name may be made to point to this machine."""
    assert get(address, "/api/runs", Host=host)[0] == 403


def test_a_token_is_asked_for_once(folder: Path) -> None:
    with served([folder], token="a word") as address:
        assert address.endswith("/?token=a word")
        for path, headers in (("/", {}), ("/api/runs?token=wrong", {}), ("/api/runs", {"Cookie": "gspo_view=x"})):
            assert get(address, path, **headers)[0] == 403
        status, headers, _ = get(address, "/?token=a%20word", Host="example.org")
        cookie = headers["Set-Cookie"]
        assert (status, "HttpOnly" in cookie, "SameSite=Strict" in cookie) == (200, True, True)
        assert get(address, "/api/runs", Cookie=cookie.split(";")[0])[0] == 200


def test_other_machines_need_a_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(folder), "--host=0.0.0.0", "--port=0"]) == 2
    said = capsys.readouterr().err
    assert "--host: 0.0.0.0 can be reached from other machines" in said
    assert "set --token" in said


def test_a_taken_port_is_one_message(folder: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(folder), f"--port={urlsplit(address).port}"]) == 2
    assert "--port: 127.0.0.1" in capsys.readouterr().err


def test_one_file_runs_nothing_but_its_own_script(tmp_path: Path) -> None:
    text = "</script><script>alert(1)</script><!-- \u2028 &lt;"
    folder = make_run(tmp_path / "run", [row(0, prompt=text, completion=text)])
    out = tmp_path / "run.html"
    assert main(["view", str(folder), f"--output={out}"]) == 0
    html = out.read_text()
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts}
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert len(scripts) == len(SCRIPTS)
    assert hashes == set(re.findall(r"'sha256-[^']*'", policy.split("style-src")[0]))
    assert "unsafe" not in policy
    assert "alert(1)</script>" not in html
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(inside)[0]["rows"][0]["prompt"] == text
    assert not re.findall(
        r"(?:src|href)=\"(?!#|data:,)[^\"]*\"", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    )
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_one_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(folder), f"--output={folder / 'none' / 'run.html'}"]) == 2
    assert "--output:" in capsys.readouterr().err
