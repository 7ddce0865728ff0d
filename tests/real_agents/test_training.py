"""A tiny model learns from real clients, which run as a service in an environment of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs import runs

PYTHON = os.environ.get("GSPO_AGENTS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs the environment of the clients: make test-agents")
AGENT = runs.ROOT / "configs" / "agent.yaml"
OPTIONS = [
    "--data.prompts_per_rollout=16", "--trainer.max_epochs=8", "--trainer.check_val_every_n_epoch=8",
    "--data.evaluation.limit=64", "--data.rollouts.in_flight=16", "--data.rollouts.agent=HttpAgent",
    "--model.cold_start.steps=500",
]  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path_factory.mktemp("home"))}
    command = [PYTHON, str(ROOT / "tests" / "real_agents" / "service.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cold start."""
    folder = tmp_path_factory.mktemp("taught")
    runs.fit(folder, *OPTIONS[-1:], "--config=configs/coldstart.yaml", small=False, config=AGENT)
    return folder


@pytest.mark.parametrize("client", ["openai", "anthropic", "openai_agents"])
def test_held_out_accuracy_rises(client: str, service: str, taught: Path, tmp_path: Path) -> None:
    runs.share_cold_start(taught, tmp_path)
    url = f"--data.rollouts.agent.url={service}/{client}"
    run = runs.fit(tmp_path, *OPTIONS, url, small=False, config=AGENT)
    scalars = runs.scalars(run)
    accuracy = [value for _, value in scalars["val/accuracy"]]
    assert accuracy[-1] > accuracy[0] + 0.1, accuracy
    assert {value for _, value in scalars["agents/rows"]} == {1.0}
    assert {value for _, value in scalars["agents/failures/agent"]} == {0.0}
