"""Whole runs of a policy that reads pictures: resumed bit for bit, on two ranks as on one, exported and loaded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from gspo_lightning.cli import main
from gspo_lightning.loop.experience.loader import ExperienceLoader
from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.vision.image_processor import image_processor_of
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_invariance import SGD
from tests.support.pictures import gemma_with_pooling, png

CONFIG = runs.ROOT / "configs" / "vision.yaml"
FEW = ["--data.train.size=64", "--data.val.size=20", *runs.UNTAUGHT, "--trainer.enable_progress_bar=false"]
OPTIONS = [*FEW, "--trainer.max_epochs=2", "--data.max_tokens_per_micro_batch=60"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("undisturbed"), *OPTIONS, config=CONFIG)


@pytest.mark.thorough
def test_an_interrupted_run_goes_on_bit_for_bit(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first of two updates of an iteration: the checkpoint holds rollouts, with their pictures."""
    original = ExperienceLoader.mark_trained

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration * 2 + self.trained == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    run = runs.fit(tmp_path, *OPTIONS, config=CONFIG, code=130)
    monkeypatch.undo()
    held = str(runs.checkpoint(run))
    assert "'files'" in held  # of pictures
    runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last", config=CONFIG)
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0
    assert runs.scalars(run) == runs.scalars(undisturbed)


@pytest.mark.thorough
def test_a_frozen_tower_stays_as_it_is_and_everything_else_is_trained(tmp_path: Path, undisturbed: Path) -> None:
    frozen = runs.fit(tmp_path, *OPTIONS, "--model.freeze=null", config=CONFIG)
    start = load_policy(ModelSettings("tiny-qwen3-vl", seed=1)).model.state_dict()
    for run, moves in ((frozen, False), (undisturbed, True)):
        found = {k.removeprefix("policy.model."): v for k, v in runs.weights(run).items()}
        tower = [n for n in start if ".visual." in n]
        assert any(not torch.equal(found[n], start[n]) for n in tower) == moves
        assert not torch.equal(found["lm_head.weight"], start["lm_head.weight"])


@pytest.mark.thorough
def test_an_export_is_read_by_transformers_and_answers_the_same(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "exported"
    assert main(["export", str(undisturbed / "checkpoints" / "last.ckpt"), str(folder)]) == 0
    assert {"preprocessor_config.json", "video_preprocessor_config.json"} <= {f.name for f in folder.iterdir()}
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    ours = load_policy(ModelSettings(str(folder)))
    assert runs.largest_difference(model.state_dict(), ours.model.state_dict()) == 0.0
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    own = image_processor_of(load_tokenizer(ModelSettings("tiny-qwen3-vl")))
    assert own is not None
    (tmp_path / "a.png").write_bytes(png(0, 48, 32))
    image = Image.open(tmp_path / "a.png")
    expected, found = (p(images=[image], return_tensors="pt") for p in (own.processor, processor))
    assert torch.equal(found["pixel_values"], expected["pixel_values"])
    again = runs.fit(tmp_path / "again", *OPTIONS, f"--model.name_or_path={folder}", config=CONFIG)
    assert runs.summary(again)["updates"] == 4


ONE_TILE = ["--data.pictures.max_pixels=1024"]
"""Five tiles of SmolVLM do not fit into the prompts of the config."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "chosen", [["tiny-smolvlm", "--data.max_prompt_tokens=64"], ["tiny-gemma3"]], ids=["tiles", "both directions"]
)
def test_runs_of_other_families_resume_bit_for_bit_and_are_exported(tmp_path: Path, chosen: list[str]) -> None:
    name, *more = chosen
    more = [*OPTIONS, f"--model.name_or_path={name}", *more, "--data.max_tokens_per_micro_batch=200"]
    whole = runs.fit(tmp_path / "whole", *more, config=CONFIG)
    half = runs.fit(tmp_path / "half", *more, "--trainer.max_epochs=1", config=CONFIG)
    half = runs.fit(tmp_path / "half", *more, "--ckpt_path=last", config=CONFIG)
    assert runs.largest_difference(runs.weights(half), runs.weights(whole)) == 0.0
    assert main(["export", str(whole / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]) == 0
    exported = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").state_dict()
    trained = {k.removeprefix("policy.model."): v for k, v in runs.weights(whole).items()}
    assert all(torch.equal(exported[n], w) for n, w in trained.items())


def ranks(root: Path, name: str, *more: str, count: int = 2) -> Path:
    return fit_on_ranks(root, *OPTIONS, *more, overlay=name, config=CONFIG, ranks=count)


SOURCES = [{"train": {"class_path": name, "init_args": {"size": 64}}} for name in ("SquaresTask", "ChainTask")]
MIXED = "--data.train=" + json.dumps({"class_path": "Mixture", "init_args": {"sources": SOURCES}})
"""Half of the prompts have no picture: a rank may have micro-batches without one while the other has some."""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.long), "fsdp2"])
def test_two_ranks_train_as_one_also_where_only_some_prompts_have_pictures(tmp_path: Path, strategy: str) -> None:
    more = [MIXED, *SGD, "--model.optimizer.momentum=0.9", "--data.prompts_per_rollout=4", "--trainer.max_epochs=2"]
    two = ranks(tmp_path / "two", strategy, *more)
    one = runs.fit(tmp_path / "one", *OPTIONS, *more, config=CONFIG)
    assert runs.largest_difference(runs.weights(two), runs.weights(one)) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen",
    [
        ["--model.name_or_path=tiny-qwen3-vl-moe", "--model.routing_replay=R2"],
        ["--model.freeze=null", "--model.lora={r: 2}"],
        ["--model.lora={r: 2}"],
    ],
    ids=["mixture", "adapters", "adapters in the tower, too"],
)
def test_two_sharded_ranks_train_mixtures_and_adapters_as_one(tmp_path: Path, chosen: list[str]) -> None:
    more = [*chosen, MIXED, *SGD, "--model.optimizer.momentum=0.9", "--data.prompts_per_rollout=4"]
    two = ranks(tmp_path / "two", "fsdp2", *more)
    one = runs.fit(tmp_path / "one", *OPTIONS, *more, config=CONFIG)
    assert runs.largest_difference(runs.weights(two), runs.weights(one)) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("chosen", [["tiny-smolvlm", *ONE_TILE], ["tiny-gemma3"]], ids=["tiles", "both directions"])
def test_two_ranks_train_other_families_as_one(tmp_path: Path, chosen: list[str], strategy: str) -> None:
    name, *limit = chosen
    more = [f"--model.name_or_path={name}", *limit, MIXED, *SGD, "--model.optimizer.momentum=0.9"]
    two = ranks(tmp_path / "two", strategy, *more, "--data.prompts_per_rollout=4")
    one = runs.fit(tmp_path / "one", *OPTIONS, *more, "--data.prompts_per_rollout=4", config=CONFIG)
    assert runs.largest_difference(runs.weights(two), runs.weights(one)) < 1e-6


@pytest.mark.long
def test_two_ranks_train_a_tower_with_a_part_that_nothing_goes_through(tmp_path: Path) -> None:
    folder = gemma_with_pooling(tmp_path / "model")
    more = [f"--model.name_or_path={folder}", MIXED, *SGD, "--model.optimizer.momentum=0.9"]
    two = ranks(tmp_path / "two", "ddp", *more, "--data.prompts_per_rollout=4")
    one = runs.fit(tmp_path / "one", *OPTIONS, *more, "--data.prompts_per_rollout=4", config=CONFIG)
    assert runs.largest_difference(runs.weights(two), runs.weights(one)) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm", "tiny-gemma3"])
def test_weights_in_bfloat16_as_models_are_published(tmp_path: Path, name: str) -> None:
    more = [f"--model.name_or_path={name}", "--model.dtype=bfloat16", "--model.freeze=null", "--model.lora={r: 2}"]
    room = ["--data.max_prompt_tokens=64", "--data.max_tokens_per_micro_batch=200", "--trainer.max_epochs=1"]
    run = runs.fit(tmp_path, *OPTIONS, *more, *room, config=CONFIG)
    assert runs.summary(run)["updates"] == 2
    assert abs(next(value for _, value in runs.scalars(run)["ratio/mean"]) - 1) < 1e-6


@pytest.mark.thorough
def test_adapters_are_saved_alone_and_exported_into_the_weights(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--model.freeze=null", "--model.lora={r: 2}", config=CONFIG)
    saved = runs.checkpoint(run)["state_dict"]
    assert saved
    assert all(".lora_" in name and ".visual." not in name for name in saved)
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]) == 0
    exported = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "out").state_dict()
    start = load_policy(ModelSettings("tiny-qwen3-vl", seed=1)).model.state_dict()
    assert exported.keys() == start.keys()
    moved = {name for name, weight in start.items() if not torch.equal(weight, exported[name])}
    assert moved == {name for name in start if name.endswith("_proj.weight")}


RECORDING = "--data.record_rollouts=true"


def replay(root: Path, recorded: Path, *arguments: str, code: int = 0) -> Path:
    source = ["--data.rollouts=Recorded", f"--data.rollouts.path={recorded / 'rollouts'}"]
    return runs.fit(root, *OPTIONS, *source, *arguments, config=CONFIG, code=code)


@pytest.mark.thorough
def test_recorded_rollouts_are_replayed_bit_by_bit_and_know_their_pictures_by_hash(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path / "recorded", *OPTIONS, RECORDING, config=CONFIG)
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0
    files = sorted((run / "rollouts").iterdir())
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert all(len(name) == 64 for row in rows for name in row["pictures"])
    assert max(len(line) for file in files for line in file.read_text().splitlines()) < 3000  # hashes, no pixels
    again = replay(tmp_path / "again", run)
    assert runs.largest_difference(runs.weights(again), runs.weights(run)) == 0.0
    capsys.readouterr()
    replay(tmp_path / "shuffled", run, "--data.train.init_args.shuffled=true", code=2)  # the same texts and tokens
    assert "has no responses to prompt" in capsys.readouterr().err


@pytest.mark.parametrize("replayed", ["R2", pytest.param("R3", marks=pytest.mark.long)])
def test_a_mixture_with_pictures_replays_its_routes(tmp_path: Path, replayed: str) -> None:
    more = ["--model.name_or_path=tiny-qwen3-vl-moe", f"--model.routing_replay={replayed}", "--trainer.max_epochs=1"]
    run = runs.fit(tmp_path, *OPTIONS, *more, "--model.optimizer.lr=3e-3", config=CONFIG)
    tags = runs.scalars(run)
    assert next(value for _, value in tags["ratio/mean"]) == 1.0
    assert next(value for _, value in tags["ratio/std"]) == 0.0
    assert dict(tags["moe/changed_choices"])[2] > 0


@pytest.mark.thorough
def test_conversations_about_pictures_are_trained_on(tmp_path: Path) -> None:
    """Guesses of the number of red squares, with the environment's hints between them."""
    conversation = {"class_path": "EnvironmentRollouts", "init_args": {"environment": "GuessNumber", "max_turns": 3}}
    options = [f"--data.rollouts={json.dumps(conversation)}", '--data.rewards={"found": "EnvironmentReward"}']
    run = runs.fit(tmp_path, *OPTIONS, *options, "--data.max_response_tokens=24", config=CONFIG)
    found = runs.scalars(run)
    assert found["response/turns"][-1][1] > 1
    assert max(abs(v) for _, v in found["noise/kl_sampler_old_k1"]) < 1e-5
