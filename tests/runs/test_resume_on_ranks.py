"""Resume commands of the documentation on two ranks, from another folder than the run was started in."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from gspo_lightning.cli import main
from gspo_lightning.resume.hub import ORIGIN
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import WORLD, launched
from tests.support.pages import PAGES

OPTIONS = [
    *(option for option in runs.SMALL if "max_epochs" not in option), *runs.UNTAUGHT, "--data.val=null",
    "--trainer.num_sanity_val_steps=0", "--trainer.accelerator=cpu",
]  # fmt: skip
TWO = ["--config=ddp", f"--trainer.devices={WORLD}"]
STEP = Path("checkpoints") / "step-00000002.ckpt"
COMMIT = "7d5c1e0"
PROGRAMS = {"torchrun", "exec"}
"""Launchers whose ranks all read the whole command; Lightning's first rank hands its arguments to the others."""


def documented() -> list[str]:
    """Every command of the documentation and the examples that resumes a run; shell variables have their defaults."""
    files = [ROOT / "README.md", *PAGES, *sorted((ROOT / "examples").glob("*.sh"))]
    text = "\n".join(file.read_text() for file in files).replace("\\\n", " ")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace('"$CONFIG"', "my.yaml").replace('"$@"', "")
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return sorted({line for line in lines if re.search(r"\bfit\b.*--ckpt_path \S", line) and "`" not in line})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration."""
    root = tmp_path_factory.mktemp("made")
    return runs.fit(root, *OPTIONS, "--trainer.max_epochs=1", small=False)


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A project with the configs that the documentation names; the working directory is beside them."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copy(runs.QUICKSTART, tmp_path / "my.yaml")
    for overlay in ("cold.yaml", "push.yaml"):
        (tmp_path / overlay).write_text("trainer: {log_every_n_steps: 1}\n")
    for folder in ("runs/quickstart", "runs/my", "project/quickstart"):
        shutil.copytree(made, tmp_path / folder / "version_0", symlinks=True)
    (tmp_path / "link").symlink_to("runs")
    return tmp_path


def from_elsewhere(line: str) -> tuple[list[str], str]:
    """The arguments of a documented command with paths from the folder ``elsewhere``, and its ``--ckpt_path``."""
    words = shlex.split(line)
    words = words[words.index("fit") :]
    for i, word in enumerate(words):
        if words[i - 1] in ("--config", "--trainer.default_root_dir") and word != "quickstart":
            words[i] = f"../{word}"
        if word.startswith("$"):
            words[i] = "1" if words[i - 1].endswith("nodes") else str(WORLD)
    root = [] if "--trainer.default_root_dir" in words else ["--trainer.default_root_dir", "../runs"]
    return [*words, *root], words[words.index("--ckpt_path") + 1]


def _short(line: str) -> str:
    """Name of a command in test ids: launcher, last config, checkpoint."""
    words = shlex.split(line)
    configs = [words[i + 1] for i, word in enumerate(words) if word == "--config"]
    return f"{words[0]}-{Path(configs[-1]).stem}-{from_elsewhere(line)[1].removeprefix('hf://').replace('/', '-')}"


def _hub() -> None:
    """In a process of its own: the hub answers with a commit, and nothing else."""
    huggingface_hub.HfApi.repo_info = lambda *_, **__: SimpleNamespace(sha=COMMIT)  # type: ignore[assignment,method-assign]


def test_the_documented_commands_are_found() -> None:
    lines = documented()
    assert len(lines) >= 5
    assert {shlex.split(line)[0] for line in lines} >= {"gspo", "exec", "torchrun"}


@pytest.mark.thorough
@pytest.mark.parametrize("line", documented(), ids=_short)
def test_a_documented_command_goes_on_from_another_folder(line: str, project: Path) -> None:
    words, given = from_elsewhere(line)
    root = project / "project" if "../project" in words else project / "runs"
    run = root / ("my" if "../my.yaml" in words else "quickstart") / "version_0"
    (run / ORIGIN).write_text(json.dumps({"repository": "me/my-run", "commit": COMMIT}) + "\n")
    log = project / "log"
    argv = [*words, *TWO[: 0 if "../configs/fsdp2.yaml" in words else 1], TWO[1], *OPTIONS, "--trainer.max_epochs=2"]
    if line.split()[0] in PROGRAMS:
        prepare = partial(os.chdir, project / "elsewhere")
        codes = Command(argv, WORLD, log=log, prepare=prepare).start().wait(240)
    else:
        codes, handed = launched(argv, project / "elsewhere", log, _hub if given.startswith("hf://") else None)
        assert handed[-1:] == [f"--ckpt_path={run / STEP}"], log.read_text()
    assert codes == [0] * WORLD, log.read_text()
    assert runs.summary(run)["updates"] == 4
    assert [step for step, _ in runs.scalars(run)["loss"]] == [1, 2, 3, 4]
    assert [p.name for p in run.parent.glob("version_*")] == ["version_0"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_relative_folder_leads_both_ranks_to_one_checkpoint(project: Path, command: str) -> None:
    go_on(project, command, "../link", "last")


@pytest.mark.thorough
@pytest.mark.parametrize("given", ["../runs/my/version_0", "../link/my/version_0/checkpoints/last.ckpt"])
def test_a_relative_path_does(project: Path, given: str) -> None:
    go_on(project, "fit", "../runs", given)


def go_on(project: Path, command: str, root: str, given: str) -> None:
    """Run a command on the checkpoint from the folder ``elsewhere``, and check what the second rank is given."""
    options = [option for option in OPTIONS if command == "fit" or option != "--data.val=null"]
    argv = [command, "--config=../my.yaml", *TWO, *options, "--trainer.max_epochs=2", f"--ckpt_path={given}"]
    log = project / "log"
    codes, handed = launched([*argv, f"--trainer.default_root_dir={root}"], project / "elsewhere", log)
    assert codes == [0, 0], log.read_text()
    run = project / "runs" / "my" / "version_0"
    assert handed[-1] == f"--ckpt_path={run / STEP}"
    assert runs.checkpoint(run)["global_step"] == (4 if command == "fit" else 2)


def test_a_plug_in_project_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plug-in is another module there, and its relative paths lead from another folder to the same files."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "lengths.py").write_text(
        "from gspo_lightning.rewards import Reward\n\n\nclass OddLength(Reward):\n"
        "    def score(self, completion: str) -> float:\n        return len(completion) % 2\n"
    )
    prompts = [{"prompt": f"{i}+{i}:", "answer": "0"} for i in range(10)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in prompts))
    replaced = ("--data.train", "--data.rewards", "--plugins")
    words = ["--config=quickstart", *(word for word in OPTIONS if not word.startswith(replaced))]
    words += ['--data.rewards={"odd": "OddLength"}', "--data.prompts_per_rollout=4", "--data.minibatches_per_rollout=1"]
    monkeypatch.chdir(tmp_path)
    first = ["--plugins=plugins/lengths.py", "--data.train=data/train.jsonl", "--trainer.default_root_dir=runs"]
    assert main(["fit", *words, *first, "--trainer.max_epochs=1"]) == 0
    log = tmp_path / "log"
    second = ["--plugins=../plugins/lengths.py", "--data.train=../data/train.jsonl", "--trainer.max_epochs=2"]
    again = ["fit", *words, *second, "--trainer.default_root_dir=../runs", "--ckpt_path=last"]
    prepare = partial(os.chdir, tmp_path / "elsewhere")
    assert Command(again, log=log, prepare=prepare).start().wait() == [0], log.read_text()
    assert runs.summary(tmp_path / "runs" / "quickstart" / "version_0")["updates"] == 2
