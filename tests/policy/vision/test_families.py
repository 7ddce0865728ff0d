"""Which vision-language families are known, and that others are refused by name before anything is sampled."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlavaConfig
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import PictureProbe, choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import TINY_MODELS, character_tokenizer, tiny_config
from gspo_lightning.policy.vision.gemma import GemmaImageProcessor
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.policy.vision.tiles import TileImageProcessor
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.drawing import Draws
from tests.policy.vision.test_exact import alone, prompts_of, rollouts_of
from tests.support.pictures import gemma_with_pooling, idefics3_folder, opened, png


def tiles_of(policy: Policy) -> TileImageProcessor:
    assert isinstance(policy.image_processor, TileImageProcessor)
    return policy.image_processor


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    LlavaConfig().save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"(?s)'llava', which is not known here.*Qwen3-VL-MoE, SmolVLM, Idefics3"):
        load_policy(ModelSettings(str(tmp_path)))


def test_a_text_model_names_the_families_that_read_pictures() -> None:
    policy: Policy = load_policy(ModelSettings("tiny-qwen3"))
    media = prompts_of(load_policy(ModelSettings("tiny-qwen3-vl")))[0].media
    with pytest.raises(UserError, match=r"(?s)reads text only.*Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE"):
        policy.vision_inputs([media], 8)


def test_gemma_reads_pictures_in_both_directions_and_a_causal_mask_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = load_policy(ModelSettings("tiny-gemma3", seed=3)).eval()
    choose_layout(policy, "auto", 64)
    assert policy.packed
    assert policy.image_processor is not None
    assert PictureProbe(policy, policy.image_processor).why_not_exact(1e-6) is None
    monkeypatch.setattr(GemmaImageProcessor, "mutual", False)
    found = PictureProbe(policy, policy.image_processor).why_not_exact(1e-4)
    assert found is not None
    assert "nats off those of the row alone" in found
    with pytest.raises(UserError, match="nats off those of the row alone"):
        choose_layout(policy, "auto", 64)


@pytest.mark.parametrize("lora", [None, LoRA(r=2)], ids=["weights", "adapters"])
def test_nothing_is_trained_that_pictures_never_go_through(tmp_path: Path, lora: LoRA | None) -> None:
    """Ranks would wait for gradients of SigLIP's pooling, which Gemma 3 does not read."""
    folder = str(gemma_with_pooling(tmp_path))
    policy = load_policy(ModelSettings(folder, seed=3, freeze=[], lora=lora))
    assert any(".head." in n for n, _ in policy.named_parameters())
    policy(make_micro_batch(rollouts_of(prompts_of(policy))))[0].sum().backward()
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert any(".vision_tower." in n for n in trained)
    assert trained == {n for n, p in policy.named_parameters() if p.grad is not None}


def test_rows_beyond_gemmas_window_are_padded_and_exact() -> None:
    settings = ModelSettings("tiny-gemma3", seed=3, config_overrides={"sliding_window": 8, "num_hidden_layers": 6})
    policy = load_policy(settings).eval()
    kinds = set(policy.model.config.get_text_config().layer_types)
    assert kinds == {"sliding_attention", "full_attention"}
    choose_layout(policy, "auto", 64)
    assert not policy.packed
    rollouts = rollouts_of(prompts_of(policy), (3, 7))
    with torch.no_grad():
        rows = policy(make_micro_batch(rollouts))[0]
        for row, rollout in zip(rows, rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-5, atol=1e-5)
        sampling, draws = SamplingParams(12, 1.0), Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
        groups = GroupedSampler().generate(policy, prompts_of(policy), group_size=2, sampling=sampling, draws=draws)
        for rollout in (r for group in groups for r in group):
            assert rollout.logprobs is not None
            torch.testing.assert_close(rollout.logprobs, alone(policy, rollout), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (100, 30), (30, 100), (7, 300), (500, 401)])
@pytest.mark.parametrize("max_pixels", [None, 1024, 5000])
def test_tiles_are_those_of_the_processor_also_under_another_limit(
    size: tuple[int, int], max_pixels: int | None
) -> None:
    policy = load_policy(ModelSettings("tiny-smolvlm"))
    larger = dataclasses.replace(tiles_of(policy), processor=_processor(128))
    image_processor = larger.limited(max_pixels)
    edge = {None: 128, 1024: 32, 5000: 64}[max_pixels]
    expected = _processor(edge)(images=[opened(png(5, *size))], return_tensors="pt")["pixel_values"][0]
    shown = image_processor.shown(*size, policy.tokenizer)
    assert shown.text.count("<image>") == len(expected)
    assert image_processor.most_pixels == {None: 17, 1024: 1, 5000: 5}[max_pixels] * 1024
    assert image_processor.shrinks(*size) == (max(size) > edge)
    picture = Picture(png(5, *size), "", 1, 1, 4, tuple(range(9, 9 + 8 * (len(expected) - 1), 8)))
    for other in (image_processor, larger, larger.limited(1024)):  # a prompt decides, whatever the limit has become
        assert torch.equal(other.pixels([picture]), expected)


def _processor(longest: int) -> Any:
    size, tile = {"longest_edge": longest}, {"longest_edge": 32}
    return transformers.models.smolvlm.image_processing_pil_smolvlm.SmolVLMImageProcessorPil(
        size=size, max_image_size=tile
    )


def test_limits_that_a_family_cannot_keep_are_refused() -> None:
    for name, limit, message in (
        ("tiny-smolvlm", 1000, "32 x 32 pixels of every picture, at least"),
        ("tiny-gemma3", 1000, "32 x 32 pixels of every picture"),
    ):
        image_processor = image_processor_of(load_tokenizer(ModelSettings(name)))
        assert image_processor is not None
        with pytest.raises(UserError, match=rf"data\.pictures\.max_pixels.*{message}"):
            image_processor.limited(limit)
        assert image_processor.limited(32 * 32 * 4).most_pixels == image_processor.most_pixels


def _saved(folder: Path, name: str, processor: Any) -> str:
    """A folder as the hub has it."""
    policy = load_policy(ModelSettings(name))
    policy.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return str(folder)


def test_idefics3_is_read_from_a_folder_and_is_exact(tmp_path: Path) -> None:
    policy = load_policy(ModelSettings(str(idefics3_folder(tmp_path)))).eval()
    choose_layout(policy, "packed", 64)
    rollouts = rollouts_of(prompts_of(policy))
    with torch.no_grad():
        for row, rollout in zip(policy(make_micro_batch(rollouts))[0], rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-smolvlm", "tiny-gemma3"])
def test_an_export_is_read_again_with_its_processor(tmp_path: Path, name: str) -> None:
    folder = _saved(tmp_path, name, None)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert not said["image_processor_type"].endswith("Pil")
    before, after = (load_policy(ModelSettings(n)) for n in (name, folder))
    picture = prompts_of(before)[1].media[0]
    for policy in (before, after):
        assert isinstance(policy.image_processor, TileImageProcessor | GemmaImageProcessor)
    assert torch.equal(before.image_processor.pixels([picture]), after.image_processor.pixels([picture]))
    assert before.image_processor.smallest == after.image_processor.smallest


def test_processors_that_are_not_the_models_are_refused(tmp_path: Path) -> None:
    crops = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, do_pan_and_scan=True)
    with pytest.raises(UserError, match=r"(?s)do_pan_and_scan True.*set its size to 32 x 32"):
        load_tokenizer(ModelSettings(_saved(tmp_path / "a", "tiny-gemma3", crops)))
    odd = Idefics3ImageProcessorPil(size={"longest_edge": 50}, max_image_size={"longest_edge": 32})
    with pytest.raises(UserError, match=r"(?s)cuts pictures of 50 pixels into tiles of 32.*whole number of tiles"):
        load_tokenizer(ModelSettings(_saved(tmp_path / "b", "tiny-smolvlm", odd)))
    folder = _saved(tmp_path / "c", "tiny-smolvlm", None)
    character_tokenizer("tiny-qwen3").save_pretrained(folder)
    with pytest.raises(UserError, match="the tokenizer does not know <fake_token_around_image>"):
        load_tokenizer(ModelSettings(folder))


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_config_that_is_changed_in_place_is_no_other_model_s(name: str) -> None:
    """vLLM doubles the sections of Qwen2.5-VL's rotary embedding in the config that it is given."""
    before = copy.deepcopy(tiny_config(name).to_dict())
    for config in (given := tiny_config(name), given.get_text_config(), getattr(given, "vision_config", given)):
        for value in vars(config).values():
            if isinstance(value, (dict, list)):
                _spoil(value)
    assert tiny_config(name).to_dict() == before


def _spoil(value: dict[Any, Any] | list[Any]) -> None:
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            _spoil(inner)
    value.clear()
