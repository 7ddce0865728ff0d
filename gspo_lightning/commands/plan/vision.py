"""Cost of pictures in prompts: tokens, and the vision tower's weights, activations and FLOP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from gspo_lightning.commands.plan.models import PICTURE_PIXELS, config_of, skeleton
from gspo_lightning.policy.adapters.freezing import trains_vision
from gspo_lightning.policy.load.loading import load_tokenizer
from gspo_lightning.policy.tiny import TINY_MODELS
from gspo_lightning.policy.vision.families import reads_pictures
from gspo_lightning.policy.vision.families import tower_of as family_tower
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.policy.vision.qwen import QWEN

if TYPE_CHECKING:
    from gspo_lightning.commands.plan.job import Job


@dataclass(frozen=True)
class Tower:
    """Vision tower, with one picture of the largest size in every prompt.

    Weights are counted by what they multiply: ``per_patch`` for blocks and patch embedding, ``per_token`` for the
    merger of patches into tokens.
    """

    parameters: int
    trained: bool
    """True if its weights or adapters are trained: then it has a backward pass and keeps activations."""
    pixels: int
    """Pixels of the largest picture; a larger one is scaled down."""
    side: int
    """Side length in pixels of the square that one token represents."""
    longest: int
    """Maximum tokens of a prompt (``data.max_prompt_tokens``)."""
    merge: int
    per_patch: int
    per_token: int
    patch: int
    """Values of a patch."""
    hidden: int
    kept: int
    """Values kept per patch and layer, as measured: if the MLP is not gated, 10 of the tower's width (normalised
    inputs, queries, keys and values before and after rotation, attention output) and 2 of its inner width; if it is
    gated, 14 and 4."""
    features: int
    """Values per token: the features that replace its embedding and those added in some layers."""
    spans: tuple[int, ...]
    """Patches that a patch attends to, per layer; 0 means all."""
    fixed: bool = False
    """True if every picture has the same number of tokens, regardless of ``data.pictures.max_pixels``."""

    @property
    def largest(self) -> int:
        """Tokens of the largest picture."""
        return max(1, self.pixels // self.side**2)

    @property
    def tokens(self) -> int:
        """Tokens of the largest picture that fits into a prompt."""
        return min(self.largest, self.longest)

    @property
    def patches(self) -> int:
        """Patches of the largest picture that fits into a prompt."""
        return self.tokens * self.merge**2

    @property
    def flops(self) -> float:
        """FLOP of a forward pass over that picture: 2 per weight and patch or token, plus attention."""
        weights = self.patches * self.per_patch + self.tokens * self.per_token
        attended = sum(min(span or self.patches, self.patches) for span in self.spans)
        return 2.0 * weights + 4.0 * self.hidden * self.patches * attended

    def bytes(self, pictures: int, size: int, *, keeps: bool, checkpointing: bool) -> int:
        """Return the bytes of pictures processed at a time: pixels, activations and features.

        Args:
            pictures: number of pictures of the largest size.
            size: bytes per value.
            keeps: keep activations for a backward pass; else only one layer's at a time.
            checkpointing: keep only the input of each layer.
        """
        layers = len(self.spans)
        kept = self.kept * layers if keeps else self.kept
        if keeps and checkpointing:
            kept = self.kept + self.hidden * layers
        of_patches = self.patches * (4 * self.patch + size * kept)
        return pictures * (of_patches + self.tokens * self.features * size)


def tower_of(job: Job) -> Tower | None:
    """Return the vision tower of a job's model; None if the model reads only text."""
    config = config_of(job.model)
    if not reads_pictures(config):
        return None
    key = repr((job.model, job.max_pixels, job.max_prompt))
    if key not in _towers:
        _towers[key] = _tower(job, config)
    return _towers[key]


def _tower(job: Job, config: Any) -> Tower:
    model: Any = skeleton(config, job.model.lora, job.model.freeze)
    parts = family_tower(model)
    if config.model_type in QWEN:
        of_family = _of_qwen(model.base_model.visual, config)
    else:
        of_family = _of_siglip(parts, config)
    parameters = 0
    for part in parts.values():
        parameters += sum(weight.numel() for name, weight in part.named_parameters() if ".lora_" not in name)
    return Tower(
        parameters=parameters,
        trained=trains_vision(model),
        pixels=_pixels(job, config),
        longest=job.max_prompt,
        hidden=int(config.vision_config.hidden_size),
        fixed=config.model_type == "gemma3",
        **of_family,
    )


def _of_qwen(tower: Any, config: Any) -> dict[str, Any]:
    vision = config.vision_config
    width = int(vision.hidden_size)
    inner = int(vision.intermediate_size)
    patch = int(vision.patch_size)
    full = set(getattr(vision, "fullatt_block_indexes", range(int(vision.depth))))  # layers that attend to all
    window = (int(getattr(vision, "window_size", 0)) // patch) ** 2
    return {
        "side": patch * int(vision.spatial_merge_size),
        "merge": int(vision.spatial_merge_size),
        "per_patch": _weights(tower.blocks) + _weights(tower.patch_embed),
        "per_token": _weights(tower.merger) + _weights(getattr(tower, "deepstack_merger_list", None)),
        "patch": int(getattr(vision, "in_channels", 3)) * int(vision.temporal_patch_size) * patch**2,
        "kept": 14 * width + 4 * inner if _gated(tower) else 10 * width + 2 * inner,
        "features": int(vision.out_hidden_size) * (1 + len(getattr(vision, "deepstack_visual_indexes", ()))),
        "spans": tuple(0 if layer in full else window for layer in range(int(vision.depth))),
    }


def _of_siglip(parts: dict[str, Any], config: Any) -> dict[str, Any]:
    """Describe a SigLIP tower and its projector: patches of a tile or a fixed-size picture attend to each other."""
    vision = config.vision_config
    tower, mapping = parts.values()
    width = int(vision.hidden_size)
    inner = int(vision.intermediate_size)
    patch = int(vision.patch_size)
    across = int(vision.image_size) // patch
    merge = across // math.isqrt(config.mm_tokens_per_image) if config.model_type == "gemma3" else config.scale_factor
    return {
        "side": patch * merge,
        "merge": merge,
        "per_patch": _weights(tower.encoder) + _weights(tower.embeddings.patch_embedding),
        "per_token": _weights(mapping),
        "patch": int(vision.num_channels) * patch**2,
        "kept": 10 * width + 2 * inner,
        "features": int(config.get_text_config().hidden_size),
        "spans": (across**2,) * int(vision.num_hidden_layers),
    }


def _weights(module: Any) -> int:
    """Count the weights of matrices, which multiply."""
    return 0 if module is None else sum(p.numel() for p in module.parameters() if p.dim() > 1)


def _gated(tower: Any) -> bool:
    return any(name.endswith("gate_proj") for name, _ in tower.named_modules())


def _pixels(job: Job, config: PretrainedConfig) -> int:
    """Return the pixels of the largest picture as the model reads it."""
    name = job.model.name_or_path
    published = PICTURE_PIXELS.get(config.model_type)
    if published is not None and name not in TINY_MODELS and not Path(name).is_dir():
        return job.max_pixels or published
    image_processor = image_processor_of(load_tokenizer(job.model))
    assert image_processor is not None
    return image_processor.limited(job.max_pixels).most_pixels


_towers: dict[str, Tower] = {}
