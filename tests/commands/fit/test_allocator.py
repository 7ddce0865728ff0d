"""Segments that grow, but not against the user's word, and not where vLLM sleeps in the same process."""

from __future__ import annotations

from typing import Any

import pytest

from gspo_lightning.commands.fit.cli import allocator_settings

GROWING = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def source(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"gspo_lightning.rollouts.{name}", "init_args": arguments}


@pytest.mark.parametrize(("environment", "rollouts", "expected"), [
    ({}, None, GROWING),
    ({}, source("GroupedSampler"), GROWING),
    ({}, source("VLLMServer", options={"enable_sleep_mode": True}), GROWING),
    ({}, source("VLLMEngine", options=None), {}),
    ({}, {"class_path": "VLLMEngine"}, {}),
    ({}, source("VLLMEngine", options={"max_num_seqs": 4}), {}),
    ({}, source("VLLMEngine", options={"enable_sleep_mode": False}), GROWING),
    ({}, source("VLLMEngine", options={"enable_sleep_mode": True}), {}),
    ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, None, {}),
    ({"PYTORCH_CUDA_ALLOC_CONF": ""}, None, {}),
])  # fmt: skip
def test_the_allocator_is_told(environment: dict[str, str], rollouts: Any, expected: dict[str, str]) -> None:
    assert allocator_settings(environment, rollouts) == expected
