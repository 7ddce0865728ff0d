"""``gspo init`` writes a project that runs from any folder, and touches nothing that is there."""

from __future__ import annotations

import ast
import json
import re
import resource
import shlex
import subprocess
import sys
import zlib
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.init import CARDS, REAL, TASKS
from gspo_lightning.core.extras import install_command
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.rewards.math.calculator import calculate
from tests.resume.test_files import in_a_fork
from tests.runs import runs
from tests.runs.processes import run_module

FILES = {"README.md", "reward.py", "schema.json", "test_reward.py", "train.jsonl", "train.yaml"}
AGENT = {"README.md", "agent.py", "held_out.jsonl", "schema.json", "test_agent.py", "train.jsonl", "train.yaml"}
FILES_OF = {"own": FILES | {"demos.jsonl", "held_out.jsonl"}, "agent": AGENT, "math": FILES | {"held_out.jsonl"}}
MORE = [(task, card) for task in REAL for card in CARDS if (task, card) != ("agent", "24GB")]
NEXT = {"math": ["plan", "fit"], "code": ["doctor", "fit"], "agent": ["plan", "fit"]}
"""Task -> commands that ``gspo init`` names; the others have ``gspo fit`` alone."""
FEW = [
    "--model.cold_start.steps=2", "--trainer.max_epochs=1", "--data.prompts_per_rollout=4", "--data.group_size=2",
    "--data.evaluation.limit=4", "--data.reward_workers=1",
]  # fmt: skip


def next_commands(shown: str) -> list[list[str]]:
    """Return the words of each command that ``gspo init`` says comes next, without ``gspo``."""
    first, *others = shown.partition("next: ")[2].splitlines()
    commands = [shlex.split(line) for line in (first, *others)]
    assert all(command[0] == "gspo" for command in commands)
    return [command[1:] for command in commands]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default project; its classes are registered once in this process."""
    folder = tmp_path_factory.mktemp("init") / "project"
    assert main(["init", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_every_task_writes_a_project_whose_config_is_right(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", f"sub/{task}", "--task", task]) == 0  # modules of a process have different names
    commands = next_commands(capsys.readouterr().out)
    folder = Path("sub") / task
    readme = (folder / "README.md").read_text()
    assert all(f"\ngspo {shlex.join(command)}\n" in readme for command in commands)
    assert [command[0] for command in commands] == NEXT.get(task, ["fit"])
    there = {file.name for file in folder.iterdir()}
    assert there == FILES_OF.get(task, FILES)
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len({record["prompt"] for record in records}) == (200 if task in ("logic", "agent", "math") else 20)
    for name in there:
        assert "FOLDER" not in (folder / name).read_text()
    if task != "own":  # its run is another test's; classes of one name would meet in this process
        assert "<" not in (folder / "train.yaml").read_text()
        assert main([*commands[-1], "--model.name_or_path=tiny-qwen3", "--print_config"]) == 0
        config = yaml.safe_load(capsys.readouterr().out)
        assert config["data"]["train"] == str(tmp_path / folder / "train.jsonl")


@pytest.mark.parametrize(
    ("task", "card"), [("agent", "24GB"), *(pytest.param(*of, marks=pytest.mark.thorough) for of in MORE)]
)
def test_a_project_for_a_card_fits_it(
    task: str, card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"{task}_{card}"
    assert main(["init", str(folder), "--task", task, "--card", card]) == 0
    for file in (folder / "reward.py", folder / "train.yaml"):  # classes of one name would meet in this process
        if file.exists():
            file.write_text(re.sub("Boxed|Fenced", rf"\g<0>{card}", file.read_text()))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    text = (folder / "train.yaml").read_text()
    (planned,) = [line for line in text.splitlines() if line.startswith("#   gspo plan ")]
    assert planned.endswith(f" --device {card}")
    assert main(shlex.split(planned)[2:]) == 0
    shown = capsys.readouterr().out
    assert "\nfits: " in shown
    config = yaml.safe_load(text)
    assert f"{config['model']['name_or_path']}: " in shown
    sizes = config["data"]
    assert sizes["prompts_per_rollout"] <= len((folder / "train.jsonl").read_text().splitlines())
    assert sizes["prompts_per_rollout"] % sizes["minibatches_per_rollout"] == 0
    rollouts = sizes["prompts_per_rollout"] * sizes["group_size"]
    assert f" = {rollouts} " in text
    assert f"updates of {rollouts // sizes['minibatches_per_rollout']} sequences" in text


def test_the_tests_of_programs_accept_their_solutions(tmp_path: Path) -> None:
    """In plain Python, where the solutions are ours; what a policy writes runs in the sandbox only."""
    assert main(["init", str(tmp_path / "project"), "--task=code", "--card=24GB"]) == 0
    prompts = []
    for name in ("train", "held_out"):
        for line in (tmp_path / "project" / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            scope: dict[str, Any] = {}
            exec(record["solution"], scope)
            for test in record["answer"]["tests"]:
                assert scope[record["answer"]["entry_point"]](*test["input"]) == test["output"]
            assert record["answer"]["entry_point"] in record["prompt"]
            prompts.append(record["prompt"])
    assert len(set(prompts)) == 32


@pytest.mark.parametrize(
    "task", ["agent", *(pytest.param(task, marks=pytest.mark.thorough) for task in ("math", "code"))]
)
def test_a_task_takes_a_model_of_the_users(task: str, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "project"), "--task", task, "--model=Qwen/Qwen3-8B"]) == 0
    config = yaml.safe_load((tmp_path / "project" / "train.yaml").read_text())
    assert config["model"]["name_or_path"] == "Qwen/Qwen3-8B"
    assert config["model"]["optimizer"]["init_args"]["lr"] == pytest.approx(1e-6, rel=0.05)
    gpu = torch.cuda.is_available()
    assert config["trainer"]["accelerator"] == ("auto" if gpu else "cpu")
    assert config["data"]["prompts_per_rollout"] == (16 if gpu else 4)
    assert config["data"]["max_response_tokens"] >= 512  # 128 cut answers that reason


@pytest.mark.parametrize("model", ["tiny-qwen3", "Qwen/Qwen3-0.6B"])
def test_mathematics_is_as_hard_as_a_model_of_its_size_may_solve(model: str, tmp_path: Path) -> None:
    """Of problems of two steps, asked without an example, SmolLM2-135M solved none and boxed no answer."""
    assert main(["init", str(tmp_path / "project"), "--task=math", f"--model={model}"]) == 0
    system = yaml.safe_load((tmp_path / "project" / "train.yaml").read_text())["data"]["system_prompt"]
    train, held_out = (
        [json.loads(line) for line in (tmp_path / "project" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    )
    assert len(train) == 200
    assert len(held_out) == 64
    assert not {record["prompt"] for record in train} & {record["prompt"] for record in held_out}
    if model == "Qwen/Qwen3-0.6B":
        assert isinstance(system, str)
        return
    first, *turns = system
    assert first["role"] == "system"
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 4
    for problem, solved in zip(turns[::2], turns[1::2], strict=True):
        (value,) = re.findall(r"\\boxed\{(\d+)\}", solved["content"])
        assert solved["content"].count("=") == 1  # one step
        calculation, _, result = solved["content"].partition(" = ")
        assert calculate(calculation.replace("x", "*")) == int(value)
        assert result.startswith(f"{value}. ")
        assert problem["content"] not in {record["prompt"] for record in (*train, *held_out)}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--task=logic", "--card=24GB"], "--task logic is for its tiny model"),
        (["--task=own", "--model=tiny-qwen3"], "--task own is for its tiny model"),
        (["--card=80GB"], "--card needs a task"),
    ],
)
def test_a_card_without_a_real_task_is_refused(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "project"), *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_an_agent_runs_with_the_users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3", config_overrides={"max_position_embeddings": 1024}))
    policy.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "project", "--task=agent", "--model=model"]) == 0
    agent = Path("project/agent.py")
    agent.write_text(agent.read_text() + "\nOPENING[:] = []\n")  # the tiny model knows no letters
    sums = [json.dumps({"prompt": f"{n}+{n}:", "answer": str(2 * n)}) for n in range(10, 30)]
    Path("project/train.jsonl").write_text("\n".join(sums))
    few = ["--trainer.max_epochs=1", "--data.val=null", "--data.max_response_tokens=8", "--data.reward_workers=1"]
    # another test's agent.py has been imported in this process
    ended = run_module("gspo_lightning", "fit", "--config=project/train.yaml", *few, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (run,) = Path("runs/train").glob("version_*")
    assert runs.summary(run)["updates"] == 2


OTHERS = [
    *(f"--task={task}" for task in TASKS if task != "own"), "--model=tiny-qwen3", "--task=code --card=24GB",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["--task=own", *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS)])
def test_the_written_test_passes_with_plain_pytest(kind: str, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "project"), *kind.split()]) == 0
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, cwd=tmp_path / "project", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


@pytest.mark.thorough
def test_a_project_runs_from_another_folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {file.name: file.read_bytes() for file in project.iterdir() if file.is_file()}
    assert main(["fit", "--config", str(project / "train.yaml"), *FEW]) == 0
    (run,) = Path("runs/train").glob("version_*")
    assert runs.summary(run)["updates"] == 4
    assert {file.name: file.read_bytes() for file in project.iterdir() if file.is_file()} == before


@pytest.mark.thorough
def test_a_project_for_a_model_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3", config_overrides={"max_position_embeddings": 512}))
    policy.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "project", "--model", "model"]) == 0
    for name in ("train", "held_out"):  # in letters that the model knows
        sums = [json.dumps({"prompt": f"{n}+{n}:", "answer": str(2 * n)}) for n in range(10, 30)]
        Path(f"project/{name}.jsonl").write_text("\n".join(sums))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    few = ["--trainer.max_epochs=1", "--data.evaluation.limit=4", "--data.max_response_tokens=8"]
    assert main(["fit", "--config=../project/train.yaml", *few, "--data.reward_workers=1"]) == 0
    (run,) = Path("runs/train").glob("version_*")
    assert runs.summary(run)["updates"] == 2
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["cold_start"] is None
    assert config["model"]["name_or_path"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("model", "rate", "large"), [("Qwen/Qwen3-0.6B", 6.5e-6, False), ("Qwen/Qwen3-8B", 1e-6, True)]
)
def test_a_project_for_a_model_has_settings_for_its_size(model: str, rate: float, large: bool, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "project"), f"--model={model}"]) == 0
    text = (tmp_path / "project" / "train.yaml").read_text()
    config = yaml.safe_load(text)
    assert "<" not in text
    assert config["model"]["name_or_path"] == model
    assert config["model"]["gradient_checkpointing"] is large
    assert config["model"]["optimizer"]["init_args"]["lr"] == pytest.approx(rate, rel=0.05)
    assert config["trainer"]["precision"] == ("bf16-mixed" if torch.cuda.is_available() else "32-true")
    records = [json.loads(line) for line in (tmp_path / "project" / "train.jsonl").read_text().splitlines()]
    assert {"prompt", "answer"} <= records[0].keys()
    assert all(record["prompt"].endswith("?\nAnswer briefly, with a single number.") for record in records)


def test_a_model_that_is_not_there_leaves_no_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "project"), f"--model={tmp_path / 'nothing'}"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_gguf_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain installation has no package gguf; models that a plan has built in are no way out."""
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == "gguf" else find(name, *more))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert main(["init", str(tmp_path / "project"), "--task=math", f"--model={file}"]) == 2
    problem, fix = capsys.readouterr().err.splitlines()
    assert problem.endswith("model.gguf is a GGUF file, which needs the package gguf")
    assert fix == f"  fix: {install_command('gguf')}"


@pytest.mark.parametrize("there", ["a file in it", "a hidden file in it", "a file", "a folder below a file"])
def test_nothing_is_overwritten(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "project"
    if there in ("a file in it", "a hidden file in it"):
        folder.mkdir()
        (folder / (".git" if "hidden" in there else "train.yaml")).write_text("mine")
    else:
        folder.write_text("mine")
        folder = folder / "deeper" if "below" in there else folder
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(folder)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2  # what is wrong, and the fix
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["my project", "it's", 'a "b" c', "$(x) `y` \\n", 'q"""q'])
def test_a_name_with_spaces_and_quotes_is_written_so_that_it_can_be_copied(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name, "--task=logic"]) == 0
    (command,) = next_commands(capsys.readouterr().out)
    assert command == ["fit", "--config", f"{name}/train.yaml"]
    for file in (Path(name) / "reward.py", Path(name) / "train.yaml"):  # classes of one name would meet in this process
        file.write_text(file.read_text().replace("OneAnswer", f"OneAnswer{zlib.crc32(name.encode())}"))
    assert main([*command, "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["data"]["train"] == str(tmp_path / name / "train.jsonl")
    said = [line for line in (Path(name) / "README.md").read_text().splitlines() if line.startswith("gspo fit")]
    assert shlex.split(said[0]) == ["gspo", *command]
    document = ast.get_docstring(ast.parse((Path(name) / "test_reward.py").read_text()))
    assert document is not None
    assert shlex.split(document.partition(": ")[2]) == ["pytest", name]


def test_a_name_that_no_terminal_shows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "a\nb")]) == 2
    assert "has characters that cannot be shown" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_in_the_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a" / "b"

    def on_a_small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # the records are larger
        sys.exit(main(["init", str(target)]))

    assert in_a_fork(on_a_small_disk) == 1
    assert "cannot be written: File too large; nothing of it is left" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
    target.mkdir(parents=True)
    assert in_a_fork(on_a_small_disk) == 1
    assert not list(target.iterdir())
    assert main(["init", str(target)]) == 0


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "train.yaml").is_file()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_default_project_learns(seed: int, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", str(project / "train.yaml"), f"--seed_everything={seed}"]) == 0
    (run,) = Path("runs/train").glob("version_*")
    rewards = [value for _, value in runs.scalars(run)["reward/mean"]][::4]
    assert rewards[0] <= 0.65
    assert sum(rewards[3:6]) / 3 >= rewards[0] + 0.1  # from the start on
    assert sum(rewards[-3:]) / 3 >= 0.85


@pytest.mark.long
@pytest.mark.parametrize(("task", "gain"), [("code", 0.5), ("logic", 0.2)])
def test_other_projects_end_better_than_they_began(task: str, gain: float, tmp_path: Path) -> None:
    """Held-out accuracy; 20 puzzles of logic once were learnt by heart, and others forgotten.

    In a process of its own: rewards of one name would meet in this one.
    """
    assert main(["init", str(tmp_path / task), "--task", task]) == 0
    command = [sys.executable, "-m", "gspo_lightning", "fit", "--config", f"{task}/train.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    (summary,) = tmp_path.glob("runs/train/version_*/summary.json")
    found = json.loads(summary.read_text())
    assert found["accuracy_after"] >= found["accuracy_before"] + gain
