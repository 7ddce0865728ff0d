"""HTTP client of one inference server: its requests, and the classification of failures."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gspo_lightning.core.addresses import IDLE_S, UNIX
from gspo_lightning.core.bodies import ACCEPTED, PER_DETAILED_TOKEN, Body, BodyError, read_body, reply_limit
from gspo_lightning.core.escape import visible
from gspo_lightning.rollouts.serving.endpoint import KEY, Endpoint

if TYPE_CHECKING:
    import aiohttp

COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
"""Lines of vLLM's metrics, in the format of Prometheus."""
_TAIL = 32
"""Last tokens of a prompt, to see what its template ends with."""


class ServerError(Exception):
    """Missing answer or internal error of a server; another server may succeed."""


class UnsupportedError(Exception):
    """Operation that a server does not support, now or later."""


class Client:
    """HTTP client of one server; every call has a deadline.

    Args:
        endpoint: address and key of the server.
        timeout_s: seconds that a call may take.
        health_timeout_s: seconds that a health check may take.
        per_token: see :func:`~gspo_lightning.core.bodies.reply_limit`.
    """

    def __init__(
        self, endpoint: Endpoint, timeout_s: float, health_timeout_s: float, per_token: int = PER_DETAILED_TOKEN
    ) -> None:
        self.per_token = per_token
        self.endpoint = endpoint
        self.url = endpoint.url
        self.timeout_s = timeout_s
        self.health_timeout_s = health_timeout_s
        self._socket = urlsplit(self.url).path if self.url.startswith(UNIX) else None
        self._base = self.url if self._socket is None else "http://localhost"
        self._headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._session: aiohttp.ClientSession | None = None
        self.halted = False
        """True if the server was paused and has not confirmed that it resumed."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def healthy(self) -> bool:
        """Return True if the server answers a health check in time."""
        return not await self.ailment()

    async def ailment(self) -> str:
        """Return the reason why the server fails a health check; '' if it is healthy."""
        try:
            await self._call("GET", "/health", timeout_s=self.health_timeout_s)
        except (ServerError, UnsupportedError) as error:
            return str(error)
        return ""

    async def owner(self) -> str:
        """Return the engine that ``GET /v1/models`` names as the owner of the model; '' if it names none."""
        reply = await self._call("GET", "/v1/models", timeout_s=self.health_timeout_s)
        models = reply.get("data") if isinstance(reply, dict) else None
        first = models[0] if isinstance(models, list) and models else None
        return str(first.get("owned_by") or "") if isinstance(first, dict) else ""

    async def rendered(self, model: str, messages: Sequence[Mapping[str, str]]) -> str | None:
        """Return the end of a prompt as the server renders it; None if it has no route for this.

        vLLM and SGLang have ``/tokenize`` and ``/detokenize``, llama.cpp has ``/apply-template``.
        """
        try:
            body = {"model": model, "messages": list(messages), "add_generation_prompt": True}
            tokens = (await self._call("POST", "/tokenize", body)).get("tokens")
            if tokens and isinstance(tokens, list):
                body = {"model": model, "tokens": tokens[-_TAIL:]}
                return str((await self._call("POST", "/detokenize", body))["prompt"])
        except (ServerError, UnsupportedError, KeyError, TypeError, AttributeError):
            pass
        try:
            return str((await self._call("POST", "/apply-template", {"messages": list(messages)}))["prompt"])
        except (ServerError, UnsupportedError, KeyError, TypeError):
            return None

    async def model(self) -> str:
        """Return the name under which the model is served."""
        reply = await self._call("GET", "/v1/models", timeout_s=self.health_timeout_s)
        models = reply.get("data") if isinstance(reply, dict) else None
        if not (isinstance(models, list) and models and isinstance(models[0], dict) and "id" in models[0]):
            raise UnsupportedError("GET /v1/models does not name a model")
        return str(models[0]["id"])

    async def complete(self, body: dict[str, Any], *, patiently: bool = False, name: str | None = None) -> Any:
        """Send ``POST /v1/completions``.

        Args:
            body: body of the request.
            patiently: no deadline, for callers that watch the server themselves.
            name: name of the request for :meth:`abort`.
        """
        timeout_s = math.inf if patiently else None
        return await self._call("POST", "/v1/completions", body, timeout_s=timeout_s, name=name)

    async def generate(self, body: dict[str, Any], *, patiently: bool = False, name: str | None = None) -> Any:
        """Send ``POST /inference/v1/generate``: token ids with pictures in, token ids out.

        Raises:
            UnsupportedError: the server has no such route (vLLM has it with ``--enable-scale-out``).
            ServerError: it failed.
        """
        timeout_s = math.inf if patiently else None
        return await self._call("POST", "/inference/v1/generate", body, timeout_s=timeout_s, name=name)

    async def abort(self, names: Sequence[str]) -> None:
        """Abort requests: they are answered with the tokens generated so far.

        Raises:
            UnsupportedError: the server has no such route (vLLM has it with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        ids = [f"cmpl-{name}-0" for name in names]  # vLLM's name of the first prompt of a request
        ids += [f"generate-tokens-{name}" for name in names]
        await self._text("POST", "/abort_requests", {"request_ids": ids}, timeout_s=self.health_timeout_s)

    async def progress(self) -> float | None:
        """Return the number of tokens read and written since the server started; None if it does not report them."""
        try:
            text = await self._text("GET", "/metrics", timeout_s=self.health_timeout_s)
        except (ServerError, UnsupportedError):
            return None
        try:
            counts = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(COUNTERS)]
        except ValueError:  # metrics of another server with these names
            return None
        return sum(counts) if counts else None

    async def chat(self, body: dict[str, Any]) -> Any:
        """Send ``POST /v1/chat/completions``."""
        return await self._call("POST", "/v1/chat/completions", body)

    async def load(self, folder: str, tag: str, *, pictures: bool = False) -> None:
        """Load the weights of a folder, drop caches computed with earlier ones, and set the weights' tag.

        Args:
            folder: folder with the weights.
            tag: tag of the weights.
            pictures: True if the server caches features of pictures, which must be dropped, too.

        Raises:
            UnsupportedError: the server has no such routes (vLLM has them with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        await self._call(
            "POST",
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": folder}},
            needed_for_sync=True,
        )
        await self.take(tag, pictures=pictures)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause the server in this block. Requests in flight wait and continue afterwards.

        Their prompts and tokens are then prefilled again, with the weights that the server has by then.

        Raises:
            UnsupportedError: the server has no such routes (vLLM has them with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        self.halted = True
        try:
            await self._text("POST", "/pause?mode=keep&clear_cache=false", {}, needed_for_sync=True)
            yield
        except BaseException:
            with suppress(ServerError, UnsupportedError):  # the first error says more
                await self.resume()
            raise
        await self.resume()

    async def resume(self) -> None:
        """Resume the server after a pause.

        Raises:
            UnsupportedError: the server has no such route (vLLM has it with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        await self._text("POST", "/resume", {}, timeout_s=self.health_timeout_s, needed_for_sync=True)
        self.halted = False

    async def take(self, tag: str, *, pictures: bool = False) -> None:
        """Drop caches computed with earlier weights, and set the tag of the current ones.

        Raises:
            UnsupportedError: the server has no such routes (vLLM has them with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        reply = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true", {}, needed_for_sync=True)
        if not isinstance(reply, dict) or not reply.get("success"):
            raise ServerError(f"it could not forget what it had computed with other weights: {reply!r}")
        if pictures:  # vLLM empties the cache itself, but not its list of entries
            await self._call("POST", "/reset_encoder_cache", {}, needed_for_sync=True)
        await self.name_weights(tag)

    async def name_weights(self, tag: str) -> None:
        """Set the tag of the server's current weights.

        Raises:
            UnsupportedError: the server has no such route (vLLM has it with VLLM_SERVER_DEV_MODE=1).
            ServerError: it failed.
        """
        await self._call("POST", "/update_weight_version", {"new_version": tag}, needed_for_sync=True)

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """Send ``POST`` to one of vLLM's routes for weight transfer between GPUs."""
        await self._text("POST", path, body, needed_for_sync=True)

    async def world_size(self) -> int:
        """Return the number of the server's workers, one per GPU."""
        reply = await self._call("GET", "/get_world_size", needed_for_sync=True)
        try:
            return int(reply["world_size"])
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(
                f"GET /get_world_size does not tell the number of workers: {str(reply)[:100]!r}"
            ) from error

    async def backend(self) -> str | None:
        """Return the backend of its ``--weight-transfer-config``; None if it has none or does not report it."""
        try:
            reply = await self._call("GET", "/server_info?config_format=json")
            return str(reply["vllm_config"]["weight_transfer_config"]["backend"])
        except (ServerError, UnsupportedError, TypeError, KeyError):
            return None

    async def load_adapter(self, name: str, folder: str) -> None:
        """Serve these adapters, in PEFT format, under a name.

        Raises:
            UnsupportedError: the server refuses adapters in general, or these.
            ServerError: it does not answer.
        """
        body = {"lora_name": name, "lora_path": folder}
        await self._text("POST", "/v1/load_lora_adapter", body, refusals=True)

    async def unload_adapters(self, prefix: str, keep: str) -> None:
        """Unload adapters whose names begin with ``prefix``, all but ``keep``."""
        reply = await self._call("GET", "/v1/models", timeout_s=self.health_timeout_s)
        models = reply.get("data") if isinstance(reply, dict) else None
        names = [str(model.get("id")) for model in models or () if isinstance(model, dict)]
        for name in names:
            if name.startswith(prefix) and name != keep:
                await self._text("POST", "/v1/unload_lora_adapter", {"lora_name": name}, refusals=True)

    async def weights(self) -> str:
        """Return the tag of the server's current weights."""
        reply = await self._call("GET", "/weight_info", timeout_s=self.health_timeout_s, needed_for_sync=True)
        return str(reply.get("weight_version")) if isinstance(reply, dict) else ""

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any) -> Any:
        reply = await self._fetch(method, path, body, **options)
        try:
            return reply.json()
        except BodyError as error:
            raise ServerError(f"{method} {path}: {error}") from error

    async def _text(self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any) -> str:
        return (await self._fetch(method, path, body, **options)).text

    async def _fetch(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        needed_for_sync: bool = False,
        refusals: bool = False,
        name: str | None = None,
    ) -> Body:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers | ACCEPTED, connector=self._connector(), auto_decompress=False
            )
        seconds = timeout_s or self.timeout_s
        limit = aiohttp.ClientTimeout(total=seconds if seconds < math.inf else None)
        try:
            headers = None if name is None else {"X-Request-Id": name}
            async with self._session.request(
                method, self._base + path, json=body, timeout=limit, allow_redirects=False, headers=headers
            ) as reply:
                answer = await read_body(reply, reply_limit(body, self.per_token))
                status = reply.status
        except TimeoutError as error:
            raise ServerError(f"{method} {path} took more than {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, BodyError) as error:
            raise ServerError(f"{method} {path}: {visible(error) or type(error).__name__}") from error
        text = visible(answer.text) if status >= 300 else ""
        if status in (404, 405, 501):
            why = "; start it with VLLM_SERVER_DEV_MODE=1" if needed_for_sync else ""
            raise UnsupportedError(f"it has no {method} {path} (status {status}){why}")
        if refusals and status >= 300:
            raise UnsupportedError(f"it refuses {method} {path} (status {status}): {text[:300]}")
        if status >= 500 or status in (408, 409, 425, 429):
            raise ServerError(f"{method} {path} gave status {status}: {text[:300]}")
        if status == 403 and "--enable-scale-out" in text:
            raise UnsupportedError(f"it has {method} {path} switched off: start it with --enable-scale-out")
        if status in (401, 403):
            raise UnsupportedError(f"it asks for another key at {method} {path} (status {status}): set {KEY}")
        if status >= 300:
            raise UnsupportedError(f"it refuses {method} {path} (status {status}): {text[:300]}")
        return answer

    def _connector(self) -> aiohttp.BaseConnector:
        import aiohttp

        if self._socket is None:
            return aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        return aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=IDLE_S)
