"""The weights of a folder of shards are never all in memory while they are exported."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save

from gspo_lightning.cli import main
from gspo_lightning.commands.export import checkpoint_policy
from gspo_lightning.policy import policy as policies
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.resume.folders import METADATA
from tests.runs import runs
from tests.runs.processes import in_processes

WIDE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
LIMIT = 80 << 20
"""Bytes; the dense model below has 105 MB, the mixture 206."""


def most_memory(do: Callable[[], Any]) -> int:
    """The most bytes of memory, above those before, that were no file's while a function ran."""

    def used() -> int:
        (found,) = re.findall(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(found) * 1024

    over, seen = threading.Event(), [used()]

    def watch() -> None:
        while not over.wait(0.001):
            seen.append(used())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        do()
    finally:
        over.set()
        thread.join()
    return max(seen) - seen[0]


def exported_within_limit(_: int, checkpoint: str, output: str) -> None:
    policies.FILE_SIZE = "20MB"
    assert most_memory(lambda: main(["export", checkpoint, output])) < LIMIT
    assert most_memory(lambda: checkpoint_policy(Path(checkpoint))) > 1.2 * LIMIT  # whole weights


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3-moe"])
def test_memory_does_not_grow_with_the_model(name: str, tmp_path: Path) -> None:
    settings = {"num_experts": 8, "moe_intermediate_size": 512} if "moe" in name else {}
    model = build_tiny_model(name, 1, torch.float32, WIDE | settings)
    base, checkpoint = tmp_path / "base", tmp_path / "step.ckpt"
    model.save_pretrained(base)
    character_tokenizer(name).save_pretrained(base)
    run = runs.fit(tmp_path / "run", *runs.UNTAUGHT, "--trainer.max_epochs=1")
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    content["gspo_lightning"]["model"] = dataclasses.asdict(ModelSettings(str(base)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    save({"state_dict": {f"policy.model.{k}": v for k, v in model.state_dict().items()}}, checkpoint_id=checkpoint)
    torch.save({k: v for k, v in content.items() if k not in ("state_dict", "optimizer_states")}, checkpoint / METADATA)
    in_processes(exported_within_limit, str(checkpoint), str(tmp_path / "out"), count=1)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert sum(map(os.path.getsize, files)) > LIMIT
    again = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert "weights" not in {path.name for path in (tmp_path / "out").iterdir()}
    assert all(load_file(file) for file in files)
