"""HTTP server of the gateway: finds the session of a request, and answers in the dialect of its route."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gspo_lightning.rollouts.gateway import chat, messages, responses
from gspo_lightning.rollouts.gateway.address import Address
from gspo_lightning.rollouts.gateway.reward import Told, read_reward
from gspo_lightning.rollouts.gateway.session import RefusalError, Request, Served, Session, gone, invalid
from gspo_lightning.rollouts.gateway.trace import Node

KEEP_ALIVE_S = 3.0
"""Seconds between two comments in a stream that has nothing to say yet."""
_CLOSED = 4096
"""Number of closed sessions whose requests are still told so."""
_FINAL = {"x-should-retry": "false"}
"""Header by which the SDKs of OpenAI and Anthropic do not repeat a request."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Functions of one dialect; ``done`` ends its streams."""

    read: Callable[[Mapping[str, Any]], Request]
    answer: Callable[[Served], Mapping[str, Any]]
    events: Callable[[Served], Iterator[chat.Event]]
    error: Callable[[RefusalError], Mapping[str, Any]] = chat.error
    done: bytes = b""


CHAT = Dialect(chat.read, chat.answer, chat.events, done=b"data: [DONE]\n\n")
COMPLETIONS = Dialect(chat.read_completion, chat.answer_completion, chat.events_completion, done=b"data: [DONE]\n\n")
MESSAGES = Dialect(messages.read, messages.answer, messages.events, messages.error)
RESPONSES = Dialect(responses.read, responses.answer, responses.events)


class Gateway:
    """Endpoint for many sessions at the same time, on this event loop.

    Args:
        new_session: makes a session by its name; called for ``POST /sessions`` too.
        socket: path of a socket file to listen on, instead of 127.0.0.1.
        body_limit: largest request in bytes.
        strict: refuse what is ignored otherwise (a forced tool, a response format).
    """

    def __init__(
        self,
        new_session: Callable[[str], Session],
        *,
        socket: str = "",
        body_limit: int = 16 << 20,
        strict: bool = False,
    ) -> None:
        self.new_session, self.socket, self.body_limit, self.strict = new_session, socket, body_limit, strict
        self.admin_key = secrets.token_urlsafe(24)
        self.counts: Counter[str] = Counter()
        self._sessions: dict[str, Session] = {}
        self._closed: list[str] = []
        self._runner: web.AppRunner | None = None
        self._host = ""

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=self.body_limit)
        for path, dialect in (("chat/completions", CHAT), ("completions", COMPLETIONS), ("messages", MESSAGES),
                              ("responses", RESPONSES)):  # fmt: skip
            app.router.add_post(f"/s/{{sid}}/v1/{path}", self._guarded(self._turn, dialect))
        app.router.add_post("/s/{sid}/v1/messages/count_tokens", self._guarded(self._count, MESSAGES))
        app.router.add_get("/s/{sid}/v1/models", self._guarded(self._models, CHAT))
        app.router.add_get("/s/{sid}/v1/models/{model}", self._guarded(self._models, CHAT))
        app.router.add_post("/sessions", self._guarded(self._open, CHAT))
        for under in ("/sessions/{sid}", "/s/{sid}/v1"):
            app.router.add_post(f"{under}/reward", self._guarded(self._reward, CHAT))
            app.router.add_post(f"{under}/finish", self._guarded(self._finish, CHAT))
        app.router.add_get("/sessions/{sid}/trace", self._guarded(self._trace, CHAT))
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
        self._runner, self._sessions = None, {}

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
        session.settled = True
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
            except RefusalError as refusal:
                found = refusal
            except web.HTTPRequestEntityTooLarge:
                found = RefusalError(413, "invalid_request_error", f"a request may have {self.body_limit} bytes")
            except ConnectionError:  # the client has gone: nobody reads an answer
                return web.Response(status=499)
            except Exception as error:
                found = RefusalError(500, "server_error", f"the gateway failed: {type(error).__name__}")
            self.counts[f"status/{found.status}"] += 1
            return _json(shape(found), found.status, {} if found.again else _FINAL)

        return handle

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

    async def _turn(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request)
        raw = await request.read()
        body = _object(raw)
        asked = _read(dialect, body, session)
        if self.strict and asked.ignored:
            raise invalid(f"{asked.ignored[0]} is not imposed on the policy, and strict: true refuses it")
        key = request.headers.get("Idempotency-Key", "")
        again = bool(key) or request.headers.get("x-stainless-retry-count", "0") != "0"
        digest = key or hashlib.blake2b(request.path.encode() + raw, digest_size=16).hexdigest()
        work = session.begin(asked, digest, again=again)
        if asked.stream:
            return await _stream(request, dialect, work)
        return _json(dialect.answer(await asyncio.shield(work)))

    async def _count(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request)
        return _json({"input_tokens": session.count(_read(dialect, _object(await request.read()), session))})

    async def _models(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request)
        about = {"id": session.model, "object": "model", "type": "model", "created": 0, "owned_by": "gspo_lightning"}
        about |= {"display_name": session.model, "max_model_len": session.longest}
        return _json(about if "model" in request.match_info else {"object": "list", "data": [about], "has_more": False})

    async def _open(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        _check_key(request, (self.admin_key,), "only the trainer opens sessions")
        session = self.open_session(secrets.token_hex(8))
        return _json({"id": session.name, "base_url": self.address(session).base_url, "api_key": session.key})

    async def _reward(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request, admin=True)
        if session.settled:
            raise gone()
        give(session, _object(await request.read()))
        return _json({"reward": session.reward})

    async def _finish(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """End a conversation. Its own key leaves the reward open, which its verifier may still give."""
        session = self._session(request, admin=True)
        session.finish()
        if _has_key(request, (self.admin_key,)):
            self.close_session(session)
        return _json({"closed": True})

    async def _trace(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        return _json(described(self._session(request, admin=True)))

    async def _unknown(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        self.counts["unknown_routes"] += 1
        raise RefusalError(404, "not_found_error", f"there is no {request.method} {request.path[:200]}", "unknown_url")


def give(session: Session, body: Mapping[str, Any]) -> None:
    """Give a rollout, or one turn of it (``turn``), a reward.

    Raises:
        RefusalError: it is no finite number, or there is no such turn.
    """
    turn = body.get("turn")
    try:
        told = read_reward(body)
        if turn is None and told != Told():
            session.give(told)
            return
    except ValueError as error:
        raise invalid(str(error)) from error
    if told.reward is None or not isinstance(turn, int) or not 0 <= turn < len(session.trace.turns):
        raise invalid(f"send a reward; this session has {len(session.trace.turns)} turns, counted from 0")
    session.trace.turns[turn].reward = told.reward
    session.reward = session.reward or 0.0


def described(session: Session) -> dict[str, Any]:
    """Return a session's tree as plain data: every turn with its path, and the rows it gives."""
    numbers = {id(node): number for number, node in enumerate(session.trace.nodes())}

    def told(node: Node) -> dict[str, Any]:
        said = None if node.piece is None or node.piece.logprobs is None else list(node.piece.logprobs)
        parent = None if node.parent is None else numbers[id(node.parent)]
        found = {"number": numbers[id(node)], "parent": parent, "sampled": node.piece is not None}
        return found | {"messages": list(node.messages), "token_ids": list(node.token_ids), "logprobs": said}

    nodes = [told(node) for node in session.trace.nodes()]
    rows = [
        {"context": list(row.context), "token_ids": list(row.token_ids), "mask": list(row.mask)}
        for row in session.trace.rows()
    ]
    found = {"nodes": nodes, "rows": rows, "reasons": dict(session.trace.reasons), "counts": dict(session.counts)}
    return found | {"requested_sampling": [dict(one) for one in session.requested], "reward": session.reward}


def _check_key(request: web.Request, keys: Collection[str], why: str) -> None:
    """Refuse a request that has none of some keys, as OpenAI's or Anthropic's clients send them.

    Raises:
        RefusalError: with this reason.
    """
    if not _has_key(request, keys):
        raise RefusalError(401, "authentication_error", why, "invalid_api_key")


def _has_key(request: web.Request, keys: Collection[str]) -> bool:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")
    return any(hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode()) for key in keys)


def _read(dialect: Dialect, body: Mapping[str, Any], session: Session) -> Request:
    """Return the request of a body.

    Raises:
        RefusalError: a field is not what the dialect says.
    """
    try:
        if dialect is RESPONSES and (before := body.get("previous_response_id")):
            return responses.read(body, session.messages_before(str(before)))
        return dialect.read(body)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise invalid(f"the request cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


async def _stream(request: web.Request, dialect: Dialect, work: asyncio.Task[Served]) -> web.StreamResponse:
    """Frame an answer; a turn that takes long gets comments first."""
    done, _ = await asyncio.wait({work}, timeout=KEEP_ALIVE_S)
    if done:
        work.result()  # a refusal is still an answer with its status
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await out.prepare(request)
    while not work.done():
        await out.write(b": keep-alive\n\n")
        await asyncio.wait({work}, timeout=KEEP_ALIVE_S)
    try:
        served = work.result()
    except RefusalError as refusal:
        await out.write(_frame("error", dialect.error(refusal)))
    else:
        await out.write(b"".join(_frame(name, data) for name, data in dialect.events(served)) + dialect.done)
    with contextlib.suppress(ConnectionError):
        await out.write_eof()
    return out


def _frame(name: str | None, data: Mapping[str, Any]) -> bytes:
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(data).encode() + b"\n\n"


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=json.dumps(value).encode(), status=status, content_type="application/json", headers=headers
    )


def _object(raw: bytes) -> Mapping[str, Any]:
    """Return the object of a body.

    Raises:
        RefusalError: it is no JSON object.
    """
    try:
        found = json.loads(raw)
        if b"\\ud" in raw.lower():
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise invalid(f"a text has half of a character, which no tokenizer takes: {str(error)[:200]}") from error
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise invalid(f"the body must be a JSON object, and is a {type(found).__name__}")
    return found
