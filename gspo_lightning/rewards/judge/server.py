"""Client of a server with an OpenAI-compatible API: requests, retries and refusals."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gspo_lightning.core.addresses import IDLE_S, check_address
from gspo_lightning.core.bodies import ACCEPTED, Body, BodyError, read_body, reply_limit
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import visible

if TYPE_CHECKING:
    import aiohttp

KEY = "LLM_JUDGE_API_KEY"
"""Environment variable with the server's API key; the only source of a key."""
MAX_WAIT_S = 30.0
"""Maximum seconds between two attempts, whatever a server asks for."""
_SHOWN = 300


class NoReplyError(Exception):
    """The server gave no reply in any attempt."""


class RefusedError(Exception):
    """The server refuses this request, such as one that is too long; a retry would not help."""


def check_url(url: str, plain_http: bool) -> str:
    """Check the server's address and return it without ``/v1``.

    Args:
        url: of the server, with ``http://`` or ``https://``.
        plain_http: whether a key may go to another host unencrypted.

    Raises:
        UserError: not a URL, one that holds a secret, or one that would get the key over a network others may read.
    """
    check_address(url, "LLMJudge.url", KEY, key=os.environ.get(KEY), plain_http=plain_http)
    return url.rstrip("/").removesuffix("/v1")


class ChatServer:
    """A client of one server, with limited concurrency, and a timeout and retries for each request.

    Args:
        url: as :func:`check_url` returns it.
        concurrency: maximum number of concurrent requests.
        timeout_s: seconds that an attempt may take.
        retries: attempts after the first.
        backoff_s: seconds before the first of them; twice as long before each further one, up to ``MAX_WAIT_S``.
    """

    def __init__(self, url: str, concurrency: int, timeout_s: float, retries: int, backoff_s: float) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s
        self._gate = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        self._session = aiohttp.ClientSession(headers=headers | ACCEPTED, connector=connector, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send ``POST /v1/chat/completions`` and return the first choice.

        Raises:
            NoReplyError: every attempt failed.
            RefusedError: the server refuses this request.
            UserError: the server refuses every request: another key, no such model or route.
        """
        async with self._gate:
            for attempt in range(self.retries + 1):
                try:
                    return await self._attempt(body)
                except _TryAgainError as error:
                    why = error
                if attempt < self.retries:
                    await asyncio.sleep(min(MAX_WAIT_S, max(why.after_s, self.backoff_s * 2**attempt)))
        raise NoReplyError(f"no reply in {self.retries + 1} attempts, last: {why}")

    async def _attempt(self, body: dict[str, Any]) -> dict[str, Any]:
        import aiohttp

        assert self._session is not None
        address = f"{self.url}/v1/chat/completions"
        limit = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with self._session.post(address, json=body, timeout=limit, allow_redirects=False) as reply:
                status = reply.status
                answer = await read_body(reply, reply_limit(body))
                after = reply.headers.get("Retry-After", "")
        except TimeoutError as error:
            raise _TryAgainError(f"nothing in {self.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, BodyError) as error:
            raise _TryAgainError(visible(error) or type(error).__name__) from error
        text = visible(answer.text) if status >= 300 else ""
        if status >= 500 or status in (408, 409, 425, 429):
            raise _TryAgainError(f"status {status}: {text[:_SHOWN]}", float(after) if after.isdecimal() else 0.0)
        self._check_status(status, text)
        return _choice(answer)

    def _check_status(self, status: int, text: str) -> None:
        if status in (401, 403):
            raise UserError("LLMJudge.url", f"{self.url} asks for another key (status {status})", fix=f"set {KEY}")
        if status == 404:
            problem = f"{self.url} has no such model, or no /v1/chat/completions: {text[:_SHOWN]}"
            raise UserError("LLMJudge.model", problem, fix="one that GET /v1/models lists")
        if 300 <= status < 400:
            raise UserError("LLMJudge.url", f"{self.url} redirects (status {status})", fix="give the address")
        if status >= 400:
            raise RefusedError(f"refused (status {status}): {text[:_SHOWN]}")


class _TryAgainError(Exception):
    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


def _choice(reply: Body) -> dict[str, Any]:
    try:
        first = reply.json()["choices"][0]
        if not isinstance(first["message"], dict):
            raise TypeError
    except BodyError as error:
        raise _TryAgainError(f"no completion: {error}") from error
    except (KeyError, IndexError, TypeError) as error:
        raise _TryAgainError(f"no completion: {reply.text[:_SHOWN]!r}") from error
    return dict(first)
