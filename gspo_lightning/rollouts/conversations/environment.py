"""Multi-turn conversations: any rollout source generates the policy's turns, an environment answers them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stream
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import Prompt, Rollout
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.rollouts.contract import check_pieces
from gspo_lightning.rollouts.conversations.conversation_row import ConversationRow
from gspo_lightning.rollouts.conversations.turns import ConversationRows
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.environments import Environment
from gspo_lightning.rollouts.environments.conversation import Conversation
from gspo_lightning.rollouts.environments.host import Host
from gspo_lightning.rollouts.source import Enough, GenerationRequest, RolloutSource
from gspo_lightning.rollouts.wrapping import WrappingSource

log = logging.getLogger(__name__)


class EnvironmentRollouts(WrappingSource):
    """Multi-turn conversations with an environment; one conversation is one response.

    Each turn continues from the exact tokens of earlier turns. The environment's text is part of the response but
    not of its mask: it is never trained on. All tokens after the prompt count towards ``data.max_response_tokens``.
    The policy sees the pictures of a prompt in every turn; the environment's messages are text.

    Args:
        environment: the other side; every conversation gets a copy.
        source: generates the policy's turns; it must be able to continue a response.
        max_turns: policy turns per conversation; a safeguard for environments without their own limit.
        deadline_s: seconds for one answer of an environment.
        retries: how often a failed environment is retried, from the beginning and with a fresh copy.
        max_missing_rate: share of the conversations of a rollout that may be lost before the run stops.
    """

    def __init__(
        self,
        environment: Environment,
        source: RolloutSource | None = None,
        max_turns: int = 8,
        deadline_s: float = 60.0,
        retries: int = 1,
        max_missing_rate: float = 0.1,
    ) -> None:
        name = type(self).__name__
        for option, value, least in (("max_turns", max_turns, 1), ("retries", retries, 0)):
            if value < least:
                raise UserError(f"{name}.{option}", f"is {value}; it must be at least {least}")
        if not 0 < deadline_s < float("inf"):
            raise UserError(f"{name}.deadline_s", f"is {deadline_s}; it must be a number of seconds above 0")
        if not 0 <= max_missing_rate <= 1:
            raise UserError(f"{name}.max_missing_rate", f"is {max_missing_rate}; it must lie in [0, 1]")
        self.environment = environment
        super().__init__(source)
        self.max_turns, self.deadline_s, self.retries = max_turns, deadline_s, retries
        self.max_missing_rate = max_missing_rate
        self._host = Host(deadline_s, environment.max_concurrent)
        self._unread: set[str] = set()

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Generate groups of conversations with the environment.

        Raises:
            InfrastructureError: more conversations were lost than ``max_missing_rate`` allows.
            UserError: the policy cannot read the environment's messages, or the environment raised one.
        """
        token_budget = request.sampling.max_response_tokens
        groups = [
            [self._row(p, k, request.draws, p.token_budget(token_budget)) for k in range(request.group_size)]
            for p in request.prompts
        ]
        done: dict[int, list[Rollout]] = {}

        def finished(number: int) -> None:
            done[number] = [row.rollout(request.version) for row in groups[number]]
            if self.on_group is not None:
                self.on_group(done[number])
            if request.progress is not None:
                request.progress(len(done) * request.group_size, request.size)

        def speak(rows: Sequence[ConversationRow], enough: Enough) -> Sequence[Rollout]:
            beginnings = [row.beginning() for row in rows]
            turns = self.source.extend(
                request.policy,
                beginnings,
                sampling=request.sampling,
                draws=request.draws,
                version=request.version,
                enough=enough,
            )
            return check_pieces(self.source, turns, beginnings)

        dialogue = Dialogue(request.policy.tokenizer, self.system_prompt, self.chat_template_kwargs)
        shows = dialogue.knows_tools
        if shows and not dialogue.reads_calls:
            shows = False
            self._say_unread(request.policy.tokenizer.name_or_path)
        conversations = ConversationRows(
            groups,
            self._host,
            dialogue,
            max_turns=self.max_turns,
            retries=self.retries,
            max_missing_rate=self.max_missing_rate,
            finished=finished,
            offered=self.environment.offer(shows),
        )
        try:
            conversations.run(speak)
        finally:
            conversations.close()
        return [done[number] for number in range(len(request.prompts))]

    def for_evaluation(self) -> RolloutSource:
        """Return conversations generated by the source's own evaluation source."""
        source = self.source.for_evaluation()
        if source is self.source:
            return self
        other = copy.copy(self)
        other._use_source(source)
        return other

    def close(self) -> None:
        """Release the source and the environments' thread."""
        self._host.close()
        self.environment.release()
        super().close()

    def _say_unread(self, name: str) -> None:
        """Log once, with the copies for evaluation, that calls in the format of a model's template are not read."""
        if name not in self._unread:
            self._unread.add(name)
            log.warning(
                "the chat template of %s shows tools, but calls in its format are not read back: tools are described "
                "in a system message instead",
                name,
            )

    def _row(self, prompt: Prompt, sample: int, draws: Draws, token_budget: int) -> ConversationRow:
        seed = stream(draws.base, prompt.id, sample)
        return ConversationRow(
            Conversation(self.environment, prompt, seed, self.deadline_s), prompt, sample, token_budget
        )
