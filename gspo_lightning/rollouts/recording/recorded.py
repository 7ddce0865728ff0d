"""Recorded responses: repeat a run without a generator, or train several objectives on the same data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.thinking import decode_response
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams, WeightsOn
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.rows import Row, rows_of, store
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.recording.records import RecordFile, check_row, open_records, rows_in
from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
from gspo_lightning.rollouts.source import GenerationRequest, RolloutSource

PATH = "data.rollouts.path"
RECOMPUTED_TOKENS = 16384
"""Tokens per forward pass, padding included, when missing log-probabilities are recomputed."""


@dataclass(slots=True)
class _Group:
    """Recorded responses to one prompt, by their file and row numbers."""

    name: str
    iteration: int | None
    file: RecordFile
    rows: list[int] = field(default_factory=list)


_Key = tuple[tuple[int, ...], tuple[str, ...]]
"""Token ids of a prompt, and the hashes of its pictures."""


class Recorded(RolloutSource):
    """Replay of a file written by ``gspo predict`` or by a run with ``data.record_rollouts``.

    Prompts are matched by token ids and pictures. Every row is checked before the first rollout; ids, mask and
    log-probabilities come back exactly as they were written.

    Args:
        path: a ``.jsonl`` or ``.parquet`` file, or a folder of them (``RUN/rollouts``).
        match: ``iteration``: rows with an iteration number serve only that iteration, so a run is repeated
            exactly; rows without one serve all. ``prompt``: all recorded groups of a prompt in turn, one for each
            iteration that asks.
        missing_logprobs: rows without log-probabilities: ``refuse`` them, or ``recompute`` with the weights at the
            start of the iteration, as if this policy had sampled them.
        rewards: ``score`` the responses with ``data.rewards``, or take the ``recorded`` rewards (null counts as
            missing).
        evaluation: source for held-out prompts, which were not recorded; None takes the in-process sampler.
    """

    reads_pictures = True

    def __init__(
        self,
        path: str,
        match: Literal["iteration", "prompt"] = "iteration",
        missing_logprobs: Literal["refuse", "recompute"] = "refuse",
        rewards: Literal["score", "recorded"] = "score",
        evaluation: RolloutSource | None = None,
    ) -> None:
        self.path, self.match, self.missing_logprobs, self.rewards = path, match, missing_logprobs, rewards
        self.evaluation = evaluation if evaluation is not None else GroupedSampler()
        self._groups: dict[_Key, list[_Group]] = {}

    def open(self, longest: int) -> None:
        """Read and check every row; only positions stay in memory.

        Raises:
            UserError: there is no file, or a row cannot be trained on.
        """
        self.evaluation.open(longest)
        if not self._groups:
            self._read()

    def close(self) -> None:
        """Close the source of ``evaluation``."""
        self.evaluation.close()

    def _read(self) -> None:
        groups: dict[tuple[_Key, int | None, str], _Group] = {}
        for file in open_records(self.path):
            for number, row in enumerate(file.scan()):
                where = f"{file.path}, row {number + 1}"
                check_row(row, where)
                if row.get("logprobs") is None and self.missing_logprobs == "refuse":
                    raise UserError(
                        where,
                        "has no logprobs, so the probability of this response when it was sampled is unknown",
                        fix="data.rollouts.missing_logprobs: recompute, if the policy may stand in for its author",
                    )
                asked, iteration = (tuple(row["prompt_ids"]), tuple(row.get("pictures") or ())), row.get("iteration")
                name = str(row.get("id", "")).rpartition("/")[0]
                groups.setdefault((asked, iteration, name), _Group(name, iteration, file)).rows.append(number)
        for (asked, _, _), group in groups.items():
            self._groups.setdefault(asked, []).append(group)
        if not self._groups:
            raise UserError(PATH, f"{self.path!r} holds no rows")

    @property
    def weights_on(self) -> WeightsOn:
        """No rank needs weights to read a file; every rank does if log-probabilities may have to be recomputed."""
        return WeightsOn.NO_RANK if self.missing_logprobs == "refuse" else WeightsOn.EVERY_RANK

    def for_evaluation(self) -> RolloutSource:
        """Return the source of ``evaluation``."""
        return self.evaluation

    @called_with(GenerationRequest)
    @torch.no_grad()
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Return recorded responses as groups.

        Raises:
            UserError: a prompt has too few recorded responses, or they do not fit the model or sampling settings.
        """
        group_size = request.group_size
        if not self._groups:
            self._read()
        groups: list[list[Rollout]] = []
        for prompt in request.prompts:
            found = self._find(prompt, request.draws.iteration)
            if len(found.rows) < group_size:
                raise UserError(
                    PATH,
                    f"prompt {prompt.id} has {len(found.rows)} recorded responses, but data.group_size is {group_size}",
                    fix=f"use a group size of at most {len(found.rows)}",
                )
            rows = found.file.read(found.rows[:group_size])
            group = [
                self._rollout(request.policy, prompt, k, row, request.sampling, request.version)
                for k, row in enumerate(rows)
            ]
            if any(r.logprobs is None for r in group):
                _recompute(request.policy, group, request.sampling.temperature)
            groups.append(group)
            if self.on_group is not None:
                self.on_group(group)
            if request.progress is not None:
                request.progress(len(groups) * group_size, request.size)
        return groups

    def _find(self, prompt: Prompt, iteration: int) -> _Group:
        known = self._groups.get((prompt.token_ids, tuple(p.sha256 for p in prompt.media)), [])
        if self.match == "iteration":
            exact = [g for g in known if g.iteration == iteration]
            known = exact or [g for g in known if g.iteration is None]
        if not known:
            raise UserError(
                PATH,
                f"{self.path!r} has no responses to prompt {prompt.id} ({prompt.text[:40]!r}) for iteration "
                f"{iteration}",
                fix="repeat the run with its own prompts, seed, data.prompts_per_rollout and tokenizer; or "
                "data.rollouts.match: prompt, where iterations do not matter",
            )
        own = [g for g in known if g.name == str(prompt.id)] or known
        return own[iteration % len(own)]

    def _rollout(
        self, policy: Policy, prompt: Prompt, sample: int, row: dict[str, Any], sampling: SamplingParams, version: int
    ) -> Rollout:
        where, ids = f"{self.path}, {row.get('id', 'a row')}", torch.tensor(row["completion_ids"], dtype=torch.int64)
        _check_use(row, where, sampling, policy.model.config.get_text_config().vocab_size)
        if unsaid := set(policy.unsaid).intersection(row["completion_ids"]):
            problem = (
                f"holds the token {min(unsaid)}, which a policy never says: it has no text, or stands for a picture"
            )
            raise UserError(where, problem, fix="leave this response out")
        mask, logprobs = row.get("response_mask"), row.get("logprobs")
        rollout = Rollout(
            prompt=prompt,
            sample=sample,
            token_ids=ids,
            logprobs=None if logprobs is None else torch.tensor(logprobs, dtype=torch.float32),
            response_mask=torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.tensor(mask).bool(),
            finish_reason=FinishReason(row.get("finish_reason", "stop")),
            policy_version=int(row.get("policy_version", version)),
            text=row.get("completion") or decode_response(policy.tokenizer, ids.tolist()),
            lost=row.get("lost") or "",
            rows=rows_in(row),
            tree=tuple(row.get("tree") or ()),
        )
        if row.get("turn_ends"):
            rollout.messages, rollout.turn_ends = tuple(row["messages"]), tuple(row["turn_ends"])
            rollout.turn_rewards = tuple(row["turn_rewards"])
        if self.rewards == "recorded":
            _take_rewards(rollout, row)
        return rollout


def _check_use(row: dict[str, Any], where: str, sampling: SamplingParams, vocabulary: int) -> None:
    """Check that a recorded response can replace one sampled now.

    Raises:
        UserError: its tokens, length or sampling settings do not fit the run.
    """
    rows = rows_in(row)
    largest = max(map(max, [row["completion_ids"], *(span.context for span in rows)]))
    if largest >= vocabulary:
        raise UserError(where, f"has the token id {largest}, but the model's vocabulary has {vocabulary}")
    count = len(row["completion_ids"])
    if rows:
        count = max(span.length for span in rows) - len(row["prompt_ids"])
    if count > sampling.max_response_tokens:
        raise UserError(
            where, f"has {count} tokens, more than data.max_response_tokens = {sampling.max_response_tokens}"
        )
    recorded = row.get("sampling") or {}
    for name in ("temperature", "top_p", "top_k"):
        if name in recorded and recorded[name] != getattr(sampling, name):
            raise UserError(
                where,
                f"was sampled with {name} {recorded[name]}, but the run uses {getattr(sampling, name)}: its "
                "log-probabilities are another distribution's",
                fix="record with the settings of the run (gspo predict --data.evaluation.temperature 1)",
            )


def _take_rewards(rollout: Rollout, row: dict[str, Any]) -> None:
    """Copy the recorded rewards; a reward without parts counts as one part."""
    reward = row.get("reward")
    rollout.reward = None if reward is None else float(reward)
    rollout.reward_parts = dict(row.get("reward_parts") or {"recorded": rollout.reward})
    statuses = {name: "missing" if value is None else "ok" for name, value in rollout.reward_parts.items()}
    rollout.reward_logged = dict(row.get("reward_logged") or {})
    rollout.reward_statuses = statuses | dict(row.get("reward_statuses") or {})


def _recompute(policy: Policy, group: list[Rollout], temperature: float) -> None:
    rows = rows_of(group)
    size = max(1, RECOMPUTED_TOKENS // max(row.length for row in rows))
    found: list[tuple[Row, Tensor]] = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        found += zip(part, policy(make_micro_batch(part).to(policy.device), temperature)[0].float().cpu(), strict=True)
    store("logprobs", found)
