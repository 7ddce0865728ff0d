"""Checks of rows with pictures: equal to transformers' forward, and isolated from other pictures."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gspo_lightning.pictures import Media, Picture
from gspo_lightning.policy.leaks import answers
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.sight import Sight
from gspo_lightning.types import MicroBatch

__all__ = ["PictureProbe"]

_RESPONSE = 4
_TEXT = 3


class PictureProbe:
    """Probe of two prompts with a picture each and two responses each.

    Args:
        policy: reads pictures; :attr:`Policy.packed` is restored afterwards.
        sight: picture processor of the policy.
    """

    def __init__(self, policy: Policy, sight: Sight) -> None:
        self.policy, self.sight = policy, sight
        first, second, other = (sight.noise(seed) for seed in (1, 2, 3))
        self.rows, self.others = self._batch(first, second), self._batch(first, other)
        self.padded = answers(self.policy, self.rows, packed=False)

    def why_not_exact(self, limit: float) -> str | None:
        """Return what is wrong with padded rows, by more than ``limit`` nats; None if nothing was found."""
        for row in (0, 2):
            gap = float((self.padded[row] - self._alone(row)).abs().mean())
            if not gap <= limit:
                return f"gives a row with a picture log-probabilities {gap:.2g} nats off those of the row alone"
        return None

    def why_not_packed(self, limit: float) -> str | None:
        """Return what is wrong with rows that share the picture of their prompt; None if nothing was found."""
        packed = answers(self.policy, self.rows, packed=True)
        if not (gap := float((packed - self.padded).abs().mean())) <= limit:
            return f"log-probabilities of rows with pictures that differ by {gap:.2g} nats from those of padded rows"
        moved = float((packed - answers(self.policy, self.others, packed=True))[:2].abs().mean())
        if not moved <= limit:
            return f"log-probabilities that move by {moved:.2g} nats when the picture of another prompt changes"
        return None

    def _batch(self, *pictures: Picture) -> MicroBatch:
        unsaid, size = set(self.sight.unsaid), self.policy.model.config.get_text_config().vocab_size
        said = [token for token in range(min(size, 64)) if token not in unsaid]
        rows: list[list[int]] = []
        for picture in pictures:
            prompt = [self.sight.start, *[self.sight.image] * picture.tokens, self.sight.end, *said[5 : 5 + _TEXT]]
            rows += [prompt + [said[(7 * k + 3 * t) % len(said)] for t in range(_RESPONSE)] for k in (1, 2)]
        media: tuple[Media, ...] = tuple((p,) for p in pictures for _ in range(2))
        total = torch.tensor([len(row) for row in rows])
        responses = torch.full_like(total, _RESPONSE)
        ids = torch.zeros(len(rows), int(total.max()), dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        mask = torch.ones(len(rows), _RESPONSE, dtype=torch.bool)
        index = torch.arange(len(pictures)).repeat_interleave(2)
        batch = MicroBatch(ids, total - _RESPONSE, responses, mask, torch.zeros(len(rows)), prompt_index=index)
        return replace(batch, media=media).to(self.policy.device)

    @torch.no_grad()
    def _alone(self, row: int) -> Tensor:
        """Return [T] from transformers' own forward, with its positions and its placement of features."""
        rows = self.rows
        assert rows.media is not None
        width = int(rows.prompt_lengths[row])
        ids = rows.input_ids[row, : width + _RESPONSE]
        model = self.policy.model
        asked = {name: x.to(ids.device) for name, x in self.sight.asked(rows.media[row], ids[None]).items()}
        asked["pixel_values"] = asked["pixel_values"].to(model.dtype)
        logits = model(input_ids=ids[None], use_cache=False, **asked).logits[0, width - 1 : -1]
        model.base_model.rope_deltas = None
        scores = self.policy.sayable(logits).to(self.padded.dtype).log_softmax(-1)
        return scores.gather(-1, ids[width:, None])[:, 0]
