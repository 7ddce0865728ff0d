"""A run that older code interrupted goes on with this one, bit for bit (fixtures/724d79e/README.md)."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.resume import manifest_path
from tests.runs import runs

MADE = Path(__file__).parent / "fixtures" / "724d79e"
UPDATES = {"plain": 12, "snapshot": 16}
ROUNDING = 1e-5
"""Allowed where the arithmetic of this machine is another than where the fixture was made."""


def resumed(name: str, root: Path) -> Path:
    shutil.copytree(MADE / name / "version_0", root / name / "version_0")
    run = runs.fit(root, "--ckpt_path=last", config=MADE / f"{name}.yaml", small=False)
    assert run.name == "version_0"
    return run


def difference(run: Path, name: str) -> tuple[float, float]:
    """The largest one in weights, and in scalars of the updates since."""
    now, then = runs.weights(run), torch.load(MADE / name / "final_weights.pt", weights_only=True)
    before = expected(name)["scalars"]
    after = {tag: [[step, value] for step, value in values if step > 6] for tag, values in runs.scalars(run).items()}
    after = {tag: values for tag, values in after.items() if values}
    assert before.keys() <= after.keys()  # more may be measured now
    pairs = [pair for tag in before for pair in zip(before[tag], after[tag], strict=True)]
    assert all(theirs[0] == ours[0] for theirs, ours in pairs)
    return runs.largest_difference(now, then), max(abs(theirs[1] - ours[1]) for theirs, ours in pairs)


def expected(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MADE / name / "expected.json").read_text())
    return content


@functools.cache
def arithmetic() -> str:
    """Hash of what this machine's float32 arithmetic makes of three optimizer steps of a small model.

    Versions and names of instruction sets do not decide that: CPUs of different makers share both, and round otherwise.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, num_key_value_heads=2, head_dim=16, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows, length in ((1, 7), (8, 24), (32, 17)):
        optimizer.zero_grad()
        tokens = torch.randint(64, (rows, length))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


def test_the_fingerprint_of_arithmetic_is_the_same_twice() -> None:
    first = arithmetic()
    arithmetic.cache_clear()
    assert arithmetic() == first


@pytest.mark.parametrize("name", UPDATES)
def test_a_checkpoint_of_724d79e_goes_on_as_it_would_have_then(name: str, tmp_path: Path) -> None:
    run = resumed(name, tmp_path)
    last = runs.checkpoint(run)
    assert last["global_step"] == UPDATES[name]
    assert last["PromptDataModule"]["order"] == 1  # the next resume goes on with the order of then, too
    assert last["PromptDataModule"]["deal"] == "groups"  # and so does the deal
    of_weights, of_scalars = difference(run, name)
    allowed = 0.0 if expected(name)["made_with"]["arithmetic"] == arithmetic() else ROUNDING
    assert of_weights <= allowed
    assert of_scalars <= allowed


def test_a_checkpoint_of_724d79e_can_be_exported(tmp_path: Path) -> None:
    file = MADE / "snapshot" / "version_0" / "checkpoints" / "step-00000006.ckpt"
    assert main(["export", str(file), str(tmp_path / "exported")]) == 0
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").state_dict()
    trained = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(weights[name], trained[f"policy.model.{name}"]) for name in weights)


def with_the_deal_of_now(checkpoint: dict[str, Any]) -> None:
    checkpoint["PromptDataModule"]["deal"] = "stratified"


def without_the_buffer(checkpoint: dict[str, Any]) -> None:
    loader = checkpoint["PromptDataModule"]["ranks"][0]
    loader["trained"], loader["experience"]["mini_batches"] = 0, []


def without_the_snapshot(checkpoint: dict[str, Any]) -> None:
    weights = checkpoint["state_dict"]
    for name in [name for name in weights if name.startswith("old_policy.snapshot.")]:
        weights[name] = weights[name.replace("old_policy.snapshot.", "policy.")]


def without_the_optimizers_moments(checkpoint: dict[str, Any]) -> None:
    for state in checkpoint["optimizer_states"][0]["state"].values():
        state["exp_avg"].zero_()


@pytest.mark.parametrize(
    ("name", "forget"),
    [
        ("plain", with_the_deal_of_now),
        ("plain", without_the_buffer),
        ("plain", without_the_optimizers_moments),
        ("snapshot", without_the_buffer),
        ("snapshot", without_the_snapshot),
    ],
)
def test_what_a_resume_forgets_shows(name: str, forget: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    """The comparison above can fail."""
    run = Path(shutil.copytree(MADE / name / "version_0", tmp_path / name / "version_0"))
    file = run / "checkpoints" / "step-00000006.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    forget(checkpoint)
    torch.save(checkpoint, file)
    manifest_path(file).unlink()  # it would not be trusted
    runs.fit(tmp_path, f"--ckpt_path={file}", config=MADE / f"{name}.yaml", small=False)
    now, then = runs.weights(run), torch.load(MADE / name / "final_weights.pt", weights_only=True)
    assert runs.largest_difference(now, then) > 10 * ROUNDING
