"""Environments of the real verifiers: trained by ``gspo fit``, with tools of its own chat program, and broken ones."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.data.prompts import VerifiersTasks
from gspo_lightning.rollouts.agents import VerifiersAgent
from gspo_lightning.rollouts.agents.agent_run import reward_of
from gspo_lightning.rollouts.gateway.server import Gateway, described
from gspo_lightning.rollouts.gateway.session import Session
from tests import ROOT
from tests.real_agents.service import result
from tests.rollouts.gateway.stubs import Bytes, Script
from tests.runs import runs

PYTHON = os.environ.get("GSPO_VERIFIERS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs the environment of verifiers: make test-agents")
LOCAL = {"runtime": {"type": "subprocess"}}
CALCULATOR: dict[str, Any] = {"taskset": {"id": "vf_calculator"}, "agent": LOCAL}
TOOLS = {"taskset": {"id": "vf_tools"}, "agent": {**LOCAL, "harness": {"id": "null"}}}
WHERE = f"{ROOT / 'tests' / 'real_agents'}{os.pathsep}{ROOT}"
CALL = '<tool_call>{"name": "times_multiply", "arguments": {"b": 7, "a": 6}}</tool_call>'


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments of this folder, as if they were installed."""
    monkeypatch.setenv("PYTHONPATH", WHERE)


def broken(fault: str) -> dict[str, Any]:
    """The calculator with a fault."""
    return {**CALCULATOR, "taskset": {**CALCULATOR["taskset"], "task": {"fault": fault}}}


def play(environment: dict[str, Any], *texts: str, record: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """The outcome of the first task with a policy that says these texts, and the tree of its session."""
    task = record or dict(VerifiersTasks(environment, {"limit": 1}, PYTHON).records()[0])

    async def main() -> tuple[Any, dict[str, Any]]:
        agent = VerifiersAgent(environment, PYTHON)
        gateway = Gateway(lambda name: Session(name, Bytes(), Script(*texts), 100_000))
        await agent.open()
        await gateway.start()
        try:
            session = gateway.open_session("s")
            outcome = await asyncio.wait_for(agent.run({**task, "rollout": "0/0"}, gateway.address(session)), 300)
            return outcome, described(session)
        finally:
            await gateway.stop()
            await agent.close()

    return asyncio.run(main())


def fit(root: Path, environment: dict[str, Any], *more: str, code: int = 0) -> Path:
    """A run of two iterations."""
    inner = {"environment": environment, "python": PYTHON}
    train, held_out = ({**inner, "select": select} for select in ({"limit": 48}, {"skip": 48}))
    chosen = {
        "train": {"class_path": "VerifiersTasks", "init_args": train},
        "val": {"class_path": "VerifiersTasks", "init_args": held_out},
        "rollouts.agent": {"class_path": "VerifiersAgent", "init_args": inner},
    }
    options = [f"--data.{name}={json.dumps(value)}" for name, value in chosen.items()]
    options += ["--model.cold_start.steps=400", "--data.max_response_tokens=64", "--data.record_rollouts=true"]
    options += ["--data.evaluation.limit=4", *more]
    return runs.fit(root, *options, config=ROOT / "configs" / "agent.yaml", code=code)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run, and its recorded rollouts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", WHERE)
        run = fit(tmp_path_factory.mktemp("verifiers"), CALCULATOR)
    lines = [line for file in sorted((run / "rollouts").glob("*.jsonl")) for line in file.read_text().splitlines()]
    return run, [json.loads(line) for line in lines]


def test_rewards_are_those_of_the_environment(rows: tuple[Path, list[dict[str, Any]]]) -> None:
    """Computed anew from the messages."""
    for row in rows[1]:
        said = row["messages"][-1]["content"].strip()
        right = float(said.rpartition("#")[2] == result(row["prompt"][:-1]))
        turns = sum(message["role"] == "assistant" for message in row["messages"])
        assert row["reward_logged"] == {"correct": right, "length": len(said), "asked": turns}
        assert row["reward"] == row["environment_reward"] == 2 * right + len(said) / 4
    assert {row["reward_logged"]["asked"] for row in rows[1]} > {1.0}


def test_every_token_is_trained_once_in_one_conversation(rows: tuple[Path, list[dict[str, Any]]]) -> None:
    run, found = rows
    assert len(found) == 64
    for row in found:
        assert [node["parent"] for node in row["tree"]] == [None, *range(len(row["tree"]) - 1)]
        assert len(row["turn_ends"]) == row["reward_logged"]["asked"]
    scalars = runs.scalars(run)
    assert all(gap < 1e-4 for _, gap in scalars["noise/sampler_logprob_gap"])
    for name, value in {"rows": 1.0, "trained_share": 1.0, "forks/answer": 0.0, "retries": 0.0}.items():
        assert {v for _, v in scalars[f"agents/{name}"]} == {value}, name


@pytest.fixture
def chat_program() -> None:
    """Verifiers starts its chat program by uv, which fetches openai once."""
    uv = [str(Path(PYTHON).with_name("uv")), "run", "--no-project", "--with", "openai", "python", "-c", "import openai"]
    done = subprocess.run(uv, capture_output=True, text=True, check=False, timeout=200)
    if done.returncode:
        pytest.skip(f"uv cannot fetch openai here: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.usefixtures("chat_program")
def test_verifiers_chat_program_calls_tools_in_one_conversation() -> None:
    """Of verifiers' own: the harness ``null``, in a process of its own, and a tool behind MCP."""
    (task,) = VerifiersTasks(TOOLS, python=PYTHON).records()
    assert [message["role"] for message in task["prompt"]] == ["system", "user"]
    outcome, tree = play(TOOLS, CALL, "It is 42.")
    assert outcome == {"reward": 1.0, "parts": {"right": 1.0}}
    assert (tree["reasons"], len(tree["rows"])) == ({"first": 1}, 1)
    assert [node["sampled"] for node in tree["nodes"]] == [False, True, False, True]
    assert tree["nodes"][2]["messages"][0]["content"] == "42"


def test_faults_are_told_apart() -> None:
    with pytest.raises(InfrastructureError, match="SandboxError: no disk left"):
        play(broken("machine"), "#1")
    with pytest.raises(RuntimeError, match="the environment gave no reward: it has no function"):
        play(broken("no rewards"), "#1")
    with pytest.raises(RuntimeError, match="the environment gave the reward correct = nan"):
        play(broken("nan"), "#1")
    with pytest.raises(RuntimeError, match="agent ran 2 times, and an episode must run it once"):
        play({**CALCULATOR, "id": "best-of-n", "n": 2}, "#1", "#2")
    with pytest.raises(RuntimeError, match="is another one than when the records were made"):
        play(CALCULATOR, "#1", record={"task": 0, "task_hash": "other"})


def test_a_metric_that_is_nan_is_left_out() -> None:
    """It is a mean of nothing, for one; a number that is not finite would stop the run."""
    outcome, _ = play(broken("metric"), "#1")
    assert reward_of(outcome, "VerifiersAgent").parts == {"correct": 0.0, "length": 2.0}


def test_a_reward_that_raises_stops_the_run(
    rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.share_cold_start(rows[0].parents[1], tmp_path)
    fit(tmp_path, broken("rubric"), "--trainer.limit_val_batches=0", code=2)
    why = "agent: AgentError: RuntimeError: TaskError: task Question scoring: KeyError: 'no such rubric'"
    assert re.search(f"data.rollouts.agent: .* rollouts of the agent are missing: .*{why}", capfd.readouterr().err)


def test_unusable_verifiers_environment_is_refused_before_the_run() -> None:
    with pytest.raises(UserError, match=r"VerifiersTasks.environment: cannot be loaded: .*no_such_taskset"):
        VerifiersTasks({"taskset": {"id": "no_such_taskset"}}, python=PYTHON).records()
    retried = {**CALCULATOR, "retries": {"max_retries": 1}}
    for environment, python, said in [
        ({"taskset": {"id": "no_such_taskset"}}, PYTHON, r"VerifiersAgent.environment: .*no_such_taskset"),
        (retried, PYTHON, "retries are not supported"),
        (CALCULATOR, "/no/python", r"VerifiersAgent.python: cannot be run"),
    ]:
        with pytest.raises(UserError, match=said):
            asyncio.run(VerifiersAgent(environment, python).open())
