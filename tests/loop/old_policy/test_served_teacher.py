"""A teacher behind a server: the trainer's own token ids, one log-probability each, and servers that cannot do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.old_policy.served_teacher import ServedTeacher
from gspo_lightning.loop.old_policy.teacher import LocalTeacher
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from tests.loop.old_policy.test_teacher import batch
from tests.rollouts.toy_server import Reply, ToyServer

CPU = torch.device("cpu")


@pytest.fixture
def policy() -> Policy:
    return load_policy(ModelSettings(seed=3)).eval()


@pytest.fixture
def toy(policy: Policy) -> Iterator[ToyServer]:
    with ToyServer() as server:
        server._policy = policy
        yield server


def asked(toy: ToyServer, **options: Any) -> ServedTeacher:
    return ServedTeacher(Endpoint(toy.url), **{"retries": 2, "backoff_s": 0.01, **options})


def test_a_server_gives_what_the_same_model_gives_here(toy: ToyServer, policy: Policy) -> None:
    batches = [MiniBatch([batch(), batch()]), MiniBatch([batch()], index=1)]
    with closing(asked(toy)) as teacher:
        teacher.meet(policy.tokenizer)
        served = teacher.fill(batches, 1.0, CPU)
    local = LocalTeacher(policy).fill(batches, 1.0, CPU)
    assert [len(b.micro_batches) for b in served] == [2, 1]
    for mine, theirs in zip(served, local, strict=True):
        for a, b in zip(mine.micro_batches, theirs.micro_batches, strict=True):
            assert a.teacher_logprobs is not None
            assert b.teacher_logprobs is not None
            assert a.teacher_logprobs.dtype == torch.float32
            assert torch.allclose(a.teacher_logprobs, b.teacher_logprobs, atol=2e-6)
    assert toy.asked == 1 + 3 * 4  # the first question, and every row once


def test_a_server_forgets_its_connection_and_is_asked_again(toy: ToyServer, policy: Policy) -> None:
    teacher = asked(toy)
    teacher.meet(policy.tokenizer)
    teacher.close()
    with closing(teacher):
        assert teacher.fill([MiniBatch([batch()])], 1.0, CPU)[0].micro_batches[0].teacher_logprobs is not None


def changed(**fields: Any) -> Callable[[str, dict[str, Any], Reply], Reply]:
    """What a completion says instead; a function is given what would have been sent."""

    def fault(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route != "/v1/completions":
            return reply
        choice = reply[1]["choices"][0]
        new = {name: value(choice[name]) if callable(value) else value for name, value in fields.items()}
        return 200, {"choices": [choice | new]}

    return fault


FAULTS: dict[str, tuple[Callable[[str, dict[str, Any], Reply], Reply], str]] = {
    "too few": (
        changed(logprobs=lambda x: x | {"token_logprobs": x["token_logprobs"][1:]}),
        r"it gives \d+ log-probabilities for the \d+ tokens of a row",
    ),
    "of what it generated alone": (changed(logprobs={"token_logprobs": [-1.0]}), "gives 1 log-probabilities for the"),
    "none": (changed(logprobs=None), "it gives 0 log-probabilities"),
    "NaN": (changed(logprobs=lambda x: {"token_logprobs": [None] * len(x["tokens"])}), "log-probabilities are none"),
    "another row": (changed(prompt_token_ids=[4, 4]), "it read another row than it was sent"),
    "an error": (lambda *_: (500, {"error": "out of memory"}), "status 500"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_asked_again_and_one_that_stays_is_a_clear_stop(toy: ToyServer, policy: Policy, name: str) -> None:
    fault, complaint = FAULTS[name]
    with closing(asked(toy)) as teacher:
        teacher.meet(policy.tokenizer)
        wanted = teacher.fill([MiniBatch([batch()])], 1.0, CPU)
        count = iter(range(100))
        toy.fault = lambda route, body, reply: fault(route, body, reply) if next(count) == 0 else reply
        again = teacher.fill([MiniBatch([batch()])], 1.0, CPU)
        assert torch.equal(again[0].micro_batches[0].teacher_logprobs, wanted[0].micro_batches[0].teacher_logprobs)
        assert next(count) == 5  # four rows, one of them twice
        toy.fault = fault
        with pytest.raises(InfrastructureError) as error:
            teacher.fill([MiniBatch([batch()])], 1.0, CPU)
    assert f"the teacher {toy.url} failed 3 times" in str(error.value)
    assert re.search(complaint, str(error.value))


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_cannot_be_the_teacher_is_refused_by_name(toy: ToyServer, policy: Policy, name: str) -> None:
    toy.fault = FAULTS[name][0]
    with closing(asked(toy)) as teacher, pytest.raises(UserError) as error:
        teacher.meet(policy.tokenizer)
    assert str(error.value).startswith(f"model.teacher: {toy.url} cannot be the teacher: ")


def test_a_server_with_another_vocabulary_is_refused_by_name(toy: ToyServer, policy: Policy) -> None:
    toy.fault = changed(logprobs=lambda x: x | {"tokens": [{"7": "8", "8": "7"}.get(t, t) for t in x["tokens"]]})
    seven = policy.tokenizer.get_vocab()["7"]
    with closing(asked(toy)) as teacher:
        with pytest.raises(UserError, match=rf"another vocabulary than the policy: token {seven} is '8' there and '7'"):
            teacher.meet(policy.tokenizer)
        toy.fault = changed(logprobs=lambda x: {"token_logprobs": x["token_logprobs"]})
        with pytest.raises(UserError, match="does not name the tokens"):
            teacher.meet(policy.tokenizer)


def test_a_server_that_is_not_there_is_refused_by_name(policy: Policy) -> None:
    with closing(ServedTeacher(Endpoint("http://127.0.0.1:9"))) as teacher, pytest.raises(UserError) as error:
        teacher.meet(policy.tokenizer)
    assert "model.teacher: http://127.0.0.1:9 cannot be the teacher" in str(error.value)
