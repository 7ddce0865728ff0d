"""Definition and loading of suites: a shipped name, or a YAML file of the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.core.types import SystemPrompt
from gspo_lightning.core.variables import check_settings
from gspo_lightning.data.prompts.prompt_set import Columns, PromptSet
from gspo_lightning.rewards import Reward

SHIPPED = Path(__file__).parent / "shipped"
METRICS = ("avg", "pass", "maj", "g-pass", "puzzle_accuracy", "cell_accuracy", "rating")
"""Metrics that a suite may name; the shares of unreadable and truncated answers are always reported."""
_G_PASS = re.compile(r"g-pass(?:@([1-9]\d*))?")


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a suite."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    """Sample from the k most likely tokens; 0 keeps all."""
    max_response_tokens: int = 32_768
    seed: int = 0
    """Seed. Answers depend on it, on the problem's place and on the answer's number, and on nothing else."""


@dataclass(frozen=True)
class Suite:
    """One benchmark."""

    name: str
    """Name of its file."""
    about: str
    """Description in one line."""
    reward: Reward
    """Reward that grades answers; an answer is right if it gets 1 or more."""
    data: PromptSet | str = ""
    """Problems to use if no folder is given: a file, ``id:name:split`` of the hub, or a prompt set."""
    columns: Columns = field(default_factory=dict)
    """``id``, ``prompt``, ``answer`` and other columns of the reward -> the data's columns."""
    prompt: str = "{{ prompt }}"
    """Template (Jinja) of the user's message, over the record's columns (ours, and the data's)."""
    system_prompt: SystemPrompt | None = None
    samples: int = 1
    """Answers to each problem: the k of avg@k."""
    sampling: Sampling = field(default_factory=Sampling)
    metrics: tuple[str, ...] = ("avg", "pass")
    """Names from :data:`METRICS`; ``g-pass@8`` gives a k for G-Pass."""
    by: str | None = None
    """Column by whose values results are also split (``difficulty``)."""
    date: str | None = None
    """Column with a problem's date, for windows such as ``2024-10..2025-02``."""
    windows: Mapping[str, str] = field(default_factory=dict)
    """Names of windows (``release_v5: ..2025-01``)."""
    faulty: Mapping[str, str] = field(default_factory=dict)
    """Id or title of problems known to be faulty -> reason. They count; avg@k is also given without them."""

    def g_pass_draws(self, answers: int) -> list[int]:
        """Return every k for G-Pass@k: the named ones, at most ``answers``; ``g-pass`` without k takes ``answers``."""
        draws = set()
        for name in self.metrics:
            match = _G_PASS.fullmatch(name)
            if match:
                draws.add(min(int(match[1] or answers), answers))
        return sorted(draws)


def shipped() -> dict[str, Path]:
    """Return name -> file of the shipped suites."""
    return {file.stem: file for file in sorted(SHIPPED.glob("*.yaml"))}


def load_suite(name: str) -> Suite:
    """Load a shipped suite or a suite file.

    Args:
        name: ``aime2024``, or a path that ends in ``.yaml``.

    Raises:
        UserError: no such suite, or the file is not a suite; names the file and the field.
    """
    files = shipped()
    path = files.get(name, Path(name))
    if name not in files and path.suffix not in (".yaml", ".yml"):
        raise UserError("--suite", f"{name!r} is not a suite; {did_you_mean(name, files)}", fix="or give a YAML file")
    if not path.is_file():
        raise UserError("--suite", f"{name} does not exist")
    try:
        settings: Any = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"is not YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(str(path), "holds no suite", fix="write about:, reward:, columns: ... as the suites that ship")
    check_settings(settings, f"suite {path}")  # results.json holds the options of the reward
    return _built({"name": path.stem, **settings}, path)


def _built(settings: dict[str, Any], path: Path) -> Suite:
    """Build a suite with jsonargparse, which checks names and types as for a training config."""
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Suite, "suite")
    try:
        suite: Suite = parser.instantiate_classes(parser.parse_object({"suite": settings})).suite
    except ArgumentError as error:
        raise UserError(f"suite {path}", str(error).strip()) from error
    for name in suite.metrics:
        if name not in METRICS and not _G_PASS.fullmatch(name):
            raise UserError(f"suite {path}: metrics", f"{name!r} is not a metric; {did_you_mean(name, METRICS)}")
    if suite.samples < 1:
        raise UserError(f"suite {path}: samples", f"is {suite.samples}; it must be at least 1")
    if suite.samples > 1 and suite.sampling.temperature == 0:
        raise UserError(f"suite {path}: samples", f"is {suite.samples}, but temperature 0 gives one answer only")
    return suite
