"""Pass counts of responses sampled by the model of a config; each batch of prompts is saved in a journal."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
from tqdm import tqdm

from gspo_lightning.commands.data.pass_counts import PassCount, journal_of
from gspo_lightning.commands.evaluate.configured import configured, sampled
from gspo_lightning.commands.evaluate.model import Sampled
from gspo_lightning.commands.fit.cli import TrainingCLI
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.core.types import Prompt, Rollout
from gspo_lightning.data.corpus.files import Identifiers, Inputs
from gspo_lightning.data.prompts.encode import EncodedPrompts, Encoder
from gspo_lightning.data.prompts.files import PromptFile
from gspo_lightning.data.prompts.on_demand import OnDemand
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.loop.experience.generate_and_score import generate_and_score
from gspo_lightning.loop.experience.sources import has_environment
from gspo_lightning.rewards.canned import examined
from gspo_lightning.rollouts import Draws
from gspo_lightning.rollouts.verify import verify_decoding

_ROWS = 256
"""Responses sampled at a time, which is the most an interruption can lose."""


class _Joined(OnDemand[Record]):
    """Sequence of the records of several files."""

    def __init__(self, files: Sequence[Sequence[Record]]) -> None:
        self._files = files
        self._places = array("q")
        for number, file in enumerate(files):
            self._places.extend(number << 40 | place for place in range(len(file)))

    def __len__(self) -> int:
        return len(self._places)

    def at(self, place: int) -> Record:
        """Return one record."""
        packed = self._places[place]
        return self._files[packed >> 40][packed & (1 << 40) - 1]


class _Journal:
    """Journal file of pass counts by record number, one per line; the first line describes the command.

    Args:
        path: journal file to continue; a truncated last line is dropped.
        command: everything that the pass counts depend on.

    Raises:
        UserError: the journal belongs to another command, or the file is not a journal.
    """

    def __init__(self, path: Path, command: dict[str, Any]) -> None:
        self.done: dict[int, PassCount] = {}
        size = 0  # bytes of whole lines
        if path.exists():
            content = path.read_bytes()
            size = content.rfind(b"\n") + 1
            lines = _lines(path, content[:size])
            if lines and lines[0] != command:
                differing = ", ".join(name for name in command if lines[0].get(name) != command[name])
                problem = f"{path.name} was begun for another {differing}"
                raise UserError("--output", problem, fix="repeat that command, remove the file, or name another output")
            self.done = {number: PassCount(passes, samples) for number, passes, samples in lines[1:]}
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._file.truncate(size)
        if not size:
            self._write([command])

    def add(self, pass_counts: dict[int, PassCount]) -> None:
        """Append pass counts to the journal, flushed to disk."""
        self.done |= pass_counts
        self._write([[number, *pass_count] for number, pass_count in pass_counts.items()])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, lines: Sequence[Any]) -> None:
        self._file.writelines(json.dumps(line) + "\n" for line in lines)
        self._file.flush()
        os.fsync(self._file.fileno())


def _lines(path: Path, content: bytes) -> list[Any]:
    """Parse a journal: the description of its command, then [number, passes, samples] of each record."""
    try:
        lines = [load_json(line) for line in content.splitlines()]
        numbers = all([isinstance(n, int) for n in line] == [True] * 3 for line in lines[1:])
        if numbers and all(isinstance(line, dict) for line in lines[:1]):
            return lines
    except (ValueError, TypeError):
        pass
    fix = "remove the file, or name another output"
    raise UserError("--output", f"{path.name} is there, and is no journal of this command", fix=fix)


def sampled_pass_counts(inputs: Inputs, options: argparse.Namespace, rest: Sequence[str]) -> list[PassCount | None]:
    """Return the pass count of each record; None for a record whose prompt is too long.

    Args:
        inputs: input files, with the columns of the config.
        options: parsed options ``config``, ``ckpt_path``, ``samples`` and ``output``.
        rest: further options of ``gspo fit``.

    Raises:
        UserError: the config or a record is wrong, or the journal belongs to another command.
        InfrastructureError: too many responses could not be graded.
    """
    identifiers = Identifiers(inputs)
    for record in inputs.records():  # this pass also refuses NaN, and an id in two files
        identifiers.add(record)
    arguments = []
    for file in options.config:
        arguments += ["--config", file]
    if options.ckpt_path:
        arguments.append(f"--ckpt_path={options.ckpt_path}")
    pass_counts: list[PassCount | None] = []
    configured([*arguments, *rest], lambda cli: pass_counts.extend(_count(cli, inputs, options)))
    return pass_counts


def _count(cli: TrainingCLI, inputs: Inputs, options: argparse.Namespace) -> list[PassCount | None]:
    """Return the pass count of each record, from the journal or from new responses."""
    data = cli.datamodule
    config = cli.config[cli.subcommand]
    records = _Joined([PromptFile(str(path), config.data.columns).records() for path in inputs.paths])
    template = dict(config.data.chat_template_kwargs or {})
    encoder = Encoder(cli.model.tokenizer, config.data.system_prompt, template, "--input")
    prompts = EncodedPrompts(records, encoder, data.settings.max_prompt_tokens, lambda prompt: None)
    command = {
        "inputs": inputs.sha256,
        "samples": options.samples,
        "config": hashlib.sha256(repr(_deciding(config)).encode()).hexdigest(),
        "checkpoint": cli.resumption.path,
        "reward": data.accuracy_reward,
    }
    with contextlib.ExitStack() as stack:
        journal = _Journal(journal_of(options.output), command)
        stack.callback(journal.close)
        remaining = [i for i in range(len(prompts)) if prompts.number(i) not in journal.done]
        if journal.done:
            say(f"{journal_of(options.output)}: goes on behind {len(journal.done):,} prompts")
        if remaining:
            stack.callback(data.teardown, "fit")
            _sample(cli, sampled(cli), prompts, remaining, journal, options.samples)
    return [journal.done.get(number) for number in range(len(records))]


def _deciding(config: Any) -> Any:
    """Return the settings that a response and its score depend on."""
    return [config.seed_everything, config.plugins, config.model, config.data]


def _sample(
    cli: TrainingCLI, who: Sampled, prompts: Sequence[Prompt], remaining: Sequence[int], journal: _Journal, samples: int
) -> None:
    """Sample and score responses to the remaining prompts, and add their pass counts to the journal."""
    data = cli.datamodule
    settings = data.settings
    source = data.rollouts
    sampling = settings.sampling(who.policy.eos_token_ids)
    draws = Draws.of(settings.seed, Purpose.TRAIN_SAMPLING, 0)
    source.open(data.longest)
    if source.local() is not None:
        verify_decoding(who.policy, source, temperature=settings.temperature, longest=data.longest, context=who.context)
    first = prompts[remaining[0]]
    others = [(prompts[place].columns, prompts[place].text) for place in remaining[: examined(data.runner.rewards)]]
    data.runner.check(first.columns, first.text, others, conversation=has_environment(source))
    batch_size = max(1, _ROWS // samples)
    with tqdm(desc="difficulty", total=len(remaining), unit=" prompts") as bar:
        for start in range(0, len(remaining), batch_size):
            batch = [prompts[place] for place in remaining[start : start + batch_size]]
            with torch.no_grad():
                groups, _ = generate_and_score(
                    source, who.policy, batch, data.runner, group_size=samples, sampling=sampling, draws=draws,
                    version=0, context=who.context,
                )  # fmt: skip
            journal.add({int(group[0].prompt.id): _pass_count(group, data.accuracy_reward) for group in groups})
            bar.update(len(batch))


def _pass_count(group: Sequence[Rollout], name: str) -> PassCount:
    """Count the passes of a group by the named reward part, or by the total if a rollout has no such part."""
    values = [rollout.reward_parts.get(name, rollout.reward) for rollout in group]
    scored = [value for value in values if value is not None]
    return PassCount(sum(is_right(value) for value in scored), len(scored))
