"""A worked example of an agent: a function that talks to the policy over HTTP, with a calculator as its tool.

With the package openai the same is ``AsyncOpenAI(base_url=address.base_url, api_key=address.api_key)`` and
``await client.chat.completions.create(model=address.model, messages=messages)``.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import aiohttp

from gspo_lightning.rewards.math.calculator import calculate
from gspo_lightning.rollouts.gateway.address import Address


async def solve(record: Mapping[str, Any], address: Address) -> float:
    """Return 1.0 if the policy's answer to an expression is right; "?" in front of one asks the calculator."""
    messages = [{"role": "user", "content": record["prompt"]}]
    headers = {"Authorization": f"Bearer {address.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        while True:
            body = {"model": address.model, "messages": messages}
            async with http.post(f"{address.base_url}/chat/completions", json=body) as reply:
                turn = (await reply.json())["choices"][0]["message"]
            if not turn["content"].startswith("?"):
                return float(turn["content"].rpartition("#")[2] == record["answer"])
            messages += [turn, {"role": "tool", "content": f"={_result(turn['content'][1:])};"}]


def _result(expression: str) -> Fraction | str:
    try:
        return calculate(expression)
    except ValueError:
        return "?"
