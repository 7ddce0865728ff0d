"""What vLLM's own server makes of the experts that its engine returns, and what we read from that.

An engine with ``--enable-return-routed-experts`` needs a GPU (its model runner uses Triton): its outputs are made here.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.routing import Routing
from gspo_lightning.rollouts.source import ResponsePrefix
from gspo_lightning.rollouts.vllm.protocol import parse, request_body
from tests.real_vllm import served

pytestmark = served.VLLM

PROMPT, RESPONSES = [3, 4, 5], [[7, 8, 9, 10], [11, 12, 13, 14]]
ROUTING = Routing(layers=2, experts=16, top_k=2)


def reply(asked: dict[str, Any], experts: list[np.ndarray | None]) -> Any:
    """As JSON, from the outputs of an engine."""
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput

    outputs = [
        CompletionOutput(
            index=i, text="", token_ids=ids, cumulative_logprob=None, finish_reason="length", routed_experts=own,
            logprobs=[{token: Logprob(-1.5, 1, "x")} for token in ids],
        )
        for i, (ids, own) in enumerate(zip(RESPONSES, experts, strict=True))
    ]  # fmt: skip
    final = RequestOutput("cmpl-0", None, PROMPT, None, outputs, finished=True)
    server = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
    server.enable_prompt_tokens_details = server.enable_per_request_metrics = False
    server.return_tokens_as_token_ids, server.system_fingerprint = True, None
    made = server.request_output_to_completion_response(
        [final], CompletionRequest(**asked), "cmpl", 0, "policy", None, RequestResponseMetadata(request_id="cmpl")
    )
    return json.loads(made.model_dump_json())


def asked() -> dict[str, Any]:
    row = ResponsePrefix(Prompt(0, "", tuple(PROMPT)), 0, tuple(PROMPT), 0, 4)
    return request_body("policy", row, 2, SamplingParams(4, stop_token_ids=(1,)), None)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_experts_come_through_vllms_own_server(dtype: type) -> None:
    draws = np.random.default_rng(0)
    experts = [draws.integers(0, 16, (6, 2, 2)).astype(dtype) for _ in RESPONSES]
    answers = parse(reply(asked(), experts), asked(), 40, ROUTING)
    assert [a.token_ids for a in answers] == RESPONSES
    for answer, own in zip(answers, experts, strict=True):
        assert answer.routes is not None
        assert answer.routes.tolist() == own.tolist()
