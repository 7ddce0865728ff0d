"""A rank whose device is the second one samples ahead of training, in a thread of its own; in a process of its own."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch

from benchmarks.simulated.device import Simulated, backend, move, within_thread
from benchmarks.simulated.spans import simulated_graphs
from benchmarks.simulated.work import Job, simulated_device
from benchmarks.workloads import Workload
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience import generate_and_score
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore, Groups, Unrewarded
from gspo_lightning.loop.experience.prefetcher import Job as Work
from gspo_lightning.loop.experience.prefetcher import RolloutPrefetcher
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.sampler import recording

JOB = Job(work=Workload(2, 4, (4, 8), 5, 10))
SAMPLING = SamplingParams(10)


class Sampler(GroupedSampler):
    """Knows the simulated device in whatever thread it is asked."""

    def generate(self, policy: Policy, prompts: Sequence[Prompt], **how: Any) -> list[list[Rollout]]:
        with within_thread() if policy.device.type == backend().type else nullcontext():
            return super().generate(policy, prompts, **how)


def tokens(policy: Policy, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Of the responses to the prompts, sampled in the thread of a prefetcher."""
    sampler = Sampler()
    if policy.device.type == "cpu":
        sampler.decode = "model"  # without the form for a CPU
    responder = GenerateAndScore(sampler, Unrewarded(), JOB.work.group_size, 0, Purpose.TRAIN_SAMPLING)

    def make(iteration: int) -> Work[Groups]:
        def work(check: Callable[[], None]) -> Groups:
            return responder(policy, prompts, SAMPLING, iteration=iteration, version=0)[0]

        return work

    prefetcher: RolloutPrefetcher[Groups] = RolloutPrefetcher(1)
    try:
        return [rollout.token_ids.tolist() for group in prefetcher.take(0, 1, make) for rollout in group]
    finally:
        prefetcher.close()


def on_the_second() -> list[list[int]] | str:
    """The same as a rank that works on the second device, or what went wrong."""
    ours = JOB.build()
    with simulated_device():
        torch.get_device_module(backend()).set_device(1)  # as Lightning does
        move(ours.policy, 1)
        try:
            return tokens(ours.policy, ours.prompts)
        except RuntimeError as error:
            return str(error)


def recorded_by_a_new_thread() -> str:
    """What comes of a recording of tensors of the second device, by a thread whose current device is the first."""
    found = []

    def work(x: Simulated) -> None:
        try:
            with within_thread():
                recording.record(lambda: x + 1, recording.GraphMemory(x.device)).replay()
            found.append("recorded")
        except RuntimeError as error:
            found.append(str(error))

    with simulated_device(), simulated_graphs():
        thread = threading.Thread(target=work, args=(Simulated(torch.zeros(2), 1),))
        thread.start()
        thread.join()
    return found[0]


def main() -> None:
    """Print what was found as one JSON object."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    backend()
    ours = JOB.build()
    found: dict[str, Any] = {"here": tokens(ours.policy, ours.prompts), "there": on_the_second()}
    with mock.patch.object(generate_and_score, "on_device", return_value=nullcontext()):
        found["left where it began"] = on_the_second()
    found["recorded by a new thread"] = recorded_by_a_new_thread()
    with mock.patch.object(recording, "on_device", return_value=nullcontext()):
        found["recorded where it began"] = recorded_by_a_new_thread()
    with simulated_graphs():
        found["there, recorded"] = on_the_second()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
