"""Many runs in a browser: the list with its verdicts, two runs on the same prompts; and responses saved as a file."""

from __future__ import annotations

import csv
import io
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from tests.report.view.browser import Browser, browser, needs_browser
from tests.report.view.looking import axe, pale
from tests.report.view.made import make_run, row
from tests.report.view.serving import served

pytestmark = [needs_browser, pytest.mark.thorough]
CELLS = "return [...document.querySelectorAll(`tbody tr td:nth-child(${arguments[0]})`)].map((e) => e.innerText)"
SAVED = """
const blobs = [], make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blobs.push(blob); return make(blob); };
document.getElementById("csv").click();
while (!blobs.length) await new Promise((r) => setTimeout(r, 50));
URL.createObjectURL = make;
return blobs[0].text();
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def answer(number: int, text: str, reward: float, update: int = 40) -> dict[str, Any]:
    return {
        "update": update, "id": number, "prompt": f"question {number}", "answer": "1", "completion": text,
        "reward": reward, "tokens": 3, "finish": "stop",
    }  # fmt: skip


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Three runs: the newest rises, one falls, and one was cut off; the first two answered the same prompts."""
    folder = tmp_path / "runs"
    tokens = {"log_ratio": [0.1] * 4, "entropy": [0.1] * 4}
    shared = row(3, prompt_id=7, prompt="shared", completion="a b c d", tokens={"text": list("abcd"), **tokens})
    up = make_run(
        folder / "up" / "version_0", [row(0), shared], scalars={"reward/mean": [i / 40 for i in range(40)]},
        answers=[answer(0, "so it is 7", 1.0), answer(1, "the same", 1.0), answer(2, "so it is 9", 1.0)],
        config={"seed_everything": 1},
    )  # fmt: skip
    down = make_run(
        folder / "down" / "version_0",
        [shared | {"iteration": 5, "tokens": {"text": list("abxd"), **tokens}}],
        scalars={"reward/mean": [0.9 - i / 80 for i in range(40)], "noise/sampler_logprob_gap": [0.1] * 40},
        answers=[answer(0, "so it is 8", 0.0), answer(1, "the same", 1.0), answer(2, "well, it is 9", 1.0)],
        config={"seed_everything": 2},
    )  # fmt: skip
    cut = make_run(folder / "cut" / "version_0", [row(0)], scalars={"reward/mean": [0.1] * 5})
    (cut / "summary.json").unlink()
    for age, run in enumerate((up, down, cut)):
        for file in run.iterdir():
            os.utime(file, (2e9 - 60 * age, 2e9 - 60 * age))
    return folder


def names(window: Browser) -> list[str]:
    return [str(text).split("\n")[0].split(", ")[-1] for text in window.run(CELLS, 2)]


def test_a_list_of_runs_sorts_filters_and_leads_to_each(window: Browser, top: Path) -> None:
    window.size(1280, 900)
    with served([top]) as address:
        window.open(address)
        assert names(window) == ["up", "down", "cut"]
        chips = window.run(CELLS, 3)
        assert ("not finished" in chips[2], "not finished" in chips[0]) == (True, False)
        assert "sampler" in chips[1]
        assert "! sampler" in chips[1].replace("\n", " ")
        for name, expected in (
            ("verdicts", ["down", "up", "cut"]), ("reward", ["up", "down", "cut"]), ("updates", ["up", "down", "cut"]),
        ):  # fmt: skip
            window.go("#runs")
            window.run("document.getElementById(`sort_${arguments[0]}`).focus()", name)
            window.key("\ue007")
            window.until(f"return location.hash.includes('sort={name}')")
            window.settled()
            assert names(window) == expected, name
            assert window.run("return document.activeElement.id") == f"sort_{name}", "the focus stays where it was"
        window.go("#runs?sort=reward&up=1")
        assert names(window) == ["cut", "down", "up"]
        window.go("#runs?level=look")
        assert names(window) == ["down"]
        window.go("#runs?find=CUT")
        assert names(window) == ["cut"]
        window.go("#runs")
        window.key("j")
        window.key("j")
        window.key("\ue007")
        window.until("return location.hash.startsWith('#overview')")
        window.settled()
        assert window.count("section.run") == 1
        assert "down" in window.text("section.run h2")
        window.key("0")
        window.until("return location.hash.startsWith('#runs')")
        window.settled()
        window.run("document.getElementById('show_2').click()")
        window.until("return location.hash.includes('runs=1.2') && document.getElementById('show_2').checked")
        window.go("#overview?runs=1.2")
        assert window.count("section.run") == 2
        for look in ("light", "dark"):
            for width in (1280, 800, 400):
                window.size(width, 900)
                window.run("theme(arguments[0]);", look)
                window.go("#runs")
                assert (axe(window), pale(window)) == ([], [])
                assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert window.complaints() == []


def test_a_single_iteration_has_one_reward_in_the_list(window: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "one" / "version_0", scalars={"reward/mean": [0.25] * 4})
    make_run(tmp_path / "two" / "version_0", scalars={"reward/mean": [0.25] * 8})
    with served([tmp_path]) as address:
        window.open(address)
        assert dict(zip(names(window), window.run(CELLS, 5), strict=True)) == {"one": "0.25", "two": "0.25 → 0.25"}
    assert window.complaints() == []


def test_a_list_opens_as_one_file(window: Browser, top: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.html"
    assert main(["view", str(top), f"--output={out}"]) == 0
    window.open(out.as_uri())
    assert names(window) == ["up", "down", "cut"]
    window.go("#compare?kind=training&runs=0.1")
    assert "They part at token 3: “c” and “x”." in window.text()


def test_two_runs_part_where_their_tokens_differ(window: Browser, top: Path) -> None:
    window.size(800, 900)
    with served([top]) as address:
        window.open(f"{address}#compare?runs=0.1")
        assert "3 common prompts, 2 answers differ" in window.text()
        assert window.texts(".pair > h3") == [
            "Held-out prompt 0", "Held-out prompt 2", "Held-out prompt 1",
        ]  # fmt: skip
        assert "They part at word 4: “7” and “8”." in window.text(".pair")
        assert window.texts(".pair:nth-of-type(2) .parted") == ["so", "well", ","]
        assert window.count(".pair .fork") == 4
        window.go("#compare?runs=0.1&only=one")
        assert window.count(".pair") == 1
        window.go("#compare?runs=0.1&kind=training")
        assert "They part at token 3: “c” and “x”." in window.text(".pair")
        assert window.texts(".pair .parted") == ["c", "x"]
        assert window.texts(".pair a") == ["its group"] * 2
        assert (axe(window), pale(window)) == ([], [])
        window.go("#compare?runs=0.1&a=0&b=2&kind=training")
        assert "1 prompts that both recorded" in window.text()
    assert window.complaints() == []


@pytest.mark.parametrize("offline", [False, True])
def test_responses_are_saved_as_csv(window: Browser, tmp_path: Path, offline: bool) -> None:
    texts = ['=HYPERLINK("x")', "a, b", 'say "no"', "line\nbreak", "-3 + 3", "ä“\u2028", "+1", "@x", "x" * 900]
    rows = [row(i, sample=k, completion=text, reward=k / 8) for i in range(70) for k, text in enumerate(texts)]
    folder, out = make_run(tmp_path / "run", rows), tmp_path / "run.html"
    assert main(["view", str(folder), f"--output={out}"]) == 0
    with served([folder]) as address:
        window.open((out.as_uri() if offline else address) + "#rollouts?sort=reward&least=0.125&most=1")
        saved = list(csv.DictReader(io.StringIO(window.run(SAVED), newline="")))
        expected = [r for r in rows if r["reward"] >= 0.125 and (not offline or r["iteration"] < 70)]
        if offline:  # a file holds some iterations only
            held = set(window.run("return offline[0].rows.map((row) => row.iteration)"))
            expected = [r for r in expected if r["iteration"] in held]
        assert len(saved) == len(expected)
        rewards = [float(line["reward"]) for line in saved]
        assert rewards == sorted(rewards, reverse=True)
        by_place = {(int(line["iteration"]), int(line["sample"])): line for line in saved}
        for r in expected:
            line, text = by_place[r["iteration"], r["sample"]], r["completion"]
            assert line["completion"] == ("'" if text[0] in "=+-@" else "") + text
            assert (line["update"], line["advantage"], line["prompt"]) == (str(r["update"]), "1", "prompt 1")
        window.open(saved[0]["link"] if not offline else out.as_uri() + "#" + saved[0]["link"].split("#")[1])
        assert window.text("dialog h2") == f"Iteration {saved[0]['iteration']}, sample #{saved[0]['sample']}"
    assert window.complaints() == []


def test_numbers_of_a_list_are_those_of_its_runs(top: Path) -> None:
    with served([top]) as address, urllib.request.urlopen(f"{address}api/runs", timeout=30) as answered:
        overviews = json.load(answered)
    assert [o["reward"] for o in overviews] == [
        [pytest.approx(1.5 / 40), pytest.approx(37.5 / 40)],
        [pytest.approx(0.9 - 1.5 / 80), pytest.approx(0.9 - 37.5 / 80)],
        [pytest.approx(0.1), pytest.approx(0.1)],
    ]
