"""What a real vLLM server samples, and that it samples with the newest weights."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import torch

from gspo_lightning.core.types import FinishReason, Prompt, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.rollouts import ResponsePrefix, RolloutSource, VLLMEngine, VLLMServer
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.process import LocalServer
from tests.real_vllm import served

pytestmark = served.VLLM


def test_a_server_keeps_the_contract_and_has_the_newest_weights(
    url: str, policy: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([url])) as source:
        source.open(128)
        served.check_contract(source, policy, prompts)
        served.check_that_weights_arrive(source, policy, prompts)


def test_responses_cut_by_vllm_begin_as_the_whole_ones(url: str, policy: Policy, prompts: list[Prompt]) -> None:
    """Greedy: what was cut begins as the whole response does, with its log-probabilities."""
    greedy = SamplingParams(110, temperature=0.0)
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, 20 if i == 0 else 110) for i, p in enumerate(prompts)]
    with closing(VLLMServer([url])) as source:
        source.open(128)
        source.sync_weights(policy, 0)
        whole = source.extend(policy, rows, sampling=greedy, draws=served.DRAWS)
        pieces = source.extend(policy, rows, sampling=greedy, draws=served.DRAWS, enough=lambda ended: len(ended) > 0)
        assert [r.finish_reason for r in pieces] == [FinishReason.LENGTH, *[FinishReason.CUT] * (len(rows) - 1)]
        for piece, response in zip(pieces, whole, strict=True):
            assert piece.length < 110
            assert piece.token_ids.tolist() == response.token_ids.tolist()[: piece.length]
            assert piece.logprobs is not None
            assert response.logprobs is not None
            torch.testing.assert_close(piece.logprobs, response.logprobs[: piece.length], rtol=0, atol=1e-5)
        assert sum(piece.length for piece in pieces[1:]) > 0  # a request that came late may have none
        again = source.extend(policy, rows, sampling=greedy, draws=served.DRAWS)
        assert [r.token_ids.tolist() for r in again] == [r.token_ids.tolist() for r in whole]


def test_requests_in_flight_go_on_with_new_weights(url: str, policy: Policy, prompts: list[Prompt]) -> None:
    """Every token has the log-probability that its own weights give it: nothing of the old ones is left in a cache."""
    newer = Policy(build_tiny_model("tiny-qwen3", seed=5, overrides=served.OVERRIDES), policy.tokenizer).eval()
    sampling = SamplingParams(110, temperature=served.SAMPLING.temperature)
    with closing(VLLMServer([url], weights_in_flight=True)) as source:
        source.open(128)
        source.sync_weights(policy, 3)
        server = source.servers.pool.servers[0]
        with ThreadPoolExecutor(1) as pool:
            before = source.servers.loop.run(server.client.progress())
            rollout = pool.submit(served.sample, source, policy, prompts, 4, sampling, 3)
            while source.servers.loop.run(server.client.progress()) < before + 200:
                assert not rollout.done()
            source.update_weights_in_flight(newer, 7)
            groups = rollout.result(120)
        versions = [
            torch.full_like(r.token_ids, r.policy_version) if r.versions is None else r.versions
            for group in groups
            for r in group
        ]
        assert sum(r.versions is not None for group in groups for r in group) > 0
        for weights, version in ((policy, 3), (newer, 7)):
            gaps = served.gaps(weights, groups, sampling.temperature)
            own = torch.cat([gap[mask == version] for gap, mask in zip(gaps, versions, strict=True)])
            assert len(own) > 50
            assert float(own.max()) < 1e-3, version
        source.sync_weights(newer, 7)
        assert served.largest_gap(newer, served.sample(source, newer, prompts, 4, version=7)) < 1e-3


def test_an_output_head_that_is_the_embedding_is_replaced_too(prompts: list[Prompt]) -> None:
    """On a CPU vLLM packs a tied head once; the probe shows whether the server, or the engine, has the new one."""
    tied = load_policy(ModelSettings(config_overrides=served.OVERRIDES | {"tie_word_embeddings": True})).eval()
    started = {"options": {"block_size": served.BLOCK, **served.QUICK_START["options"]}}
    sources: list[RolloutSource] = [
        VLLMServer(**started, environment=served.QUICK_START["environment"]),
        VLLMEngine(options={"block_size": served.BLOCK}),
    ]
    for source in sources:
        policy = tied.frozen_copy().eval()
        with closing(source):
            source.open(128)
            for version in range(2):
                source.sync_weights(policy, version)
                found = served.sample(source, policy, prompts, 2, version=version)
                assert served.largest_gap(policy, found) < 1e-3
                policy = tied.frozen_copy().eval()
                with torch.no_grad():
                    policy.model.get_input_embeddings().weight.mul_(1.3)


def test_every_route_asks_for_the_key_which_no_command_line_and_no_log_shows(
    running: tuple[Endpoint, LocalServer],
) -> None:
    endpoint, process = running
    assert endpoint.key
    asked = urllib.request.Request(f"{endpoint.url}/openapi.json", headers={"Authorization": f"Bearer {endpoint.key}"})
    with urllib.request.urlopen(asked) as reply:
        paths: dict[str, dict[str, object]] = json.load(reply)["paths"]
    assert {"/collective_rpc", "/update_weights", "/v1/completions", "/health", "/sleep"} <= paths.keys()
    routes = [(path, method.upper()) for path, methods in paths.items() for method in methods]
    for path, method in [*routes, ("/openapi.json", "GET"), ("/docs", "GET"), ("/metrics", "GET"), ("/nowhere", "GET")]:
        for wrong in ("Bearer wrong", endpoint.key, f"Basic {endpoint.key}"):
            assert served.status(endpoint, path, method, Authorization=wrong) == 401, (path, method, wrong)
        assert served.status(endpoint, path, method, Accept="*/*") == 401, (path, method)
        assert served.status(endpoint, path, "OPTIONS", Origin="http://evil") == 401, path
    for pid in [process.process.pid, *served.processes_of(process)]:
        assert endpoint.key not in Path(f"/proc/{pid}/cmdline").read_text()
    assert endpoint.key not in process.log.read_text()
    assert served.status(endpoint, "/health") == 200
