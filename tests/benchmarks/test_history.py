"""Results are kept by line, and a commit is compared with an earlier one in pairs: by hand, without a clock."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against as paired
from benchmarks.__main__ import main as bench
from benchmarks.against import BOUND, Ratio, against, compare, last, show, worktree
from benchmarks.history import FOLDER, lines_of, main, read, table

ABOUT = {"date": "2026-01-02T03:04+00:00", "commit": "abc", "processor": "Z80", "torch": "2.13", "threads": 1}
SIDE = {"cpu": 2.0, "cpu_low": 1.9, "cpu_high": 2.1, "rounds": 6}


def results(folder: Path, **changes: Any) -> Path:
    case = {"subject": "step", "model": "1m", "workload": "equal", "ours": SIDE, "trl": SIDE | {"cpu": 7.0}}
    memory = [{"case": "ours", "mebibytes": 10.0}, {"case": "TRL, same micro-batch", "mebibytes": 25.0}]
    file = folder / "results.json"
    file.write_text(json.dumps({"about": ABOUT, "comparisons": [case], "memory": memory} | changes))
    return file


def test_lines_are_added_once_with_their_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = results(tmp_path), tmp_path / "history"
    folder.mkdir()
    for expected in ("2 new lines", "0 new lines"):
        assert main([str(file), f"--folder={folder}"]) == 0
        assert expected in capsys.readouterr().out
    step, memory = read(folder)
    assert (step["what"], step["value"], step["ratio"], step["processor"]) == ("step 1m equal", 2.0, 3.5, "Z80")
    assert (memory["unit"], memory["value"], memory["ratio"]) == ("MiB", 10.0, 2.5)
    row = "| 2026-01-02 | abc | step 1m equal | 2 CPU s | 1.9 to 2.1, n = 6 | 3.50 | Z80 | 2.13 |"
    assert row in (folder / "README.md").read_text().splitlines()
    with pytest.raises(ValueError, match="names no processor"):
        lines_of(results(tmp_path, about={}))


def test_the_committed_page_shows_the_committed_lines() -> None:
    rows = read(FOLDER)
    assert rows
    assert all(row["processor"] and row["commit"] for row in rows)
    assert (FOLDER / "README.md").read_text() == table(rows)


def test_lines_of_a_real_model() -> None:
    """Pairs of a step: TRL / ours for CPU time, and for memory, whose file has ours / TRL."""
    time, memory = lines_of(FOLDER.parent / "results" / "real.json")[:2]
    assert (time["what"], time["unit"], time["rounds"]) == ("step SmolLM2-135M adamw", "CPU s", 2)
    assert time["ratio"] == pytest.approx(1.81995, rel=1e-4)
    assert (memory["unit"], memory["ratio"]) == ("MiB", pytest.approx(1 / 0.87895, rel=1e-4))


def test_ratios_of_pairs_by_hand() -> None:
    same = compare("step", [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])  # a busy machine slows both of a pair
    assert (same.ratio, same.seconds, same.rounds) == (1.0, 2.0, 3)
    assert (same.low, same.high, same.slower) == (1.0, 1.0, False)
    twice = compare("step", [1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (twice.low, twice.high, twice.slower, twice.fails) == (2.0, 2.0, True, True)
    noisy = compare("step", [1.0, 1.0, 1.0, 1.0, 1.0], [0.9, 1.0, 1.1, 1.2, 0.8])
    assert noisy.low < 1.0 < noisy.high
    assert not noisy.slower
    slightly = Ratio("step", 1.2, 1.1, BOUND + 0.1, 1.0, 5)
    assert (slightly.slower, slightly.fails) == (True, False)


def test_sides_take_turns_and_the_first_pair_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    before, now = Path("before"), Path("now")
    order: list[tuple[str, Path]] = []

    def measure(tree: Path, code: str) -> Mapping[str, float]:
        name = next(name for name, own in paired.SNIPPETS.items() if own == code)
        order.append((name, tree))
        first = sum(own == name for own, _ in order) <= 2
        return {name: 100.0 if first and tree == now else 1.0 if tree == before else 0.5}

    found = against((before, now), 3, measure)
    assert [tree for name, tree in order if name == "step"] == [before, now, now, before, before, now, now, before]
    assert {one.subject: one.ratio for one in found} == dict.fromkeys(paired.SNIPPETS, 0.5)
    show(found, "v1")
    assert "step: 0.50 times the CPU time of v1 (0.50 to 0.50; 3 pairs): faster" in capsys.readouterr().out


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def test_an_earlier_revision_is_checked_out_beside_and_removed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for text in ("one", "two", "three"):
        (tmp_path / "file").write_text(text)
        git(tmp_path, "add", "file")
        git(tmp_path, "commit", "-qm", text)
        assert (last(tmp_path) is None) == (text == "one")
    before = last(tmp_path)
    assert before is not None
    with worktree(before, tmp_path) as tree:
        assert (tree / "file").read_text() == "two"
    assert not tree.exists()
    git(tmp_path, "tag", "v1", "HEAD~2")
    assert last(tmp_path) == "v1"


@pytest.mark.thorough("2.0-1")
@pytest.mark.parametrize(("seconds", "code"), [(1.0, 0), (2.0, 1)])
def test_the_check_fails_above_its_bound_and_keeps_its_lines(
    seconds: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(tree: Path, snippet: str) -> Mapping[str, float]:
        return {"step": seconds if tree == paired.ROOT else 1.0}

    monkeypatch.setattr(paired, "_run", run)
    monkeypatch.setattr(paired, "last", lambda: "HEAD")
    monkeypatch.setattr(paired, "SNIPPETS", {"step": "..."})
    given = ["--against=last", "--rounds=3", f"--output={tmp_path}", "--name=pairs"]
    assert bench(given) == code
    assert ("FAILS" in capsys.readouterr().out) == bool(code)
    (line,) = lines_of(tmp_path / "pairs.json")
    assert (line["what"], line["ratio"], line["rounds"]) == ("against: step", seconds, 3)
    assert line["processor"]
