"""Agents behind a running service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.addresses import IDLE_S, check_address
from gspo_lightning.core.bodies import ACCEPTED, BASE, BodyError, read_body
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rollouts.agents.agent import Agent, Outcome
from gspo_lightning.rollouts.gateway.address import Address

if TYPE_CHECKING:
    import aiohttp


class HttpAgent(Agent):
    """A service that gets ``POST url`` for every rollout and answers with its result when it is done.

    The body is ``{"record": {...}, "base_url": ..., "api_key": ..., "anthropic_url": ..., "model": ...}``, the answer
    ``{"reward": number}``, or ``{}`` where the run's rewards judge. A status of 500 or more, and a connection that
    fails, count as failures of the environment, other statuses as the agent's. The service must reach 127.0.0.1 of
    this machine.

    Args:
        url: ``http://host:port/path``.
    """

    def __init__(self, url: str) -> None:
        check_address(url, "HttpAgent.url", "", key=None, plain_http=True)
        self.url = url
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the client."""
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), headers=ACCEPTED, auto_decompress=False
        )

    async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
        """Ask the service.

        Raises:
            InfrastructureError: it cannot be reached, or failed.
            ValueError: it refused the request, or its answer is no JSON object.
        """
        import aiohttp

        assert self._http is not None
        task = {"record": record, **asdict(address), "anthropic_url": address.anthropic_url}
        body = json.dumps(task, default=str).encode()
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self.url, data=body, headers=headers, allow_redirects=False) as reply:
                status = reply.status
                answer = await read_body(reply, BASE)
        except (aiohttp.ClientError, OSError, BodyError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from error
        if status >= 500:
            raise InfrastructureError(f"{self.url} answered with status {status}: {answer.text[:200]}")
        outcome = answer.json() if status < 300 else None
        if not isinstance(outcome, dict):
            raise ValueError(f"{self.url} answered with status {status}: {answer.text[:200]}")
        return outcome

    async def close(self) -> None:
        """Close the client."""
        if self._http is not None:
            await self._http.close()
