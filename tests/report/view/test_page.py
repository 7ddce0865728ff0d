"""The page in a real browser: every view, what a person does in it, and what a hostile run may not do."""

from __future__ import annotations

import json
import math
import os
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.tokens import TOKENS
from tests import ROOT
from tests.report.view.browser import Browser, browser, needs_browser
from tests.report.view.faults import BRIEF, drifting, gamed, sampler_off
from tests.report.view.injections import INJECTIONS
from tests.report.view.looking import look_at, tokens_of, views
from tests.report.view.made import make_run, row
from tests.report.view.serving import served
from tests.runs import runs

pytestmark = [needs_browser, pytest.mark.thorough]
PICTURES = os.environ.get("GSPO_PICTURES", "")
"""Folder for the pictures of the documentation; empty: they are taken and thrown away."""
PICTURED = os.environ.get("GSPO_PICTURED", "")
"""Look (light, dark, narrow, phone) whose views are all saved there, for people to look at."""
CONFIGS = ROOT / "configs"
TAUGHT = ["--model.cold_start.steps=40", "--data.train.size=256"]
ARROW_RIGHT, ENTER = "\ue014", "\ue007"
FOREIGN = (
    "script img iframe object embed link meta style base form video audio math template main textarea "
    "[onerror] [onload] [onclick] [onfocus] [style*=animation]"
)
"""Selectors of what no view has."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, cold_starts: Path) -> list[Path]:
    """Two whole quickstarts, and short runs of an agent, a mixture of experts and a model with eyes."""
    kinds: list[tuple[str, Path, list[str]]] = [
        ("gspo", runs.QUICKSTART, []),
        ("grpo", runs.QUICKSTART, ["--model.objective=GRPO"]),
        ("agent", CONFIGS / "agent.yaml", BRIEF),
        ("experts", runs.QUICKSTART, [f"--config={CONFIGS / 'moe.yaml'}", "--data.max_response_tokens=24", *TAUGHT]),
        ("eyes", CONFIGS / "vision.yaml", [*TAUGHT, "--data.max_response_tokens=8"]),
    ]
    found = []
    for name, config, options in kinds:
        root = tmp_path_factory.mktemp(name)
        runs.share_cold_start(cold_starts, root)
        found.append(runs.fit(root, *options, config=config, small=name not in ("gspo", "grpo")))
    return found


@pytest.fixture(scope="module")
def address(folders: list[Path]) -> Iterator[str]:
    with served(folders) as found:
        yield found


@pytest.mark.parametrize("look", ["light", "dark", "narrow", "phone"])
def test_every_view_without_a_complaint(window: Browser, address: str, folders: list[Path], look: str) -> None:
    look_at(window, address, folders, look, Path(PICTURES) if look == PICTURED else None)


def test_tokens_are_coloured_by_how_far_they_moved(window: Browser, address: str, folders: list[Path]) -> None:
    window.size(1280, 1000)
    window.open(address)
    window.run("theme('light');")
    clipped = max((r for r in tokens_of(folders[0]) if r["clip"]), key=lambda r: abs(r["log_s"]))
    window.go(f"#group?run=0&iteration={clipped['iteration']}&prompt_id={clipped['prompt_id']}")
    card = f'[data-sample="{clipped["sample"]}"]'
    s, (low, high) = math.exp(clipped["log_s"]), clipped["band"]
    edge, side = (f"above {1 + high:.5f}", "high") if clipped["clip"] > 0 else (f"below {1 - low:.5f}", "low")
    said = window.text(card)
    assert f"Clipped: s_i = {s:.5f} is {edge}" in said
    assert side in said
    ratios = clipped["tokens"]["log_ratio"]
    top = max(range(len(ratios)), key=lambda i: abs(ratios[i]))
    assert f"Most of the movement is in “{clipped['tokens']['text'][top]}” (token {top + 1}, " in said
    colours = window.run(
        "return [...document.querySelectorAll(`${arguments[0]} .tok`)].map((e) => getComputedStyle(e).backgroundColor)"
        ".map((colour) => colour.match(/\\d+/g).map(Number))",
        card,
    )
    assert len(colours) == len(ratios)
    red, _, blue = colours[top]
    assert (red > blue) == (ratios[top] > 0), "orange: more likely than before; blue: less"
    window.run("document.querySelector(`${arguments[0]} .tokens`).focus()", card)
    for _ in range(top + 1):
        window.key(ARROW_RIGHT)
    assert f"token {top + 1} of {len(ratios)}" in window.text("#status")
    window.key("c")
    assert window.run("return document.getElementById('colour').value") == "advantage"


def test_filters_and_keys(window: Browser, address: str, folders: list[Path]) -> None:
    window.open(address)
    window.key("2")
    rows = tokens_of(folders[0])
    assert window.text("#total") == f"{len(rows)} responses"
    window.key("/")
    assert window.run("return document.activeElement.id") == "q"
    for key in rows[0]["completion"]:
        window.key(key)
    window.key(ENTER)
    window.until("return location.hash.includes('q=')")
    window.settled()
    expected = [r for r in rows if rows[0]["completion"] in r["completion"]]
    assert window.text("#total") == f"{len(expected)} responses"
    window.run("document.activeElement.blur()")
    window.key("j")
    window.key(ENTER)
    window.until("return location.hash.startsWith('#group')")
    window.settled()
    assert "answers to one prompt" in window.text()
    window.key("u")
    window.until("return location.hash.startsWith('#rollouts')")


def test_a_link_reproduces_a_view(window: Browser, address: str) -> None:
    window.open(address)
    window.go("#rollouts?run=0")
    window.run("[...document.querySelectorAll('th button')].find((b) => b.textContent.startsWith('log s_i')).click()")
    window.until("return location.hash.includes('sort=log_s')")
    window.settled()
    link, shown = window.run("return location.href"), window.text()
    sizes = window.run(
        "return [...document.querySelectorAll('tbody td:nth-child(6)')].map((e) => Number(e.textContent.slice(1)))"
    )
    assert sizes == sorted(sizes, reverse=True)
    window.open(link)
    assert window.text() == shown


def test_figures_are_saved_whole(window: Browser, address: str) -> None:
    window.open(address)
    labels = window.run("return state.runs.map((run) => run.label)")
    saved = window.run(
        """
        const blobs = [], own = URL.createObjectURL;
        URL.createObjectURL = (blob) => { blobs.push(blob); return own(blob); };
        for (const kind of ["SVG", "PNG"]) {
          document.querySelector(`[data-tag="reward/mean"] button[aria-label="Save reward/mean as ${kind}"]`).click();
        }
        while (blobs.length < 2) await new Promise((r) => setTimeout(r, 50));
        return [await blobs[0].text(), [...new Uint8Array(await blobs[1].arrayBuffer()).slice(0, 24)]];
        """
    )
    figure = ElementTree.fromstring(saved[0])
    drawn = [e for e in figure.iter() if e.tag.endswith("path")]
    assert len(drawn) == 5, "one line a run"
    texts = [e.text or "" for e in figure.iter() if e.tag.endswith("text")]
    assert {"reward/mean [reward]", "update", *labels} <= set(texts), "title, unit, axis and legend"
    assert all(e.get("stroke", "").startswith("#") for e in drawn), "colours do not depend on the page"
    png = bytes(saved[1])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) == 3 * 420


def hostile_run(root: Path) -> Path:
    """A run in which everything that can be text is an injection."""
    texts = [json.loads(json.dumps(text)) for text in INJECTIONS]
    rows = [
        row(
            i // 8, prompt_id=i // 8, sample=i % 8, prompt=text, completion=text, source=text, finish=text, answer=text,
            choice=text, parts={text: 0.5, "a": None}, statuses={text: text}, extra={text: {text: text}, "more": text},
            logged={text: 1.0}, missing=text, turn_rewards=[1.0], reward=i / 100,
            tree=[{"parent": None, "messages": [{"role": text, "content": text}], "tokens": text}] * (i % 2),
            pictures=[text],
            messages=[{"role": text, "content": text, "tool_calls": [{"function": {"name": text}}]}],
            tokens={"text": [text, text, text], "log_ratio": [0.1, -0.1, 0.0], "own": [1, 1, 0]},
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    answers = [
        {"update": u, "id": i, "prompt": t, "answer": t, "completion": t, "reward": t}
        for i, t in enumerate(texts)
        for u in (0, 9)
    ]
    folder = make_run(
        root / "<img src=x onerror=window.pwned=1>", rows, answers=answers,
        scalars={"reward/mean": [0.5] * 8, **{text: [0.1] * 8 for text in texts}},
        config={"model": {text: text for text in texts}, "seed_everything": texts[0]},
    )  # fmt: skip
    resumes = [{"update": 4, "changes": [t]} for t in texts]
    (folder / "resumes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in resumes))
    alarms = [{"since": 2, "update": 3, "signature": t, "what": t, "action": t} for t in texts]
    (folder / "alarms.json").write_text(json.dumps(alarms))
    summary = {
        "objective": texts[0],
        "model": texts[1],
        "seed": texts[2],
        "updates": 8,
        "versions": dict.fromkeys(texts, texts[3]),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.parametrize("offline", [False, True])
def test_no_text_becomes_markup_or_script(window: Browser, tmp_path: Path, offline: bool) -> None:
    assert len(INJECTIONS) >= 100
    folder = hostile_run(tmp_path)
    out = tmp_path / "run.html"
    assert main(["view", str(folder), f"--output={out}"]) == 0
    with served([folder]) as address:
        window.open(out.as_uri() if offline else address)
        groups = [f"#group?run=0&iteration={i}&prompt_id={i}" for i in range(-(-len(INJECTIONS) // 8))]
        hashes = [f"#rollouts?q={'%3Cimg src=x onerror=window.pwned=1%3E'}", "#<img src=x onerror=window.pwned=1>"]
        seen = ""
        for view in (
            "#overview",
            "#overview?find=<",
            *groups,
            "#group?run=0&iteration=1&prompt_id=1&full=1.0",
            "#runs",
            "#runs?find=<",
            "#compare?kind=training",
            "#compare",
            "#prompt?run=0&prompt_id=1",
            "#rollouts",
            "#answers?all=1",
            "#config",
            *hashes,
        ):
            window.go(view)
            window.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
            assert window.run("return window.pwned") is None, view
            foreign = [f"{place} {selector}" for place in ("main", "dialog") for selector in FOREIGN.split()]
            assert window.count(", ".join(foreign)) == 0, view
            links = window.run("return [...document.querySelectorAll('main a')].map((e) => e.getAttribute('href'))")
            assert all(link.startswith("#") for link in links)
            seen += window.run("return document.body.textContent")
        for text in INJECTIONS:
            plain = text.encode("utf-8", "replace").decode().replace("\x00", "")
            assert plain in seen.replace("\x00", "").replace("\ufffd", "?"), text
        assert window.complaints() == []


def test_one_file_shows_what_the_server_shows(
    window: Browser, address: str, folders: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "runs.html"
    assert main(["view", *map(str, folders), f"--output={out}"]) == 0
    assert out.stat().st_size < 3_000_000
    for view in [*views(folders), "#rollouts?run=0&q=%23&sort=reward&up=1&live=1", "#rollouts?run=1&clipped=1"]:
        texts = []
        for place in (address, out.as_uri()):
            window.open(place + view)
            texts.append(window.text())
        assert texts[0] == texts[1], view
    assert window.complaints() == []


def test_pictures_and_trees_of_conversations_are_seen(window: Browser, address: str, folders: list[Path]) -> None:
    window.open(address)
    groups = [view for view in views(folders) if view.startswith("#group?run=4")]
    window.go(groups[0])
    window.until("return [...document.querySelectorAll('.pictures img')].some((e) => e.naturalWidth > 30)")
    called = next(r for r in tokens_of(folders[2]) if len(r.get("tree", ())) > 3)
    window.go(f"#group?run=2&iteration={called['iteration']}&prompt_id={called['prompt_id']}")
    window.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    card = f'[data-sample="{called["sample"]}"]'
    told, turns = window.text(card), [node for node in called["tree"] if "asked_s" in node]
    assert f"Conversation: {len(turns)} turns" in told
    assert f"tool (read, not trained; {called['tree'][2]['tokens']} tokens, client and tools " in told
    policy = turns[0]["answered_s"] - turns[0]["asked_s"]
    assert f"assistant (trained; {turns[0]['tokens']} tokens, policy {policy:.{4 if policy < 0.01 else 2}f} s)" in told
    mark = window.run("return getComputedStyle(document.querySelector(arguments[0])).textDecoration", f"{card} .other")
    assert "dotted" in mark, "what the tool said is not trained"


def test_a_figure_leads_to_its_responses(window: Browser, address: str, folders: list[Path]) -> None:
    window.open(f"{address}#overview?runs=0")
    window.run("document.querySelector('[data-tag=ratios_0] svg').focus()")
    window.key(ARROW_RIGHT)
    window.key(ENTER)
    window.until("return location.hash.startsWith('#group')")
    farthest = max(tokens_of(folders[0]), key=lambda r: abs(r["log_s"]))
    shown = window.run("return Object.fromEntries(new URLSearchParams(location.hash.split('?')[1]))")
    assert (int(shown["iteration"]), int(shown["prompt_id"])) == (farthest["iteration"], farthest["prompt_id"])
    assert shown["runs"] == "0", "the runs that were ticked stay so"


def test_planted_faults_are_found_by_verdicts(window: Browser, tmp_path: Path, cold_starts: Path) -> None:
    """In each of three runs the verdict is there, and its link leads to what shows the fault."""
    planted = []
    for make in (sampler_off, gamed, drifting):
        root = tmp_path / make.__name__
        root.mkdir()
        runs.share_cold_start(cold_starts, root)
        planted.append(make(root))
    places = {"sampler": "noise/sampler_logprob_gap", "gamed reward": "", "client": "agents/forks/answer"}
    with served(planted) as address:
        for number, (name, place) in enumerate(places.items()):
            window.open(f"{address}#overview?runs={number}")
            assert window.count(f'.hint.bad[data-topic="{name}"]') == 1
            window.run("document.querySelector(`.hint[data-topic='${arguments[0]}'] a`).click()", name)
            window.until("return location.hash.includes('chart=') || location.hash.startsWith('#rollouts')")
            window.settled()
            if place:
                assert window.count(f'figure.marked[data-tag="{place}"]') == 1
            else:
                best = window.run("return document.querySelector('tbody tr td:nth-child(3)').innerText")
                assert best == "#0", "what the reward pays for comes first"
        picture(window, "view_verdicts", "#overview", tmp_path)
    assert window.complaints() == []


def test_a_live_run_and_a_damaged_one(window: Browser, tmp_path: Path) -> None:
    live = make_run(tmp_path / "live", [row(0)])
    (live / "summary.json").unlink()
    broken = make_run(tmp_path / "broken", [row(0)])
    (broken / TOKENS).write_text("{half\n")
    (broken / "config.yaml").write_text("a: [")
    with served([live, broken]) as address:
        window.open(address)
        assert "not finished" in window.text()
        assert "This run is not whole: 1 damaged lines of recorded responses were left out" in window.text()
        assert "This run is not whole: config.yaml is damaged" in window.text()
        with open(live / "scalars.jsonl", "a") as file:
            file.write(json.dumps([0, 41, 1.7e9, 10, 0, 0.875]) + "\n")
        window.run("await follow();")
        window.go("#overview?runs=0")
        assert "41 updates" in window.text()
        (live / "summary.json").write_text(json.dumps({"updates": 41}))
        window.run("await follow();")
        assert "not finished" not in window.text()
    assert window.complaints() == []


def picture(window: Browser, name: str, view: str, folder: Path) -> None:
    """Take a picture for the documentation."""
    window.size(1280, 1040)
    window.run("theme('light');")
    window.go("#config")  # so that the view is drawn anew
    window.go(view)
    path = folder / f"{name}.png"
    window.screenshot(path)
    assert 20_000 < path.stat().st_size < 400_000
    if PICTURES:
        shutil.copy(path, Path(PICTURES) / path.name)


def test_pictures_of_the_documentation(window: Browser, address: str, folders: list[Path], tmp_path: Path) -> None:
    window.size(1280, 1040)
    window.open(address)
    rows = [r for r in tokens_of(folders[0]) if r["clip"] and r["length"] > 9]
    clipped = max(rows, key=lambda r: abs(r["log_s"]))
    group = f"#group?run=0&runs=0&iteration={clipped['iteration']}&prompt_id={clipped['prompt_id']}"
    picture(window, "view", group, tmp_path)
    picture(window, "view_overview", "#overview?runs=0.1", tmp_path)
