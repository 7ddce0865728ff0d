"""A real vLLM server as the teacher of on-policy distillation."""

from __future__ import annotations

from contextlib import closing

import torch

from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.old_policy.served_teacher import ServedTeacher
from gspo_lightning.loop.old_policy.teacher import LocalTeacher
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMServer
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.process import LocalServer
from tests.loop.old_policy.test_teacher import batch
from tests.real_vllm import served

pytestmark = served.VLLM


def test_served_teacher_has_the_logprobs_of_a_local_one(
    url: str, running: tuple[Endpoint, LocalServer], policy: Policy
) -> None:
    with closing(VLLMServer([url])) as source:
        source.open(128)
        source.sync_weights(policy, served.VERSION)
    with closing(ServedTeacher(running[0])) as teacher:
        teacher.meet(policy.tokenizer)
        (found,) = teacher.fill([MiniBatch([batch()])], 1.0, torch.device("cpu"))
    (wanted,) = LocalTeacher(policy).fill([MiniBatch([batch()])], 1.0, torch.device("cpu"))
    theirs, mine = (x.micro_batches[0].teacher_logprobs for x in (found, wanted))
    assert theirs is not None
    assert mine is not None
    assert float((theirs - mine).abs().max()) < 1e-5
