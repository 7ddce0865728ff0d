"""docs/data.md: its commands run in their order, and its figures are those of the committed results."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from gspo_lightning import cli
from gspo_lightning.report.statistics.intervals import beta_interval
from tests import ROOT
from tests.commands.data.files import read, write

DOCS = (ROOT / "docs" / "data.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def test_commands_of_the_page_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    things = ["sheep", "lamps", "coins", "marbles", "violins", "gardens", "rivers", "letters", "windows", "bicycles"]
    questions = [f"{thing.title()} first: {n} {thing} and {n * n} more {thing} are how many {thing}?"
                 for n, thing in enumerate(things, 3)]  # fmt: skip
    write(
        tmp_path / "gsm8k.jsonl",
        [{"question": q, "answer": f"#### {i}"} for i, q in enumerate([*questions, questions[0]])],
    )
    write(tmp_path / "benchmark.jsonl", [{"prompt": questions[1]}])
    write(tmp_path / "rollouts.jsonl", [{"prompt": q, "reward": k % 2} for q in questions for k in range(4)])
    write(tmp_path / "other.jsonl", [{"prompt": f"Prove theorem {i}."} for i in range(9)])
    gym = {"responses_create_params": {"input": questions[2]}, "expected_answer": "30"}
    write(tmp_path / "gym.jsonl", [gym])
    block, of_gym = re.findall(r"```bash\n(.*?)```", DOCS, flags=re.DOTALL)
    assert cli.main(shlex.split(of_gym)[1:]) == 0
    assert read(tmp_path / "ours.jsonl")[0]["prompt"] in (questions[2], [{"role": "user", "content": questions[2]}])
    (tmp_path / "ours.jsonl").unlink()
    for line in block.splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0
    assert [len(read(tmp_path / f"{name}.jsonl")) for name in ("ours", "unique", "clean", "train", "val")] == [
        11,
        10,
        9,
        7,
        2,
    ]
    assert [len(read(tmp_path / f"{name}.jsonl")) for name in ("rated", "useful", "mixed")] == [7, 7, 9]
    assert (tmp_path / "useful.jsonl.decontaminated.json").exists()
    assert (tmp_path / "ours.jsonl.report.png").read_bytes().startswith(b"\x89PNG")


def test_figures_are_those_of_the_results() -> None:
    leaks = json.loads((RESULTS / "leaks.json").read_text())
    for name, row in (("varied sentences", "varied sentences"), ("sentences of a few templates", "sentences of 14")):
        found = leaks[name]
        cells = [found["clean_that_share_an_8_gram"], *found["recall"].values()]
        shown = " | ".join(f"{100 * cell:.0f} %" for cell in cells) + f" | {100 * found['precision']:.1f} %"
        assert re.search(rf"^\| {row}[^|]*\| {re.escape(shown)} \|$", DOCS, flags=re.MULTILINE)
    for name in ("dedup", "dedup_template"):
        found = json.loads((RESULTS / f"{name}.json").read_text())
        assert (
            f"({'../benchmarks/results/' + name}.json)) | {found['cpu_s']:.0f} s | {found['peak_rss_mib']} MiB |"
            in DOCS
        )
        assert found["prompts"] == 1_000_000
        assert found["cpu_s"] < 180
        assert found["peak_rss_mib"] < 2048
    low, high = beta_interval(2, 8)
    assert f"2 of 8 leaves {100 * low:.0f} % to {100 * high:.0f} %" in DOCS
