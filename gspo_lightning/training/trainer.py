"""GSPOTrainer: GSPO as a function call, one line per step, with any transformers model and an in-process reward.

It uses the same policy, sampler, advantages, packing, objective and old policy as ``gspo fit``, without Lightning: for
a notebook, or for a loop of your own. ``gspo fit`` adds several devices, killable reward workers, checkpoints that
survive a kill, and a dashboard.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.host_memory import keep_freed_memory
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MiniBatch, Prompt
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore, Scorer
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.loop.experience.loader import ExperienceLoader
from gspo_lightning.loop.experience.sampling import Sampling
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.metrics.sums import MetricSums, ratio_percentiles
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.loop.update.micro_batches import all_but_last_backward
from gspo_lightning.loop.update.optimizers import fuse
from gspo_lightning.loop.update.schedules import lr_factor
from gspo_lightning.objectives import Objective
from gspo_lightning.objectives.trial import learns_without_advantage
from gspo_lightning.policy.disable_dropout import modes_kept
from gspo_lightning.policy.model_checks.checks import check_head, check_model, choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import Reward
from gspo_lightning.rollouts import GroupedSampler, RolloutSource
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.training import trainer_config
from gspo_lightning.training.checks import check_critic
from gspo_lightning.training.evaluation.evaluation_settings import Evaluation
from gspo_lightning.training.evaluation.metrics import EvaluationMetrics
from gspo_lightning.training.teacher import teacher_of
from gspo_lightning.training.trainer_config import GSPOConfig, config_of, objective_of
from gspo_lightning.training.trainer_inputs import (
    REWARD,
    CallerReward,
    FixedPrompts,
    Query,
    RewardFunction,
    encode_queries,
    records_of,
    scorer_of,
)

log = logging.getLogger(__name__)


class GSPOTrainer:
    """Trains a causal language model with GSPO (arXiv 2507.18071, Eq. 5 to 7), one :meth:`train_step` at a time.

    Construction leaves every weight bit-identical, and dtype, train or eval mode and requires_grad as they are. It
    makes three changes: every dropout and router jitter rate without effect in evaluation is set to 0, because dropout
    moves a ratio by more than the clip range; rotary embeddings that follow the length of a call (longrope, dynamic)
    are pinned to the length of the longest possible row; and the model is moved if ``config.device`` names another
    device. Parameters that require no gradient (a frozen base under LoRA) are not trained.

    Args:
        model: any causal language model of transformers; trained in place.
        tokenizer: the model's.
        config: settings; the default trains on policy with the paper's clip range. If its 512 response tokens would
            fill the model's context, responses get half of that. A YAML file of ``gspo fit``, or a
            mapping of its settings (``{"model.optimizer.lr": 1e-5}``), keeps their names, meaning and defaults.
        objective: another objective than GSPO with the config's clip range: its name (``"DAPO"``, those of ``gspo list
            objectives`` and of plug-ins), class, or an instance with its own settings.
        advantages: how advantages are computed; None compares rewards within groups (``GroupNormalised``).
        critic: learns the values that ``advantages=GAE()`` needs: ``ValueModel(lr=1e-5)`` copies the model as it is
            now.
        teacher: model that an objective with ``distill_coef`` distils from (on-policy distillation): another model
            with the same vocabulary, which is moved to the model's device and gets no gradients; or its name, folder,
            or the URL of a server.

    Attributes:
        policy: the model, as a policy of this package.
        optimizer: AdamW; its learning rate may be changed between steps. A critic's changes in the same proportion,
            once the policy learns: if ``critic.warming`` is true, the policy waited in the last step, which a
            schedule should not count.
        rollouts: the source of responses.
        iteration: steps begun so far. Part of every random draw: each step draws anew, and the same model, seed,
            iteration and queries draw the same responses again. Set it to continue where another trainer stopped.
        examples: prompt, completion, reward, advantage ... of some responses of the last step, for inspection.

    Raises:
        UserError: the model is not a causal language model of transformers, is in float16, has nothing to train,
            computes its logits in an unknown way, or gives a row other log-probabilities beside other rows, or sampled
            token by token, than alone; no token could end a response; or several processes are running.

    >>> from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
    >>> model, tokenizer = build_tiny_model("tiny-qwen3", seed=0), character_tokenizer()
    >>> config = GSPOConfig(learning_rate=1e-3, left_clip_range=0.002, right_clip_range=0.002, max_response_tokens=8)
    >>> trainer = GSPOTrainer(model, tokenizer, config)
    >>> step = trainer.train_step(["1+1:", "2*3:"], lambda query, response: float("7" in response))
    >>> step["ratio/mean"], step["clip/sequences"], step["data/iteration"]  # on policy
    (1.0, 0.0, 0.0)
    >>> trainer.iteration
    1
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: GSPOConfig | str | Path | Mapping[str, Any] | None = None,
        objective: Objective | type[Objective] | str | None = None,
        advantages: Advantages | None = None,
        critic: ValueModel | None = None,
        teacher: PreTrainedModel | str | None = None,
    ) -> None:
        if isinstance(config, str | Path | Mapping):
            config, objective_of_config = config_of(config)
            objective = objective_of_config if objective is None else objective
        check_model(model)
        self.config = trainer_config.fitting(config or GSPOConfig(), trainer_config.context_of(model))
        if rank_and_world()[1] > 1:
            raise UserError("GSPOTrainer", "runs in one process, but there are several", fix="use gspo fit")
        if self.config.device is not None:
            model.to(self.config.device)
        self.policy = Policy(model, tokenizer)
        if not self.policy.eos_token_ids:
            raise UserError("tokenizer", "has no end-of-sequence token, so no response could end", fix="set eos_token")
        check_head(self.policy)
        prompt = self.config.max_prompt_tokens or 1 << 30  # unknown: any sliding window may be too short
        longest = prompt + self.config.max_response_tokens
        choose_layout(self.policy, "auto", longest)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        fuse(self.optimizer)
        keep_freed_memory(self.policy.device)
        self.objective = objective_of(objective, self.config)
        self.old_policy: OldPolicy = CachedLogProbs()
        self.every_row_learns = learns_without_advantage(self.objective)
        self.old_logprobs = OldLogProbs("auto", self.objective)
        self.advantages: Advantages = GroupNormalised() if advantages is None else advantages
        check_critic(critic, self.advantages, Shaping(), self.objective, where="")
        self.critic = critic
        self.rollouts: RolloutSource = GroupedSampler(max_rows=self.config.max_rows)
        with modes_kept(self.policy):
            verify_decoding(self.policy, self.rollouts, temperature=self.config.temperature, longest=longest)
        if critic is not None:
            critic.build(self.policy, longest=(self.config.max_prompt_tokens or 0) + self.config.max_response_tokens)
        self.iteration = 0
        self.examples: list[dict[str, Any]] = []
        self.reference = ReferencePolicy(self.policy) if self.objective.kl_coef > 0 else None
        self.teacher = teacher_of(
            teacher, self.policy, self.objective, temperature=self.config.temperature, longest=longest
        )
        self.version = 0
        self.iterations: int | None = None
        self._reading_tokenizer = tokenizer
        if not self.config.use_chat_template and tokenizer.chat_template is not None:
            self._reading_tokenizer = copy.copy(tokenizer)  # the caller's keeps its template
            self._reading_tokenizer.chat_template = None

    def train_step(
        self, queries: Sequence[Query], reward_function: RewardFunction | Reward | None = None
    ) -> dict[str, float]:
        """Sample ``group_size`` responses to each query, reward them, and make ``minibatches * epochs`` updates.

        If all rewards of every group are equal there is nothing to learn from, and only momentum moves weights. A loss
        of 0 does not indicate that: in every first update all ratios are 1, and the loss is minus the mean advantage of
        the mini-batch, 0 over whole groups.

        Args:
            queries: P texts, or P records (``{"prompt": "1+1=", "answer": "2"}``); each may occur more than once.
            reward_function: called in this process for each response, as text without special tokens, in order.
                With texts it gets query and response by position. With records its arguments are filled by name:
                ``query`` (or ``prompt``), ``response`` (or ``completion``), ``completion_ids``, ``truncated``, and any
                column. A :class:`~gspo_lightning.rewards.Reward` works, too; a TRL function works through
                ``FunctionReward``. Its exceptions reach the caller, and no weight has changed then. None trains on the
                teacher alone.

        Returns:
            Statistics under the tags of docs/metrics.md: ``reward/*`` and ``response/*`` of the step's P * G responses;
            ``ratio/*``, ``clip/*``, ``kl/*`` and ``policy/entropy`` over all its updates; ``loss``,
            ``optim/gradient_norm``, ``data/*`` and ``time/update_s`` are means over its updates.

        Raises:
            UserError: queries that are no list of texts, do not fit or cannot be cut into mini-batches; a reward
                that is not a finite number (names the query); a gradient that is not finite. No weight has changed then
                (in the last case: none in the refused update).
        """
        records = records_of(queries)
        if len(records) % self.config.minibatches:
            raise UserError(
                "queries",
                f"{len(records)} groups cannot be dealt evenly to {self.config.minibatches} mini-batches",
                fix=f"give a multiple of minibatches = {self.config.minibatches}",
            )
        scorer = scorer_of(queries, records, reward_function, self.objective, has_teacher=self.teacher is not None)
        config = self.config
        iteration = self._iteration(self._read(records), scorer)
        loader = ExperienceLoader(iteration.run, config.minibatches, config.epochs, config.seed)
        loader.iteration = self.iteration - 1  # the next rollout is this step's
        trained: list[MiniBatch] = []
        sums = MetricSums()
        norms = 0.0
        seconds = 0.0
        with modes_kept(self.policy):
            self.policy.train()
            for batch in loader:
                self.iteration = batch.iteration + 1
                start = time.perf_counter()
                norms += self._update(batch.to(self.policy.device), sums)
                seconds += time.perf_counter() - start
                trained.append(batch)
        self.examples = loader.experience.examples
        pairs, vectors, maxima = sums.reduce()
        self.old_logprobs.note(pairs)
        statistics = loader.experience.metrics | update_scalars(pairs) | maxima | ratio_percentiles(vectors["ratio"])
        return statistics | self._means(statistics["loss"], norms, seconds, trained)

    def _means(self, losses: float, norms: float, seconds: float, trained: Sequence[MiniBatch]) -> dict[str, float]:
        """Return means over the updates of a step, from sums over them."""
        updates = len(trained)
        tokens = sum(batch.num_tokens for batch in trained)
        return {
            "loss": losses / updates,
            "optim/gradient_norm": norms / updates,
            "optim/lr": float(self.optimizer.param_groups[0]["lr"]),
            "data/tokens_per_update": tokens / updates,
            "data/micro_batches": sum(len(b.micro_batches) for b in trained) / updates,
            "time/update_s": seconds / updates,
            "throughput/trained_tokens_per_s": tokens / max(seconds, 1e-9),
        }

    @property
    def device(self) -> torch.device:
        """Device of the policy."""
        return self.policy.device

    @property
    def lr_factor(self) -> float:
        """The optimizer's current learning rate divided by ``config.learning_rate``."""
        return lr_factor(self.optimizer)

    def forward_context(self) -> AbstractContextManager[None]:
        """Return an empty context: the caller decides about autocast."""
        return contextlib.nullcontext()

    def save_pretrained(self, folder: str | Path) -> None:
        """Save model, tokenizer and generation config in transformers format."""
        self.policy.save_pretrained(folder)

    def evaluate(
        self,
        queries: Sequence[Query],
        reward_function: RewardFunction | Reward,
        *,
        temperature: float = 0.0,
        samples: int = 1,
    ) -> dict[str, float]:
        """Answer queries without training on them; the random draws of training do not change.

        Args:
            queries: as for :meth:`train_step`, any number of them.
            reward_function: as for :meth:`train_step`.
            temperature: 0 is greedy.
            samples: responses to each query; more than one needs a temperature above 0.

        Returns:
            ``val/reward``, ``val/accuracy`` (fraction of responses with a reward of at least 1),
            ``val/response_length`` and ``val/terminated``. ``examples`` then holds the first response to each query.

        Raises:
            UserError: as :meth:`train_step`.
        """
        settings = Evaluation(temperature=temperature, samples=samples)
        records = records_of(queries)
        settings.check(())
        scorer = CallerReward.of(queries, records, reward_function)
        prompts = self._read(records)
        generate_and_score = GenerateAndScore(self.rollouts, scorer, samples, self.config.seed, Purpose.EVAL_SAMPLING)
        sampling = settings.sampling(self._settings(self.config.minibatches).sampling(self.policy.eos_token_ids))
        metrics = EvaluationMetrics()
        metrics.start(settings, self.policy.device)
        with modes_kept(self.policy), torch.no_grad():
            groups, _ = generate_and_score(self.policy, prompts, sampling, iteration=0, version=self.version)
        for group in groups:
            for rollout in group:
                rollout.reward_parts = {REWARD: rollout.reward}
        metrics.update(groups, REWARD)
        self.examples = []
        for first, *_ in groups:
            example = {"prompt": first.prompt.text, "completion": first.text, "reward": first.reward}
            self.examples.append(example | {"shown_as": "sample"})
        return metrics.compute()

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which a later process continues exactly.

        ``torch.save(trainer.state_dict(), path)``; then, on a trainer with the same model class, tokenizer, config and
        objective, ``trainer.load_state_dict(torch.load(path, weights_only=True))``.
        """
        reference = None if self.reference is None else self.reference.state_dict()
        return {
            "model": self.policy.model.state_dict(),
            "unsaid": list(self.policy.unsaid),
            "optimizer": self.optimizer.state_dict(),
            "deal": self.config.dealing,
            "iteration": self.iteration,
            "version": self.version,
            "noise": self.old_logprobs.noise,
            "reference": reference,
            "critic": None if self.critic is None else self.critic.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`; the steps that follow are those of the uninterrupted trainer.

        Raises:
            UserError: only one of the two trainers has a reference policy or a critic.
        """
        if (state["reference"] is None) != (self.reference is None):
            raise UserError("state", "is of an objective with another kl_coef", fix="give the same objective")
        critic = state.get("critic")
        if (critic is None) != (self.critic is None):
            raise UserError("state", "and this trainer must both have a critic, or neither", fix="give the same critic")
        self.policy.model.load_state_dict(state["model"])
        if self.critic is not None and critic is not None:
            self.critic.load_state_dict(critic)
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"], self.policy)
        references = [] if self.reference is None else [self.reference.policy]
        trainer_config.restore_unsaid(state, self.policy, *references)
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = int(state["iteration"])
        self.version = int(state["version"])
        self.old_logprobs.noise = state["noise"]

    def _read(self, records: list[dict[str, Any]]) -> list[Prompt]:
        """Return the queries, checked and encoded, in order; ids are their positions."""
        return encode_queries(records, self._reading_tokenizer, self.config.system_prompt, *self._prompt_limit())

    def _prompt_limit(self) -> tuple[int, str]:
        return trainer_config.prompt_limit(self.config, trainer_config.context_of(self.policy.model))

    def _iteration(self, prompts: list[Prompt], scorer: Scorer) -> Iteration:
        """Return the iteration of a step, as in ``gspo fit``, with these prompts and the caller's rewards."""
        config = self.config
        generate_and_score = GenerateAndScore(
            self.rollouts, scorer, config.group_size, config.seed, Purpose.TRAIN_SAMPLING
        )
        sampling = Sampling(self, self._settings(len(prompts)), FixedPrompts(prompts), generate_and_score)
        budget = config.max_tokens_per_micro_batch
        return Iteration(sampling, lambda: budget, accuracy_reward=REWARD)

    def _settings(self, prompts: int) -> ExperienceSettings:
        return trainer_config.settings_of(self.config, prompts, self._prompt_limit()[0], self.advantages)

    def _update(self, batch: MiniBatch, sums: MetricSums) -> float:
        """Make one optimizer step on a mini-batch; return the gradient norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        temperature = self.config.temperature
        terms = LossTerms(self.policy, self.old_policy, self.objective, temperature, teacher=self.teacher)
        all_but_last_backward(batch.micro_batches, terms, sums, on_policy=batch.index == 0).backward()
        parameters: list[Tensor] = self.optimizer.param_groups[0]["params"]
        clip = math.inf if self.config.gradient_clip is None else self.config.gradient_clip
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise UserError(
                "model",
                f"has a gradient norm of {norm}; this update was not applied",
                fix="look for NaN in the weights; in bfloat16, train float32 weights instead",
            )
        if self.critic is None or not self.critic.warming:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # free the memory for the caller between steps
        self.version += 1
        return norm
