"""What a real vLLM server samples, and that it samples with the newest weights."""

from __future__ import annotations

from contextlib import closing

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMServer
from gspo_lightning.types import Prompt
from tests.real_vllm import served

pytestmark = served.VLLM


def test_a_server_keeps_the_contract_and_has_the_newest_weights(
    url: str, policy: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([url])) as source:
        source.open(128)
        served.check_contract(source, policy, prompts)
        served.check_that_weights_arrive(source, policy, prompts)
