"""Servers that fail, lie or are not what they should be: asked again elsewhere, then a clear stop; no short group."""

from __future__ import annotations

import base64
import io
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import hook_routers
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix, VLLMEngine, VLLMServer
from gspo_lightning.rollouts.serving import watchdog
from gspo_lightning.rollouts.serving.untied import untie
from gspo_lightning.rollouts.serving.weights import in_checkpoint_format
from tests import ROOT
from tests.rollouts.toy_server import Fault, Reply, ToyServer

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(14, stop_token_ids=(1, 5, 9, 20))
FAST: dict[str, Any] = {"backoff_s": 0.01, "timeout_s": 20.0, "retries": 2, "exact_seeds": True}


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as server:
        yield server


def ask(source: VLLMServer, policy: Policy, prompts: list[Prompt], version: int = 0) -> list[list[Rollout]]:
    return source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS, version=version)


def ids(groups: list[list[Rollout]]) -> list[list[int]]:
    return [r.token_ids.tolist() for group in groups for r in group]


def choices(change: dict[str, Any]) -> Fault:
    """The first response of every group is changed."""

    def fault(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/v1/completions":
            reply[1]["choices"][0] |= change
        return reply

    return fault


def instead(status: int, content: Any, route: str = "/v1/completions") -> Fault:
    """Something else is sent."""
    return lambda path, body, reply: (status, content) if path == route else reply


def short_group(route: str, body: dict[str, Any], reply: Reply) -> Reply:
    if route == "/v1/completions":
        del reply[1]["choices"][-1]
    return reply


FAULTS: dict[str, tuple[Fault, str]] = {
    "fewer results": (short_group, "it sent 2 responses instead of 3"),
    "status 500": (instead(500, {"error": "boom"}), "status 500"),
    "busy": (instead(429, {"error": "busy"}), "status 429"),
    "garbage": (instead(200, b"\x00\xff<html>"), "gave no JSON"),
    "another JSON": (instead(200, ["hello"]), "it sent no choices: ['hello']"),
    "closed connection": (instead(200, None), "POST /v1/completions"),
    "text only": (choices({"token_ids": None}), "it does not return token ids"),
    "no log-probabilities": (choices({"logprobs": None}), "it does not return a log-probability for each token"),
    "one log-probability too few": (choices({"logprobs": {"token_logprobs": [-1.0]}}), "for each token"),
    "another vocabulary": (choices({"token_ids": [3, 70000], "logprobs": {"token_logprobs": [-1.0, -1.0]}}), "70000"),
    "NaN": (choices({"token_ids": [1], "logprobs": {"token_logprobs": [float("nan")]}}), "are none: [nan]"),
    "probabilities": (choices({"token_ids": [1], "logprobs": {"token_logprobs": [0.7]}}), "are none: [0.7]"),
    "another prompt": (choices({"prompt_token_ids": [7, 7]}), "it read another prompt"),
    "cut early": (choices({"token_ids": [3], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}),
                  "it stopped after 1 of 14 tokens without an end (finish_reason: length)"),
    "past the end": (choices({"token_ids": [1, 1], "logprobs": {"token_logprobs": [-1.0] * 2}}), "went on after an"),
    "too long": (choices({"token_ids": [3] * 15, "logprobs": {"token_logprobs": [-1.0] * 15}}), "at most 14"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_asked_again_and_one_that_stays_is_a_clear_stop(
    toy: ToyServer, policy: Policy, prompts: list[Prompt], name: str
) -> None:
    fault, complaint = FAULTS[name]
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        wanted = ids(ask(source, policy, prompts))
        count = iter(range(100))

        def now_and_then(route: str, body: dict[str, Any], reply: Reply) -> Reply:
            return fault(route, body, reply) if route == "/v1/completions" and next(count) % 5 == 0 else reply

        toy.fault = now_and_then
        groups = ask(source, policy, prompts)
        assert next(count) > len(prompts)  # one at least came a second time
        assert ids(groups) == wanted
        toy.fault = fault
        with pytest.raises(InfrastructureError) as error:
            ask(source, policy, prompts)
        assert complaint in str(error.value)
        assert "failed 3 times" in str(error.value)
        toy.fault = None
        assert ids(ask(source, policy, prompts)) == wanted  # and it is used again when it is well


@pytest.mark.thorough
def test_requests_of_a_dead_server_go_to_another_one(policy: Policy, prompts: list[Prompt]) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(ToyServer()) for _ in range(2))
        source = stack.enter_context(closing(VLLMServer([one.url, other.url], **FAST)))
        source.sync_weights(policy, 0)
        wanted = ids(ask(source, policy, prompts))
        assert one.asked > 1 < other.asked  # the load is spread (the probe is one)

        def dies(route: str, body: dict[str, Any], reply: Reply) -> Reply:
            one.fault = instead(200, None, "/health")
            return 200, None

        one.fault = dies
        assert ids(ask(source, policy, prompts)) == wanted


def test_a_server_that_hangs_is_left_by_its_health(policy: Policy, prompts: list[Prompt]) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(ToyServer()) for _ in range(2))
        options = FAST | {"timeout_s": 600.0, "health_every_s": 0.05, "health_timeout_s": 1.0}
        source = stack.enter_context(closing(VLLMServer([one.url, other.url], **options)))
        source.sync_weights(policy, 0)
        wanted = ids(ask(source, policy, prompts))
        one.delay_s = 30.0  # whatever it is asked; a request alone would be waited for 600 s
        assert ids(ask(source, policy, prompts)) == wanted


def test_connections_are_left_before_the_server_closes_them(
    toy: ToyServer, policy: Policy, prompts: list[Prompt]
) -> None:
    """vLLM closes one that was idle for 5 seconds, and loses a request that is written to it at that moment."""
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        ask(source, policy, prompts[:1])
        before = toy.connections
        ask(source, policy, prompts[:1])
        assert toy.connections == before
        time.sleep(3.0)
        ask(source, policy, prompts[:1])
        assert toy.connections > before


@pytest.mark.parametrize("counts", [True, False])
def test_a_server_may_take_its_time_but_not_be_silent(
    toy: ToyServer, policy: Policy, prompts: list[Prompt], counts: bool
) -> None:
    """Groups take six times ``timeout_s``: fine while its counter of tokens moves."""
    options = FAST | {"timeout_s": 0.5, "health_every_s": 0.1, "retries": 0}
    tokens = itertools.count(1)

    def slow(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/metrics":
            lines = ["# HELP vllm:generation_tokens_total tokens", 'vllm:prompt_tokens_total{engine="0"} 7.0']
            lines += [f'vllm:generation_tokens_total{{engine="0"}} {next(tokens) if counts else 3}.0', "other 5"]
            return 200, "\n".join(lines).encode()
        if route == "/v1/completions":
            time.sleep(3.0)
        return reply

    with closing(VLLMServer([toy.url], **options)) as source:
        source.servers.timeout_s = 20.0  # for the weights
        source.sync_weights(policy, 0)
        wanted = ids(ask(source, policy, prompts[:2]))
        toy.fault = slow
        if counts:
            assert ids(ask(source, policy, prompts[:2])) == wanted
        else:
            why = "it has completed no request, and counted no token, for 0.5 s"
            with pytest.raises(InfrastructureError, match=why):
                ask(source, policy, prompts[:2])


@pytest.mark.parametrize("exact", [True, False])
def test_seeds_are_sent_only_where_they_are_asked_for(
    toy: ToyServer, policy: Policy, prompts: list[Prompt], exact: bool
) -> None:
    asked: list[dict[str, Any]] = []

    def note(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        asked.extend([body] if route == "/v1/completions" else [])
        return reply

    with closing(VLLMServer([toy.url], **FAST | {"exact_seeds": exact})) as source:
        source.sync_weights(policy, 0)
        toy.fault = note
        groups = ask(source, policy, prompts)
    assert {"seed" in body for body in asked} == {exact}
    assert len({tuple(row) for row in ids(groups)}) > len(prompts)  # a group has different responses


@pytest.mark.thorough
@pytest.mark.parametrize("aborts", [True, False])
def test_cut_responses_keep_their_tokens_if_the_server_can_abort(toy: ToyServer, policy: Policy, aborts: bool) -> None:
    """Four responses of 10, 60, 60 and 60 tokens, 100 ms a token; one slot less than responses.

    The three that are asked for at once wait for one another, however slowly they are sent.
    """
    sampling = SamplingParams(60)
    prompts = [Prompt(i, "", (3 + i, 4, 5)) for i in range(4)]
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, 10 if p.id == 0 else 60) for p in prompts]
    with closing(VLLMServer([toy.url], **FAST, concurrency=3)) as source:
        source.sync_weights(policy, 0)
        whole = source.extend(policy, rows, sampling=sampling, draws=DRAWS)
        toy.pace_s, toy.aborts, toy.meeting = 0.1, aborts, threading.Barrier(3)
        pieces = source.extend(policy, rows, sampling=sampling, draws=DRAWS, enough=lambda ended: len(ended) > 0)
        assert [r.finish_reason for r in pieces] == [FinishReason.LENGTH, *[FinishReason.CUT] * 3]
        assert pieces[0].token_ids.tolist() == whole[0].token_ids.tolist()
        assert pieces[3].length == 0  # it never had its turn
        for piece, response in zip(pieces[1:3], whole[1:3], strict=True):
            assert (0 < piece.length < 60) if aborts else piece.length == 0
            assert piece.token_ids.tolist() == response.token_ids.tolist()[: piece.length]
            assert piece.logprobs is not None
            assert response.logprobs is not None
            assert torch.equal(piece.logprobs, response.logprobs[: piece.length])
        toy.pace_s, toy.meeting = 0.0, None
        again = source.extend(policy, rows, sampling=sampling, draws=DRAWS)
        assert [r.token_ids.tolist() for r in again] == [r.token_ids.tolist() for r in whole]


@pytest.fixture
def mixture() -> Policy:
    policy = load_policy(ModelSettings("tiny-qwen3-moe")).eval()
    policy.routing = hook_routers(policy.backbone, "R3")
    return policy


def test_a_server_tells_the_experts_that_it_sampled_with(toy: ToyServer, mixture: Policy) -> None:
    """The same as the sampler of this process, whose draws the toy has."""
    ids_of = [(3, 4, 5, 6), (7, 8, 9)]
    prompts = [Prompt(i, "", row) for i, row in enumerate(ids_of)]
    toy.prompts, toy.draws = {(p.token_ids, b""): p for p in prompts}, DRAWS
    with closing(VLLMServer([toy.url], **FAST, routed_experts=True)) as source:
        assert source.records_routes
        source.sync_weights(mixture, 0)
        found = ask(source, mixture, prompts)
    wanted = GroupedSampler().generate(mixture, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS)
    for ours, theirs in zip((r for g in found for r in g), (r for g in wanted for r in g), strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert ours.routes is not None
        assert theirs.routes is not None
        assert ours.routes.dtype == theirs.routes.dtype == torch.uint8
        assert ours.routes.shape == (len(ours.prompt.token_ids) + ours.length - 1, 2, 2)
        assert torch.equal(ours.routes.sort(-1).values, theirs.routes.sort(-1).values)


def array(value: Any) -> str:
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=isinstance(value, np.ndarray) and value.dtype == object)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(("sent", "complaint"), [
    (None, "does not say which experts it sampled with; start it with --enable-return-routed-experts"),
    ("!!", "its routed_experts are no array"),
    (array(np.array([{}], dtype=object)), "its routed_experts are no array"),
    (array(np.zeros((3, 2, 2), np.uint8)), r"have the shape \(3, 2, 2\) instead of \("),
    (None, "are no numbers of 16 experts"),
])  # fmt: skip
def test_experts_of_another_model_are_a_fault(
    toy: ToyServer, mixture: Policy, prompts: list[Prompt], sent: str | None, complaint: str
) -> None:
    def fault(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/v1/completions":
            for choice in reply[1]["choices"]:
                tokens = len(body["prompt"]) + len(choice["token_ids"])
                wrong = array(np.full((tokens - 1, 2, 2), 16, np.uint8))
                choice["routed_experts"] = wrong if "numbers" in complaint else sent
        return reply

    with closing(VLLMServer([toy.url], **FAST | {"retries": 0}, routed_experts=True)) as source:
        source.sync_weights(mixture, 0)
        toy.fault = fault
        with pytest.raises(InfrastructureError, match=complaint):
            ask(source, mixture, prompts)


@pytest.mark.thorough
def test_servers_have_the_new_weights_and_no_others(toy: ToyServer, policy: Policy, prompts: list[Prompt]) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        before = ask(source, policy, prompts)
        source.sync_weights(policy, 0)
        assert toy.loads == 1  # they are there already
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.5)
        with pytest.raises(RuntimeError, match="version 4 was not copied"):
            ask(source, policy, prompts, version=4)
        source.sync_weights(policy, 4)
        after = ask(source, policy, prompts, version=4)
        assert toy.loads == 2
        assert ids(after) != ids(before)
        assert {r.policy_version for g in after for r in g} == {4}
        assert len(list(Path(source.weight_sync.folders.root or "").iterdir())) == 1

        def forget(route: str, body: dict[str, Any], reply: Reply) -> Reply:
            toy.tag = "default"  # as after a restart by somebody else
            return reply

        toy.fault = forget
        with pytest.raises(InfrastructureError, match="lost its weights in the middle of a rollout"):
            ask(source, policy, prompts, version=4)
        toy.fault = None
        assert ids(ask(source, policy, prompts, version=4)) == ids(after)
        assert toy.loads == 3


def test_weights_that_do_not_arrive_are_found_out(toy: ToyServer, policy: Policy) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        first = toy._policy
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.5)
        toy.load = lambda folder: None  # type: ignore[method-assign]
        assert toy._policy is first
        with pytest.raises(InfrastructureError, match="differ from the trainer's by"):
            source.sync_weights(policy, 1)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (choices({"token_ids": None}), "it does not return token ids"),
        (choices({"logprobs": None}), "it does not return a log-probability for each token"),
        (
            instead(404, {}, "/collective_rpc"),
            "it has no POST /collective_rpc (status 404); start it with VLLM_SERVER_DEV",
        ),
        (instead(404, {}), "it has no POST /v1/completions (status 404)"),
        (instead(400, {"error": "no"}), "it refuses POST /v1/completions (status 400)"),
        (instead(200, {"data": []}, "/v1/models"), "does not name a model"),
    ],
)
def test_an_endpoint_that_cannot_do_it_is_refused_with_the_reason(
    toy: ToyServer, policy: Policy, fault: Fault, complaint: str
) -> None:
    toy.fault = fault
    with closing(VLLMServer([toy.url], **FAST)) as source, pytest.raises(UserError) as error:
        source.sync_weights(policy, 0)
    assert complaint in str(error.value)
    assert "VLLM_SERVER_DEV_MODE=1" in str(error.value)


@pytest.mark.parametrize("what", ["another model", "no temperature"])
def test_a_server_with_other_probabilities_is_refused(toy: ToyServer, policy: Policy, what: str) -> None:
    load = toy.load

    def wrong(folder: str) -> None:
        load(folder)
        assert toy._policy is not None
        if what == "another model":
            toy._policy.model = build_tiny_model("tiny-qwen3", seed=7).eval()

    toy.load = wrong  # type: ignore[method-assign]
    if what == "no temperature":

        def raw(route: str, body: dict[str, Any], reply: Reply) -> Reply:
            return toy.answer(route, body | {"temperature": 1.0}) if route == "/v1/completions" else reply

        toy.fault = raw
    with (
        closing(VLLMServer([toy.url], **FAST)) as source,
        pytest.raises(UserError, match="differ from the trainer's by"),
    ):
        source.sync_weights(policy, 0)


def test_mistakes_that_are_seen_before_the_model_is_built(tmp_path: Path) -> None:
    with ToyServer() as gone:
        url = gone.url
    with closing(VLLMServer([url], **FAST)) as source, pytest.raises(UserError, match=f"nothing answers .* {url}"):
        source.open(64)
    with pytest.raises(UserError, match="is not a URL"):
        VLLMServer(["localhost:8000"])
    with pytest.raises(UserError, match="names 1 devices for 2 servers"):
        VLLMServer(start=2, gpus=["0"])
    with pytest.raises(UserError, match="at least 1"):
        VLLMServer(start=0)
    with pytest.raises(UserError, match="cannot be run"):
        VLLMServer(python=str(tmp_path / "nowhere")).open(64)
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(UserError, match=r"vLLM is not installed for .*\n  fix: pip install"):
        VLLMServer(python=str(tmp_path / "python")).open(64)


def test_responses_go_on_where_they_were_cut(toy: ToyServer, policy: Policy, prompts: list[Prompt]) -> None:
    """Greedy: pieces are what the whole is. Each response has its own room, stop strings may begin before the cut."""
    greedy = SamplingParams(12, temperature=0.0)
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        whole = [g[0] for g in source.generate(policy, prompts, group_size=1, sampling=greedy, draws=DRAWS)]
        taken = [tuple(r.token_ids.tolist()[:n]) for n, r in enumerate(whole)]
        rows = [
            ResponsePrefix(p, 0, (*p.token_ids, *t), len(t), 12 - 2 * len(t), t)
            for p, t in zip(prompts, taken, strict=True)
        ]
        found = source.extend(policy, rows, sampling=greedy, draws=DRAWS)
        for n, (new, old) in enumerate(zip(found, whole, strict=True)):
            assert new.token_ids.tolist() == old.token_ids.tolist()[n : 12 - n]
        stop = whole[3].text[:5]  # three of its tokens were written before the cut
        asked = SamplingParams(12, temperature=0.0, stop_strings=(stop,))
        (last,) = source.extend(policy, rows[3:], sampling=asked, draws=DRAWS)
        text = policy.tokenizer.decode([*taken[3], *last.token_ids.tolist()])
        assert text.index(stop) + len(stop) == len(text)
        assert last.finish_reason is FinishReason.STOP
        some = source.extend(policy, rows, sampling=greedy, draws=DRAWS, enough=lambda ended: len(ended) >= 2)
        assert [r.finish_reason for r in some].count(FinishReason.CUT) <= 2


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Stands for one that has vLLM: whatever module it is told to run, it serves like the toy."""
    script = tmp_path / "python"
    toy = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.rollouts.toy_server"
    script.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nshift 2\nexec {toy} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.long
def test_a_server_of_our_own_is_started_anew_and_ends_with_us(
    interpreter: str, policy: Policy, prompts: list[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = FAST | {"health_every_s": 0.2, "health_timeout_s": 5.0, "start_timeout_s": 300.0}
    source = VLLMServer(python=interpreter, **options)
    with closing(source):
        source.open(64)
        source.sync_weights(policy, 0)
        wanted = ids(ask(source, policy, prompts))
        (server,) = source.servers.pool.servers
        assert server.process is not None
        watched = watchdog._descendants(server.process.process.pid)
        os.kill(watched[0], signal.SIGKILL)
        assert ids(ask(source, policy, prompts)) == wanted
        assert watchdog._descendants(server.process.process.pid) != watched
        last = server.process.process.pid
        folder, private, log = source.weight_sync.folders.root, source.servers.private.root, server.process.log
    (kept,) = tmp_path.glob("gspo-server-*.log")  # of the one that was killed
    assert kept != log
    assert not Path(f"/proc/{last}").exists() or watchdog._descendants(last) == []
    assert folder is not None is not private
    assert not folder.exists()
    assert not private.exists()


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_the_guard_ends_everything_when_its_owner_is_gone(tmp_path: Path, end: signal.Signals) -> None:
    """Children in a session of their own and a stopped one included; the folder goes with an owner that was killed."""
    folder = tmp_path / "weights"
    folder.mkdir()
    server = "setsid sleep 1000 & sleep 1001 & kill -STOP $!; echo started > FLAG; wait".replace(
        "FLAG", str(tmp_path / "flag")
    )
    code = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-I', *sys.argv[1:]], "
        "stdin=subprocess.PIPE, start_new_session=True); print(p.pid, flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, watchdog.__file__, str(folder), watchdog.END, "/bin/sh", "-c", server],
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    wait_for(lambda: (tmp_path / "flag").exists())
    children = watchdog._descendants(pid)
    assert len(children) == 3
    owner.send_signal(end)
    owner.wait()
    wait_for(lambda: not any(Path(f"/proc/{p}").exists() for p in [pid, *children]))
    assert not folder.exists()


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_notebooks_own_event_loop_does_not_disturb(toy: ToyServer, policy: Policy, prompts: list[Prompt]) -> None:
    import asyncio

    async def cell() -> list[list[int]]:
        with closing(VLLMServer([toy.url], **FAST)) as source:
            source.sync_weights(policy, 0)
            return ids(ask(source, policy, prompts))

    assert len(asyncio.run(cell())) == 12
    assert not [t for t in threading.enumerate() if t.name == "vllm" and t.is_alive()]


def test_shared_server_modules_import_nothing_of_vllm() -> None:
    for file in Path(watchdog.__file__).parent.glob("*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if "import" in line and "vllm" in line], file.name


@pytest.mark.parametrize(("asked", "autocast", "dtype"), [
    (None, False, torch.float32), (None, True, torch.bfloat16), ("float32", True, torch.float32),
    ("bfloat16", False, torch.bfloat16),
])  # fmt: skip
def test_servers_compute_in_the_dtype_of_training(
    toy: ToyServer, policy: Policy, asked: str | None, autocast: bool, dtype: torch.dtype
) -> None:
    """The files have it, and so does the command of a server that is started here."""
    with closing(VLLMServer([toy.url], dtype=asked, tolerance=1.0, **FAST)) as source:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            source.sync_weights(policy, 0)
            started = source._dtype_of(policy)
        (folder,) = Path(source.weight_sync.folders.root or "").iterdir()
        written = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in written.values()} == {dtype}
        assert started == dtype
        whole = {name: tensor.to(dtype) for name, tensor in in_checkpoint_format(policy).items()}
        assert written.keys() == whole.keys()  # tied weights are written once
        assert all(torch.equal(written[name], whole[name]) for name in whole)


@pytest.mark.parametrize(("autocast", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_an_engine_computes_in_the_dtype_of_training(policy: Policy, autocast: bool, dtype: str) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert VLLMEngine()._arguments(policy, 8)["dtype"] == dtype
        assert VLLMEngine(dtype="float32")._arguments(policy, 8)["dtype"] == "float32"


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_a_tied_head_has_weights_of_its_own_on_a_cpu(
    tmp_path: Path, shard: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Whoever reads the folder finds the same model, in one file or several."""
    tied = load_policy(ModelSettings(config_overrides={"tie_word_embeddings": True})).eval()
    tied.model.save_pretrained(tmp_path, max_shard_size=shard)
    tokenizer.save_pretrained(tmp_path)
    untie(tied, tmp_path, torch.float32)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1 or shard == "100KB"
    found = load_policy(ModelSettings(str(tmp_path))).eval()
    assert not found.model.config.tie_word_embeddings
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(found.model(ids).logits, tied.model(ids).logits)
