"""Exports of models that read pictures, as ``transformers.AutoProcessor`` reads them where torchvision is.

The environment of ``make test-vllm`` has torchvision; without it transformers builds no processor for videos, which
Qwen's and SmolVLM's need beside the one for pictures. vLLM reads models in the same way.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.vision.image_processor import ImageProcessorAdapter
from tests.support.pictures import SEEING, idefics3_folder, opened, plain_inputs, png, seeing_prompt

pytestmark = pytest.mark.vllm
pytest.importorskip("torchvision", reason="only in the environment of make test-vllm", exc_type=ImportError)


FAMILIES = ["idefics3", *(name for name in SEEING if name != "tiny-smolvlm")]
"""SmolVLM's processor writes and cuts pictures as Idefics3's does, and needs ``num2words`` for videos."""


@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_is_read_by_auto_processor(tmp_path: Path, name: str) -> None:
    found = str(idefics3_folder(tmp_path / "made")) if name == "idefics3" else name
    policy = load_policy(ModelSettings(found))
    folder = tmp_path / "exported"
    policy.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    files = [png(0, 64, 64), png(1, 48, 32)]
    expected = seeing_prompt(policy, 0, ["1", files[0], "+", files[1], "?"])
    image_processor = policy.image_processor
    assert isinstance(image_processor, ImageProcessorAdapter)
    around = "".join(policy.tokenizer.convert_ids_to_tokens(list(image_processor.around)))
    made = processor(text=[f"1{around}+{around}?"], images=[[opened(file) for file in files]], return_tensors="pt")
    assert tuple(made["input_ids"][0].tolist()) == expected.token_ids
    ours = plain_inputs(policy, expected.media, made["input_ids"])["pixel_values"]
    assert made["pixel_values"].shape == ours.shape
    assert type(processor.image_processor) is not type(
        image_processor.processor
    )  # torchvision's, with a resize of its own
    resized = 0.0 if name.startswith("tiny-qwen") else 0.05
    assert float((made["pixel_values"] - ours).abs().mean()) <= resized + 1e-6
    assert torch.isfinite(made["pixel_values"]).all()
