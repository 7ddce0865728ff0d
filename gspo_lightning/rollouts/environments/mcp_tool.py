"""Tools of MCP servers (Model Context Protocol), over standard input and output or HTTP."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from gspo_lightning.core.addresses import check_address
from gspo_lightning.core.errors import InfrastructureError, UserError, first_line
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.variables import check_variables, read_variables, without_secrets
from gspo_lightning.rollouts.environments.mcp_result import NOTHING, result_text
from gspo_lightning.rollouts.environments.tools import Tool, ToolError

ENVIRONMENT = "McpTool.environment"
_START_S = 60.0
_Key = tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]
_servers: weakref.WeakValueDictionary[_Key, _Server] = weakref.WeakValueDictionary()
"""Connections, which tools of one server share."""


class McpTool(Tool):
    """A tool of an MCP server: name, description and schema are the server's, and it answers the calls.

    Tools of one server share a connection. An answer that the server marks as an error is read by the policy; a server
    that is gone, or does not answer in time, is a failure of the environment, and is started or connected to again by
    the next call. The same calls must get the same answers, as from any tool. Needs the package mcp.

    Args:
        tool: name on the server.
        command: program of the server and its arguments, started here and spoken to over its standard input and
            output. It runs with the rights of the trainer.
        url: address of a running server (streamable HTTP), instead of a command.
        environment: variables of the command, beside ``PATH``, ``HOME`` and a few others. A value ``$NAME`` is that of
            the trainer's variable NAME, for keys: what is written here stands in the run folder.
        timeout_s: seconds for one call.

    Raises:
        UserError: the package is missing, the server cannot be reached, it has no such tool, or a secret is given by
            its value.
    """

    def __init__(
        self,
        tool: str,
        command: list[str] | None = None,
        url: str = "",
        environment: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if bool(command) == bool(url):
            raise UserError("McpTool", "needs either a command or a url")
        if not 0 < timeout_s < float("inf"):
            raise UserError("McpTool.timeout_s", f"is {timeout_s}; it must be a number of seconds above 0")
        if url:
            check_address(url, "McpTool.url", "of its command", key=None, plain_http=True)
        self.tool = tool
        self.timeout_s = timeout_s
        variables = check_variables(environment or {}, ENVIRONMENT)
        key = (tuple(command or ()), url, tuple(sorted(variables.items())))
        self._server = _servers.get(key) or _Server(key)
        _servers[key] = self._server
        tools = {listed.name: listed for listed in self._server.tools}
        if tool not in tools:
            raise UserError("McpTool.tool", f"{tool!r} is no tool of {self._server.name}, which has {', '.join(tools)}")
        self.description = tools[tool].description or ""  # type: ignore[misc]
        self._schema: dict[str, Any] = dict(tools[tool].input_schema)
        properties = self._schema.get("properties") or {}
        self.takes_text = len(properties) == 1 and next(iter(properties.values())).get("type") == "string"
        if self.takes_text:
            self.argument = next(iter(properties))  # type: ignore[misc]

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, as the server tells it."""
        return self._schema

    @override
    async def answer(self, arguments: Mapping[str, Any]) -> str:
        if self.takes_text and self.argument not in arguments and len(arguments) == 1:
            arguments = {self.argument: next(iter(arguments.values()))}
        return await self.call(**arguments)

    async def call(self, **arguments: Any) -> str:
        """Return the server's answer as text (:func:`gspo_lightning.rollouts.environments.mcp_result.result_text`).

        Raises:
            ToolError: the server says that the call was wrong.
            InfrastructureError: the server is gone, or too slow.
        """
        result = await self._server.call(self.tool, arguments, self.timeout_s)
        text = without_secrets(result_text(result), self._server.environment)
        if result.is_error:
            raise ToolError(text if text not in ("", NOTHING) else "the tool failed")
        return text

    @override
    def close(self) -> None:
        self._server.close()


class _Server:
    """Connection to a server, on an event loop in a thread of its own."""

    def __init__(self, key: _Key) -> None:
        command, self.url, environment = key
        self.command = list(command)
        self.environment = dict(environment)
        self.name = self.url or " ".join(self.command)
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self.tools = self._linked().tools

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Return the result of a call.

        Raises:
            ToolError: the server refuses it.
            InfrastructureError: there is no answer.
        """
        link = await asyncio.to_thread(self._linked)
        work = asyncio.run_coroutine_threadsafe(link.call(tool, arguments), link.loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(work), timeout_s)
        except TimeoutError as error:
            link.stop()
            raise InfrastructureError(f"{self.name} gave no answer in {timeout_s:g} s") from error
        except (concurrent.futures.CancelledError, asyncio.CancelledError) as error:
            if link.ends:
                raise InfrastructureError(f"{self.name} is gone") from error
            raise

    def close(self) -> None:
        """End the connection; the next call makes another one."""
        with self._lock:
            if self._link is not None:
                self._link.stop()

    def _linked(self) -> _Link:
        """Return the connection, made now if there is none."""
        with self._lock:
            if self._link is None or self._link.ends:
                self._link = _Link(self.command, self.url, self.environment)
                weakref.finalize(self, self._link.stop)
            return self._link


class _Link:
    """One connection while it lasts.

    Raises:
        UserError: it cannot be made.
    """

    def __init__(self, command: list[str], url: str, environment: Mapping[str, str]) -> None:
        try:
            import mcp
        except ImportError as error:
            fix = install_command("agents")
            raise UserError("McpTool", "needs the package mcp, which is not installed", fix=fix) from error
        variables = read_variables(environment, ENVIRONMENT)
        server = url or mcp.StdioServerParameters(command=command[0], args=command[1:], env=variables)
        self.client = mcp.Client(server)
        self._environment = environment
        self.refusal = mcp.MCPError
        self.loop = asyncio.new_event_loop()
        self.over = threading.Event()
        self.tools: list[Any] = []
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="mcp-server", daemon=True)
        self._thread.start()
        try:
            self._ready.result(_START_S)
        except BaseException as error:
            self.stop()
            cause = without_secrets(first_line(error), environment)[:300]
            raise UserError(
                "McpTool.url" if url else "McpTool.command",
                f"{url or ' '.join(command)} is no MCP server that can be used: {type(error).__name__}: {cause}",
            ) from error

    @property
    def ends(self) -> bool:
        """True if it takes no more calls."""
        return self._stop.is_set() or self.over.is_set()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a call, in the loop of the connection."""
        work = asyncio.ensure_future(self._call(tool, arguments))
        gone = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
            raise InfrastructureError("the connection to the MCP server has ended")
        return work.result()

    def stop(self) -> None:
        """End the connection and the server that was started for it."""
        if not self.over.is_set() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stop.set)
            if threading.current_thread() is not self._thread:  # where garbage may be collected, too
                self._thread.join(10.0)

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self.client.call_tool(tool, dict(arguments))
        except self.refusal as error:
            refusal = without_secrets(str(error), self._environment)
            if error.code in (-32602, -32601):  # invalid parameters, unknown method
                raise ToolError(refusal) from error
            self._stop.set()
            raise InfrastructureError(f"the MCP server failed: {refusal}") from error

    def _serve(self) -> None:
        try:
            self.loop.run_until_complete(self._connected())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(_innermost(error))
        finally:
            self.over.set()
            self.loop.close()

    async def _connected(self) -> None:
        async with self.client as client:
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                self.tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
            self._ready.set_result(None)
            await self._stop.wait()


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
