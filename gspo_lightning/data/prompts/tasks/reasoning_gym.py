"""Prompts of reasoning-gym's families, generated once in a separate process and kept in a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record
from gspo_lightning.resume.files import write_text
from gspo_lightning.rewards.gym.families import VERSION, check_families, check_installed
from gspo_lightning.rewards.workers.interpreter import module_command

log = logging.getLogger(__name__)

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}
_LARGEST = 1_000_000
_FORMAT = 1
"""Format version of the files; raised when their content changes."""
_REFUSED = 3


class ReasoningGym(PromptSet):
    """Items of reasoning-gym's families, in turn, for the reward ``ReasoningGym``.

    Items depend on the settings alone: they are the same on every rank, in every process and after a resume. The three
    splits are disjoint by a hash of the question, whatever the seed. The package is never imported here: a separate
    process generates the items once, and they are kept in a file.

    Args:
        families: such as ``[chain_sum, maze]``; those whose scorers cannot be trusted are refused by name.
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts over all families.
        seed: of the items.
        configs: family -> its settings (``{chain_sum: {min_terms: 4}}``).
        folder: folder for the items; None is ``~/.cache/gspo_lightning/reasoning_gym`` (or below
            ``XDG_CACHE_HOME``).

    Raises:
        UserError: reasoning-gym is not installed in the tested version, a family is refused, or a setting is out of
            range; when items are generated: no such family or setting, or not enough items.
    """

    def __init__(
        self,
        families: list[str],
        split: Split = "train",
        size: int = 4096,
        seed: int = 0,
        configs: dict[str, dict[str, Any]] | None = None,
        folder: str | None = None,
    ) -> None:
        check_installed()
        check_families(families)
        if split not in _SHARES:
            raise UserError("ReasoningGym.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if not 1 <= size <= _LARGEST:
            raise UserError("ReasoningGym.size", f"is {size}; it must lie in 1 to {_LARGEST}")
        for family in configs or {}:
            if family not in families:
                raise UserError(
                    "ReasoningGym.configs", f"{family!r} is not among families", fix="add it, or take it out"
                )
        self.families = list(families)
        self.split = split
        self.size = size
        self.seed = seed
        self.configs = dict(configs or {})
        self.folder = folder

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt``, ``answer``, ``family``, ``entry`` and, if there are settings, ``config``."""
        return [
            {
                "prompt": f"{item['question']}\n\nGive the final answer between <answer> and </answer>.",
                "answer": item["answer"],
                "family": item["family"],
                "entry": item["entry"],
                **({"config": self.configs.get(item["family"])} if self.configs else {}),
            }
            for item in self._items
        ]

    def demonstrations(self) -> Sequence[tuple[str, str]]:
        """Return (prompt, completion) pairs that answer at once."""
        return [(str(r["prompt"]), f"<answer>{r['answer']}</answer>") for r in self.records()]

    @cached_property
    def _items(self) -> list[dict[str, str]]:
        request = {
            "families": self.families, "configs": self.configs, "size": self.size, "seed": self.seed,
            "split": list(_SHARES[self.split]),
        }  # fmt: skip
        digest = hashlib.sha256(json.dumps([_FORMAT, VERSION, request], sort_keys=True).encode()).hexdigest()[:20]
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(self.folder) if self.folder is not None else home / "gspo_lightning" / "reasoning_gym"
        target = folder / f"{digest}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{target}.lock"):
                if not target.exists():
                    log.info("%d items of %s are made in %s", self.size, ", ".join(self.families), target)
                    write_text(target, _generated(request))
            return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
        except OSError as error:
            raise UserError("ReasoningGym.folder", f"{folder} cannot be used: {error}") from error


def _generated(request: dict[str, Any]) -> str:
    """Return the output of the process that generates items.

    Raises:
        UserError: the process refuses the request.
        InfrastructureError: the process failed.
    """
    command, variables = module_command("gspo_lightning.rewards.gym.generate")
    process = subprocess.run(
        command,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env={**variables, "PYTHONHASHSEED": "0"},
    )
    message = process.stderr.strip().splitlines()[-1] if process.stderr.strip() else ""
    if process.returncode == _REFUSED:
        raise UserError("ReasoningGym", message, fix="change families, configs or size")
    if process.returncode != 0:
        raise InfrastructureError(
            f"items of reasoning-gym could not be made (exit code {process.returncode}): {message}"
        )
    return process.stdout
