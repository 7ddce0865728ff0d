"""Memory that an optimizer's state takes."""

from __future__ import annotations

from gspo_lightning.commands.plan.models import Counts
from gspo_lightning.core.errors import UserError

ADAM_LIKE = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""Optimizer class -> state tensors per weight; 8-bit and paged variants are derived from the name."""


def optimizer_bytes(name: str, counts: Counts, size: int) -> int:
    """Return the bytes of an optimizer's state over the trained parameters.

    Raises:
        UserError: the optimizer's state size is not known.
    """
    word = name.rsplit(".", 1)[-1].lower()
    plain = word.removeprefix("paged").removesuffix("8bit").removesuffix("32bit")
    if plain in ("sgd", "adafactor"):
        return 0 if plain == "adafactor" else counts.trainable * size
    if plain not in ADAM_LIKE:
        raise UserError("model.optimizer", f"how much state {name!r} keeps is unknown")
    tensors = ADAM_LIKE[plain]
    if not word.endswith("8bit"):
        return tensors * counts.trainable * (size if "bitsandbytes" not in name else 4)
    large = counts.trainable - counts.small
    return round(tensors * (large * (1 + 4 / 256) + counts.small * 4))
