"""A cold start from a file, through ``gspo fit``; docs/cold_start.md, whose files and commands are real."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.taught import PromptFormat
from gspo_lightning.policy.adapters.lora import LoRA, merge_adapters
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.report.read import read_run
from gspo_lightning.report.words import table
from gspo_lightning.training.cold_start import ColdStart
from gspo_lightning.training.supervised import read_curve
from tests import ROOT
from tests.runs import runs

DOCS = (ROOT / "docs" / "cold_start.md").read_text()
TINY = ModelSettings("tiny-qwen3")
BRIEF = ["--model.cold_start.steps=40", "--data.val.size=16", "--trainer.max_epochs=1"]


def write_demos(folder: Path) -> Path:
    """400 demonstrations of the quickstart's task."""
    file = folder / "demos.jsonl"
    pairs = ChainTask("cold_start", size=400).demonstrations()
    file.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in pairs))
    return file


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    return write_demos(tmp_path)


def fit(root: Path, demos: Path, *more: str, code: int = 0) -> Path:
    return runs.fit(root, f"--model.cold_start.demonstrations={demos}", *BRIEF, *more, code=code)


def cold_starts(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("cold_start/*") if folder.is_dir())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of demonstrations, and a run of one iteration that began with them."""
    folder = tmp_path_factory.mktemp("trained")
    return write_demos(folder), fit(folder / "root", folder / "demos.jsonl")


@pytest.mark.thorough
def test_a_file_is_learnt_and_its_curve_is_logged(trained: tuple[Path, Path]) -> None:
    run = trained[1]
    (made,) = cold_starts(run.parents[1])
    curve = read_curve(made)
    assert [point.step for point in curve] == list(range(1, 41))
    assert [point.step for point in curve if point.held_out_loss is not None] == list(range(2, 41, 2))
    assert curve[-1].loss < 0.5 * curve[0].loss
    assert curve[-1].held_out_loss == pytest.approx(curve[-1].loss, rel=0.3)
    logged = runs.scalars(run)
    assert logged["cold_start/loss"] == [(point.step - 41, pytest.approx(point.loss)) for point in curve]
    assert [step for step, _ in logged["cold_start/held_out_loss"]] == list(range(-39, 0, 2))
    read = read_run(run)
    assert read.updates == 2
    row = dict(table([read]))["loss of the cold start (nats per token)"]
    assert row == [f"{curve[0].loss:.3g} → {curve[-1].loss:.3g}"]


@pytest.mark.thorough
def test_another_run_finds_it_and_another_content_would_make_another(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demos, run = trained
    second = fit(run.parents[1], demos, "--trainer.max_epochs=0")
    assert "cold start: 100%" not in capsys.readouterr().err
    assert len(cold_starts(run.parents[1])) == 1
    assert runs.scalars(second)["cold_start/loss"] == runs.scalars(run)["cold_start/loss"]
    other = tmp_path / "demos.jsonl"
    shutil.copy(demos, other)
    assert ColdStart(str(other)).key(TINY) == ColdStart(str(demos)).key(TINY)
    other.write_text(demos.read_text().replace("#", "=", 1))
    assert ColdStart(str(other)).key(TINY) != ColdStart(str(demos)).key(TINY)
    short = PromptFormat(max_response_tokens=10)
    assert ColdStart(str(demos)).key(TINY, prompt_format=short) != ColdStart(str(demos)).key(TINY)


@pytest.mark.thorough
def test_a_resumed_run_keeps_the_curve_and_needs_no_file(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "quickstart" / "version_0"
    shutil.copytree(trained[1], run, symlinks=True)
    before = runs.scalars(run)["cold_start/loss"]
    (tmp_path / "demos").mkdir()
    gone = write_demos(tmp_path / "demos")
    allowed = ["--allow_changed_config=true"]  # another root folder, and another path of the file
    gone.unlink()
    assert fit(tmp_path, gone, "--trainer.max_epochs=2", "--ckpt_path=last", *allowed) == run
    after = runs.scalars(run)
    assert after["cold_start/loss"] == before
    assert after["reward/mean"][-1][0] == 4


@pytest.mark.thorough
def test_a_run_that_measures_a_divergence_refuses_another_file_when_it_is_resumed(
    tmp_path: Path, demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, kl = tmp_path / "root", "--data.kl_in_reward=0.01"
    fit(root, demos, kl, "--model.cold_start.steps=2")
    demos.write_text(demos.read_text().replace("#", "=", 1))
    fit(root, demos, kl, "--model.cold_start.steps=2", "--trainer.max_epochs=2", "--ckpt_path=last", code=2)
    said = capsys.readouterr().err
    assert "model.cold_start.demonstrations: 400 prompts -> 400 (their content differs)" in said


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bad record": (
        lambda file: file.write_text('{"prompt": "1:", "completion": "#1"}\n{"prompt": "1:"}\n'),
        "error: demos.jsonl:2: has neither 'prompt' and 'completion' nor 'messages'; it has prompt",
    ),
    "no JSON": (lambda file: file.write_text('{"prompt": "1:"\n'), "error: demos.jsonl:1: is not JSON"),
    "messages": (
        lambda file: file.write_text(
            '{"messages": [{"role": "user", "content": "1:"}, {"role": "assistant", "content": "#1"}]}\n'
        ),
        "error: demos.jsonl:1: messages need a chat template, and this tokenizer has none",
    ),
    "empty": (
        lambda file: file.write_text(""),
        "error: model.cold_start.demonstrations: 'demos.jsonl' holds no records",
    ),
    "missing": (
        lambda file: file.unlink(),
        "error: model.cold_start.demonstrations: the prompt file 'demos.jsonl' does not exist",
    ),
}  # fmt: skip


@pytest.mark.thorough("a bad record", "empty", "messages")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_cannot_be_learnt_is_refused_before_anything_is_written(
    tmp_path: Path, demos: Path, change: tuple[Callable[[Path], object], str], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = change
    spoil(demos)
    fit(tmp_path / "root", demos, code=2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.thorough
def test_too_long_demonstrations_are_counted_and_left_out(
    tmp_path: Path, demos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = ["--data.max_response_tokens=10", "--trainer.max_epochs=0", "--model.cold_start.steps=2"]
    fit(tmp_path / "root", demos, *few)
    long = sum(len(c) + 1 > 10 for _, c in ChainTask("cold_start", size=400).demonstrations())
    assert 0 < long < 400
    assert f"dropped {long} of 400 demonstrations that are longer than data.max_prompt_tokens = 16 or" in caplog.text


@pytest.mark.thorough
def test_files_and_commands_of_the_page(page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = page_folder("cold_start")
    monkeypatch.chdir(folder)
    (folder / "answers.csv").write_text('question,response\n7+5:,#2\n"4-9:",#5\n')
    small = [*runs.SMALL, *BRIEF, "--model.cold_start.steps=3"]
    lines = [line for block in re.findall(r"```bash\n(.*?)```", DOCS, flags=re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 8
    for line in (*lines, lines[0].replace("cold.yaml", "mapped.yaml")):
        epochs = ["--trainer.max_epochs=0"] if "coldstart.yaml" in line else []
        assert main([*shlex.split(line)[1:], *(() if line.startswith("gspo export") else (*small, *epochs))]) == 0
    made = cold_starts(folder / "runs")
    adapters = [path for path in made if (path / "adapter_config.json").is_file()]
    assert (len(made), len(adapters)) == (4, 1)
    for path in {*made, folder / "project" / "supervised", folder / "project" / "trained"} - {*adapters}:
        load_policy(ModelSettings(str(path)))
    assert [run.name for run in (folder / "project" / "quickstart").glob("version_*")] == ["version_0"]


@pytest.mark.thorough
@pytest.mark.parametrize("rewards", [{"graded": "Graded"}, {"correct": "ExactMatch"}], ids=["some", "none"])
def test_the_way_out_is_named_once_where_nothing_is_earned(
    tmp_path: Path, rewards: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    run = runs.fit(tmp_path, *runs.UNTAUGHT[:2], f"--data.rewards={json.dumps(rewards)}")
    dead = dict(runs.scalars(run)["reward/dead_groups"])[1]
    assert (dead == 1.0) == ("correct" in rewards)
    assert caplog.text.count("nothing to learn from yet") == int("correct" in rewards)


@pytest.mark.thorough
def test_a_policy_that_calls_no_tool_is_told_to_be_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tools = {"class_path": "ToolUse", "init_args": {"tools": {"calculator": "Calculator"}, "style": "line"}}
    rollouts = {"class_path": "EnvironmentRollouts", "init_args": {"environment": tools}}
    runs.fit(
        tmp_path,
        *runs.UNTAUGHT[:2],
        '--data.rewards={"correct": "ExactMatch"}',
        f"--data.rollouts={json.dumps(rollouts)}",
    )
    assert (
        "no conversation had a second turn: the policy has called no tool; give the model a cold start" in caplog.text
    )


@pytest.mark.long
def test_the_quickstarts_demonstrations_in_a_file_reach_the_same_accuracy(tmp_path: Path, cold_starts: Path) -> None:
    file = tmp_path / "demos.jsonl"
    pairs = ChainTask("cold_start", size=16384).demonstrations()
    file.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in pairs))
    runs.share_cold_start(cold_starts, tmp_path / "class")
    alone = [
        "--trainer.max_epochs=0",
        '--trainer.callbacks=[{"class_path": "RunSummary", "init_args": {"report": false}}]',
    ]
    made = runs.fit(tmp_path / "file", f"--model.cold_start.demonstrations={file}", *alone, small=False)
    known = runs.fit(tmp_path / "class", *alone, small=False)
    found, wanted = (runs.summary(run)["accuracy_before"] for run in (made, known))
    assert found == pytest.approx(wanted, abs=0.08)  # four standard errors of a difference over 512 prompts


@pytest.mark.thorough
@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "adapters"])
def test_the_stage_alone_leaves_a_checkpoint_that_training_continues_from(
    adapters: bool, tmp_path: Path, demos: Path
) -> None:
    """Demonstrations, GSPO and export in one run folder; the break in between changes no bit."""
    lora = ["--model.lora={r: 4}", "--model.cold_start.adapters=true", "--model.objective.kl_coef=0.1"]
    few = [*runs.UNTAUGHT[1:], "--model.cold_start.steps=4", *(lora if adapters else [])]
    run = fit(tmp_path / "a", demos, *few, "--trainer.max_epochs=0")
    assert [file.name for file in run.glob("checkpoints/step-*.ckpt")] == ["step-00000000.ckpt"]
    assert runs.summary(run)["updates"] == 0
    exported = tmp_path / "supervised"
    assert main(["export", str(run), str(exported)]) == 0
    (made,) = cold_starts(tmp_path / "a")
    lora_of = LoRA(r=4, start_from=str(made)) if adapters else None
    start = load_policy(ModelSettings("tiny-qwen3" if adapters else str(made), seed=1, lora=lora_of))
    merge_adapters(start.model)
    found = load_policy(ModelSettings(str(exported))).model.state_dict()
    assert runs.largest_difference(found, dict(start.model.state_dict())) < 1e-6
    assert fit(tmp_path / "a", demos, *few, "--ckpt_path=last") == run
    whole = fit(tmp_path / "b", demos, *few)
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0
    assert runs.scalars(run)["reward/mean"] == runs.scalars(whole)["reward/mean"]
    assert runs.scalars(run)["val/accuracy"][0][0] == 0
    if adapters:
        kl = dict(runs.scalars(run)["kl/policy_reference_k3"])
        assert (kl[1], kl[2] > 0) == (0.0, True)
