"""Mixtures of experts in whole runs: Routing Replay by one word, router metrics, what they cost and change."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import record_routers, routed
from gspo_lightning.rollouts import GroupedSampler, ResponsePrefix
from tests.runs.runs import UNTAUGHT, fit, handed_out, interrupted, largest_difference, scalars, weights

MOE = [*UNTAUGHT, "--model.name_or_path=tiny-qwen3-moe", "--model.optimizer.lr=3e-3", "--model.objective=GRPO"]


def first_updates(tags: dict[str, list[tuple[int, float]]], tag: str) -> list[float]:
    """Of each of the two iterations of two updates."""
    return [value for step, value in tags[tag] if step % 2 == 1]


@pytest.mark.thorough
def test_metrics_change_no_weight_and_show_what_routing_does(tmp_path: Path) -> None:
    with_metrics = fit(tmp_path / "with", *MOE)
    without = fit(tmp_path / "without", *MOE, "--model.router_metrics=false")
    assert largest_difference(weights(with_metrics), weights(without)) == 0
    tags = scalars(with_metrics)
    assert not [tag for tag in scalars(without) if tag.startswith("moe/")]
    assert first_updates(tags, "moe/changed_choices") == [0.0, 0.0]
    later = dict(tags["moe/changed_choices"])
    assert all(0 < later[step] < 1 for step in (2, 4))
    assert [step for step, _ in tags["moe/changed_over_iteration"]] == [2, 4]
    assert all(later[step] < value < 1 for step, value in tags["moe/changed_over_iteration"])
    assert all(1 / 16 < value < 1 for _, value in tags["moe/router_confidence"])
    assert all(0 < value < 1 for _, value in tags["moe/load_entropy"])
    assert all(0 < value < 7 for _, value in tags["moe/load_max_violation"])


@pytest.mark.thorough
@pytest.mark.parametrize("replay", ["R2", pytest.param("R3", marks=pytest.mark.long)])
def test_replay_by_one_word_survives_a_resume_inside_an_iteration(tmp_path: Path, replay: str) -> None:
    chosen = [*MOE, f"--model.routing_replay={replay}"]
    whole = fit(tmp_path / "whole", *chosen)
    tags = scalars(whole)
    assert first_updates(tags, "ratio/mean") == [1.0, 1.0]
    assert first_updates(tags, "ratio/std") == [0.0, 0.0]
    assert dict(tags["moe/changed_choices"])[2] > 0
    with interrupted(lambda loader: loader.iteration * 2 + loader.trained == 3, signal.SIGTERM):
        fit(tmp_path / "cut", *chosen, code=143)
    resumed = fit(tmp_path / "cut", *chosen, "--ckpt_path=last")
    assert largest_difference(weights(whole), weights(resumed)) == 0
    assert scalars(resumed) == tags


@pytest.mark.thorough
def test_replay_with_a_resident_snapshot_trains_alike(tmp_path: Path) -> None:
    chosen = [*MOE, "--model.routing_replay=R2"]
    cached = fit(tmp_path / "cached", *chosen)
    resident = fit(tmp_path / "resident", *chosen, "--model.old_policy=ResidentSnapshot")
    assert largest_difference(weights(cached), weights(resident)) == 0
    free = fit(tmp_path / "free", *MOE)
    assert largest_difference(weights(cached), weights(free)) > 0


@pytest.mark.thorough("arguments0-words0")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.router_metrics=true"], ["model.router_metrics", "no routers", "tiny-qwen3-moe"]),
        (["--model.routing_replay=R2"], ["model.routing_replay", "no routers"]),
        (["--model.routing_replay=R4"], ["routing_replay", "R4", "R2"]),
        (["--model.routing_replay=R3", "--data.rollouts=TransformersGenerate"], ["R3", "TransformersGenerate", "R2"]),
        (
            [
                "--model.routing_replay=R3",
                "--data.rollouts=VLLMServer",
                "--data.rollouts.init_args.routed_experts=true",
                "--data.rollouts.init_args.urls=[http://127.0.0.1:9]",
                "--data.prompts_in_flight=12",
            ],
            ["data.prompts_in_flight", "VLLMServer", "R2"],
        ),
    ],
)
def test_impossible_routing_settings_are_refused_in_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    fit(tmp_path, *UNTAUGHT, *arguments, code=2)
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.thorough
def test_a_bare_off_in_yaml_means_off(tmp_path: Path) -> None:
    overlay = tmp_path / "off.yaml"
    overlay.write_text("model:\n  routing_replay: off\n")
    fit(tmp_path, *UNTAUGHT, f"--config={overlay}", "--trainer.max_epochs=1")


PARTIAL = [
    "--data.val=null", "--trainer.num_sanity_val_steps=0", "--data.prompts_in_flight=12", "--trainer.max_epochs=3",
    "--data.max_response_tokens=40", "--data.stop_token_ids=[5,9,20]", "--model.optimizer.lr=0.03",
]  # fmt: skip


class Witness:
    """The experts of every response in a forward pass of its own, with the weights that sampled each piece of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[tuple[int, ...], torch.Tensor] = {}
        self.rerouted = 0
        """Tokens whose experts are others with the weights of a later piece."""
        own = GroupedSampler.extend

        def extend(
            sampler: GroupedSampler, policy: Policy, rows: Sequence[ResponsePrefix], **options: Any
        ) -> list[Rollout]:
            pieces = own(sampler, policy, rows, **options)
            for row, piece in zip(rows, pieces, strict=True):
                self._note(policy, row, piece)
            return pieces

        monkeypatch.setattr(GroupedSampler, "extend", extend)

    @torch.no_grad()
    def _note(self, policy: Policy, row: ResponsePrefix, piece: Rollout) -> None:
        if not len(piece.token_ids) or policy.routing is None:  # None: sources are compared before a run hooks routers
            return
        ids = (*row.context, *piece.token_ids.tolist())
        with record_routers(policy.routing) as recording, routed():
            policy.model(torch.tensor([ids[:-1]]).to(policy.device))
        assert recording is not None
        found = recording.stacked().sort(-1).values.cpu()
        if row.written:
            before = self.known.pop(row.context)
            self.rerouted += int((found[: len(before)] != before).any(-1).any(-1).sum())
            found = torch.cat([before, found[len(before) :]])
        self.known[ids] = found


@pytest.mark.thorough("source-True")
@pytest.mark.parametrize(("old", "resumed"), [("recompute", False), ("source", True)])
def test_a_response_in_pieces_is_replayed_with_the_experts_of_each_piece(
    tmp_path: Path, old: str, resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights change between pieces, so a forward pass of later weights would send the first piece elsewhere."""
    witness, batches = Witness(monkeypatch), handed_out(monkeypatch)
    options = [*MOE, *PARTIAL, "--model.routing_replay=R3", f"--model.old_logprobs={old}"]
    if resumed:
        fit(tmp_path, *options, "--trainer.max_epochs=1")
    fit(tmp_path, *options, *(["--ckpt_path=last"] if resumed else []))
    assert witness.rerouted > 0
    stale = 0
    for part in (part for batch in batches for part in batch.micro_batches):
        assert part.routes is not None
        for i, length in enumerate(part.lengths.tolist()):
            ids = tuple(part.input_ids[i, :length].tolist())
            assert torch.equal(part.routes[i, : length - 1].long().sort(-1).values, witness.known[ids])
        assert part.stale is not None
        stale += int(part.stale.sum())
    assert stale > 0
