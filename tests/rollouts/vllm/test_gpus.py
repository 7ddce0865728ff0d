"""Where servers started here run: cards of their own, a share of the first rank's, or a refusal; and files at last."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, VLLMServer
from gspo_lightning.rollouts.vllm import gpus, server
from gspo_lightning.rollouts.vllm.gpus import Card, Placement, placed
from gspo_lightning.rollouts.vllm.local import LocalVLLM
from gspo_lightning.rollouts.vllm.servers import Servers
from gspo_lightning.rollouts.vllm.transfer import _on
from gspo_lightning.rollouts.vllm.weight_transport import TransportContext
from tests import ROOT
from tests.rollouts.toy_server import ToyServer

FOUR = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
TWO = {"tensor-parallel-size": 2}


def dealt(ranks: int, count: int, options: Any = None, names: list[str] | None = None) -> Placement:
    """Of four cards, with ranks on the first ones; ranks on another machine use cards of its own."""
    cards: list[Card | None] = [("here", str(4 + i)) for i in range(ranks)] + [("there", "6"), ("there", "7")]
    return placed(cards, LocalVLLM("python", names, None, options or {}, {}), count, FOUR)


@pytest.mark.parametrize(
    ("ranks", "count", "options", "servers", "share"),
    [
        (1, 1, {}, [["5"]], None),
        (1, 3, {}, [["5"], ["6"], ["7"]], None),
        (2, 1, TWO, [["6", "7"]], None),
        (2, 2, {}, [["6"], ["7"]], None),
        (4, 1, {}, [["4"]], 0.4),
        (3, 1, TWO, [["4", "7"]], 0.4),
    ],
)
def test_servers_are_dealt_cards_that_no_rank_uses(
    ranks: int, count: int, options: Any, servers: list[list[str]], share: float | None
) -> None:
    found = dealt(ranks, count, options)
    assert (found.own, found.servers) == ("4", servers)
    for number, cards in enumerate(servers):
        said, environment = found.defaults(number)
        assert said.get("gpu_memory_utilization") == share
        assert environment == {"CUDA_VISIBLE_DEVICES": ",".join(cards)}


@pytest.mark.parametrize(("ranks", "count", "options"), [(3, 2, {}), (4, 1, TWO), (1, 2, TWO)])
def test_more_servers_than_cards_are_refused(ranks: int, count: int, options: Any) -> None:
    with pytest.raises(UserError, match=rf"start: is {count}, .* ranks train on {ranks} of 4 GPUs here") as error:
        dealt(ranks, count, options)
    assert "data.rollouts.gpus" in error.value.fix


def test_servers_on_named_cards_share_those_that_are_trained_on() -> None:
    found = dealt(1, 3, names=["4", "4", "5"])
    assert [found.defaults(i) for i in range(3)] == [
        ({"gpu_memory_utilization": 0.2}, {}), ({"gpu_memory_utilization": 0.2}, {}), ({}, {}),
    ]  # fmt: skip
    assert placed([None], LocalVLLM("python", None, None, {}, {}), 2, FOUR) == Placement()


def test_the_card_of_a_rank_has_the_name_that_servers_are_given(policy: Policy, monkeypatch: Any) -> None:
    assert gpus.card_of(policy) is None
    monkeypatch.setattr(gpus.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device, environment, name in (("cuda:1", FOUR, "5"), ("cuda", {}, "0"), ("cuda:1", {}, "1")):
        monkeypatch.setattr(Policy, "device", torch.device(device))
        assert gpus.card_of(policy, environment) == ("here", name)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(Policy, "device", torch.device("meta"))
    assert gpus.card_of(policy, FOUR) == ("here", "7")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only rank says that it trains on GPU 0 of 1; it computes on the CPU."""
    monkeypatch.setattr(server, "card_of", lambda _: ("here", "0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(("options", "share"), [({}, ["0.4"]), ({"gpu-memory-utilization": 0.7}, ["0.4", "0.7"])])
def test_a_server_beside_the_trainer_is_told_its_share(
    options: dict[str, Any], share: list[str], policy: Policy, tmp_path: Path
) -> None:
    """Of an option that is given twice, vLLM takes the last value: the user's."""
    script = tmp_path / "python"
    code = (
        f"import json, os, sys; json.dump([sys.argv, os.environ['CUDA_VISIBLE_DEVICES']], open('{tmp_path}/told', 'w'))"
    )
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    script.chmod(0o755)
    source = VLLMServer(python=str(script), options=options, retries=0, transfer="files")
    with closing(source), pytest.raises(InfrastructureError, match="no server took the weights"):
        source.sync_weights(policy, 0)
    line, visible = json.loads((tmp_path / "told").read_text())
    assert [line[i + 1] for i, word in enumerate(line) if word == "--gpu-memory-utilization"] == share
    assert visible == "0"


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as found:
        yield found


def sample(source: VLLMServer, policy: Policy) -> int:
    draws = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
    rows = source.generate(policy, [Prompt(0, "", (3, 4))], group_size=2, sampling=SamplingParams(3), draws=draws)
    return sum(len(group) for group in rows)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("exact", [None, False])
def test_seeds_are_sent_by_default_where_a_gpu_makes_them_free(
    toy: ToyServer, policy: Policy, exact: bool | None
) -> None:
    bodies: list[dict[str, Any]] = []
    with closing(VLLMServer([toy.url], exact_seeds=exact)) as source:
        source.sync_weights(policy, 0)
        toy.fault = lambda route, body, reply: (bodies.append(body) if "prompt" in body else None, reply)[1]
        assert sample(source, policy) == 2
    assert [body.get("seed") is not None for body in bodies] == [exact is None]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers seem to take weights by CUDA IPC, which fails: there is neither CUDA nor vLLM."""
    find, found = importlib.util.find_spec, importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "vllm" else find(name))
    context = TransportContext(cuda=True, configured=["ipc"])
    monkeypatch.setattr(Servers, "transport_context", lambda *_: context)


@pytest.mark.usefixtures("direct")
def test_auto_falls_back_to_files_when_a_transport_fails(
    toy: ToyServer, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(VLLMServer([toy.url])) as source:
        for version in range(2):
            source.sync_weights(policy, version)
        assert source.weight_sync.transport == "files"
    assert toy.loads == 2
    (said,) = [r.getMessage() for r in caplog.records if "as files from now on" in r.getMessage()]
    assert "ipc failed: weights did not arrive by ipc" in said


@pytest.mark.usefixtures("direct")
def test_a_transport_that_was_asked_for_is_not_replaced(toy: ToyServer, policy: Policy) -> None:
    source = VLLMServer([toy.url], transfer="ipc")
    with closing(source), pytest.raises(InfrastructureError, match="weights did not arrive by ipc"):
        source.sync_weights(policy, 0)
    assert toy.loads == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("direct")
def test_servers_of_our_own_start_again_with_files(policy: Policy, tmp_path: Path) -> None:
    script = tmp_path / "python"
    toy = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.rollouts.toy_server"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/starts\nshift 2\nexec {toy} "$@"\n')
    script.chmod(0o755)
    with closing(VLLMServer(python=str(script))) as source:
        source.sync_weights(policy, 0)
        assert sample(source, policy) == 2
    first, second = (tmp_path / "starts").read_text().splitlines()
    assert "--load-format dummy" in first
    assert "--load-format" not in second


@pytest.mark.parametrize(
    ("variable", "given", "inside"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", ["expandable_segments:False"]),
        (
            "PYTORCH_ALLOC_CONF",
            "max_split_size_mb:512,expandable_segments:True",
            ["max_split_size_mb:512,expandable_segments:False"],
        ),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512", []),
    ],
)
def test_buffers_for_other_processes_lie_in_fixed_segments(
    variable: str, given: str, inside: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, given)
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    assert _on(torch.device("cpu"), "ipc", lambda: list(told)) == inside
    assert told == inside + [given] * len(inside)
    _on(torch.device("cpu"), "nccl", lambda: None)
    assert len(told) == 2 * len(inside)
