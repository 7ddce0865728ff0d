"""Every step of the script that a change must pass has a job, and what workflows and the script call is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPT = ROOT / ".ci" / "run"
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def jobs(workflow: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())["jobs"]
    return found


def runs(job: dict[str, Any]) -> list[str]:
    """Commands of a job."""
    return [step["run"] for step in job["steps"] if "run" in step]


def made(text: str) -> set[str]:
    """Targets that a text has make build."""
    calls = re.findall(r"\bmake (?:-k )?((?:[a-z][\w-]*(?: (?=[a-z]))?)+)", text)
    return {target for call in calls for target in call.split()}


def in_jobs() -> set[str]:
    """Steps of the script that a job runs."""
    job = jobs("ci.yml")["step"]
    assert ".ci/run ${{ matrix.step }}" in runs(job)
    return set(job["strategy"]["matrix"]["step"])


def script() -> str:
    """The script without its comments."""
    return re.sub(r"(^| )#.*", "", SCRIPT.read_text(), flags=re.MULTILINE)


def steps() -> list[str]:
    (line,) = re.findall(r'^steps="(.*)"$', SCRIPT.read_text(), flags=re.MULTILINE)
    return str(line).split()


def test_every_step_of_the_script_has_a_job() -> None:
    """The eighth is of the thorough part, which has a machine to itself there."""
    assert in_jobs() == set(steps()) - {"eighth"}


def test_everything_is_the_steps_of_the_jobs() -> None:
    (line,) = re.findall(r"^test-all:.*\n\t\.ci/run (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(line.split()) == in_jobs()


def test_an_eighth_is_another_one_with_every_commit() -> None:
    assert 'eighth() { thorough SHARE="$(($(git rev-list --count HEAD) % 8 + 1))/8"; }' in SCRIPT.read_text()


def test_every_step_is_a_function_that_its_head_describes() -> None:
    text = SCRIPT.read_text()
    assert re.findall(r"^(\w+)\(\) \{", text, flags=re.MULTILINE)[3:] == steps()
    assert re.findall(r"^# (\w+)  +\w", text, flags=re.MULTILINE) == steps()


def test_a_step_that_is_not_there_ends_before_any_other() -> None:
    done = subprocess.run([SCRIPT, "check", "chek"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: chek is no step; steps: {' '.join(steps())}\n"


def test_the_whole_suite_runs_where_tools_are_hidden() -> None:
    text = SCRIPT.read_text()
    assert 'hidden="bwrap g++ c++ clang++ trl chromium chromedriver"' in text
    assert '  env PATH="${newcomers%:}" "$@"\n' in text
    for target in ("quickstart", "test", "test-thorough"):
        assert re.search(
            rf'\bas_a_newcomer (GSPO_TESTS_EXPECT=landlock )?make {target}( "\$@"; }})?$', text, flags=re.MULTILINE
        )


@pytest.mark.parametrize("file", [*WORKFLOWS, SCRIPT], ids=lambda file: file.name)
def test_every_target_that_is_made_exists(file: Path) -> None:
    if file.suffix == ".yml":
        text = "\n".join(command for job in jobs(file.name).values() for command in runs(job))
    else:
        text = script()
    assert made(text) <= TARGETS
    assert made("make quickstart && make no-such test; make bench BENCH_ARGS=x") == {
        "quickstart", "no-such", "test", "bench",
    }  # fmt: skip


def test_the_script_makes_what_has_no_other_step() -> None:
    assert made(script()) == {
        "quickstart", "test", "test-thorough", "lint", "types", "docs", "install", "sandbox", "test-sandbox",
        "test-landlock", "test-user", "test-trl", "bench", "release", "test-wheel", "test-container", "real-model",
        "test-real-model", "test-vllm", "test-agents", "test-view",
    }  # fmt: skip


def test_tests_of_programs_and_agents_run_with_and_without_bubblewrap_as_root() -> None:
    """Files that use the sandbox, or a reward, tool or agent that does."""
    makefile = (ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^SANDBOX_TESTS := ((?:.*\\\n)*.*)$", makefile, flags=re.MULTILINE)
    places = [ROOT / word for word in listed.replace("\\", "").split()]
    runs_programs = re.compile(
        r"gspo_lightning\.rewards\.sandbox|\b(CommandAgent|CodeExecutor|PythonTool)\(|numpy_for_programs"
    )
    files = {file for file in (ROOT / "tests").rglob("test_*.py") if runs_programs.search(file.read_text())}
    only_named = {ROOT / "tests" / "commands" / "doctor" / "test_doctor.py", Path(__file__)}
    missing = {file for file in files - only_named if not any(file.is_relative_to(place) for place in places)}
    assert missing == set()
    assert all(place.exists() for place in places)
    step = script().partition("\nisolation() {")[2].partition("\n}")[0]
    assert '  test "$(id -u)" = 0 || root=sudo\n' in step
    assert '  $root env PATH="$PATH" make test-sandbox\n' in step
    assert '    $root env PATH="${newcomers%:}" make test-landlock' in step
    assert "as_a_newcomer GSPO_TESTS_EXPECT=landlock make test\n" in script(), "where root ran it, by Landlock already"


def test_one_check_waits_for_every_job() -> None:
    found = jobs("ci.yml")
    assert set(found["green"]["needs"]) == set(found) - {"green"}


def test_the_suite_runs_on_the_pythons_that_are_supported() -> None:
    matrix = jobs("ci.yml")["step"]["strategy"]["matrix"]
    also = [case["python"] for case in matrix["include"] if case["step"] == "suite"]
    versions = sorted([*matrix["python"], *also])
    assert versions == jobs("ci.yml")["lock"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r"Python :: \d\.\d+$", name)}
    assert named == set(versions)


def test_every_job_has_an_end() -> None:
    for file in WORKFLOWS:
        endless = [name for name, job in jobs(file.name).items() if "timeout-minutes" not in job]
        assert endless == (["green"] if file.name == "ci.yml" else [])


def test_once_a_week_the_newest_releases_and_all_links_are_tried() -> None:
    commands = {name: made("\n".join(runs(job))) for name, job in jobs("weekly.yml").items()}
    assert commands == {
        "newest": {"test-newest"}, "long": {"sandbox", "test-long"}, "links": {"links"}, "audit": {"audit"},
    }  # fmt: skip
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-newest:")[2].partition("\n\n")[0]
    assert "--upgrade torch lightning transformers trl\n" in recipe
    assert "constraints" not in recipe


def test_workflows_name_each_action_by_its_commit_and_say_the_version() -> None:
    files = [*WORKFLOWS, *(ROOT / ".github" / "actions").glob("*/action.yml")]
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    used = [line.removeprefix("- ") for line in lines if "uses:" in line and "uses: ./" not in line]
    assert len(used) >= 10
    named = re.compile(r"uses: ([\w./-]+)@([0-9a-f]{40})  # (v\d+\.\d+\.\d+)(: .+)?")
    assert [line for line in used if not named.fullmatch(line)] == []
    commits = {match.groups()[:3] for line in used if (match := named.fullmatch(line))}
    assert len(commits) == len({action for action, _, _ in commits}), "one version of each action"


def test_ci_installs_the_lock_with_hashes_and_then_the_package_alone() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    order = [
        text.index(s) for s in ("--require-hashes --no-deps -r tools/requirements.lock", "pip install --no-deps . ")
    ]
    assert order == sorted(order)
