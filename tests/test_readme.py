"""Every command and every piece of code in the README and in docs/running.md is executed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from tests import ROOT
from tests.runs.processes import Command, run_module
from tests.runs.runs import share_cold_start

README = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README + RUNNING, flags=re.DOTALL)


def commands(program: str) -> list[str]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith(program + " ")]


def shortened(arguments: list[str]) -> list[str]:
    """One small iteration of a run, few evaluations; overlays are read only."""
    few = ["--data.evaluation.limit", "16"]
    if arguments[0] in ("validate", "predict"):
        return [*arguments, *few]
    if arguments[0] != "fit":
        return arguments
    if arguments.count("--config") > 1 and "--trainer.devices" not in arguments:
        return [*arguments, "--print_config"]  # test_configs.py makes a step with every overlay
    small = ["--data.prompts_per_rollout", "8", "--data.group_size", "4"]
    return [*arguments, "--trainer.max_epochs", "1", *small, *few]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("change", [shortened, pytest.param(list, marks=pytest.mark.long, id="as written")])
def test_every_gspo_command_works_in_order(
    change: Callable[[list[str]], list[str]], tmp_path: Path, cold_starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_cold_start(cold_starts, tmp_path / "runs")
    for folder in ("configs", "plugins", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    ran = commands("gspo")
    assert len(ran) > 10
    for line in ran:
        arguments = change(shlex.split(line)[1:])
        if "--trainer.devices" in arguments:  # Lightning starts the second rank from the command line of the first
            done = run_module("gspo_lightning", *arguments, cwd=tmp_path, seconds=900)
            assert done.returncode == 0, done.stdout + done.stderr
        elif "my_project/train.yaml" in arguments:  # a plug-in of a new project is one of many
            command = Command(arguments, log=tmp_path / "log", prepare=partial(os.chdir, tmp_path))
            assert command.start().wait(900) == [0], (tmp_path / "log").read_text()
        else:
            assert main(arguments) == 0, line
    run = tmp_path / "runs" / "quickstart" / "version_0"
    assert (run / "report.png").is_file()
    assert (run / "report.md").is_file()
    assert (tmp_path / "exported" / "config.json").is_file()
    assert (tmp_path / "scores.jsonl").read_text().count('"reward"') == 3


@pytest.mark.parametrize("line", [*commands("make"), "make check"])
def test_make_targets_exist_and_install_first(line: str) -> None:
    shown = subprocess.run(
        [*shlex.split(line), "-n", "VENV=/nonexistent/venv"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    install = shown.index("pip install")
    assert "constraints.txt" in shown[install:]
    work = {"make quickstart": "gspo fit", "make test": "pytest", "make check": "mypy"}[line.split(" SEED")[0]]
    assert install < shown.index("/nonexistent/venv/bin/" + ("python -m " if work == "pytest" else "") + work)


def test_ci_begins_with_the_commands_of_the_readme_as_a_newcomer_does() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert commands("make") == ["make quickstart", "make test"]
    assert re.findall(
        r"^  as_a_newcomer (?:GSPO_TESTS_EXPECT=landlock )?(make .*)", script, flags=re.MULTILINE
    ) == commands("make")
    assert '\nsteps="suite ' in script


def test_help_lists_the_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = set(re.findall(r'@echo "make ([a-z-]+) ', makefile))
    (parts,) = re.findall(r'a part of it: ([\w -]+)"', makefile)
    (others,) = re.findall(r'echo " +(container; or long[^"]*), which', makefile)
    shown |= {f"test-{part}" for part in [*parts.split(), *re.findall(r"[\w-]+", others)] if part != "or"}
    phony = set(
        " ".join(re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, flags=re.MULTILINE)).replace("\\", "").split()
    )
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    assert phony == targets
    assert shown <= targets
    assert targets - shown == {"help", "install", "there", "lint", "types", "doctest", "clean"}  # parts of others


def test_plugin_example_is_the_file_that_ships() -> None:
    assert (ROOT / "plugins" / "brevity.py").read_text() in blocks("python")


@pytest.mark.parametrize("block", [b for b in blocks("python") if "class Brevity" not in b])
def test_python_examples_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_examples_parse_as_configs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "example.yaml").write_text(block)
    base = [] if "train" in yaml.safe_load(block)["data"] else ["--config=configs/quickstart.yaml"]
    assert main(["fit", *base, f"--config={tmp_path / 'example.yaml'}", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    if "rewards" in (data := yaml.safe_load(block)["data"]):
        assert set(printed["data"]["rewards"]) == set(data["rewards"])


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_shipped_configs_are_mentioned() -> None:
    docs = README + RUNNING + (ROOT / "CONTRIBUTING.md").read_text()
    for file in (ROOT / "configs").glob("*.yaml"):
        assert file.name in docs, f"{file.name} is mentioned nowhere"
