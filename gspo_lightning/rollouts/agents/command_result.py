"""Result of a command that has ended: the reward on its last line, or why it failed."""

from __future__ import annotations

import os
import signal

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.rewards.sandbox import Limits
from gspo_lightning.rewards.sandbox.agents import Ended
from gspo_lightning.rollouts.agents.agent import Outcome
from gspo_lightning.rollouts.gateway.reward import read_reward


def read_result(ended: Ended, limits: Limits) -> Outcome:
    """Return the reward on the last line of a command's output; None without one.

    Raises:
        RuntimeError: it failed, or used more than its limits allow.
        ValueError: its last line is no reward.
        InfrastructureError: the sandbox failed.
    """
    why = {
        "timeout": f"it used more than {limits.cpu_s:g} s of CPU time",
        "overran": f"it used more than {limits.cpu_s:g} s of CPU time",
        "memory": f"it used more than {limits.memory_mb} MiB",
        "processes": f"it had more than {limits.tasks} processes",
        "disk": f"it wrote more than {limits.disk_mb} MiB",
    }.get(ended.reason)
    if why is None and ended.reason:
        raise InfrastructureError(f"the sandbox ended the agent: {ended.reason}")
    if why is None and ended.cut:
        why = f"it printed more than {limits.file_mb} MiB"
    if why is None and ended.status:
        killed = os.WIFSIGNALED(ended.status)
        code = signal.Signals(os.WTERMSIG(ended.status)).name if killed else os.WEXITSTATUS(ended.status)
        errors = ended.stderr.strip().splitlines()
        why = f"{'signal' if killed else 'exit code'} {code}{': ' + errors[-1][:300] if errors else ''}"
    if why is not None:
        raise RuntimeError(why)
    lines = ended.stdout.strip().splitlines()
    try:
        outcome = load_json(lines[-1]) if lines and lines[-1].startswith("{") else None
    except ValueError:
        return None
    if not isinstance(outcome, dict) or not {"reward", "turns"} & outcome.keys():
        return None
    read_reward(outcome)
    return outcome
