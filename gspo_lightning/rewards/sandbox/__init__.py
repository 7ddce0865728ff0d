"""Sandbox: the only place where model-written programs run (docs/sandbox.md)."""

from __future__ import annotations

from gspo_lightning.rewards.sandbox.launch import Interpreter, Kind
from gspo_lightning.rewards.sandbox.limits import End, Limits, Outcome
from gspo_lightning.rewards.sandbox.probe import Isolation, choose, with_packages
from gspo_lightning.rewards.sandbox.process import Sandbox
from gspo_lightning.rewards.sandbox.warm import sweep

__all__ = [
    "End",
    "Interpreter",
    "Isolation",
    "Kind",
    "Limits",
    "Outcome",
    "Sandbox",
    "choose",
    "sweep",
    "with_packages",
]
