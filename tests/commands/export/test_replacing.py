"""``gspo export --overwrite`` replaces an export, and nothing that was not exported."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.resume.exports import MARK
from tests.runs import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("run"), *runs.UNTAUGHT, "--trainer.max_epochs=1")


@pytest.fixture
def umask() -> Iterator[None]:
    """One that nobody has by chance."""
    before = os.umask(0o026)
    yield
    os.umask(before)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.thorough
def test_a_run_folder_gives_its_newest_intact_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    newest = (copy / "checkpoints" / "last.ckpt").resolve()
    assert main(["export", str(copy), str(tmp_path / "out")]) == 0
    assert f"{copy}: {newest}\n" in capsys.readouterr().err
    assert main(["export", str(newest), str(tmp_path / "named")]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "named")]
    assert weights[0] == weights[1]
    newest.write_bytes(b"cut off")
    capsys.readouterr()
    assert main(["export", str(copy), str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert f"checkpoint: no checkpoint in {copy / 'checkpoints'} is whole ({newest.name}: " in said
    assert "ckpt_path" not in said
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").mkdir()
    assert main(["export", str(copy), str(tmp_path / "none")]) == 2
    assert f"checkpoint: the run {copy} has no checkpoint yet" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_run_with_its_checkpoint_is_not_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last, before = run / "checkpoints" / "last.ckpt", files(run)
    for target in (run, run / "checkpoints", run.parent):
        assert main(["export", str(last), str(target), "--overwrite"]) == 2
        assert f"output: {target} is or holds {last}, and would be deleted" in capsys.readouterr().err
    assert files(run) == before
    assert main(["export", str(last), str(last.resolve()), "--overwrite"]) == 2
    assert "is a file" in capsys.readouterr().err


def test_another_folder_is_not_replaced(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years")
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(thesis), "--overwrite"]) == 2
    assert f"output: {thesis} was not written by gspo export" in capsys.readouterr().err
    assert (thesis / "chapter.tex").read_text() == "years"
    assert files(tmp_path) == {"thesis", "thesis/chapter.tex"}


def test_an_export_is_replaced_and_honours_the_umask(run: Path, tmp_path: Path, umask: None) -> None:
    argv = ["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "out"), "--overwrite"]
    assert main(argv) == 0
    written = files(tmp_path / "out")
    assert {"model.safetensors", "config.json", MARK} <= written
    (tmp_path / "out" / MARK).unlink()  # as exports were before
    (tmp_path / "out" / "config.json").write_text("old")
    assert main(argv) == 0
    assert files(tmp_path / "out") == written
    assert (tmp_path / "out" / "config.json").read_text() != "old"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o640}, modes
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o751


def test_the_model_that_a_run_began_with_is_not_replaced(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(base)]) == 0
    own = [*runs.UNTAUGHT, f"--model.name_or_path={base}", "--trainer.max_epochs=1", "--data.val=null"]
    later = runs.fit(tmp_path / "later", *own)
    assert main(["export", str(later / "checkpoints" / "last.ckpt"), str(base), "--overwrite"]) == 2
    assert f"output: {base} is or holds {base}, and would be deleted" in capsys.readouterr().err
    assert (base / "model.safetensors").is_file()
