"""What `gspo plan` says of pictures: by hand from the published architecture, and beside what a tower really keeps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import CRITIC, SAMPLING, TEACHER, TRAINING, memory_of
from gspo_lightning.commands.plan.models import counts_of
from gspo_lightning.commands.plan.vision import tower_of
from gspo_lightning.commands.plan.work import work_of
from gspo_lightning.core.pictures import Picture
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests.commands.plan.test_plan import CPU
from tests.runs import runs
from tests.support.pictures import SEEING, png

WIDE, INNER, LAYERS, OUT = 1024, 4096, 24, 2560
"""Qwen3-VL-4B's tower: 24 layers of width 1,024, patches of 2 x 3 x 16 x 16, 2 x 2 of them a token, 4 mergers."""
BLOCK = 4 * WIDE * WIDE + 2 * WIDE * INNER
MERGER = (4 * WIDE) * (4 * WIDE) + (4 * WIDE) * OUT
PATCH = 2 * 3 * 16 * 16


def job_of(name: str = "tiny-qwen3-vl", **changes: object) -> Job:
    job = Job(
        model=ModelSettings(name), optimizer="torch.optim.AdamW", precision="32-true", strategy="single",
        shards_weights=True, cpu_offload=False, world=1, nodes=1, old_policy="CachedLogProbs", reference=False,
        prompts=16, group_size=4, minibatches=4, epochs=1, budget=512, max_prompt=80, max_response=100, iterations=10,
        packed=True, source="GroupedSampler", max_rows=32, deal="groups",
    )  # fmt: skip
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


def test_the_parts_of_qwen3_vl_4b_by_hand() -> None:
    job = job_of("Qwen/Qwen3-VL-4B-Instruct", max_pixels=1 << 20, max_prompt=1536)
    biases = LAYERS * (3 * WIDE + WIDE + INNER + WIDE + 4 * WIDE) + WIDE + 4 * (4 * WIDE + OUT)
    norms = 2 * WIDE + 3 * 2 * 4 * WIDE  # of the mergers: one before, three behind the four patches are one
    tower = LAYERS * BLOCK + 4 * MERGER + PATCH * WIDE + 2304 * WIDE + biases + norms
    layer = 2560 * 128 * (32 + 8 + 8) + 32 * 128 * 2560 + 2 * 128 + 3 * 2560 * 9728 + 2 * 2560
    text = 151936 * 2560 + 36 * layer + 2560
    counts, found = counts_of(job.model), tower_of(job)
    assert found is not None
    assert (counts.vision, counts.total, counts.trainable) == (tower, tower + text, text)
    assert found.parameters == tower
    assert counts.active == text  # the embedding is the output head; no word goes through the tower
    assert (found.largest, found.tokens, found.patches, found.side) == (1024, 1024, 4096, 32)
    attention = LAYERS * 4 * 4096 * 4096 * WIDE
    assert found.flops == 2 * (4096 * (LAYERS * BLOCK + PATCH * WIDE) + 1024 * 4 * MERGER) + attention
    assert found.flops == pytest.approx(4.359e12, rel=1e-3)
    layer_bytes = 2 * (10 * WIDE + 2 * INNER)
    assert found.bytes(3, 2, keeps=False, checkpointing=True) == 3 * (
        4096 * (4 * PATCH + layer_bytes) + 1024 * 4 * OUT * 2
    )
    assert found.bytes(1, 2, keeps=True, checkpointing=True) == (
        4096 * (4 * PATCH + layer_bytes + 2 * LAYERS * WIDE) + 1024 * 4 * OUT * 2
    )
    own = tower_of(dataclasses.replace(job, max_pixels=None))  # the published processor's limit, 4096 x 4096
    assert own is not None
    assert (own.largest, own.tokens) == (16384, 1536)


def test_work_of_pictures_by_hand() -> None:
    """16 prompts, 4 mini-batches of 4 groups, packed: a group of 80 + 4 x 100 tokens is a micro-batch."""
    job = job_of(old_logprobs="recompute")
    tower, work = tower_of(job), work_of(job)
    assert tower is not None
    assert (tower.largest, tower.tokens, tower.trained) == (64, 64, False)
    assert job.micro_batches == 4
    assert work.prefill_flops == work.vision_flops == 16 * tower.flops
    assert work.old_flops == pytest.approx(0.75 * (work.token_flops * (16 * 80 + 6400) + 16 * tower.flops))
    assert work.training_flops == pytest.approx(3 * work.token_flops * (16 * 80 + 6400) + 16 * tower.flops)
    trained = work_of(job.with_model(freeze=[]))
    assert trained.training_flops - work.training_flops == pytest.approx(2 * 16 * tower.flops)
    padded = dataclasses.replace(job, packed=False)  # 512 // 180 rows at a time: half of the prompts are met twice
    assert (padded.rows_at_once, padded.micro_batches) == (2, 8)
    assert work_of(padded).vision_flops == 32 * tower.flops


def test_windows_limit_what_a_patch_attends_to() -> None:
    tower = tower_of(job_of("tiny-qwen2.5-vl"))
    assert tower is not None
    assert tower.spans == (16, 0)  # a window of 32 x 32 pixels, patches of 8 x 8; the second layer sees everything
    whole = dataclasses.replace(tower, spans=(0, 0))
    assert whole.flops - tower.flops == 4 * 64 * 256 * (256 - 16)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", SEEING[:1] + SEEING[2:])
def test_a_trained_tower_keeps_about_what_is_planned(name: str, checkpointing: bool) -> None:
    policy = load_policy(ModelSettings(name, freeze=[], gradient_checkpointing=checkpointing)).train()
    assert policy.image_processor is not None
    weights = {p.data_ptr() for p in policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    shape = {"tiny-smolvlm": (1, 4, (6, 12, 18, 24)), "tiny-gemma3": (1, 4)}.get(name, (8, 8))
    seen = [Picture(png(i, 128, 128), str(i), 0, *shape) for i in range(2)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        features = policy.image_processor.features(policy.model.base_model, seen)
    assert features.embeddings.requires_grad
    tower = tower_of(job_of(name, max_prompt=64).with_model(freeze=[]))
    assert tower is not None
    assert tower.tokens == len(features.embeddings) / 2
    planned = tower.bytes(2, 4, keeps=True, checkpointing=checkpointing)
    if checkpointing:  # beside it, one layer that is recomputed
        assert sum(kept.values()) < planned
    else:
        assert sum(kept.values()) == pytest.approx(planned, rel=0.3)


@pytest.mark.thorough("frozen")
@pytest.mark.parametrize("frozen", [None, []], ids=["frozen", "trained"])
def test_the_tower_of_a_critic_and_of_a_teacher_is_counted(frozen: list[str] | None) -> None:
    """A critic's copy of the policy sees the same pictures: in its values, and in each of its epochs."""
    job = job_of().with_model(freeze=frozen)
    tower = tower_of(job)
    assert tower is not None
    tokens = 16 * 80 + 6400
    beside = dataclasses.replace(job, critic="", critic_epochs=3)
    work = work_of(beside)
    token = work.value_flops - 16 * tower.flops
    head = 2 * 43 * 64 * tokens  # 39 characters and special tokens, 4 placeholders: a critic has no output head
    assert token == pytest.approx(work.token_flops * tokens - head)
    assert work.critic_flops == pytest.approx(3 * (3 * token + (1 if frozen is None else 3) * 16 * tower.flops))
    shared = work_of(dataclasses.replace(job, critic_shared=True, critic_epochs=3))
    assert shared.value_flops == pytest.approx(token + 16 * tower.flops)
    assert shared.critic_flops == 3 * shared.value_flops
    items = memory_of(beside, CPU).items["pictures in the vision tower"]
    assert items[CRITIC] == items[TRAINING] == tower.bytes(1, 4, keeps=frozen is not None, checkpointing=False)
    taught = dataclasses.replace(job, teacher=ModelSettings("tiny-qwen3-vl"))
    assert work_of(taught).teacher_flops == pytest.approx(work.token_flops * tokens + 16 * tower.flops)
    assert memory_of(taught, CPU).items["pictures in the vision tower"][TEACHER] == tower.bytes(
        1, 4, keeps=False, checkpointing=False
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "tokens", "pixels"), [("tiny-smolvlm", 20, 5120), ("tiny-gemma3", 4, 1024)])
def test_towers_of_other_families_by_hand(
    name: str, tokens: int, pixels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 patches of 8 x 8 a tile, 4 tokens of 2 x 2 patches; two layers of width 64 with 128 inside."""
    tower = tower_of(job_of(name))
    assert tower is not None
    assert (tower.largest, tower.pixels, tower.side, tower.patches, tower.spans) == (
        tokens, pixels, 16, 4 * tokens, (16, 16),
    )  # fmt: skip
    layer, patch = 4 * 64 * 64 + 2 * 64 * 128, 3 * 8 * 8 * 64
    mapped = 4 * 64 * 64 if name == "tiny-smolvlm" else 64 * 64
    assert tower.per_patch == 2 * layer + patch
    assert tower.flops == 2 * (4 * tokens * tower.per_patch + tokens * mapped) + 4 * 64 * 4 * tokens * 2 * 16
    counts = counts_of(ModelSettings(name))
    assert counts.vision == tower.parameters
    assert counts.trainable == counts.total - counts.vision
    config = f"--config={runs.ROOT / 'configs' / 'vision.yaml'}"
    assert main(["plan", config, f"--model.name_or_path={name}", "--data.max_prompt_tokens=3", "--device=24GiB"]) == 0
    out = capsys.readouterr().out
    assert ("a picture is always of 4 tokens, and drops its prompt" in out) == (name == "tiny-gemma3")


@pytest.mark.thorough
def test_memory_and_adapters() -> None:
    job = job_of()
    tower = tower_of(job)
    assert tower is not None
    items = memory_of(job, CPU).items["pictures in the vision tower"]
    assert items[TRAINING] == tower.bytes(1, 4, keeps=False, checkpointing=False)
    assert items[SAMPLING] == tower.bytes(8, 4, keeps=False, checkpointing=False)  # 32 rows of 4 a prompt
    assert "pictures in the vision tower" not in memory_of(job_of("tiny-qwen3"), CPU).items
    adapted = counts_of(ModelSettings("tiny-qwen3-vl", lora=LoRA(r=2)))
    bare = counts_of(ModelSettings("tiny-qwen3-vl"))
    assert adapted.vision == bare.vision
    everywhere = ModelSettings("tiny-qwen3-vl", lora=LoRA(r=2), freeze=[])
    assert counts_of(everywhere).trainable > adapted.trainable
    own = tower_of(job.with_model(lora=LoRA(r=2), freeze=[]))
    assert own is not None
    assert own.trained
    assert own.parameters == bare.vision


@pytest.mark.thorough
def test_the_command_says_what_a_picture_costs(capsys: pytest.CaptureFixture[str]) -> None:
    config = f"--config={runs.ROOT / 'configs' / 'vision.yaml'}"
    assert main(["plan", config, "--device=24GiB"]) == 0
    out = capsys.readouterr().out
    assert "vision tower: 257.73k, trained" in out
    assert "a picture: up to 64 tokens of its prompt (16,384 pixels, 16 x 16 a token); counted here: one of 16" in out
    assert "a picture of more than 16 tokens drops its prompt (data.max_prompt_tokens)" in out
    assert "data.pictures.max_pixels: 2048" in out
    limited = ["--data.pictures.max_pixels=1024", "--model.freeze=null"]
    assert main(["plan", config, *limited, "--device=24GiB"]) == 0
    out = capsys.readouterr().out
    assert "257.73k, frozen" in out
    assert "a picture: up to 4 tokens" in out
    assert "drops its prompt" not in out
