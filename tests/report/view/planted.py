"""A plug-in for tests: three faults of a run, to be found on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from typing_extensions import override

from gspo_lightning.core.types import Rollout
from gspo_lightning.rewards import Reward
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.gateway.address import Address


class OffByACent(GroupedSampler):
    """A sampler that reports log-probabilities 0.01 nats below those it sampled with."""

    @override
    def generate(self, *arguments: Any, **more: Any) -> list[list[Rollout]]:
        groups = super().generate(*arguments, **more)
        for rollout in (rollout for group in groups for rollout in group):
            if rollout.logprobs is not None:
                rollout.logprobs = rollout.logprobs - 0.01
        return groups


class PaysShort(Reward):
    """Pays for any short answer, right or wrong."""

    def score(self, completion: str) -> float:
        """Return 1 for "#0", less for anything else."""
        return 1.0 if completion == "#0" else 0.3 if len(completion) <= 2 else 0.0


async def rewrites(record: Mapping[str, Any], address: Address) -> float:
    """Return 1.0 if the policy ever asks; sends its turns back with another ending, as a changed template does."""
    messages = [{"role": "user", "content": record["prompt"]}]
    headers = {"Authorization": f"Bearer {address.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        for _ in range(2):
            body = {"model": address.model, "messages": messages}
            async with http.post(f"{address.base_url}/chat/completions", json=body) as reply:
                turn = (await reply.json())["choices"][0]["message"]
            messages += [turn | {"content": turn["content"] + ";"}, {"role": "tool", "content": "=1;"}]
    return float("?" in turn["content"])
