"""Replies of the gateway on their way to clients, and whether these are still there to get them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from gspo_lightning.rollouts.gateway.bounds import aside
from gspo_lightning.rollouts.gateway.dialects import Dialect, answered, frame, framed
from gspo_lightning.rollouts.gateway.exchange import RefusalError, Served
from gspo_lightning.rollouts.gateway.session import Session

KEEP_ALIVE_S = 3.0
"""Seconds between two comments in a stream that has nothing to say yet."""


async def send_answer(request: web.Request, dialect: Dialect, session: Session, served: Served) -> web.StreamResponse:
    """Write a whole answer."""
    with _heard(served):
        body = await aside(served.size, session.lock, answered, dialect, served)
        return await _sent(request, web.Response(body=body, content_type="application/json"))


async def send_stream(
    request: web.Request, dialect: Dialect, session: Session, work: asyncio.Task[Served]
) -> web.StreamResponse:
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
        return await _sent(request, out, frame("error", dialect.error(refusal)))
    with _heard(served):
        return await _sent(request, out, await aside(served.size, session.lock, framed, dialect, served))


def json_answer(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a small answer."""
    return web.Response(
        body=json.dumps(value).encode(), status=status, content_type="application/json", headers=headers
    )


@contextmanager
def _heard(served: Served) -> Iterator[None]:
    """Note that a client gets the answer, unless it has gone."""
    served.turn.heard += 1
    try:
        yield
    except BaseException:
        served.turn.heard -= 1
        raise


async def _sent(request: web.Request, answer: web.StreamResponse, body: bytes = b"") -> web.StreamResponse:
    """Write an answer.

    Raises:
        ConnectionError: the client has gone.
    """
    if not answer.prepared:
        await answer.prepare(request)
    await answer.write_eof(body)
    if request.transport is None:
        raise ConnectionResetError
    return answer
