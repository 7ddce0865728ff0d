"""Server of the page: read-only, and for this machine only unless told otherwise."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from gspo_lightning.core.errors import GSPOError, UserError
from gspo_lightning.report.view.page import ASSETS, asset
from gspo_lightning.report.view.run_data import RunData

log = logging.getLogger(__name__)
REFRESH_S = 3.0
"""Seconds between two looks for new responses of a run that is not finished."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_COOKIE = "gspo_view"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(host: str) -> bool:
    """True if a name or address means this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ViewServer:
    """The page over some runs.

    Args:
        runs: the runs, in the order of their numbers.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        token: word that a browser must bring; empty: none.

    Raises:
        UserError: the host can be reached from other machines, and there is no token.
    """

    def __init__(self, runs: Sequence[RunData], host: str = "127.0.0.1", port: int = 0, token: str = "") -> None:
        if not is_loopback(host) and not token:
            raise UserError(
                "--host",
                f"{host} can be reached from other machines, and whoever reaches it reads all prompts and answers",
                fix="leave it at 127.0.0.1 and use ssh -L, or set --token",
            )
        self.runs, self.host, self.port, self.token = list(runs), host, port, token
        self._cookie = secrets.token_urlsafe(24)
        folders = "\0".join(str(run.folder.resolve()) for run in self.runs)
        self._cookie_name = f"{_COOKIE}_{hashlib.blake2b(folders.encode(), digest_size=6).hexdigest()}"
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

    async def start(self) -> str:
        """Listen, and read recorded responses in the background; return the address of the page.

        Raises:
            UserError: the port is taken.
        """
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/{name:[a-z]+\\.(?:js|css)}", self._asset),
                web.get("/api/runs", self._runs),
                web.get("/api/run/{run:[0-9]{1,4}}/picture/{name:[0-9a-f]{64}}", self._picture),
                web.get("/api/run/{run:[0-9]{1,4}}/{what:[a-z]+}", self._of_run),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            problem = f"{self.host}:{self.port} cannot be used: {error.strerror or error}"
            raise UserError("--port", problem, fix="choose another one, or 0 for any that is free") from error
        self.port = self._runner.addresses[0][1]
        self._task = asyncio.create_task(self._follow())
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    async def stop(self) -> None:
        """Close all connections and files."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._runner is not None:
            await self._runner.cleanup()
        for run in self.runs:
            run.index.close()

    async def _follow(self) -> None:
        """Keep the indexes up to date, from the first look at the page on: until it is drawn, nothing else is read."""
        said = set[str]()
        await self._looked.wait()
        while True:
            for run in self.runs:
                try:
                    await asyncio.to_thread(run.refresh)
                except GSPOError as error:
                    if str(error) not in said:
                        log.warning("%s: %s", run.folder, error)
                    said.add(str(error))
                except Exception:
                    log.exception("%s cannot be read", run.folder)
            await asyncio.sleep(REFRESH_S)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what may not see the page; put the headers on everything."""
        try:
            response = self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=error.reason)
        response.headers.update(HEADERS)
        if self.token and response.status == 200 and request.path == "/":
            response.set_cookie(self._name(), self._cookie, httponly=True, samesite="Strict")
        return response

    def _name(self) -> str:
        """Return the cookie's name: browsers keep one of a name for all ports, so runs and port are part of it."""
        return f"{self._cookie_name}_{self.port}"

    def _refusal(self, request: web.Request) -> web.Response | None:
        host = request.host.rsplit(":", 1)[0].strip("[]")
        if not self.token:  # a page of elsewhere whose name was made to point here
            return None if is_loopback(host) else web.Response(status=403, text="this page is for this machine only")
        given, cookie = request.query.get("token", ""), request.cookies.get(self._name(), "")
        known = hmac.compare_digest(given.encode(), self.token.encode())
        if known or hmac.compare_digest(cookie.encode(), self._cookie.encode()):
            return None
        return web.Response(status=403, text="the address needs ?token=")

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=asset("index.html"), content_type="text/html")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return web.Response(text=asset(name), content_type=ASSETS[name])

    async def _runs(self, _: web.Request) -> web.Response:
        try:
            return _json(await asyncio.to_thread(lambda: [run.overview() for run in self.runs]))
        finally:
            self._looked.set()

    def _run(self, request: web.Request) -> RunData:
        number = int(request.match_info["run"])
        if number >= len(self.runs):
            raise web.HTTPNotFound
        return self.runs[number]

    async def _picture(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=self._run(request).picture(request.match_info["name"]), content_type="image/png")
        except KeyError as error:
            raise web.HTTPNotFound from error

    async def _of_run(self, request: web.Request) -> web.Response:
        run, what = self._run(request), request.match_info["what"]
        try:
            return _json(await asyncio.to_thread(answer, run, what, dict(request.query)))
        except KeyError as error:
            raise web.HTTPNotFound from error
        except (ValueError, OverflowError) as error:
            raise web.HTTPBadRequest from error


def answer(run: RunData, what: str, query: dict[str, str]) -> Any:
    """Return the data of one request.

    Raises:
        KeyError: there is no such data.
        ValueError: the query has a number that is none.
    """
    known: dict[str, Callable[[], Any]] = {
        "overview": run.overview,
        "series": lambda: run.series(query.get("tags", "").split(","), _between(query)),
        "rollouts": lambda: run.rollouts(query),
        "rows": lambda: run.rows(query),
        "answers": run.answers,
        "prompts": run.prompts,
        "prompt": lambda: run.prompt(query),
        "ratios": run.ratios,
        "histograms": run.histograms,
        "export": lambda: run.export(query),
        "texts": run.texts,
    }
    return known[what]()


def _between(query: dict[str, str]) -> tuple[float, float] | None:
    return (float(query["first"]), float(query["last"])) if query.get("first") and query.get("last") else None


def _json(value: Any) -> web.Response:
    return web.Response(text=json.dumps(value, ensure_ascii=False), content_type="application/json")
