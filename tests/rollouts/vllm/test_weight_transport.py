"""Which way weights take: the fastest that is possible, and a clear refusal of what is not."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.qwen import QwenImageProcessor
from gspo_lightning.rollouts import VLLMServer
from gspo_lightning.rollouts.serving.client import Client
from gspo_lightning.rollouts.vllm.local import command
from gspo_lightning.rollouts.vllm.transfer import address_for
from gspo_lightning.rollouts.vllm.weight_transport import TransportContext, choose, options_for

SAME: dict[str, Any] = {"cuda": True, "own": "0", "theirs": [["0"]]}
APART: dict[str, Any] = {"cuda": True, "own": "0", "theirs": [["4", "5"], ["6", "7"]]}
RUNNING: dict[str, Any] = {"cuda": True, "configured": ["nccl", "nccl"]}


@pytest.fixture(autouse=True)
def _has_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    find, found = importlib.util.find_spec, importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "vllm" else find(name))


@pytest.mark.parametrize(
    ("found", "transport"),
    [
        ({"cuda": False, "theirs": [[]]}, "files"),
        (SAME, "ipc"),
        (APART, "nccl"),
        (SAME | {"ranks": 2}, "files"),  # the first rank alone sends
        (APART | {"ranks": 4}, "nccl"),
        (APART | {"trusted": False}, "files"),
        (SAME | {"theirs": [["0", "1"]]}, "files"),  # NCCL takes no GPU twice, IPC reaches one alone
        (SAME | {"theirs": [["0"], ["1"]]}, "files"),
        (SAME | {"theirs": [["GPU-7d"]]}, "files"),  # which may be the same
        (SAME | {"pictures": True}, "files"),  # buffers that no weights bring would stay random
        (RUNNING, "nccl"),
        (RUNNING | {"configured": ["ipc"]}, "ipc"),
        (RUNNING | {"configured": ["nccl", None]}, "files"),
        (RUNNING | {"configured": ["sparse_nccl"]}, "files"),
        (RUNNING | {"configured": [None]}, "files"),
    ],
)
def test_the_fastest_way_that_is_possible(found: dict[str, Any], transport: str) -> None:
    assert choose("auto", TransportContext(**found)) == transport
    assert choose("files", TransportContext(**found)) == "files"


@pytest.mark.parametrize(
    ("transport", "found", "problem"),
    [
        ("nccl", {"cuda": False}, "is nccl, but the policy is not on a CUDA device"),
        ("ipc", SAME | {"ranks": 2}, "is ipc, but there are 2 ranks"),
        ("nccl", RUNNING | {"configured": ["nccl", None]}, "a server was started for files"),
        ("ipc", SAME | {"pictures": True}, "is ipc, but servers that read pictures"),
        ("ipc", RUNNING, "a server was started for nccl"),
        ("nccl", RUNNING | {"trusted": False}, "a server is on another host"),
    ],
)
def test_impossible_weight_transport_is_refused_with_a_fix(transport: Any, found: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem) as error:
        choose(transport, TransportContext(**found))
    assert error.value.field == "data.rollouts.transfer"
    assert error.value.fix


def test_without_vllm_here_weights_go_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose("auto", TransportContext(**SAME)) == "files"
    with pytest.raises(UserError, match="is not installed for the trainer's Python"):
        choose("ipc", TransportContext(**SAME))


def test_a_run_on_a_cpu_says_so_before_a_server_starts(policy: Policy) -> None:
    source = VLLMServer(transfer="nccl")
    with pytest.raises(UserError, match="is nccl, but the policy is not on a CUDA device"):
        source.sync_weights(policy, 0)
    source.close()


@pytest.mark.parametrize("backend", ["ipc", "nccl"])
def test_servers_that_run_already_take_weights_of_a_model_with_pictures(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were started with their weights; those that are started here would begin without any."""

    async def configured(_: Client) -> str:
        return backend

    monkeypatch.setattr(Client, "backend", configured)
    seeing: Any = SimpleNamespace(device=torch.device("cuda", 0), image_processor=object.__new__(QwenImageProcessor))
    found = {}
    for urls in (["http://127.0.0.1:1"], None):
        with closing(VLLMServer(urls, gpus=None if urls else ["0"])) as source:
            source.servers.connect(None, source.weight_sync.deliver)
            source.servers.cards = [("here", "0")]
            found[urls is None] = source.servers.transport_context(seeing)
    assert choose("auto", found[False]) == choose(backend, found[False]) == backend  # type: ignore[arg-type]
    assert choose("auto", found[True]) == "files"


def test_servers_are_started_for_the_way(tmp_path: Any) -> None:
    assert options_for("files") == ({}, {})
    options, environment = options_for("ipc")
    assert environment == {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    assert options_for("nccl")[1] == {}
    line = command("python", tmp_path, "http://127.0.0.1:1", options | {"compilation_config": {"mode": 0}})
    assert line[line.index("--weight-transfer-config") + 1] == '{"backend": "ipc"}'
    assert line[line.index("--load-format") + 1] == "dummy"
    assert line[line.index("--compilation-config") + 1] == '{"mode": 0}'


def test_the_rendezvous_is_not_open_to_others_than_it_has_to_be() -> None:
    assert address_for("unix:/tmp/s") == "127.0.0.1"
    assert address_for("http://localhost:8000") == "127.0.0.1"
