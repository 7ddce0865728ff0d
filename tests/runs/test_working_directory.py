"""Modules that lie in the working directory are not taken for installed packages, in no command and no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests import ROOT
from tests.runs import runs

SHADOWS = ("pyarrow", "torch", "yaml", "numpy", "lightning", "transformers", "vllm", "datasets", "kernels")
"""Names that something here imports, or asks for without needing it."""
SHADOW = 'import pathlib\npathlib.Path(__file__ + f".{__name__}.ran").write_text("")\nraise ImportError("shadow")\n'
PLUGIN = """\
import helper
from gspo_lightning.rewards import Reward

class Mine(Reward):
    def score(self, completion: str) -> float:
        import sys
        taken = [name for name in NAMES if str(HERE) in str(getattr(sys.modules.get(name), "__file__", ""))]
        return helper.VALUE * (len(completion) % 5) if not taken else float("nan")
"""
TINY = [
    "--data.train.size=64", "--data.prompts_per_rollout=2", "--data.group_size=2", "--data.minibatches_per_rollout=1",
    "--data.max_response_tokens=4", "--data.reward_workers=1", "--trainer.max_epochs=1", "--data.val=null",
    "--model.cold_start=null", '--trainer.callbacks=[{"class_path": "RunSummary", "init_args": {"report": false}}]',
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory full of names that it must not have."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(SHADOW)
    return tmp_path


def gspo(folder: Path, *argv: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what is imported from where is the subject."""
    start = ["-m", "gspo_lightning"] if module else [str(Path(sys.executable).with_name("gspo"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *start, *argv]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def ran(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.ran"))


@pytest.mark.thorough
def test_a_run_takes_nothing_from_there_but_its_plugins(folder: Path) -> None:
    """Also the reward workers, and what the plug-in imports of the same folder is found."""
    names = f"NAMES, HERE = {SHADOWS!r}, {str(folder)!r}\n"
    (folder / "mine.py").write_text(names + PLUGIN)
    (folder / "helper.py").write_text("VALUE = 0.25\n")
    options = [*TINY, "--plugins=mine.py", '--data.rewards={"mine": "Mine"}', "--trainer.default_root_dir=out"]
    done = gspo(folder, "fit", f"--config={runs.QUICKSTART}", *options)
    assert done.returncode == 0, done.stderr
    assert ran(folder) == []


def test_a_module_of_the_working_directory_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where all that the names shadow is imported; the next test begins anew."""
    (folder / "surprise.py").write_text(SHADOW)
    monkeypatch.chdir(folder)
    assert main(["fit", f"--config={runs.QUICKSTART}", "--trainer.callbacks=surprise.Surprise"]) == 2
    said = capsys.readouterr().err
    assert "'surprise.Surprise' is in surprise.py, which is no plug-in" in said
    assert "fix: add --plugins surprise.py" in said
    assert ran(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("module", [True, False])
def test_without_plugins_nothing_is_taken_from_there(folder: Path, module: bool) -> None:
    (folder / "surprise.py").write_text(SHADOW)
    options = ["--trainer.callbacks=surprise.Surprise", "--trainer.default_root_dir=out"]
    done = gspo(folder, "fit", f"--config={runs.QUICKSTART}", *options, module=module)
    assert done.returncode == 2
    assert "'surprise.Surprise' is in surprise.py, which is no plug-in" in done.stderr
    assert "fix: add --plugins surprise.py" in done.stderr
    assert ran(folder) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "command", ["plan", "validate", "list", "score", "report", "export", "replay", "doctor", "compare"]
)
def test_no_other_command_does(folder: Path, command: str) -> None:
    (folder / "in.jsonl").write_text('{"id": "1", "prompt": "1+1=", "completion": "2", "answer": "2"}\n')
    (folder / "file").write_bytes(b"no file of torch")
    (folder / "run").mkdir()
    (folder / "run" / "summary.json").write_text("{}")
    words = {
        "plan": [f"--config={runs.QUICKSTART}"],
        "validate": [f"--config={runs.QUICKSTART}", *TINY, "--data.val=ChainTask", "--data.evaluation.limit=2"],
        "score": ["--reward", "ExactMatch", "--input", "in.jsonl", "--output", "out.jsonl"],
        "report": ["run"],
        "export": ["file", "out"],
        "replay": ["file"],
        "compare": [f"--config={runs.QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1", "--output=out", *TINY],
    }
    done = gspo(folder, command, *words.get(command, []))
    assert done.returncode in ((2,) if command in ("export", "replay") else (0, 1, 2)), done.stderr
    assert "did not expect" not in done.stderr
    assert ran(folder) == []


EDITED = """\
from gspo_lightning.rewards import Reward

class Edited(Reward):
    "Pays {0}."
    def score(self, completion: str) -> float:
        return {0}.0
"""


def test_a_plugin_that_was_edited_a_moment_ago_runs_as_it_is(tmp_path: Path) -> None:
    """Bytecode would be taken for that of an older file of the same second and size: here and in the workers."""
    (tmp_path / "in.jsonl").write_text('{"id": "1", "prompt": "", "completion": "2"}\n')
    program = """
        from gspo_lightning.cli import main
        main(["score", "--reward=Edited", "--plugins", "edited.py", "--input=in.jsonl", "--output=out.jsonl"])
        main(["list", "rewards", "--plugins", "edited.py"])
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    for value in (1, 2):
        file = tmp_path / "edited.py"
        file.write_text(EDITED.format(value))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert json.loads((tmp_path / "out.jsonl").read_text())["reward"] == value, done.stderr
        assert f"Pays {value}." in done.stdout
