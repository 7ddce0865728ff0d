"""Pictures for tests: small files with known colours, and prompts that hold them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import Gemma3ForConditionalGeneration, Idefics3Config, Idefics3ForConditionalGeneration
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from gspo_lightning.core.pictures import Media, Picture
from gspo_lightning.core.types import Prompt
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer, tiny_config

SEEING = ["tiny-qwen3-vl", "tiny-qwen3-vl-moe", "tiny-qwen2.5-vl", "tiny-smolvlm", "tiny-gemma3"]
QWEN, TILES = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), ("smolvlm", "idefics3")


def png(seed: int, width: int = 32, height: int = 32) -> bytes:
    """A file of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def seeing_prompt(policy: Policy, number: int, parts: Sequence[str | bytes]) -> Prompt:
    """A prompt of texts and pictures in this order, put together here without the package's own encoder."""
    image_processor = policy.image_processor
    assert image_processor is not None
    if image_processor.kind not in QWEN:
        return _by_transformers(policy, number, parts)
    ids: list[int] = []
    media = []
    for part in parts:
        if isinstance(part, str):
            ids += policy.tokenizer(part)["input_ids"]
            continue
        made = image_processor.processor(images=[opened(part)], return_tensors="pt")
        _, rows, columns = (int(n) for n in made["image_grid_thw"][0])
        rows, columns = rows // 2, columns // 2
        media.append(Picture(part, hashlib.sha256(part).hexdigest(), len(ids) + 1, rows, columns))
        ids += [image_processor.start, *[image_processor.image] * (rows * columns), image_processor.end]
    return Prompt(number, "", tuple(ids), media=tuple(media))


def opened(data: bytes) -> Image.Image:
    """A file as three colours."""
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def plain_inputs(policy: Policy, media: Media, ids: Tensor) -> dict[str, Tensor]:
    """What transformers' own model takes beside token ids [1, S], made of whole files by its own processor."""
    image_processor = policy.image_processor
    assert image_processor is not None
    if not media:
        return {}
    images = [opened(p.data) for p in media]
    made = dict(
        image_processor.processor(images=[images] if image_processor.kind in TILES else images, return_tensors="pt")
    )
    made.pop("num_crops", None)
    made["pixel_values"] = made["pixel_values"].to(next(policy.parameters()).dtype)
    kinds = (ids == image_processor.image).int()
    return made | {"gemma3": {"token_type_ids": kinds}, "smolvlm": {}}.get(
        image_processor.kind, {"mm_token_type_ids": kinds}
    )


def idefics3_folder(folder: Path) -> Path:
    """A tiny Idefics3 as the hub has one, with the tokens of ``tiny-smolvlm``."""
    fields = {k: v for k, v in tiny_config("tiny-smolvlm").to_dict().items() if k != "model_type"}
    fields["vision_config"].pop("model_type")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Idefics3ForConditionalGeneration(Idefics3Config(**fields))
    model.save_pretrained(folder)
    character_tokenizer("tiny-smolvlm").save_pretrained(folder)
    Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}).save_pretrained(folder)
    return folder


def gemma_with_pooling(folder: Path) -> Path:
    """A tiny Gemma 3 whose tower has SigLIP's pooling, which its pictures never go through."""
    config: Any = tiny_config("tiny-gemma3")
    config.vision_config.vision_use_head = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Gemma3ForConditionalGeneration(config)
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.05)
    model.save_pretrained(folder)
    character_tokenizer("tiny-gemma3").save_pretrained(folder)
    Gemma3ImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def _by_transformers(policy: Policy, number: int, parts: Sequence[str | bytes]) -> Prompt:
    """By the whole processor of the family, which widens placeholders in the text."""
    image_processor, tokenizer = policy.image_processor, policy.tokenizer
    assert image_processor is not None
    images = [opened(part) for part in parts if isinstance(part, bytes)]
    if image_processor.kind == "gemma3":
        processor: Any = Gemma3Processor(image_processor.processor, tokenizer, image_seq_length=4)
        mark, tiles = "<start_of_image>", [1] * len(images)
    else:
        processor, mark = Idefics3Processor(image_processor.processor, tokenizer, image_seq_len=4), "<image>"
        tiles = [
            image_processor.processor(images=[image], return_tensors="pt")["pixel_values"].shape[1] for image in images
        ]
    text = "".join(part if isinstance(part, str) else mark for part in parts)
    made = processor(text=[text], images=[images]) if images else tokenizer([text])
    ids = [int(token) for token in made["input_ids"][0]]
    starts = [
        i
        for i, token in enumerate(ids)
        if token == image_processor.image and (i == 0 or ids[i - 1] != image_processor.image)
    ]
    media = []
    for data, count in zip((p for p in parts if isinstance(p, bytes)), tiles, strict=True):
        (first, *more), starts = starts[:count], starts[count:]
        media.append(Picture(data, hashlib.sha256(data).hexdigest(), first, 1, 4, tuple(more)))
    return Prompt(number, "", tuple(ids), media=tuple(media))
