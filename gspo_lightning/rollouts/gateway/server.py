"""HTTP server of the gateway: finds the session of a request, and answers in the dialect of its route."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientConnectionError, web

from gspo_lightning.rollouts.gateway import messages
from gspo_lightning.rollouts.gateway.address import Address
from gspo_lightning.rollouts.gateway.bounds import BODY_BYTES, REWARD_BYTES, aside
from gspo_lightning.rollouts.gateway.dialects import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Dialect,
    read_object,
    read_request,
)
from gspo_lightning.rollouts.gateway.exchange import RefusalError, gone, invalid
from gspo_lightning.rollouts.gateway.replies import json_answer, send_answer, send_stream
from gspo_lightning.rollouts.gateway.reward import AgentReward, read_reward
from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import Node

_CLOSED = 4096
"""Number of closed sessions whose requests are still told so."""
_FINAL = {"x-should-retry": "false"}
"""Header by which the SDKs of OpenAI and Anthropic do not repeat a request."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Inside = Callable[[web.Request, "Dialect", Session], Awaitable[web.StreamResponse]]
"""Handler of a request of a session."""


class Gateway:
    """Endpoint for many sessions at the same time, on this event loop.

    Args:
        new_session: makes a session by its name; called for ``POST /sessions`` too.
        socket: path of a socket file to listen on, instead of 127.0.0.1.
        body_limit: largest request in bytes, and all open ones of a session together.
        strict: refuse what is ignored otherwise (a forced tool, a response format).
    """

    def __init__(
        self,
        new_session: Callable[[str], Session],
        *,
        socket: str = "",
        body_limit: int = BODY_BYTES,
        strict: bool = False,
    ) -> None:
        self.new_session = new_session
        self.socket = socket
        self.body_limit = body_limit
        self.strict = strict
        self.admin_key = secrets.token_urlsafe(24)
        self.counts: Counter[str] = Counter()
        self._sessions: dict[str, Session] = {}
        self._closed: list[str] = []
        self._runner: web.AppRunner | None = None
        self._host = ""

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        for path, dialect in (("chat/completions", CHAT), ("completions", COMPLETIONS), ("messages", MESSAGES),
                              ("responses", RESPONSES)):  # fmt: skip
            app.router.add_post(f"/s/{{sid}}/v1/{path}", self._inside(self._turn, dialect))
        app.router.add_post("/s/{sid}/v1/messages/count_tokens", self._inside(self._count, MESSAGES))
        app.router.add_get("/s/{sid}/v1/models", self._inside(self._models))
        app.router.add_get("/s/{sid}/v1/models/{model}", self._inside(self._models))
        app.router.add_post("/sessions", self._guarded(self._open, CHAT))
        for under in ("/sessions/{sid}", "/s/{sid}/v1"):
            app.router.add_post(f"{under}/reward", self._inside(self._reward, admin=True))
            app.router.add_post(f"{under}/finish", self._inside(self._finish, admin=True))
        app.router.add_get("/sessions/{sid}/trace", self._inside(self._trace, admin=True))
        app.router.add_route("*", "/{rest:.*}", self._guarded(self._unknown, CHAT))
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        if self.socket:
            await web.UnixSite(self._runner, self.socket).start()
        else:
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            self._host = "http://127.0.0.1:{1}".format(*self._runner.addresses[0])

    async def stop(self) -> None:
        """Close all sessions and stop listening."""
        for session in self._sessions.values():
            session.close()
        if self._runner is not None:
            await self._runner.cleanup()
            if self.socket:
                Path(self.socket).unlink(missing_ok=True)  # before Python 3.13 it stays
        self._runner = None
        self._sessions = {}

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._host or "http://localhost"

    def open_session(self, name: str) -> Session:
        """Return a new session."""
        self._sessions[name] = session = self.new_session(name)
        return session

    def address(self, session: Session) -> Address:
        """Return the address of a session."""
        return Address(f"{self.url}/s/{session.name}/v1", session.key, session.model, self.socket)

    def close_session(self, session: Session) -> None:
        """Refuse further requests of a session, and forget it when many others have closed."""
        session.close()
        session.reward_final = True
        session.forget()
        self._closed.append(session.name)
        for name in self._closed[:-_CLOSED]:
            self._sessions.pop(name, None)
        del self._closed[:-_CLOSED]

    # requests ----------------------------------------------------------------------------------------------------

    def _guarded(
        self, handler: Callable[[web.Request, Dialect], Awaitable[web.StreamResponse]], dialect: Dialect
    ) -> Handler:
        """Return a handler that answers every mistake in the shape of the dialect."""

        async def handle(request: web.Request) -> web.StreamResponse:
            shape = messages.error if "anthropic-version" in request.headers else dialect.error
            try:
                return await handler(request, dialect)
            except RefusalError as error:
                refusal = error
            except (ConnectionError, ClientConnectionError):  # the client has gone: nobody reads an answer
                return web.Response(status=499)
            except Exception as error:
                refusal = RefusalError(500, "server_error", f"the gateway failed: {type(error).__name__}")
            self.counts[f"status/{refusal.status}"] += 1
            answer = json_answer(shape(refusal), refusal.status, {} if refusal.again else _FINAL)
            refusal.__traceback__ = refusal.__cause__ = refusal.__context__ = None  # their frames hold the body
            return answer

        return handle

    def _inside(self, handler: Inside, dialect: Dialect = CHAT, *, admin: bool = False) -> Handler:
        """Return a handler of requests that name a session, of which it may have a number at the same time."""

        async def handle(request: web.Request, dialect: Dialect) -> web.StreamResponse:
            session = self._session(request, admin=admin)
            with session.admitted():
                return await handler(request, dialect, session)

        return self._guarded(handle, dialect)

    def _session(self, request: web.Request, *, admin: bool = False) -> Session:
        """Return the session that path and key name.

        Raises:
            RefusalError: they name none, or two.
        """
        session = self._sessions.get(request.match_info["sid"])
        keys = [] if session is None else [session.key]
        _check_key(request, (*keys, *[self.admin_key] * admin), "the key does not belong to this session")
        if session is None:
            raise RefusalError(404, "not_found_error", "there is no such session")
        return session

    @asynccontextmanager
    async def _body(self, request: web.Request, session: Session) -> AsyncIterator[bytearray]:
        """Read a body, whose bytes count for its session until the end of the block.

        Raises:
            RefusalError: it is too large, or all bodies of the session together are.
        """
        promised = request.content_length or 0
        if promised > self.body_limit:
            raise _too_large(self.body_limit)
        with session.holding(self.body_limit) as take:
            take(promised)
            raw = bytearray()
            try:
                async for chunk in request.content.iter_any():
                    raw += chunk
                    if len(raw) > self.body_limit:
                        raise _too_large(self.body_limit)
                    if len(raw) > promised:
                        take(len(raw) - promised)
                        promised = len(raw)
                yield raw
            finally:
                raw.clear()  # whoever still holds a frame of this request holds no body

    async def _turn(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        key = request.headers.get("Idempotency-Key", "")
        again = bool(key) or request.headers.get("x-stainless-retry-count", "0") != "0"
        if not again:
            session.check_turns()
        async with self._body(request, session) as raw:
            parsed, digest = await aside(len(raw), session.lock, read_request, dialect, raw, session, request.path)
            raw.clear()
            if self.strict and parsed.ignored:
                raise invalid(f"{parsed.ignored[0]} is not imposed on the policy, and strict: true refuses it")
            answering = session.begin(parsed, key or digest, again=again, digest=digest)
            stream = parsed.stream
            del parsed  # a large one must not wait in memory for its answer
            if stream:
                return await send_stream(request, dialect, session, answering)
            return await send_answer(request, dialect, session, await asyncio.shield(answering))

    async def _count(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        if session.closed:
            raise gone()
        async with self._body(request, session) as raw:
            parsed, _ = await aside(len(raw), session.lock, read_request, dialect, raw, session, request.path)
            raw.clear()
            return json_answer({"input_tokens": await session.count(parsed)})

    async def _models(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        about = {"id": session.model, "object": "model", "type": "model", "created": 0, "owned_by": "gspo_lightning"}
        about |= {"display_name": session.model, "max_model_len": session.longest}
        return json_answer(
            about if "model" in request.match_info else {"object": "list", "data": [about], "has_more": False}
        )

    async def _open(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        _check_key(request, (self.admin_key,), "only the trainer opens sessions")
        session = self.open_session(secrets.token_hex(8))
        return json_answer({"id": session.name, "base_url": self.address(session).base_url, "api_key": session.key})

    async def _reward(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        if session.reward_final:
            raise gone()
        if (request.content_length or 0) > REWARD_BYTES:
            raise _too_large(REWARD_BYTES)
        async with self._body(request, session) as raw:
            if len(raw) > REWARD_BYTES:
                raise _too_large(REWARD_BYTES)
            take_reward(session, read_object(raw))
        return json_answer({"reward": session.reward})

    async def _finish(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        """End a conversation. Its own key leaves the reward open, which its verifier may still give."""
        session.finish()
        if _has_key(request, (self.admin_key,)):
            self.close_session(session)
        return json_answer({"closed": True})

    async def _trace(self, request: web.Request, dialect: Dialect, session: Session) -> web.StreamResponse:
        async with session.lock:
            body = await asyncio.to_thread(lambda: json.dumps(described(session)).encode())
        return web.Response(body=body, content_type="application/json")

    async def _unknown(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        self.counts["unknown_routes"] += 1
        raise RefusalError(404, "not_found_error", f"there is no {request.method} {request.path[:200]}", "unknown_url")


def take_reward(session: Session, body: Mapping[str, Any]) -> None:
    """Set the reward of a rollout, or of one turn of it (``turn``), from the body of a request.

    Raises:
        RefusalError: it is no finite number, or there is no such turn.
    """
    turn = body.get("turn")
    try:
        reward = read_reward(body)
        if turn is None and reward != AgentReward():
            session.set_reward(reward)
            return
    except ValueError as error:
        raise invalid(str(error)) from error
    turns = session.trace.turns
    if reward.reward is None or not isinstance(turn, int) or not 0 <= turn < len(turns):
        raise invalid(f"send a reward; this session has {len(turns)} turns, counted from 0")
    turns[turn].reward = reward.reward
    session.reward = session.reward or 0.0


def described(session: Session) -> dict[str, Any]:
    """Return a session's tree as plain data: every turn with its path, and the rows it gives."""
    nodes = session.trace.nodes()
    numbers = {id(node): number for number, node in enumerate(nodes)}
    return {
        "nodes": [_described_node(node, numbers) for node in nodes],
        "rows": [
            {"context": list(row.context), "token_ids": row.token_ids.tolist(), "mask": row.response_mask.tolist()}
            for row in session.trace.rows()
        ],
        "reasons": dict(session.trace.reasons),
        "counts": dict(session.counts),
        "requested_sampling": [dict(sampling) for sampling in session.requested],
        "reward": session.reward,
    }


def _described_node(node: Node, numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return a node as plain data; ``numbers`` are those of the nodes by their identity."""
    logprobs = None if node.sampled is None else node.sampled.logprobs
    return {
        "number": numbers[id(node)],
        "parent": None if node.parent is None else numbers[id(node.parent)],
        "sampled": node.sampled is not None,
        "messages": list(node.messages),
        "token_ids": list(node.token_ids),
        "logprobs": None if logprobs is None else list(logprobs),
    }


def _check_key(request: web.Request, keys: Collection[str], why: str) -> None:
    """Refuse a request that has none of some keys, as OpenAI's or Anthropic's clients send them.

    Raises:
        RefusalError: with this reason.
    """
    if not _has_key(request, keys):
        raise RefusalError(401, "authentication_error", why, "invalid_api_key")


def _has_key(request: web.Request, keys: Collection[str]) -> bool:
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")
    return any(hmac.compare_digest(sent.encode(errors="surrogateescape"), key.encode()) for key in keys)


def _too_large(limit: int) -> RefusalError:
    return RefusalError(413, "invalid_request_error", f"a request may have {limit} bytes")
