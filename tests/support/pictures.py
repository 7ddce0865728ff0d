"""Pictures for tests: small files with known colours, and prompts that hold them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from gspo_lightning.pictures import Picture
from gspo_lightning.policy.policy import Policy
from gspo_lightning.types import Prompt


def png(seed: int, width: int = 32, height: int = 32) -> bytes:
    """A file of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def seeing_prompt(policy: Policy, number: int, parts: Sequence[str | bytes]) -> Prompt:
    """A prompt of texts and pictures in this order, put together here without the package's own encoder."""
    sight = policy.sight
    assert sight is not None
    ids: list[int] = []
    media = []
    for part in parts:
        if isinstance(part, str):
            ids += policy.tokenizer(part)["input_ids"]
            continue
        with Image.open(io.BytesIO(part)) as image:
            made = sight.processor(images=[image.convert("RGB")], return_tensors="pt")
        _, rows, columns = (int(n) for n in made["image_grid_thw"][0])
        rows, columns = rows // 2, columns // 2
        media.append(Picture(part, hashlib.sha256(part).hexdigest(), len(ids) + 1, rows, columns))
        ids += [sight.start, *[sight.image] * (rows * columns), sight.end]
    return Prompt(number, "", tuple(ids), media=tuple(media))
