"""What is left of evaluations: answers over time, JSON of validate and test, and rewards that are no accuracy."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.escape import cell
from gspo_lightning.report.answers import ANSWERS, SCORES, AnswersFile, read_answers
from gspo_lightning.report.page import write_report
from gspo_lightning.report.read import read_run
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.words import headline, table
from gspo_lightning.resume.files import sha256
from tests.runs import runs

EVERY = ["--trainer.check_val_every_n_epoch=1", "--trainer.max_epochs=3", "--data.evaluation.limit=12"]
NEGATIVE = [
    "--model.cold_start=null",
    f"--plugins={Path(__file__).with_name('negative.py')}",
    '--data.rewards={"long": "TooLong"}',
]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations of two updates, evaluated at 0, 2, 4 and 6."""
    return runs.fit(tmp_path_factory.mktemp("graded"), *runs.UNTAUGHT, *EVERY)


@pytest.fixture(scope="module")
def negative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("negative"), *NEGATIVE, *EVERY)


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / ANSWERS).read_text().splitlines()]


@pytest.mark.thorough
def test_the_same_eight_prompts_are_answered_at_every_evaluation(graded: Path) -> None:
    found = rows(graded)
    assert [row["update"] for row in found] == [update for update in (0, 2, 4, 6) for _ in range(8)]
    assert [row["id"] for row in found] == list(range(8)) * 4
    for row in found:
        assert row["prompt"].endswith(":")
        assert row["finish"] in ("stop", "length")
    events = runs.events(graded)
    assert [event.step for event in events.Tensors("held_out_answers/text_summary")] == [0, 2, 4, 6]
    shown = events.Tensors("held_out_answers/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert shown.count("\n") == 9
    assert all(f"`{row['prompt']}`" in shown for row in found[-8:])
    write_report([graded], graded.parent / "report")
    page = (graded.parent / "report" / "report.md").read_text()
    assert "| prompt | answer | update 0 | update 2 | update 4 | update 6 |" in page


@pytest.mark.thorough
def test_the_scores_of_all_prompts_are_kept_and_the_headline_has_their_interval(graded: Path, tmp_path: Path) -> None:
    found = read_answers(graded, SCORES)
    assert [row["update"] for row in found] == [0, 2, 4, 6]
    logged = dict(runs.scalars(graded)["val/accuracy"])
    for row in found:
        assert row["id"] == list(range(12))
        assert sum(row["accuracy"]) / 12 == pytest.approx(logged[row["update"]])
    found_by_report = re.fullmatch(
        r"(held-out accuracy \S+ → \S+: ([+-]\S+ \[\S+, \S+\], n = 12)) \(.*", headline(read_run(graded))
    )
    assert found_by_report is not None
    assert main(["report", str(graded), f"--output={tmp_path}"]) == 0
    assert (
        f"| change of held-out accuracy, 95 % interval | {cell(found_by_report[2])} |"
        in (tmp_path / "report.md").read_text()
    )


@pytest.mark.thorough
def test_the_end_of_training_says_the_change_with_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence of ``gspo report``."""
    run = runs.fit(tmp_path, *runs.UNTAUGHT)
    result = headline(read_run(run)).split(" (")[0]
    assert re.fullmatch(r"held-out accuracy \S+ → \S+: [+-]\S+ \[\S+, \S+\], n = 16", result)
    assert result in capsys.readouterr().out


@pytest.mark.thorough
def test_a_resumed_run_goes_on_in_the_file_without_repeating_itself(graded: Path, tmp_path: Path) -> None:
    run = tmp_path / "quickstart" / "version_0"
    shutil.copytree(graded, run, symlinks=True)
    with open(run / ANSWERS, "a") as file:
        file.write('{"update": 8, "id": 0, "prom')  # killed in the middle of a line
    longer = ["--trainer.max_epochs=4", f"--ckpt_path={run / 'checkpoints' / 'step-00000004.ckpt'}"]
    assert runs.fit(tmp_path, *runs.UNTAUGHT, *EVERY, *longer) == run
    assert [row["update"] for row in rows(run)] == [update for update in (0, 2, 4, 6, 8) for _ in range(8)]
    assert rows(run)[:32] == rows(graded)
    assert [row["update"] for row in read_answers(run, SCORES)] == [0, 2, 4, 6, 8]
    assert read_answers(run, SCORES)[:4] == read_answers(graded, SCORES)


def test_an_evaluation_that_is_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = AnswersFile(tmp_path)
    for update in (0, 2, 4):
        file.add(update, [{"id": 0, "completion": f"first {update}"}])
    again = AnswersFile(tmp_path)
    again.add(2, [{"id": 0, "completion": "second 2"}])
    assert [(row["update"], row["completion"]) for row in read_answers(tmp_path)] == [(0, "first 0"), (2, "second 2")]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["validate", "test"])
def test_an_evaluation_leaves_what_it_found_as_json(
    graded: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [command, f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, *EVERY]
    argv += [f"--trainer.default_root_dir={graded.parents[1]}"]
    assert main([*argv, "--ckpt_path=last"]) == 0
    said = capsys.readouterr().out
    (file,) = graded.glob(f"{command}/*/{command}.json")
    assert f"result: {file}" in said
    content = json.loads(file.read_text())
    last = {tag: values[-1] for tag, values in runs.scalars(graded).items() if tag.startswith("val/")}
    assert {tag: (6, pytest.approx(value)) for tag, value in content["metrics"].items()} == last
    checkpoint = graded / "checkpoints" / "step-00000006.ckpt"
    assert (content["checkpoint"], content["update"]) == (str(checkpoint), 6)
    assert (content["prompts"], content["samples_per_prompt"], content["model"]) == (12, 1, "tiny-qwen3")
    assert content["versions"].keys() >= {"python", "torch", "gspo_lightning"}
    assert main([*argv, "--ckpt_path=last", "--data.evaluation.limit=4"]) == 0
    newest = max((json.loads(f.read_text()) for f in graded.glob(f"{command}/*/*.json")), key=lambda c: -c["prompts"])
    assert newest["prompts"] == 4
    assert newest["config_sha256"] != content["config_sha256"]
    assert newest["data"] == content["data"]
    assert sha256(checkpoint)  # still there: a reader leaves the run as it is


def test_a_folder_that_cannot_be_written_is_named_and_the_run_stays(
    graded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "quickstart" / "version_0"
    shutil.copytree(graded, run, symlinks=True, ignore=shutil.ignore_patterns("validate", "test"))
    (run / "validate").write_text("no folder")
    before = sorted(run.rglob("*"))
    argv = ["validate", f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, *EVERY, "--ckpt_path=last"]
    assert main([*argv, f"--trainer.default_root_dir={tmp_path}"]) == 2
    assert f"error: {run / 'validate'}" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


@pytest.mark.thorough
def test_a_negative_reward_is_shown_as_a_mean_reward(negative: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged = runs.scalars(negative)
    first, last = (logged["val/reward"][i][1] for i in (0, -1))
    assert first < 0
    summary = runs.summary(negative)
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (None, None)
    assert (summary["reward_before"], summary["reward_after"]) == (pytest.approx(first), pytest.approx(last))
    run = read_run(negative)
    assert headline(run).startswith(f"held-out mean reward {first:.2f} → {last:.2f}: ")
    assert ", n = 12 (" in headline(run)
    assert dict(table([run]))["held-out mean reward"] == [f"{first:.2f} → {last:.2f}"]
    (learning,) = [verdict.sentence for verdict in verdicts(run) if verdict.topic == "learning"]
    assert learning.startswith(f"held-out mean reward {first:.2f} → {last:.2f} in 6 updates")
    said = headline(run) + learning + json.dumps(table([run]))
    assert "accuracy" not in said
    assert run.accuracy() == (None, None)
    argv = ["validate", f"--config={runs.QUICKSTART}", *runs.SMALL, *NEGATIVE, *EVERY, "--ckpt_path=last"]
    capsys.readouterr()
    assert main([*argv, f"--trainer.default_root_dir={negative.parents[1]}"]) == 0
    assert "accuracy" not in capsys.readouterr().out
    (file,) = negative.glob("validate/*/validate.json")
    found = json.loads(file.read_text())["metrics"]
    assert found["val/reward"] == pytest.approx(last)
    assert "val/accuracy" not in found


@pytest.mark.thorough
def test_progress_and_summary_of_a_negative_reward_have_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path, *NEGATIVE, *EVERY, "--trainer.max_epochs=1")
    shown = capsys.readouterr()
    after = runs.scalars(run)["val/reward"][-1][1]
    assert f"held-out reward {after:.2f}" in shown.err
    assert f"held-out mean reward │        │ {runs.summary(run)['reward_before']:.4g}" in shown.out
    assert "accuracy" not in shown.out


@pytest.mark.thorough
def test_a_reward_that_is_named_as_the_accuracy_is_shown_as_one(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *NEGATIVE, *EVERY, "--data.evaluation.accuracy_reward=long", "--trainer.max_epochs=1")
    assert runs.summary(run)["accuracy_after"] == 0.0
    assert headline(read_run(run)).startswith("held-out accuracy 0.00 → 0.00")
