"""Weights by vLLM's own transfer engines: its routes, requests and workers; only CUDA and NCCL have stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.client import Client, ServerError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.serving.pool import Server
from gspo_lightning.rollouts.serving.weights import in_checkpoint_format
from gspo_lightning.rollouts.vllm import transfer
from gspo_lightning.rollouts.vllm.in_process import InProcessEngine
from gspo_lightning.rollouts.vllm.probe import WeightProbe
from gspo_lightning.rollouts.vllm.transfer import Calls, CheckpointWeights, Sender
from gspo_lightning.rollouts.vllm.weight_transport import options_for
from tests.real_vllm import served, test_pictures

pytestmark = served.VLLM


class Engine:
    """What vLLM's routes call, on an engine in this process; remembers what it was asked for."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.asked, self.version = llm, list[str](), "default"
        parallel = SimpleNamespace(world_size_across_dp=1, world_size=1)
        self.vllm_config = SimpleNamespace(parallel_config=parallel)
        self.requests: list[Any] = []

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self.asked.append("init")
        await asyncio.to_thread(self.llm.init_weight_transfer_engine, request)

    async def start_weight_update(self) -> None:
        self.asked.append("start")
        await asyncio.to_thread(self.llm.start_weight_update)

    async def update_weights(self, request: Any) -> None:
        self.asked.append("update")
        self.requests.append(request.update_info)
        await asyncio.to_thread(self.llm.update_weights, request)

    async def finish_weight_update(self, version: str | None) -> None:
        self.asked.append("finish")
        await asyncio.to_thread(self.llm.finish_weight_update, version)


class Wire:
    """Stands in for an NCCL communicator: what the first rank broadcasts is what the others receive, in order."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Tensor] = queue.Queue()
        self.sizes: list[int] = []

    def side(self, rank: int) -> Any:
        def broadcast(tensor: Tensor, src: int, stream: Any = None) -> None:
            if rank == src:
                self.sizes.append(tensor.numel())
                self.sent.put(tensor.clone())
            else:
                received = self.sent.get(timeout=30)
                assert (received.shape, received.dtype) == (tensor.shape, tensor.dtype)
                tensor.copy_(received)

        return SimpleNamespace(broadcast=broadcast, destroy=lambda: None)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A CPU that answers for a GPU as far as the transfer engines ask: streams, handles of memory, NCCL."""
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    wire, handles = Wire(), dict[int, Tensor]()
    stream = SimpleNamespace(synchronize=lambda: None)

    def reduce_tensor(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
        handles[len(handles)] = tensor
        return None, (len(handles) - 1, *range(5), 0)

    def rebuilt(key: int, *_: Any) -> Tensor:
        return handles[key]

    def empty(*size: Any, device: Any = None, **options: Any) -> Tensor:
        return plain(*size, device="cpu" if str(device).startswith("cuda") else device, **options)

    plain = torch.empty
    monkeypatch.setattr(packed_tensor.torch, "empty", empty)
    monkeypatch.setattr(packed_tensor, "reduce_tensor", reduce_tensor)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (stream,) * count)
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_cuda_tensor", rebuilt)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="GPU-0"))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: wire.side(0))
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda info, parallel: wire.side(1))
    return wire


@contextlib.contextmanager
def behind_routes(engine: Engine, folder: Path) -> Iterator[Server]:
    """vLLM's own routes for weights, on a socket file."""
    import uvicorn
    from fastapi import FastAPI
    from vllm.entrypoints.rl.online.api_router import router

    app = FastAPI()
    app.include_router(router)
    app.state.engine_client = engine
    path = folder / "s"
    http = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_level="warning"))
    thread = threading.Thread(target=http.run, daemon=True)
    thread.start()
    while not path.exists():
        time.sleep(0.01)
    try:
        yield Server(Client(Endpoint(f"unix:{path}"), 60.0, 10.0))
    finally:
        http.should_exit = True
        thread.join()


@pytest.mark.parametrize("reads", ["text", pytest.param("pictures", marks=test_pictures.pytestmark)])
def test_both_ways_bring_the_trainers_weights_through_vllms_own_code(
    reads: str, policy: Policy, device: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names, dtypes, shapes, order and buffers are read by vLLM's worker; what it then samples is the trainer's."""
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if reads == "pictures":
        policy = test_pictures.policy_of("tiny-qwen3-vl", tmp_path / "model")
    monkeypatch.setattr(transfer, "BUCKET", 2**16)  # several buffers
    for name, value in options_for("ipc")[1].items():
        monkeypatch.setenv(name, value)
    arguments = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28, "max_model_len": 64}
    held = InProcessEngine(policy, arguments | {"weight_transfer_config": {"backend": "nccl"}})
    if reads == "pictures":
        held.load(policy)  # as a server that was started with its weights
    loop, engine = LoopThread("test"), Engine(held._llm)
    worker = held._llm.llm_engine.model_executor.driver_worker.worker
    wanted = in_checkpoint_format(policy)
    limit = max(2**16, *(4 * value.numel() for value in wanted.values()))
    try:
        with behind_routes(engine, tmp_path) as server:
            for transport in ("nccl", "ipc"):
                if transport == "ipc":
                    model = worker.model_runner.model
                    worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
                        WeightTransferConfig(backend="ipc"), worker.vllm_config, torch.device("cuda:0"), model
                    )
                sender = Sender(transport, 60.0)  # type: ignore[arg-type]
                for _ in range(2):
                    with torch.no_grad():
                        for weight in policy.parameters():
                            weight.mul_(1.2)
                    engine.requests.clear()
                    sending = sender.send(server, policy, torch.float32, adapters=True, known=True)
                    loop.run(sending)
                    assert gap(held, policy) < 1e-5
                    said = [
                        (name, dtype, tuple(shape))
                        for info in engine.requests
                        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
                    ]
                    assert said == [(name, "float32", tuple(value.shape)) for name, value in wanted.items()]
                chunks = len(engine.requests)
                held_at_once = [sum(info["tensor_sizes"]) for info in engine.requests if "tensor_sizes" in info]
                assert all(size <= limit for size in held_at_once)
                assert engine.asked == ["init", *["start", *["update"] * chunks, "finish"] * 2]
                engine.asked.clear()
                assert chunks == 1 if transport == "nccl" else chunks > 6
            assert len(device.sizes) > 2 * (6 if reads == "text" else 4)  # larger tensors, larger buffers
            assert sum(device.sizes) == 2 * 4 * sum(value.numel() for value in wanted.values())
            loop.run(server.client.close())
    finally:
        held.close()
        loop.close()


def gap(engine: InProcessEngine, policy: Policy) -> float:
    """Nats between the engine's log-probabilities and the policy's."""
    engine._llm.reset_prefix_cache()
    if policy.image_processor is not None:
        engine._llm.llm_engine.reset_encoder_cache()
    probe = WeightProbe(policy, None, "float32")
    ((_, piece),) = engine.run([probe.request], [probe.row.prompt.media])
    return probe.check(["vLLM"], [piece.answer])


def test_checkpoint_weights_are_a_weight_source_to_vllm(policy: Policy) -> None:
    from vllm.distributed.weight_transfer import ParamMeta, VLLMWeightSyncClient

    source = CheckpointWeights()
    source.fill(in_checkpoint_format(policy), torch.bfloat16)
    assert [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in source] == source.metadata()
    assert {value.dtype for _, value in source} == {torch.bfloat16}
    assert source.buffer == 2 * sum(value.numel() for _, value in source)
    loop = asyncio.new_event_loop()
    assert isinstance(Calls(Client(Endpoint("unix:/nowhere"), 1.0, 1.0), loop), VLLMWeightSyncClient)
    loop.close()


def test_a_server_that_cannot_meet_the_trainer_is_an_error_and_not_a_wait(policy: Policy, tmp_path: Path) -> None:
    """The real rendezvous: the trainer waits for a worker that has refused."""

    class Refuses:
        def init_weight_transfer_engine(self, request: Any) -> None:
            raise RuntimeError("Weight transfer not configured")

    loop = LoopThread("test")
    with behind_routes(Engine(Refuses()), tmp_path) as server:
        start = time.monotonic()
        with pytest.raises(ServerError, match="/init_weight_transfer_engine gave status 500"):
            loop.run(Sender("nccl", 100.0).send(server, policy, torch.float32, adapters=True, known=True))
        assert time.monotonic() - start < 90
        loop.run(server.client.close())
    loop.close()
