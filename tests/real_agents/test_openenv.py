"""OpenEnv: its environments over the WebSocket of a real server, and its capture in front of the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.rollouts.environments import OpenEnvEnvironment
from gspo_lightning.rollouts.gateway.server import Gateway, described
from gspo_lightning.rollouts.gateway.session import Session
from tests import ROOT
from tests.real_agents.serving import on_free_port
from tests.rollouts.gateway.stubs import Bytes, Script
from tests.runs import runs

PYTHON = os.environ.get("GSPO_OPENENV_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs the environment of OpenEnv: make test-agents")
HERE = ROOT / "tests" / "real_agents"
CALL = '<think>hm</think>So  <tool_call>{"name": "multiply", "arguments": {"b": 7, "a": 6}}</tool_call>'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with an environment."""
    with on_free_port([PYTHON, str(HERE / "openenv_server.py")]) as port:
        yield f"http://127.0.0.1:{port}"


def talk(environment: OpenEnvEnvironment, prompt: Prompt, *texts: str) -> list[Any]:
    """The opening, and the answers to some turns."""

    async def work() -> list[Any]:
        try:
            return [await environment.reset(prompt), *[await environment.step(text) for text in texts]]
        finally:
            await environment.close()

    return asyncio.run(work())


def test_a_conversation_with_its_server(url: str) -> None:
    options: dict[str, Any] = {"action": "text", "observation": "hint"}
    by_seed = talk(OpenEnvEnvironment(url, **options), Prompt(37, "30-49?", (1,)), "30", "40", "a", "1" * 9, "37")
    said = [(messages[0]["content"] if messages else "", reward, done) for messages, reward, done in by_seed[1:]]
    assert by_seed[0] == []
    assert [*said[:3], said[4]] == [(">", 0.0, False), ("<", 0.0, False), (">", 0.0, False), (">", 1.0, True)]
    assert said[3][0] == "error: Invalid message: text: String should have at most 8 characters"
    record = Prompt(1, "30-49?", (1,), {"answer": "31"})
    opened = talk(OpenEnvEnvironment(url, reset=["answer"], opens=True, **options), record, "31")
    assert opened[0] == [{"role": "user", "content": "?"}]
    assert opened[1][1:] == (1.0, True)
    with pytest.raises(InfrastructureError, match="out of numbers"):
        talk(OpenEnvEnvironment(url, **options), record, "crash")
    with pytest.raises(UserError, match=r"names 'text', but an observation has .*hint"):
        talk(OpenEnvEnvironment(url, action="text", observation="text"), record, "31")
    with pytest.raises(UserError, match="does not have"):
        talk(OpenEnvEnvironment(url, reset=["day"]), record)
    with pytest.raises(InfrastructureError, match="Cannot connect"):
        talk(OpenEnvEnvironment("http://127.0.0.1:9"), record)


@pytest.mark.parametrize("word", ["nan", "inf", "none"])
def test_an_end_without_a_reward_is_missing(url: str, word: str) -> None:
    """All three are null on its wire; 0 would be a verdict."""
    with pytest.raises(InfrastructureError, match=r"without a reward .*NaN"):
        talk(OpenEnvEnvironment(url, action="text", observation="hint"), Prompt(1, "30-49?", (1,)), word)


def test_openenv_step_gives_its_observation_and_reward(url: str) -> None:
    environment = OpenEnvEnvironment(url, action="text", observation="seen")
    steps = talk(environment, Prompt(1, "30-49?", (1,)), "größer", "yes")
    assert steps[1] == ([{"role": "user", "content": '["größer"]'}], 0.0, False)  # no reward yet
    assert steps[2][1:] == (1.0, True)
    assert talk(environment, Prompt(1, "30-49?", (1,)), "zero")[1][1:] == (0.0, True)


def test_null_at_the_end_is_no_message(url: str) -> None:
    environment = OpenEnvEnvironment(url, action="text", observation="hint")
    assert talk(environment, Prompt(1, "30-49?", (1,)), "quiet")[1] == ([], 1.0, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mistaken", r"VALIDATION_ERROR: Invalid message: seen: Input should be a valid list"),
        ("crash", "EXECUTION_ERROR: out of numbers"),
        ("blank", r"SESSION_ERROR: .*ValueError.*a validator of its action raised this"),
    ],
)
def test_failures_of_an_environment_are_no_mistakes_of_the_policy(url: str, text: str, why: str) -> None:
    """OpenEnv reports values that are invalid inside a step as if the action were; the message has the action."""
    environment = OpenEnvEnvironment(url, action="text", observation="hint")
    with pytest.raises(InfrastructureError, match=f"failed in step after the action '{text}': {why}"):
        talk(environment, Prompt(1, "30-49?", (1,)), text)


@pytest.mark.parametrize(
    ("option", "most", "said"),
    [
        ({"action": "guess"}, 256, "OpenEnvEnvironment.action: is 'guess', but the text of an action is in 'text'"),
        ({"action": "text"}, 1, "OpenEnvEnvironment.sessions: is 64, but .* allows 1 at a time"),
    ],
)
def test_settings_that_no_conversation_survives_stop_the_run(
    option: dict[str, str], most: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with on_free_port([PYTHON, str(HERE / "openenv_server.py"), str(most)]) as port:
        inner = {"url": f"http://127.0.0.1:{port}", "observation": "hint", **option}
        environment = json.dumps({"class_path": "OpenEnvEnvironment", "init_args": inner})
        options = [f"--data.rollouts.environment={environment}", "--model.cold_start=null", "--trainer.max_epochs=1"]
        options += ["--data.prompts_per_rollout=8", "--trainer.limit_val_batches=0"]
        runs.fit(tmp_path, *options, small=False, config=ROOT / "configs" / "guess.yaml", code=2)
    assert re.search(said, " ".join(capfd.readouterr().err.split()))


def test_a_server_for_one_conversation_takes_one_after_another() -> None:
    with on_free_port([PYTHON, str(HERE / "openenv_server.py"), "1"]) as port:
        options: dict[str, Any] = {"action": "text", "observation": "hint", "sessions": 1}
        environment = OpenEnvEnvironment(f"http://127.0.0.1:{port}", **options)
        for _ in range(4):
            assert talk(environment, Prompt(37, "30-49?", (1,)), "37")[1][1:] == (1.0, True)


def test_a_policy_learns_to_guess_from_it(url: str, tmp_path: Path) -> None:
    """In the place of ``GuessNumber`` of configs/guess.yaml, whose cold start finds one number in four."""
    inner = {"url": url, "action": "text", "observation": "hint", "reset": ["answer"]}
    environment = json.dumps({"class_path": "OpenEnvEnvironment", "init_args": inner})
    options = [f"--data.rollouts.environment={environment}", "--trainer.max_epochs=8"]
    options += ["--trainer.check_val_every_n_epoch=8", "--data.evaluation.limit=128"]
    run = runs.fit(tmp_path, *options, small=False, config=ROOT / "configs" / "guess.yaml")
    accuracy = [value for _, value in runs.scalars(run)["val/accuracy"]]
    assert accuracy[-1] > accuracy[0] + 0.1, accuracy


def test_openenv_capture_before_the_gateway_finds_one_root() -> None:
    """Four turns with calls and reasoning: a server that renders its history again gives one root a turn."""
    texts = {"agent": [CALL, CALL, CALL, "42"], "probe": ["hello"]}

    async def work() -> tuple[dict[str, Any], dict[str, Any]]:
        gateway = Gateway(lambda name: Session(name, Bytes(), Script(*texts[name]), 100_000))
        await gateway.start()
        try:
            agent, probe = (gateway.open_session(name) for name in texts)
            probed = {"PROBE_URL": gateway.address(probe).base_url, "PROBE_KEY": probe.key, "no_proxy": "*"}
            process = await asyncio.create_subprocess_exec(
                PYTHON, str(HERE / "openenv_capture.py"), stdout=subprocess.PIPE,
                env={"PATH": os.environ["PATH"], **gateway.address(agent).environment(), **probed},
            )  # fmt: skip
            out, _ = await asyncio.wait_for(process.communicate(), 240)
            assert process.returncode == 0
            return json.loads(out.decode().splitlines()[-1]), described(agent)
        finally:
            await gateway.stop()

    found, tree = asyncio.run(work())
    assert (found["level"], found["answer"]) == ("tokens", "42")
    assert found["stats"] == {"n_turns": 4, "n_roots": 1, "n_leaves": 1, "n_forks": 0, "n_discarded": 0}
    assert tree["reasons"] == {"first": 1}
    assert len(tree["rows"]) == 1
