"""Real runs with a planted fault each, for the hints and for the page."""

from __future__ import annotations

from pathlib import Path

from tests import ROOT
from tests.runs import runs

PLANTED = Path(__file__).with_name("planted.py")
BRIEF = ["--model.cold_start.steps=150", "--model.cold_start.demonstrations.size=2048", "--data.max_response_tokens=48"]
"""A short cold start for the agent."""


def sampler_off(root: Path) -> Path:
    """Train with a sampler that reports log-probabilities 0.01 nats below those it sampled with."""
    return runs.fit(root, f"--plugins={PLANTED}", "--data.rollouts=OffByACent")


def gamed(root: Path) -> Path:
    """Train on a reward that pays for short answers; held-out prompts are judged by the right one."""
    return runs.fit(
        root, f"--plugins={PLANTED}", '--data.rewards={"paid": "PaysShort", "correct": "ExactMatch"}',
        '--data.reward_weights={"paid": 1.0, "correct": 0.0}', "--data.evaluation.accuracy_reward=correct",
        "--trainer.max_epochs=10", "--data.prompts_per_rollout=16", "--data.group_size=8", "--data.evaluation.limit=64",
        "--model.optimizer.init_args.lr=4e-4",
    )  # fmt: skip


def drifting(root: Path) -> Path:
    """Train an agent whose client sends the policy's turns back with another ending, as a changed template does."""
    plugins = f"--plugins=[plugins/agent.py,{PLANTED}]"
    function = "--data.rollouts.agent.function=tests.report.view.planted.rewrites"
    return runs.fit(root, *BRIEF, plugins, function, config=ROOT / "configs" / "agent.yaml")
