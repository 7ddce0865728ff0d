"""``--ckpt_path last`` is the newest run of this config; a checkpoint of another model is refused by name."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from tests.runs import runs

FEW = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=1"]
OTHER = {"data": {"temperature": 0.7}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run 0 of the config alone, run 1 of it with an overlay."""
    root = tmp_path_factory.mktemp("made")
    (root / "overlay.yaml").write_text(yaml.safe_dump(OTHER))
    runs.fit(root, *FEW)
    runs.fit(root, *FEW, f"--config={root / 'overlay.yaml'}")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "root", symlinks=True))


def command(root: Path, name: str, *more: str) -> int:
    options = [*runs.SMALL, *FEW]
    options = [option for option in options if name == "fit" or "data.val" not in option]
    return main([name, f"--config={runs.QUICKSTART}", *options, f"--trainer.default_root_dir={root}", *more])


def taken(root: Path, name: str) -> list[str]:
    """The runs that have results of a command."""
    return sorted(file.parents[2].name for file in (root / "quickstart").glob(f"version_*/{name}/*/{name}.json"))


@pytest.mark.thorough
def test_readers_take_the_newest_run_of_their_own_files(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gspo_lightning")
    overlay = f"--config={root / 'overlay.yaml'}"
    assert command(root, "validate", "--ckpt_path=last") == 0
    assert taken(root, "validate") == ["version_0"]
    assert (
        "version_1 is of another config (quickstart.yaml + overlay.yaml: data.temperature: 0.7 -> 1.0)" in caplog.text
    )
    assert command(root, "validate", overlay, "--ckpt_path=last") == 0
    assert taken(root, "validate") == ["version_0", "version_1"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.max_epochs=9"],
        ["--trainer.strategy=ddp"],
        ["--data.val.init_args.size=64", "--data.evaluation.batch_size=32"],
        ["--config=ddp"],
    ],
)
def test_settings_without_a_meaning_for_training_may_differ(root: Path, options: list[str]) -> None:
    assert command(root, "validate", *options, "--ckpt_path=last") == 0
    assert taken(root, "validate") == ["version_0"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fit", "validate", "predict"])
def test_without_a_run_of_this_config_the_candidates_are_named(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(root / "quickstart" / "version_0")
    assert command(root, name, "--ckpt_path=last") == 2
    said = capsys.readouterr().err
    assert f"'last', but no run in {root / 'quickstart'} is one of quickstart.yaml: " in said
    assert "version_1 (quickstart.yaml + overlay.yaml: data.temperature: 0.7 -> 1.0)" in said
    assert f"--ckpt_path {root / 'quickstart' / 'version_1'}" in said
    assert [p.name for p in (root / "quickstart").iterdir()] == ["version_1"]
    assert command(root, name, "--ckpt_path=last", "--allow_changed_config=true") == 0


@pytest.mark.thorough
def test_another_command_line_of_the_same_files_is_read_with_a_word_and_not_trained_on(
    root: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "gspo_lightning")
    options = ["--data.max_response_tokens=10", "--ckpt_path=last"]
    assert command(root, "validate", *options) == 0
    assert taken(root, "validate") == ["version_0"]
    assert "with other settings: data.max_response_tokens: 12 -> 10" in caplog.text
    assert command(root, "fit", *options) == 2
    assert (
        "was written by a run that meant something else: data.max_response_tokens: 12 -> 10" in capsys.readouterr().err
    )


@pytest.mark.thorough
def test_fit_goes_on_with_its_own_run_beside_newer_ones_of_others(root: Path) -> None:
    assert command(root, "fit", "--ckpt_path=last", "--trainer.max_epochs=2") == 0
    assert runs.summary(root / "quickstart" / "version_0")["updates"] == 4
    assert runs.summary(root / "quickstart" / "version_1")["updates"] == 2
    assert sorted(p.name for p in (root / "quickstart").iterdir()) == ["version_0", "version_1"]


@pytest.mark.thorough
def test_a_run_without_a_checkpoint_is_continued_by_its_config_alone(root: Path) -> None:
    """Killed before its first checkpoint: of the overlay's run there is only its config.yaml."""
    folder = root / "quickstart"
    shutil.rmtree(folder / "version_0")
    shutil.rmtree(folder / "version_1" / "checkpoints")
    (folder / "version_1" / "summary.json").unlink()
    written = (folder / "version_1" / "config.yaml").read_text()
    assert command(root, "fit", "--ckpt_path=last") == 0
    assert (folder / "version_1" / "config.yaml").read_text() == written
    assert runs.summary(folder / "version_2")["updates"] == 2
    assert command(root, "fit", f"--config={root / 'overlay.yaml'}", "--ckpt_path=last") == 0
    assert runs.summary(folder / "version_1")["updates"] == 2


@pytest.mark.thorough
def test_a_run_that_records_nothing_is_the_newest_run(root: Path) -> None:
    """Older versions did not record the config in every file; a folder may have been made a moment ago."""
    folder = root / "quickstart"
    (folder / "version_2").mkdir()
    assert command(root, "validate", "--ckpt_path=last") == 0
    assert taken(root, "validate") == ["version_0"]
    assert command(root, "fit", "--ckpt_path=last") == 0
    assert runs.summary(folder / "version_2")["updates"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["--allow_changed_config=true"]])
@pytest.mark.parametrize("left", ["nothing", "config", "unfinished"])
def test_readers_pass_over_a_run_that_was_stopped_before_its_first_checkpoint(
    root: Path, left: str, options: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What a kill leaves: an empty folder, settings, or a first checkpoint that lacks its manifest."""
    caplog.set_level(logging.INFO, "gspo_lightning")
    folder = root / "quickstart"
    stopped = folder / "version_2"
    (stopped / "checkpoints").mkdir(parents=True)
    if left != "nothing":
        shutil.copy(folder / "version_0" / "config.yaml", stopped)
    if left == "unfinished":
        shutil.copy(folder / "version_0" / "checkpoints" / "last.ckpt", stopped / "checkpoints" / "step-00000002.ckpt")
    assert command(root, "validate", "--ckpt_path=last", *options) == 0
    assert taken(root, "validate") == ["version_1" if options else "version_0"]
    assert f"last: {stopped} has no checkpoint yet" in caplog.text


OTHERS = {
    "another name": (
        ["--model.name_or_path=tiny-qwen3-moe"],
        "tiny-qwen3-moe: model.name_or_path: tiny-qwen3 -> tiny-qwen3-moe",
    ),
    "other sizes": (
        ['--model.config_overrides={"num_hidden_layers": 1}'],
        "tiny-qwen3: model.config_overrides.num_hidden_layers: (not set) -> 1",
    ),
    "adapters": (["--model.lora.r=4"], "tiny-qwen3: model.lora: (not set) -> adapters"),
}  # fmt: skip


def checkpoint(root: Path) -> str:
    return str(root / "quickstart" / "version_0" / "checkpoints" / "last.ckpt")


@pytest.mark.thorough
@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("name", ["validate", "predict", "test", "evaluate"])
def test_another_model_is_refused_by_both_names(
    made: Path, name: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, words = OTHERS[case]
    options = [*options, f"--ckpt_path={checkpoint(made)}"]
    if name == "evaluate":
        suite = ["--suite=aime2024", f"--data={tmp_path}", f"--output={tmp_path / 'out'}"]
        code = main(["evaluate", f"--config={runs.QUICKSTART}", *suite, *options])
    else:
        code = command(made, name, *options)
    assert code == 2
    said = capsys.readouterr().err
    whole = Path(checkpoint(made)).resolve()
    assert f"ckpt_path: {whole} holds weights of tiny-qwen3, and the model of this config is {words}" in said
    assert f"fix: give the config of its run ({whole.parents[1] / 'config.yaml'})" in said
    assert "Traceback" not in said


@pytest.mark.thorough("validate")
@pytest.mark.parametrize("name", ["fit", "validate"])
def test_weights_that_do_not_fit_are_refused_even_if_another_config_is_allowed(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model.name_or_path=tiny-qwen3-moe", "--allow_changed_config=true", f"--ckpt_path={checkpoint(root)}"]
    assert command(root, name, *options) == 2
    said = capsys.readouterr().err
    assert "holds weights of tiny-qwen3, and the model of this config is tiny-qwen3-moe: policy.model." in said
    assert "absent" in said
    assert "Traceback" not in said


@pytest.mark.thorough
def test_weights_in_shards_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *FEW, "--config=fsdp2")
    last = tmp_path / "quickstart" / "version_0" / "checkpoints" / "last.ckpt"
    assert last.is_dir()
    options = ["--config=fsdp2", "--allow_changed_config=true", f"--ckpt_path={last}"]
    capsys.readouterr()
    assert command(tmp_path, "validate", '--model.config_overrides={"hidden_size": 32}', *options) == 2
    said = capsys.readouterr().err
    shapes = re.search(r": policy\.model\.\S+ is (\d+ x )?(\d+) there and (\d+ x )?(\d+) here", said)
    assert shapes is not None, said
    assert (shapes[4], shapes[2] != "32") == ("32", True)
    assert command(tmp_path, "validate", *options) == 0


@pytest.mark.thorough
def test_one_process_reads_shards_and_does_not_train_on_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path, *FEW, "--config=fsdp2", "--model.lora.r=2")
    for overlay in (["--config=fsdp2"], []):
        assert command(tmp_path, "validate", *overlay, "--model.lora.r=2", "--ckpt_path=last") == 0
    with_overlay, alone = sorted(run.glob("validate/*/validate.json"), key=lambda file: file.stat().st_mtime_ns)
    assert json.loads(alone.read_text())["metrics"] == json.loads(with_overlay.read_text())["metrics"]
    capsys.readouterr()
    assert command(tmp_path, "fit", "--model.lora.r=2", "--ckpt_path=last") == 2
    said = capsys.readouterr().err
    assert "trainer.strategy: reads checkpoints that are one file, and " in said
    assert "step-00000002.ckpt is a folder of shards" in said


@pytest.mark.thorough
def test_adapters_of_another_rank_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *FEW, "--model.lora.r=2")
    capsys.readouterr()
    options = ["--model.lora.r=4", f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"]
    assert command(tmp_path, "validate", *options) == 2
    said = capsys.readouterr().err
    assert re.search(r"lora_A.default.weight is 2 x (\d+) there and 4 x \1 here", said), said


@pytest.mark.thorough
def test_adapters_of_another_scale_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *FEW, "--model.lora.r=2")
    capsys.readouterr()
    options = ["--model.lora.r=2", f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"]
    assert command(tmp_path, "validate", *options, "--model.lora.alpha=64") == 2
    assert "the model of this config is tiny-qwen3: model.lora.alpha: 32.0 -> 64.0" in capsys.readouterr().err
    assert command(tmp_path, "validate", *options) == 0
