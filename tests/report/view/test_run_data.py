"""Data of a run folder: index, filters, live and damaged files, thinned curves."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.cli import main
from gspo_lightning.report.resumes import RESUMES, note_resume
from gspo_lightning.report.run import Series
from gspo_lightning.report.tokens import TOKENS
from gspo_lightning.report.view.index import INDEX
from gspo_lightning.report.view.plain import clean
from gspo_lightning.report.view.run_data import POINTS, RunData, thinned
from gspo_lightning.training.callbacks.dashboard import RATIO_BINS
from gspo_lightning.training.callbacks.sink import write_counts
from tests.report.view.made import make_run, row


def opened(folder: Path) -> RunData:
    data = RunData(folder)
    data.refresh()
    return data


def samples(data: RunData, **query: str) -> list[int]:
    return [found["sample"] for found in data.rollouts(query)["rows"]]


@pytest.mark.parametrize("name", ["missing", "empty", "file.txt", "events"])
def test_folder_without_a_run_is_refused_by_the_called_command(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "events.out.tfevents.1").write_text("these are not events " * 9)
    for command in ("view", "report"):
        assert main([command, str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        other = {"view": "gspo report", "report": "gspo view"}[command]
        assert f"gspo {command}" in said
        assert other not in said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        row(i, prompt_id=i % 2, sample=i, reward=i / 10, log_s=(-1) ** i * i / 100, length=10 - i, age=i // 3)
        | {"completion": "50% of_it" if i == 3 else f"Answer {i}", "source": "ab"[i % 2], "clip": int(i == 4)}
        for i in range(6)
    ]
    return make_run(tmp_path / "run", rows)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"sort": "log_s"}, [5, 4, 3, 2, 1, 0]),
        ({"sort": "length"}, [0, 1, 2, 3, 4, 5]),
        ({"sort": "reward", "up": "1"}, [0, 1, 2, 3, 4, 5]),
        ({"q": "answer 4"}, [4]),
        ({"q": "50%"}, [3]),
        ({"q": "%"}, [3]),
        ({"q": "f_i"}, [3]),
        ({"q": "'; DROP TABLE rollouts; --"}, []),
        ({"sort": "reward; DROP TABLE rollouts"}, [5, 4, 3, 2, 1, 0]),
        ({"source": "a"}, [4, 2, 0]),
        ({"iteration": "3"}, [3]),
        ({"prompt_id": "1", "sort": "age", "up": "1"}, [1, 3, 5]),
        ({"clipped": "1"}, [4]),
        ({"least": "0.2", "most": "0.4"}, [4, 3, 2]),
        ({"finish": "stop", "most": "0"}, [0]),
        ({"finish": "length"}, []),
        ({"offset": "4"}, [1, 0]),
    ],
)
def test_filters_and_orders(folder: Path, query: dict[str, str], expected: list[int]) -> None:
    assert samples(opened(folder), **query) == expected


def test_an_export_holds_whole_texts_and_nothing_that_is_recorded_meanwhile(tmp_path: Path) -> None:
    rows = [row(i, sample=k, completion=f"{i}.{k} " + "x" * 5_000) for i in range(100) for k in range(8)]
    folder = make_run(tmp_path, rows)
    data = opened(folder)
    pieces = [data.export({})]
    last = str(pieces[0]["last"])
    with open(folder / TOKENS, "a") as file:
        file.write(json.dumps(row(999, sample=0)) + "\n")
    data.refresh()
    assert data.rollouts({})["total"] == 801
    while (done := sum(len(piece["rows"]) for piece in pieces)) < pieces[0]["total"]:
        pieces.append(data.export({"offset": str(done), "last": last}))
    assert [200 <= len(piece["rows"]) < 500 for piece in pieces[:-1]] == [True] * (len(pieces) - 1)
    assert len(pieces) > 1
    exported = [r["completion"] for piece in pieces for r in piece["rows"]]
    assert sorted(exported) == sorted(str(r["completion"]) for r in rows)
    assert len(data.rollouts({})["rows"][0]["completion"]) <= 400


def test_prompts_are_compared_by_their_ends_and_lengths(tmp_path: Path) -> None:
    long = "a" * 600 + "?"
    rows = [row(i, prompt_id=i % 3, prompt=long if i % 3 else "short") for i in range(9)]
    assert opened(make_run(tmp_path, rows)).texts()["rows"] == [
        {"prompt_id": i, "characters": 601 if i else 5, "prompt": long[-400:] if i else "short", "iteration": 6 + i}
        for i in range(3)
    ]


def test_a_part_of_a_long_run_has_the_points_that_the_whole_leaves_out(tmp_path: Path) -> None:
    values = [math.sin(i / 7) for i in range(10_000)]
    data = opened(make_run(tmp_path, scalars={"reward/mean": values, "clip/tokens": values}))
    whole = data.series(["reward/mean"])["reward/mean"]
    assert len(whole[0]) <= POINTS + 2
    part = data.series(["reward/mean", "clip/tokens", "none"], (5_000, 5_100))
    assert part["reward/mean"][0] == list(range(4_999, 5_102))
    assert part["reward/mean"][1] == pytest.approx(values[4_998:5_101], abs=1e-6)
    steps = part["clip/tokens"][2][0]
    assert (steps[0], steps[-1], len(steps)) == (5_000, 5_100, 26)
    assert data.series(["reward/mean"], (20_000, 30_000))["reward/mean"][0] == [10_000]


def test_ranges_of_a_long_run_hold_its_one_spike_and_its_mean(tmp_path: Path) -> None:
    """The third entry is what the page draws: of 1,500 iterations, or of 6,000 updates that do not vary within any."""
    norms = [0.1, 0.1, 0.1, 0.5] * 1_500
    norms[5_437] = 50.0
    rewards = [float(i // 4 == 1_359) for i in range(6_000)]
    scalars = {"optim/gradient_norm": norms, "reward/mean": rewards}
    data = opened(make_run(tmp_path, scalars=scalars, evaluations=[0.5, 0.6]))
    sent = data.series([*scalars, "val/accuracy"])
    for tag, values in scalars.items():
        steps, means, low, high = sent[tag][2]
        assert len(steps) <= POINTS
        assert steps[-1] == 6_000
        assert np.mean(means) == pytest.approx(np.mean(values), rel=1e-6)
        assert (min(low), max(high)) == pytest.approx((min(values), max(values)))
        assert sent[tag][3], "its points are extremes, of which no average is taken"
    assert np.mean(sent["optim/gradient_norm"][1]) > 1.2 * np.mean(norms)
    assert sent["val/accuracy"] == [[0, 6_000], pytest.approx([0.5, 0.6])]
    part = data.series(["reward/mean", "optim/gradient_norm"], (5_000, 5_100))
    assert len(part["reward/mean"]) == 2, "a part with all of its points needs no ranges"
    assert (len(part["optim/gradient_norm"][2][0]), part["optim/gradient_norm"][3]) == (26, False)


def test_a_live_file_is_only_read_on(folder: Path) -> None:
    data = opened(folder)
    half = json.dumps(row(7, sample=7))
    with open(folder / TOKENS, "a") as file:
        file.write(json.dumps(row(6, sample=6)) + "\n" + half[:40])
    data.refresh()
    assert samples(data)[0] == 6, "the half-written line waits"
    with open(folder / TOKENS, "a") as file:
        file.write(half[40:] + "\n")
    data.refresh()
    assert samples(data)[:2] == [7, 6]
    assert data.index.facts()["damaged"] == 0


def test_rollouts_truncated_by_a_resume_leave_the_view(folder: Path) -> None:
    data = opened(folder)
    lines = (folder / TOKENS).read_text().splitlines(keepends=True)
    (folder / TOKENS).write_text("".join(lines[:2]) + json.dumps(row(2, sample=22)) + "\n")
    data.refresh()
    assert samples(data) == [22, 1, 0]


def test_rows_with_tokens_stand_for_the_same_rows_without(tmp_path: Path) -> None:
    folder = make_run(tmp_path, [row(0, prompt_id=7, sample=1)])
    recorded = {"prompt": "p", "completion": "c", "iteration": 0, "response_mask": [True, True, False], "reward": 1.0}
    (folder / "rollouts").mkdir()
    lines = [{**recorded, "id": f"7/{sample}"} for sample in range(3)]
    (folder / "rollouts" / "000000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = opened(folder)
    rows = data.rows({"prompt_id": "7"})["rows"]
    assert [("tokens" in r, r["length"]) for r in rows] == [(False, 2), (True, 3), (False, 2)]
    (folder / TOKENS).write_text("")
    data.refresh()
    assert ["tokens" in r for r in data.rows({"prompt_id": "7"})["rows"]] == [False, False, False]


def test_damage_is_said_and_nothing_stops(folder: Path) -> None:
    (folder / TOKENS).write_bytes((folder / TOKENS).read_bytes() + b'{"broken\n\xff\xfe\n[1]\n{"iteration": "x"}\n')
    (folder / "summary.json").write_text("{")
    (folder / "alarms.json").write_text("nonsense")
    with open(folder / "scalars.jsonl", "a") as file:
        file.write('[0, 1, "x"]\n')
    overview = opened(folder).overview()
    said = " ".join(overview["problems"])
    for part in (
        "4 damaged lines of recorded responses",
        "summary.json is damaged",
        "alarms.json is damaged",
        "scalars",
    ):
        assert part in said
    assert overview["facts"]["rollouts"] == 6


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_damaged_index_is_made_anew(folder: Path, content: bytes) -> None:
    opened(folder).index.close()
    (folder / INDEX).write_bytes(content)
    assert len(samples(opened(folder))) == 6


def test_an_index_of_another_version_is_made_anew(folder: Path) -> None:
    opened(folder).index.close()
    base = sqlite3.connect(folder / INDEX)
    base.execute("PRAGMA user_version = 99")
    base.close()
    assert len(samples(opened(folder))) == 6


def test_an_old_run_opens_with_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "old", answers=[{"update": 0, "id": 0, "prompt": "p", "completion": "c", "reward": 0}])
    overview = opened(folder).overview()
    assert [v["topic"] for v in overview["verdicts"] if v["level"] != "fine"] == ["learning", "recorded tokens"]
    assert main(["view", str(folder), f"--output={tmp_path / 'run.html'}"]) == 0
    assert "written:" in capsys.readouterr().out


def test_a_wrong_folder_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_thinned_curve_keeps_its_extremes() -> None:
    values = np.sin(np.arange(10_000) / 7)
    values[1234], values[4321], values[5000] = 9.0, -9.0, math.nan
    steps, shown = thinned(Series(np.arange(10_000), values))
    assert len(steps) <= POINTS + 2
    assert np.all(np.diff(np.array(steps, dtype=float)) > 0)
    assert (max(shown), min(shown)) == (9.0, -9.0)  # type: ignore[type-var]
    assert thinned(Series(np.arange(2), np.array([1.0, math.inf]))) == [[0, 1], [1.0, None]]


def test_bands_are_those_of_the_definitions_for_the_objective(tmp_path: Path) -> None:
    curves = {"reward/dead_groups": [0.1] * 8, "clip/tokens": [0.1] * 8, "noise/sampler_sequence_gap": [0.0] * 8}

    def bands(name: str, **clip: float) -> dict[str, Any]:
        objective = {"class_path": "x", "init_args": clip}
        made = make_run(tmp_path / name, scalars=curves, config={"model": {"objective": objective}})
        return {tag: meaning.get("band") for tag, meaning in opened(made).overview()["tags"].items()}

    tight, wide = bands("tight", clip_low=3e-4, clip_high=4e-4), bands("wide", clip_low=0.2, clip_high=0.27)
    assert tight["reward/dead_groups"] == wide["reward/dead_groups"] == [None, 0.5]
    assert (tight["clip/tokens"], wide["clip/tokens"]) == ([0.0, 0.9], [0.0, 0.05])
    assert tight["noise/sampler_sequence_gap"] == [None, pytest.approx(3e-5)]
    assert bands("unknown")["noise/sampler_sequence_gap"] is None, "its scale is the clip range"


def test_only_plain_json_leaves() -> None:
    lone = json.loads('"\\ud800"')
    assert clean({"a": [math.nan, math.inf, 1.5], lone: (lone,), 3: None}) == {
        "a": [None, None, 1.5],
        "?": ["?"],
        "3": None,
    }


def test_resumes_and_their_changes_are_on_the_time_line(folder: Path) -> None:
    note_resume(folder, 8, [])
    note_resume(folder, 20, ["data.temperature: 1.0 -> 0.7"])
    note_resume(folder, 16, ["data.temperature: 1.0 -> 0.9", "trainer.max_epochs: 1 -> 2"])  # 20 was given up
    with open(folder / RESUMES, "a") as file:
        file.write('{"update": "x"}\n{half')
    assert opened(folder).overview()["events"] == [
        {"update": 8, "what": "resumed"},
        {"update": 16, "what": "resumed: data.temperature: 1.0 -> 0.9; trainer.max_epochs: 1 -> 2"},
    ]


def test_one_prompt_over_time_is_spread_over_its_iterations(tmp_path: Path) -> None:
    rows = [row(i, prompt_id=i % 2, sample=k, reward=i / 100) for i in range(100) for k in range(6)]
    found = opened(make_run(tmp_path, rows)).prompt({"prompt_id": "1"})
    assert found["rewards"] == [[i, pytest.approx(i / 100)] for i in range(1, 100, 2)]
    shown = sorted({r["iteration"] for r in found["rows"]})
    assert (len(shown), shown[0], shown[-1], len(found["rows"])) == (12, 1, 99, 48)


def test_ratios_of_a_run(tmp_path: Path) -> None:
    rows = [row(i, sample=k, log_s=k / 1e4, clip=int(k > 3)) for i in range(400) for k in range(8)]
    scalars = {"clip/sequences": [0.1] * 40, "reward/mean": [0.5] * 40}
    found = opened(make_run(tmp_path / "a", rows, scalars=scalars)).ratios()
    assert 1_000 < len(found["dots"]) <= 1_500
    assert all(dot == [4 * dot[4] + 2, dot[6] / 1e4, 1.0, int(dot[6] > 3), dot[4], 1, dot[6]] for dot in found["dots"])
    assert found["band"] == [0.0003, 0.0004]
    assert opened(make_run(tmp_path / "b", rows[:8])).ratios()["band"] is None, "the range of a token-level objective"


def test_a_clip_range_is_drawn_over_the_ratios_that_it_clips(tmp_path: Path) -> None:
    """GRPO clips the ratio of a token; DPPO, say, clips its probability, and its numbers say nothing of ratios."""
    ratios = [0.3, 0.25, -0.3, 0.0]

    def band(name: str, advantage: float, sides: list[int], **more: Any) -> Any:
        tokens = {"text": list("abcd"), "log_ratio": ratios, "clip": sides}
        recorded = row(0, advantage=advantage, tokens=tokens, **{"band": [0.2, 0.28], **more})
        return opened(make_run(tmp_path / name, [recorded])).histograms()["band"]

    assert band("up", 1.0, [1, 1, 0, 0]) == [0.2, 0.28]
    assert band("missed", 1.0, [1, 0, 0, 0]) is None, "exp(0.25) is 1.284, above 1.28"
    assert band("no ratio", 1.0, [0, 0, 1, 0]) is None
    assert band("down", -1.0, [0, 0, -1, 0]) == [0.2, 0.28]
    assert band("no range", 1.0, [0, 0, 0, 0], band=None) is None
    scalars = {"clip/sequences": [0.1] * 40, "reward/mean": [0.5] * 40}
    assert opened(make_run(tmp_path / "gspo", [row(0)], scalars=scalars)).histograms() == {
        "level": "response", "edges": [], "updates": [], "band": [0.0003, 0.0004],
    }  # fmt: skip


def test_histograms_are_read_anew_when_the_run_went_on(tmp_path: Path) -> None:
    scalars = {"clip/sequences": [0.1] * 40, "reward/mean": [0.5] * 40}
    folder = make_run(tmp_path / "run", scalars=scalars)
    data = opened(folder)
    counts = np.zeros(len(RATIO_BINS) - 1)
    for update in (1, 20):
        with SummaryWriter(str(folder), filename_suffix=f".{update}") as writer:
            counts[update] += 1
            write_counts(writer, "ratio/histogram_negative", counts, RATIO_BINS, update)
        updates = data.histograms()["updates"]
        assert data.histograms()["updates"] is updates, "no file has changed"
        assert updates[-1]["update"] == update
    assert [(u["iteration"], u["mini_batch"], sum(u["positive"]), sum(u["negative"])) for u in updates] == [
        (0, 0, 0.0, 1.0), (4, 3, 0.0, 2.0),
    ]  # fmt: skip


def test_runs_that_differ_in_their_seed_are_of_a_kind(tmp_path: Path) -> None:
    configs = [{"seed_everything": 1, "a": 1}, {"seed_everything": 2, "a": 1}, {"seed_everything": 1, "a": 2}]
    kinds = [opened(make_run(tmp_path / str(i), config=c)).overview()["kind"] for i, c in enumerate(configs)]
    assert (kinds[0] == kinds[1], kinds[0] == kinds[2]) == (True, False)


def test_pictures_are_those_of_the_folder(tmp_path: Path) -> None:
    names = [f"{i}" * 64 for i in range(3)]
    folder = make_run(tmp_path / "run", [row(0, pictures=[*names, "../../secret", 7])])
    (folder / "pictures").mkdir()
    (folder / "pictures" / f"{names[0][:32]}.png").write_bytes(b"thumbnail")
    (tmp_path / "secret.png").write_bytes(b"secret")
    other = make_run(tmp_path / "other", [row(0, pictures=["f" * 64])])
    (other / "pictures").mkdir()
    (other / "pictures" / f"{'f' * 32}.png").symlink_to(tmp_path / "secret.png")
    data = opened(folder)
    (shown,) = data.rows({"iteration": "0"})["rows"]
    assert (shown["pictures"], shown["unseen_pictures"]) == (names[:1], 4)
    assert data.picture(names[0]) == b"thumbnail"
    for run, name in ((data, "../../secret"), (data, "e" * 64), (opened(other), "f" * 64)):
        with pytest.raises(KeyError):
            run.picture(name)
