"""``gspo compare --rollouts``: gradients of several objectives on the same responses, against others' arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gspo_lightning.cli import main
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.report.side_by_side import SideBySideData, draw, page
from tests.runs.runs import UNTAUGHT, fit, scalars, weights

ONE = [
    *UNTAUGHT,
    "--model.optimizer.lr=5e-3",
    "--trainer.max_epochs=1",
    "--data.record_rollouts=true",
    "--data.deal=groups",
]
TIGHT = (
    "GRPO tight: --model.objective GRPO --model.objective.clip_low=3e-4 --model.objective.clip_high 4e-4 "
    "--model.allow_unusual_clip true"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("recorded"), *ONE)


@pytest.fixture(scope="module")
def compared(recorded: Path) -> Path:
    output = recorded.parents[1] / "compared"
    argv = ["compare", f"--rollouts={recorded}", "--objectives=GSPO,GRPO", f"--variant={TIGHT}", f"--output={output}"]
    assert main(argv) == 0
    return output


def rows_of(output: Path) -> list[dict[str, Any]]:
    lines = (output / "side_by_side" / "version_0" / "side_by_side.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def logprobs_of(policy: Policy, row: dict[str, Any]) -> Tensor:
    """Of each response token, by the whole row without padding."""
    ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    start = len(row["prompt_ids"])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, ids[0, start:, None])[:, 0]


def gradient(policy: Policy, rows: list[dict[str, Any]], old: list[Tensor], name: str) -> tuple[float, Tensor]:
    """Loss and gradient of a mini-batch of groups of 4."""
    rewards = torch.tensor([row["reward"] for row in rows], dtype=torch.float64).view(-1, 4)
    spread = rewards.std(dim=1, keepdim=True)
    advantages = torch.where(spread > 0, (rewards - rewards.mean(dim=1, keepdim=True)) / (spread + 1e-6), 0.0)
    low, high = (0.2, 0.27) if name == "GRPO" else (3e-4, 4e-4)
    policy.zero_grad()
    total = torch.zeros(())
    for row, before, a in zip(rows, old, advantages.flatten().tolist(), strict=True):
        difference = logprobs_of(policy, row) - before
        ratio = (difference.mean() if name == "GSPO" else difference).exp()
        total = total - torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a).mean() / len(rows)
    total.backward()
    return float(total), torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@pytest.mark.thorough
def test_losses_norms_and_cosines_are_those_of_plain_autograd(recorded: Path, compared: Path, tmp_path: Path) -> None:
    names = ("GSPO", "GRPO", "GRPO tight")
    responses = [json.loads(line) for line in (recorded / "rollouts" / "000000.jsonl").read_text().splitlines()]
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1))
    old = [logprobs_of(policy, row).detach() for row in responses]  # before any update the policy is the old one
    found = rows_of(compared)
    assert [(row["iteration"], row["mini_batch"], row["update"]) for row in found] == [(0, 0, 1), (0, 1, 2)]
    for number, row in enumerate(found):
        if number:  # the weights that the first update has left
            moved = fit(tmp_path, *ONE, "--trainer.max_steps=1")
            policy.load_state_dict({key.removeprefix("policy."): value for key, value in weights(moved).items()})
        part = slice(16 * number, 16 * number + 16)
        made = [gradient(policy, responses[part], old[part], name) for name in names]
        for name, (loss, vector) in zip(names, made, strict=True):
            assert row["objectives"][name]["loss"] == pytest.approx(loss, abs=2e-6)
            assert row["objectives"][name]["optim/gradient_norm"] == pytest.approx(float(vector.norm()), rel=1e-4)
        unit = torch.stack([vector / vector.norm() for _, vector in made])
        np.testing.assert_allclose(row["cosines"], (unit @ unit.T).numpy(), atol=1e-4)
    assert np.min(found[0]["cosines"]) > 1 - 1e-6  # ratios are 1: these objectives are one
    assert np.min(found[1]["cosines"]) < 0.9  # and clipping tells them apart
    assert found[0]["sampler_logprob_gap"] < 1e-5


@pytest.mark.thorough
def test_the_run_that_measures_is_the_run_that_was_recorded(recorded: Path, compared: Path) -> None:
    again, before = scalars(compared / "side_by_side" / "version_0"), scalars(recorded)
    for tag in ("loss", "optim/gradient_norm", "ratio/log_sequence_std", "clip/tokens"):
        assert again[tag] == before[tag]


@pytest.mark.thorough
def test_page_and_picture_show_both_moments_and_who_moved_the_weights(compared: Path) -> None:
    text = (compared / "side_by_side.md").read_text()
    assert "First mini-batch of an iteration: every ratio is 1" in text
    assert "Mini-batches 2 to 2: after off-policy drift" in text
    assert "Then only GSPO updated the weights" in text
    assert "these weights sampled the responses" in text
    assert "`GRPO(clip_low=0.0003, clip_high=0.0004)`" in text
    assert (compared / "side_by_side.png").read_bytes()[:4] == b"\x89PNG"


def data(gap: float, iterations: int = 2) -> SideBySideData:
    rows = [
        [
            {
                "objectives": {"A": {"loss": m}, "B": {"loss": i + m}},
                "cosines": [[1.0, 0.5 - m], [0.5 - m, 1.0]] if i else [[None, None], [None, 1.0]],
                "sampler_logprob_gap": gap * i,
            }
            for m in range(3)
        ]
        for i in range(iterations)
    ]
    return SideBySideData(["A", "B"], {"A": "A()", "B": "B()"}, list(range(iterations)), rows)


def test_averages_leave_the_first_mini_batch_out_and_say_where_other_weights_sampled() -> None:
    text = page(data(0.25), "gspo compare ...", "picture.png")
    assert "| B | 0.5 [0, 1] | - |" in text  # first mini-batch: losses 0 and 1; no cosine where a gradient is 0
    assert "| B | 2 [1.5, 2.5] | - |" not in text.split("## Mini-batches")[0]
    assert "| B | 2 [1.5, 2.5] | - |" in text  # 1, 2 and 2, 3
    assert "| cosine to A | B | - | -1 |" in text
    assert "**Other weights sampled iterations 1**" in text
    titles = [axes.get_title(loc="left") for axes in draw(data(0.0)).axes]
    assert {"Direction beside A's", "Cosines, mini-batch 1", "Cosines, mini-batch 3"} <= set(titles)


@pytest.mark.thorough("arguments5-words5")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objectives=GSPO,GRPO", "--rollouts=nowhere"], ["--rollouts", "nowhere", "data.record_rollouts"]),
        (["--objectives=GSPO", "--variant=half: --data.group_size 2"], ["half", "--data.group_size 2", "objective"]),
        (["--objectives=GSPO", "--variant=nothing: --model.routing_replay R2"], ["nothing", "names no objective"]),
        (["--objectives=GSPO", "--variant=R3: --model.objective GRPO --model.routing_replay R3"], ["R3", "R2"]),
        (["--objectives=GSPO", "--variant=wide: --model.objective GRPO --model.objective.clip_lo 1"], ["clip_lo"]),
        (["--objectives=GSPO", "--variant=R2: --model.objective GRPO --model.routing_replay R2"], ["no routers"]),
    ],
)
def test_compare_rollouts_names_the_argument_that_it_refuses(
    recorded: Path, tmp_path: Path, arguments: list[str], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    config = recorded / "config.yaml"
    assert main(["compare", f"--config={config}", f"--rollouts={recorded}", f"--output={tmp_path}", *arguments]) == 2
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.thorough
def test_replayed_experts_beside_free_ones(tmp_path: Path) -> None:
    run = fit(tmp_path, *ONE, "--model.name_or_path=tiny-qwen3-moe", "--model.objective=GRPO")
    argv = [
        "compare", f"--rollouts={run}", "--objectives=GRPO", f"--output={tmp_path / 'c'}",
        "--variant=replay: --model.objective GRPO --model.routing_replay R2",
    ]  # fmt: skip
    assert main(argv) == 0
    first, second = rows_of(tmp_path / "c")
    assert first["cosines"][0][1] == pytest.approx(1.0)  # the same weights choose the same experts
    assert second["cosines"][0][1] < 1 - 1e-4
    free, replayed = (second["objectives"][name] for name in ("GRPO", "replay"))
    assert min(free["moe/changed_choices"], replayed["moe/changed_choices"]) > 0
    assert free["ratio/std"] != replayed["ratio/std"]
    assert (
        scalars(tmp_path / "c" / "side_by_side" / "version_0")["loss"] == scalars(run)["loss"]
    )  # moved without replay
