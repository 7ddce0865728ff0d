"""Files of a run that are damaged, foreign, read-only or on a full disk: the page says so, and changes nothing else."""

from __future__ import annotations

import http.cookiejar
import json
import os
import resource
import sqlite3
import stat
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.report.tokens import TOKENS
from gspo_lightning.report.view.index import INDEX
from gspo_lightning.report.view.run_data import RunData
from gspo_lightning.report.view.server import answer
from tests.report.view.made import make_run, row
from tests.report.view.serving import served

ODD = (
    "1e400", "-1e400", "1" + "0" * 400, "1" + "0" * 30, "null", "true", '"x"', "[]", "{}", "[1e400]", "[[]]", "[{}]",
    '{"a": 1e400}', r'"\ud800"', "-1", "0.5", "NaN", "[null]", '{"a": []}',
)  # fmt: skip
RECORDED = {
    "id": "1/0", "prompt": "p", "completion": "c", "response_mask": [True], "finish_reason": "stop", "iteration": 0,
    "reward": 1.0, "reward_parts": {"a": 1.0}, "reward_statuses": {"a": "ok"}, "reward_extra": {}, "reward_logged": {},
    "messages": [{"role": "user", "content": "x"}], "turn_rewards": [1.0], "tree": [1], "pictures": ["0" * 64],
    "lost": "", "source": "s", "answer": "1",
}  # fmt: skip
ANSWER = {"update": 1, "id": 1, "prompt": "p", "answer": "1", "completion": "c", "reward": 1.0, "pictures": ["0" * 64]}
RESUME = {"update": 2, "changes": ["a: 1 -> 2"]}
ALARM = {"signature": "kl", "since": 1, "update": 2, "what": "x", "action": "warn", "advice": "y", "dump": None}
SUMMARY = {"objective": "GSPO", "model": "m", "updates": 40, "seed": 1, "versions": {}, "machine": {}, "seconds": 1.0}
ASKED: list[tuple[str, dict[str, str]]] = [
    ("overview", {}), ("series", {"tags": "reward/mean"}), ("rollouts", {}), ("rows", {}), ("answers", {}),
    ("prompts", {}), ("prompt", {"prompt_id": "1"}), ("ratios", {}),
]  # fmt: skip


def lines_of(plain: dict[str, Any]) -> Iterator[str]:
    """The row with each of its fields in each odd form, and each odd form alone."""
    yield from ODD
    yield from ('{"half a line', "\x00\x00", "[" * 5000)
    for name in plain:
        for odd in ODD:
            yield json.dumps(plain | {name: "@"}).replace('"@"', odd)


def look(folder: Path) -> dict[str, Any]:
    """Everything that a browser may ask for; returns the overview."""
    run = RunData(folder)
    try:
        run.refresh()
        found = {what: json.dumps(answer(run, what, query), allow_nan=False) for what, query in ASKED}
        overview: dict[str, Any] = json.loads(found["overview"])
        return overview
    finally:
        run.index.close()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (TOKENS, row(2)),
        ("rollouts/000000.jsonl", RECORDED),
        ("held_out_answers.jsonl", ANSWER),
        ("resumes.jsonl", RESUME),
    ],
)
def test_a_damaged_line_is_skipped_counted_and_named(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [row(0), row(1)], answers=[ANSWER])
    (run / name).parent.mkdir(exist_ok=True)
    with open(run / name, "a") as file:
        file.writelines(line + "\n" for line in lines_of(plain))
    problems = look(run)["problems"]
    if name != "resumes.jsonl":
        (said,) = [text for text in problems if "damaged lines" in text]
        first = {TOKENS: 3, "rollouts/000000.jsonl": 1, "held_out_answers.jsonl": 2}[name]  # behind the whole ones
        assert f"{name}: line {first}, {first + 1}, " in said
        assert int(said.split()[0]) >= len(ODD) + 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "plain"), [("alarms.json", ALARM), ("summary.json", SUMMARY), ("config.yaml", {"model": {}, "data": {}})]
)
def test_a_damaged_file_is_named(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [row(0)])
    for text in lines_of(plain):
        (run / name).write_text(f"[{text}]" if name == "alarms.json" else text)
        look(run)
    (run / name).write_text('[{"signature": "kl", "since": 1e400, "update": 1}]' if name == "alarms.json" else '{"')
    assert any(text.startswith(f"{name} is damaged") for text in look(run)["problems"])


def test_infinite_values_of_an_alarm_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [row(0)])
    (run / "alarms.json").write_text(json.dumps([ALARM | {"what": "the norm is inf", "value": float("inf")}]))
    overview = look(run)
    assert overview["alarms"][0]["what"] == "the norm is inf"
    assert overview["alarms"][0]["value"] is None


def test_an_index_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """By a symbolic or hard link, a pipe, or as a database of another program."""
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE mine (x)")
    base.close()
    content = other.read_bytes()
    for number, put in enumerate((os.symlink, os.link, lambda _, place: os.mkfifo(place))):
        run = make_run(tmp_path / f"run{number}", [row(0), row(1)])
        put(other, run / INDEX)
        assert look(run)["facts"]["rollouts"] == 2
        assert os.path.lexists(run / INDEX)
        assert other.read_bytes() == content
    run = make_run(tmp_path / "dangling", [row(0)])
    (run / INDEX).symlink_to(tmp_path / "new.sqlite")
    assert look(run)["facts"]["rollouts"] == 1
    assert not (tmp_path / "new.sqlite").exists()


def test_pipes_among_the_files_are_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [row(0)])
    (run / "rollouts").mkdir()
    for name in ("rollouts/000000.jsonl", "events.out.tfevents.1.x", "resumes.jsonl", "alarms.json"):
        os.mkfifo(run / name)
    assert look(run)["facts"]["rollouts"] == 1
    (run / "scalars.jsonl").unlink()
    assert any("which is no file" in text for text in look(run)["problems"])


def left() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))


def test_an_index_elsewhere_leaves_nothing_and_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", [row(i) for i in range(3)])
    (run / INDEX).mkdir()  # the name is taken: to root, a read-only folder is writable
    own = tmp_path / "tmp"
    own.mkdir()
    for name in ("TMPDIR", "SQLITE_TMPDIR"):
        monkeypatch.setenv(name, str(own))
    data = RunData(run)
    data.refresh()
    assert data.index.facts()["rollouts"] == 3
    assert os.listdir(own) == []  # also while it is open: a kill leaves nothing
    data.index.close()


def test_the_page_as_a_file_is_private_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = make_run(tmp_path / "run", [row(0)]), tmp_path / "page.html"
    modes, opened = [], os.open

    def seen(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = opened(path, flags, mode, **more)
        if "page.html" in str(path):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", seen)
    assert main(["view", str(run), "--output", str(out)]) == 0
    assert modes == [0o600]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    before = out.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # as a full disk
    try:
        assert main(["view", str(run), "--output", str(out)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "--output: " in (said := capsys.readouterr().err)
    assert "Traceback" not in said
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["page.html", "run"]


@pytest.mark.thorough
def test_an_index_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", [row(i, completion="x" * 20_000) for i in range(4000)])
    data = RunData(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InfrastructureError, match="the index of recorded responses cannot be written"):
            data.refresh()
        assert "the index" in answer(data, "overview", {})["problems"][-1]
        assert not (run / INDEX).exists()
        assert answer(data, "series", {"tags": "reward/mean"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        data.index.close()


def test_two_viewers_with_tokens_keep_each_others_browser(tmp_path: Path) -> None:
    """Browsers send cookies of a host to all its ports."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    runs = [make_run(tmp_path / name, [row(0)]) for name in ("a", "b", "c")]
    with served([runs[0]], token="one") as one, served([runs[1]], token="two") as two:
        for address in (one, two, one, two):
            assert browser.open(address).status == 200
        for address in (one, two):
            assert browser.open(address.partition("?")[0] + "api/runs").status == 200


def test_nothing_but_curves_is_read_before_the_page_is_drawn(tmp_path: Path) -> None:
    """Less than 10 MB of a run with 35 MB of recorded responses, whether they are in an index or not."""
    run = make_run(tmp_path / "run", [row(i // 4, sample=i % 4, completion="x" * 4000) for i in range(8000)])
    for opened in ("without an index", "with one"):
        before = _read()
        data = RunData(run)
        answer(data, "overview", {})
        assert _read() - before < 10_000_000, opened
        data.refresh()
        data.index.close()


def _read() -> int:
    """Bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])
