"""Weight transfer between GPUs, through vLLM's own transfer engines (``vllm.distributed.weight_transfer``)."""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from gspo_lightning.policy.kernels.thread_state import on_device
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.client import Client, ServerError
from gspo_lightning.rollouts.serving.pool import Server
from gspo_lightning.rollouts.serving.streamed import BUCKET, StreamedWeights
from gspo_lightning.rollouts.serving.weights import in_checkpoint_format
from gspo_lightning.rollouts.vllm.process_state import preserve_process_state
from gspo_lightning.rollouts.vllm.weight_transport import Transport, is_near

LATER_S = 30.0
"""Seconds to wait for a request beyond its own timeout."""


class CheckpointWeights:
    """A ``WeightSource`` of vLLM: names, dtypes and shapes of a checkpoint, and the tensors in the same order.

    Tensors are converted one at a time; vLLM packs them into buffers.
    """

    def __init__(self) -> None:
        self._state: dict[str, Tensor] = {}
        self._stream: StreamedWeights | None = None
        self._dtype = torch.float32

    def follow(self, stream: StreamedWeights, dtype: torch.dtype) -> None:
        """Take weights as they are gathered; floating-point ones are sent in ``dtype``."""
        self._state = stream.meta
        self._stream = stream
        self._dtype = dtype

    def fill(self, state: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Take these weights; floating-point ones are sent in ``dtype``."""
        self._state = state
        self._stream = None
        self._dtype = dtype

    def clear(self) -> None:
        """Release the weights."""
        self._state = {}
        self._stream = None

    @property
    def buffer(self) -> int:
        """Bytes of a buffer that fits each of the weights: CUDA IPC refuses larger ones."""
        sizes = [value.numel() * self._kept(value).itemsize for value in self._state.values()]
        return max(*sizes, min(BUCKET, sum(sizes)))

    def metadata(self) -> list[Any]:
        """Return name, dtype and shape of each weight."""
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(name, self._kept(value), tuple(value.shape)) for name, value in self._state.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._state.items() if self._stream is None else self._stream:
            yield name, value.to(self._kept(value)).contiguous()
            del value  # before the next one is gathered

    def _kept(self, value: Tensor) -> torch.dtype:
        return self._dtype if value.is_floating_point() else value.dtype


class Calls:
    """Server calls of a vLLM transfer engine, from threads of its own (``VLLMWeightSyncClient``)."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        """First failed call: the trainer's side may be waiting for a peer that will never come."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect the server's workers to the trainer."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Prepare the server to receive weights."""
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive weights on the server, and wait for them. Handles of GPU memory are no JSON: they are pickled."""
        fields = dict(update_info)
        handles = fields.pop("ipc_handles", None)
        if handles is not None:
            fields["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles)).decode()
        body = {name: value for name, value in fields.items() if value is not None}
        self._post("/update_weights", {"update_info": body})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Activate the received weights."""
        self._post("/finish_weight_update", {} if weight_version is None else {"weight_version": weight_version})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        future = asyncio.run_coroutine_threadsafe(self._client.post(path, body), self._loop)
        try:
            future.result(self._client.timeout_s + LATER_S)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._fail, error)
            raise

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


Meeting = tuple[Any, CheckpointWeights, Calls]
"""A transfer engine of vLLM, the weights it sends, and its connection to the server."""


class Sender:
    """Sender of weights to one server after the other; each has a transfer engine of its own.

    A restarted server is therefore connected again without the others.

    Args:
        transport: ``ipc`` or ``nccl``.
        timeout_s: seconds that one server may take.
    """

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self._met: dict[Server, Meeting] = {}
        self._one_at_a_time = asyncio.Lock()

    async def send(self, server: Server, policy: Policy, dtype: torch.dtype, *, adapters: bool, known: bool) -> None:
        """Send all weights of a policy to a server.

        Args:
            server: a server that answers.
            policy: with whole weights, or a stream of them.
            dtype: dtype of the weights in transfer.
            adapters: merged into the weights, or left out.
            known: True if the server has not been restarted since its engine was connected.

        Raises:
            ServerError: it did not take them.
        """
        async with self._one_at_a_time:
            if not known:
                self._met.pop(server, None)
            try:
                fill = _filling(policy, dtype, adapters=adapters)
                if server not in self._met:
                    source = CheckpointWeights()
                    fill(source)
                    self._met[server] = await self._meet(server, source, policy.device)
                engine, source, calls = self._met[server]
                fill(source)
                sending = functools.partial(_on, policy.device, self.transport, engine.send_weights)
                try:
                    await self._wait(calls, sending)
                finally:
                    source.clear()
            except Exception as error:
                self._met.pop(server, None)
                with suppress(Exception):
                    await server.client.post("/finish_weight_update", {})  # else it refuses to start the next update
                if isinstance(error, ServerError):
                    raise
                raise ServerError(
                    f"weights did not arrive by {self.transport}: {type(error).__name__}: {error}"
                ) from error

    async def _meet(self, server: Server, source: CheckpointWeights, device: torch.device) -> Meeting:
        calls = Calls(server.client, asyncio.get_running_loop())
        workers = await server.client.world_size() if self.transport == "nccl" else 0
        opening = functools.partial(_open, self.transport, calls, source, address_for(server.client.url), workers)
        engine = await self._wait(calls, functools.partial(_on, device, self.transport, opening))
        return engine, source, calls

    async def _wait(self, calls: Calls, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, unless a call to the server fails first.

        Raises:
            ServerError: it takes too long.
        """
        thread = _in_thread(work)
        done, _ = await asyncio.wait(
            [thread, calls.failed], timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if calls.failed in done:
            raise calls.failed.result()
        if thread not in done:
            raise ServerError(f"weights did not arrive by {self.transport} in {self.timeout_s:g} s")
        return thread.result()


def _filling(policy: Policy, dtype: torch.dtype, *, adapters: bool) -> Callable[[CheckpointWeights], None]:
    """Return what gives a source the weights of a policy."""
    if policy.stream is None:
        state = in_checkpoint_format(policy, adapters=adapters)
        return lambda source: source.fill(state, dtype)
    stream = StreamedWeights(policy, adapters=adapters)
    return lambda source: source.follow(stream, dtype)


def address_for(url: str) -> str:
    """Return the address of this machine by which a server reaches it."""
    if is_near(url):
        return "127.0.0.1"
    host = str(urlsplit(url).hostname)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: the system only looks up the route
        return str(probe.getsockname()[0])


def _open(transport: Transport, calls: Calls, source: CheckpointWeights, address: str, workers: int) -> Any:
    with preserve_process_state():
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    if transport == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return WeightTransferTrainerFactory.trainer_init(
            IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=source.buffer), client=calls, source=source
        )
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, 0))
        port = int(listener.getsockname()[1])
    info = NCCLTrainerInitInfo(
        rank=0, master_address=address, master_port=port, world_size=1 + workers, packed_buffer_size_bytes=source.buffer
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=calls, source=source)


@contextmanager
def fixed_segments(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Allocate without expandable segments inside: other processes may not be allowed to open their handles.

    Those handles are file descriptors fetched with ``pidfd_getfd``, which Yama and Docker's seccomp refuse to a child.
    PyTorch forgets every option that is not given again, so the others are repeated.
    """
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second one, if set, counts
    settings = next((environment[name] for name in reversed(names) if environment.get(name)), "")
    options = [part.strip() for part in settings.split(",") if part.strip()]
    kept = [part for part in options if part.lower().replace(" ", "") != "expandable_segments:true"]
    if len(kept) == len(options):
        yield
        return
    set_allocator: Callable[[str], None] = torch._C._accelerator_setAllocatorSettings
    set_allocator(",".join([*kept, "expandable_segments:False"]))
    try:
        yield
    finally:
        set_allocator(settings)


def _on(device: torch.device, transport: Transport, work: Callable[[], Any]) -> Any:
    """Run in a thread on ``device``, after pending work of other streams is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    with torch.no_grad(), on_device(device), fixed_segments() if transport == "ipc" else nullcontext():
        return work()


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run in a daemon thread, which may hang with a server that is gone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            outcome = functools.partial(settle, future.set_exception, error)
        else:
            outcome = functools.partial(settle, future.set_result, result)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(outcome)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future
