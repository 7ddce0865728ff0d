"""A folder of runs as a list: which runs are found, in which order, and what is said of the others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands import view
from gspo_lightning.commands.view import open_runs
from gspo_lightning.core.errors import UserError
from tests.report.view.made import make_run, row


def make_runs(top: Path, *names: str) -> list[Path]:
    """Make runs as training does, NAME/version_0, the first one oldest."""
    folders = [make_run(top / name / "version_0", [row(0)]) for name in names]
    for age, folder in enumerate(reversed(folders)):
        for file in folder.iterdir():
            os.utime(file, (2e9 - 60 * age, 2e9 - 60 * age))
    return folders


def test_a_folder_of_runs_lists_them_the_newest_first(tmp_path: Path) -> None:
    first, second = make_runs(tmp_path, "a", "b")
    (second / "checkpoints").mkdir()
    (tmp_path / "cold_start" / "0123").mkdir(parents=True)
    runs = open_runs([tmp_path])
    assert [run.folder for run in runs] == [second, first]
    open_runs([first])[0].index.close()  # writes its index into the folder
    assert [run.folder for run in open_runs([tmp_path])] == [second, first]
    overviews = [run.overview() for run in runs]
    assert [(o["number"], o["listed"], o["reward"]) for o in overviews] == [
        (0, True, [0.5, 0.5]),
        (1, True, [0.5, 0.5]),
    ]
    assert overviews[0]["label"] != overviews[1]["label"]
    named = open_runs([first, tmp_path])
    assert [(run.folder, run.listed) for run in named] == [(first, False), (second, True)]


def test_a_run_that_is_no_run_is_left_out_of_the_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (good,) = make_runs(tmp_path, "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "events.out.tfevents.1").write_text("these are not events " * 9)
    assert [run.folder for run in open_runs([tmp_path])] == [good]
    assert f"{tmp_path / 'bad'} is left out" in caplog.text
    with pytest.raises(UserError, match="not an event file"):
        open_runs([good, tmp_path / "bad"])


def test_of_many_runs_the_newest_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = make_runs(tmp_path, "a", "b", "c")
    monkeypatch.setattr(view, "LISTED", 2)
    assert [run.folder for run in open_runs([tmp_path])] == [folders[2], folders[1]]
    assert "has 3 runs; the 2 that changed last are listed" in caplog.text


def test_a_folder_without_runs_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_runs(tmp_path / "runs", "a")
    (tmp_path / "empty").mkdir()
    assert main(["view", str(tmp_path / "runs"), str(tmp_path / "empty")]) == 2
    assert f"{tmp_path / 'empty'} is not a run folder" in capsys.readouterr().err


def test_a_file_of_many_runs_holds_as_many_responses_as_one_of_five(tmp_path: Path) -> None:
    rows = [row(i, prompt_id=i, sample=k) for i in range(200) for k in range(4)]
    for number in range(10):
        make_run(tmp_path / str(number) / "version_0", rows)
    out = tmp_path / "runs.html"
    assert main(["view", str(tmp_path), f"--output={out}"]) == 0
    page = out.read_text()
    data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert [250 <= len(run["rows"]) <= 400 for run in json.loads(data)] == [True] * 10
