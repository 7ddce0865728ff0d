"""Folders whose image processor, or whose tokens of a picture, are not what a run reads: each is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForConditionalGeneration, SmolVLMForConditionalGeneration
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer, tiny_config
from gspo_lightning.policy.vision.image_processor import image_processor_of
from tests.runs import runs

CONFIG = runs.ROOT / "configs" / "vision.yaml"
FEW = ["--data.train.size=16", "--data.val=null", *runs.UNTAUGHT, "--trainer.max_epochs=1"]

PROCESSORS: dict[str, Any] = {
    "gemma": Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
    "tiles": Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
    "qwen": Qwen2VLImageProcessorPil(),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "processor", "said"),
    [
        ("tiny-smolvlm", "gemma", "the image processor cuts pictures of None pixels into tiles"),
        ("tiny-smolvlm", "qwen", "the image processor cuts pictures"),
        ("tiny-qwen3-vl", "gemma", "the image processor has no size for its shortest_edge"),
        ("tiny-qwen3-vl", "tiles", "the image processor has no size for its shortest_edge"),
        ("tiny-qwen3-vl", "qwen", "the image processor has patch_size 14, and the model reads 8"),
        ("tiny-gemma3", "qwen", "the image processor has size"),
        ("tiny-gemma3", "tiles", "the image processor has size"),
    ],
)
def test_the_processor_of_another_family_stops_the_run(
    tmp_path: Path, name: str, processor: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load_policy(ModelSettings(name)).save_pretrained(tmp_path / "model")
    PROCESSORS[processor].save_pretrained(tmp_path / "model")
    runs.fit(tmp_path, *FEW, f"--model.name_or_path={tmp_path / 'model'}", config=CONFIG, code=2)
    assert f"error: model.name_or_path: {said}" in capsys.readouterr().err


def other_tokens(folder: Path, name: str) -> Path:
    """The same vocabulary, and four times as many tokens for a picture; for tiles a quarter."""
    config: Any = tiny_config(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if name == "tiny-gemma3":
            config.mm_tokens_per_image = 16
            model: Any = Gemma3ForConditionalGeneration(config)
        else:
            config.scale_factor = 4
            model = SmolVLMForConditionalGeneration(config)
    model.save_pretrained(folder)
    character_tokenizer(name).save_pretrained(folder)
    image_processor = image_processor_of(load_tokenizer(ModelSettings(name)))
    assert image_processor is not None
    image_processor.processor.save_pretrained(folder)
    return folder


TEACHER = ["--model.objective.init_args.distill_coef=1"]
CRITIC = ["--model.critic=ValueModel", "--model.objective=GSPOToken", "--data.advantages=GAE"]


@pytest.mark.thorough("tiny-gemma3-16-model.critic.name_or_path", "tiny-smolvlm-1-model.critic.name_or_path")
@pytest.mark.parametrize("reader", ["model.teacher", "model.critic.name_or_path"])
@pytest.mark.parametrize(("name", "theirs"), [("tiny-gemma3", 16), ("tiny-smolvlm", 1)])
def test_another_reader_needs_the_same_tokens_of_a_picture(
    tmp_path: Path, name: str, theirs: int, reader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = other_tokens(tmp_path / "other", name)
    more = [f"--model.teacher={folder}", *TEACHER]
    if reader != "model.teacher":
        more = [*CRITIC, f"--model.critic.name_or_path={folder}"]
    limit = ["--data.max_prompt_tokens=64", f"--model.name_or_path={name}"]
    runs.fit(tmp_path, *FEW, *limit, *more, config=CONFIG, code=2)
    said = capsys.readouterr().err
    assert f"error: {reader}: " in said
    assert f"{theirs} tokens where the policy's prompts have 4" in said
