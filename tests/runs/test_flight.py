"""Responses that are cut and go on, and rollouts that run ahead of training, in real runs."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import RolloutSource
from tests.rollouts.toy_server import ToyServer
from tests.runs import runs
from tests.runs.processes import Command

UNTAUGHT = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--model.optimizer.lr=0.003"]
PARTIAL = [*UNTAUGHT, "--data.prompts_in_flight=12", "--data.max_response_tokens=40", "--data.stop_token_ids=[5,9,20]"]


@pytest.mark.thorough
@pytest.mark.parametrize("old", ["auto", "recompute"])
def test_partial_rollouts_resume_exactly_with_responses_in_flight(tmp_path: Path, old: str) -> None:
    options = [*PARTIAL, f"--model.old_logprobs={old}"]
    whole = runs.fit(tmp_path / "whole", *options, "--trainer.max_epochs=4")
    first = runs.fit(tmp_path / "halves", *options, "--trainer.max_epochs=2")
    (rank,) = runs.checkpoint(first)["PromptDataModule"]["ranks"]
    assert len(rank["partial"]["groups"]) == 4
    assert {r["finish_reason"] for g in rank["partial"]["groups"] for r in g["responses"]} >= {"cut"}
    resumed = runs.fit(tmp_path / "halves", *options, "--trainer.max_epochs=4", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(whole), runs.weights(resumed)) == 0.0
    scalars = runs.scalars(whole)
    assert scalars == runs.scalars(resumed)
    stale = [v for _, v in scalars["staleness/stale_tokens"]]
    assert stale[:2] == [0.0, 0.0]
    assert max(stale) > 0.0
    assert {v % 2 for _, v in scalars["staleness/max_age"]} == {0.0}  # two updates an iteration
    assert scalars["ratio/log_sequence_std"][0][1] == 0.0
    assert max(v for s, v in scalars["ratio/log_sequence_std"] if s % 2 == 1) > 0.0  # stale tokens, before any update


BESIDE = {
    "critic": ["--model.objective=GSPOToken", "--data.advantages=GAE", "--model.critic=ValueModel"],
    "teacher": ["--model.objective=GSPOToken", "--model.objective.distill_coef=1"],
    "penalty": ["--data.kl_in_reward=0.1"],
    "pictures": ["--data.train.size=64"],
    "routes": ["--model.name_or_path=tiny-qwen3-moe", "--model.routing_replay=R3", "--model.objective=GRPO"],
}


@pytest.mark.long
@pytest.mark.parametrize("what", BESIDE)
def test_all_that_a_response_brings_survives_cuts_and_a_resume_in_the_middle_of_an_iteration(
    tmp_path: Path, what: str
) -> None:
    options = [*PARTIAL, *BESIDE[what], "--trainer.max_epochs=3"]
    if what == "teacher":
        Policy(build_tiny_model("tiny-qwen3", seed=7), character_tokenizer()).save_pretrained(tmp_path / "teacher")
        options.append(f"--model.teacher={tmp_path / 'teacher'}")
    config = runs.ROOT / "configs" / "vision.yaml" if what == "pictures" else runs.QUICKSTART
    whole = runs.fit(tmp_path / "whole", *options, config=config)
    with runs.interrupted(lambda loader: loader.iteration * 2 + loader.trained == 3, signal.SIGTERM):
        runs.fit(tmp_path / "cut", *options, config=config, code=143)
    resumed = runs.fit(tmp_path / "cut", *options, "--ckpt_path=last", config=config)
    assert runs.largest_difference(runs.weights(whole), runs.weights(resumed)) == 0.0
    scalars = runs.scalars(whole)
    assert scalars == runs.scalars(resumed)
    assert max(v for _, v in scalars["staleness/stale_tokens"]) > 0.0
    read_alike = 1e-5 if what != "routes" else 0.1  # docs/routing.md: the context of a second piece has been rerouted
    assert max(v for _, v in scalars["noise/sampler_logprob_rms"]) < read_alike


@pytest.mark.thorough("ResidentSnapshot")
@pytest.mark.parametrize("form", ["ResidentSnapshot", "OffloadedSnapshot"])
def test_pieces_keep_the_log_probabilities_of_the_snapshot_that_sampled_them(tmp_path: Path, form: str) -> None:
    """After the first iteration the policy has moved on, and the snapshot that samples has not."""
    options = [f"--model.old_policy={form}", "--model.old_policy.refresh_every=3", "--model.old_logprobs=recompute",
               "--model.optimizer.lr=0.03", "--data.prompts_in_flight=20", "--trainer.max_epochs=3"]  # fmt: skip
    saved = runs.checkpoint(runs.fit(tmp_path, *PARTIAL, *options))
    (rank,) = saved["PromptDataModule"]["ranks"]
    model = build_tiny_model("tiny-qwen3", seed=1)
    prefix = "old_policy.snapshot.model."
    model.load_state_dict({k.removeprefix(prefix): v for k, v in saved["state_dict"].items() if k.startswith(prefix)})
    snapshot, records = Policy(model, character_tokenizer()), ChainTask("train", 16384).records()
    seen: set[int] = set()
    for group in rank["partial"]["groups"]:
        for row in group["responses"]:
            if not len(row["token_ids"]):
                continue
            ids = snapshot.tokenizer(records[group["prompt"]]["prompt"]).input_ids
            prompt = Prompt(group["prompt"], "p", tuple(ids))
            kept = Rollout(prompt, **row | {"finish_reason": FinishReason(row["finish_reason"])}, reward=0.0)
            with torch.no_grad():
                wanted = snapshot(make_micro_batch([kept]))[0][0]
            torch.testing.assert_close(kept.logprobs, wanted, rtol=0, atol=2e-5)
            seen |= set(row["versions"].tolist())
    assert len(seen) > 1  # pieces of several iterations, by the number of updates before them


@pytest.mark.thorough
def test_rollouts_ahead_of_training_are_one_iteration_old_and_do_not_depend_on_timing(tmp_path: Path) -> None:
    options = [*UNTAUGHT, "--data.max_staleness=1", "--trainer.max_epochs=4", "--model.objective=GSPO",
               "--model.objective.correction=sequence"]  # fmt: skip
    first, second = (runs.fit(tmp_path / name, *options) for name in ("a", "b"))
    assert runs.largest_difference(runs.weights(first), runs.weights(second)) == 0.0
    scalars = runs.scalars(first)
    assert scalars == runs.scalars(second)
    assert [v for _, v in scalars["staleness/max_age"]] == [0, 0, 2, 2, 2, 2, 2, 2]
    assert [v for s, v in scalars["ratio/log_sequence_std"] if s % 2 == 1] == [0.0] * 4  # old: the start of training
    assert scalars["correction/weight"][0][1] == pytest.approx(1.0, abs=1e-5)
    assert abs(scalars["correction/weight"][2][1] - 1.0) > 1e-5  # the behaviour policy is an older one
    in_turn = runs.fit(tmp_path / "turn", *options, "--data.max_staleness=0")
    assert runs.scalars(in_turn)["loss"][:2] == scalars["loss"][:2]  # the first iteration is the same
    assert runs.largest_difference(runs.weights(in_turn), runs.weights(first)) > 1e-5
    assert not [t for t in threading.enumerate() if t.name.startswith("rollouts-")]


@pytest.mark.thorough
def test_by_choice_the_ratio_divides_by_the_weights_that_sampled(tmp_path: Path) -> None:
    options = [*UNTAUGHT, "--data.max_staleness=1", "--trainer.max_epochs=2", "--model.old_logprobs=source"]
    spread = dict(runs.scalars(runs.fit(tmp_path, *options))["ratio/log_sequence_std"])
    assert spread[3] > 1e-5  # the first update of the second iteration is two updates away from what sampled it


@pytest.mark.thorough
def test_a_source_that_fails_ahead_stops_the_run_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gspo_lightning.rollouts import GroupedSampler

    whole, calls = GroupedSampler.generate, []

    def generate(self: RolloutSource, *args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("the engine is gone")
        return whole(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupedSampler, "generate", generate)
    runs.fit(tmp_path, *UNTAUGHT, "--data.max_staleness=1", "--data.rollout_retries=0", code=1)
    assert "the engine is gone" in capsys.readouterr().err
    assert not [t for t in threading.enumerate() if t.name.startswith("rollouts-")]


@pytest.mark.parametrize(
    ("arguments", "field", "said"),
    [
        (["--data.prompts_in_flight=4"], "data.prompts_in_flight", "fewer than data.prompts_per_rollout = 8"),
        (["--data.prompts_in_flight=-1"], "data.prompts_in_flight", "0 or above"),
        (["--data.prompts_in_flight=12", "--data.resample_dead_groups=2"], "data.resample_dead_groups", "partial"),
        (["--data.prompts_in_flight=12", "--data.max_staleness=1"], "data.max_staleness", "partial"),
        (["--data.prompts_in_flight=99999"], "data.prompts_in_flight", "usable prompts"),
        (
            ["--data.max_staleness=1", "--model.old_policy=ResidentSnapshot", "--model.old_policy.refresh_every=2"],
            "model.old_policy.refresh_every",
            "newest weights",
        ),
        (["--data.max_staleness=1", "--data.resample_dead_groups=2"], "data.resample_dead_groups", "asynchronous"),
    ],
)
def test_partial_or_stale_rollouts_refuse_settings_that_they_exclude(
    arguments: list[str], field: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *UNTAUGHT, *arguments, code=2)
    shown = capsys.readouterr().err
    assert field in shown
    assert said in shown


@pytest.mark.long
@pytest.mark.parametrize("in_flight", [False, True])
def test_two_ranks_sample_ahead_from_a_server_and_evaluate_on_it(tmp_path: Path, in_flight: bool) -> None:
    """One rank has finished a rollout, and begins the next one, while the other still samples from the same server."""
    options = [
        *runs.SMALL, *runs.UNTAUGHT, "--data.max_staleness=2", "--trainer.max_epochs=5",
        "--trainer.check_val_every_n_epoch=1", "--model.optimizer.lr=0.003", "--data.rollout_retries=0",
        "--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp",
        f"--trainer.default_root_dir={tmp_path}",
    ]  # fmt: skip
    log = tmp_path / "log"
    if in_flight:
        options[options.index("--trainer.check_val_every_n_epoch=1")] = "--trainer.check_val_every_n_epoch=5"
    with ToyServer(pace_s=0.05 if in_flight else 0.0) as toy:
        given = {"urls": [toy.url], "weights_in_flight": in_flight, "timeout_s": 60}
        source = f"--data.rollouts={json.dumps({'class_path': 'VLLMServer', 'init_args': given})}"
        command = Command(["fit", f"--config={runs.QUICKSTART}", *options, source], 2, log=log).start()
        assert command.wait(120) == [0, 0], log.read_text()
        if not in_flight:
            assert toy.loads == 11  # five rollouts, an evaluation before the first and one after each
    (run,) = (tmp_path / "quickstart").glob("version_*")
    scalars = runs.scalars(run)
    oldest = [age for _, age in scalars["staleness/max_age"]]
    if in_flight:
        assert sum(age for _, age in scalars["staleness/mean_age"]) < 0.75 * 28
        assert max(oldest) <= 4.0
        return
    assert oldest == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    assert [step for step, _ in scalars["val/accuracy"]] == [0, 2, 4, 6, 8, 10]
