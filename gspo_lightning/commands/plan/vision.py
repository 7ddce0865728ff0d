"""What the pictures of prompts cost: tokens, weights of the vision tower, its activations and its work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from gspo_lightning.commands.plan.models import PICTURE_PIXELS, config_of
from gspo_lightning.commands.plan.skeleton import skeleton
from gspo_lightning.policy.freezing import trains_vision
from gspo_lightning.policy.tiny import TINY_MODELS
from gspo_lightning.policy.vision.families import reads_pictures
from gspo_lightning.policy.vision.sight import load_sight, tiny_sight

if TYPE_CHECKING:
    from gspo_lightning.commands.plan.job import Job

__all__ = ["Tower", "tower_of"]


@dataclass(frozen=True)
class Tower:
    """A vision tower, with one picture of the largest size in every prompt.

    Weights are counted by what they multiply: ``per_patch`` of blocks and the embedding of patches, ``per_token`` of
    what merges patches into tokens.
    """

    parameters: int
    trained: bool
    """Whether its weights, or adapters in it, are trained: then it has a backward pass, and activations are kept."""
    pixels: int
    """Of the largest picture: a larger one is scaled down."""
    side: int
    """Pixels along each side of what one token stands for."""
    longest: int
    """Tokens of a prompt, at most (``data.max_prompt_tokens``)."""
    merge: int
    per_patch: int
    per_token: int
    patch: int
    """Numbers of a patch."""
    hidden: int
    kept: int
    """Numbers of a patch in a layer, as measured: where the inner layer is not gated, 10 of the tower's width (what is
    normalised, queries, keys and values before and after their rotation, what attention gives) and 2 of its inner
    width; where it is, 14 and 4."""
    features: int
    """Numbers of a token: what stands in the place of its embedding, and what is added in some layers."""
    spans: tuple[int, ...]
    """Patches that a patch attends to, for each layer; 0: all."""

    @property
    def largest(self) -> int:
        """Tokens of the largest picture."""
        return max(1, self.pixels // self.side**2)

    @property
    def tokens(self) -> int:
        """Tokens of the largest picture that a prompt has room for."""
        return min(self.largest, self.longest)

    @property
    def patches(self) -> int:
        """Of that picture."""
        return self.tokens * self.merge**2

    @property
    def flops(self) -> float:
        """Of a forward pass over that picture: 2 for each weight and patch or token, and attention on top."""
        weights = self.patches * self.per_patch + self.tokens * self.per_token
        seen = sum(min(span or self.patches, self.patches) for span in self.spans)
        return 2.0 * weights + 4.0 * self.hidden * self.patches * seen

    def bytes(self, pictures: int, size: int, *, keeps: bool, checkpointing: bool) -> int:
        """Of pictures that are seen at a time: their pixels, activations, and features.

        Args:
            pictures: of the largest size.
            size: bytes of a number.
            keeps: for a backward pass; else one layer at a time.
            checkpointing: keep the input of each layer only.
        """
        layers = len(self.spans)
        kept = self.kept * layers if keeps else self.kept
        if keeps and checkpointing:
            kept = self.kept + self.hidden * layers
        of_patches = self.patches * (4 * self.patch + size * kept)
        return pictures * (of_patches + self.tokens * self.features * size)


def tower_of(job: Job) -> Tower | None:
    """The tower of a job's model; None: it reads text only."""
    config = config_of(job.model)
    if not reads_pictures(config):
        return None
    key = repr((job.model, job.max_pixels, job.max_prompt))
    if key not in _towers:
        _towers[key] = _tower(job, config)
    return _towers[key]


def _tower(job: Job, config: Any) -> Tower:
    model: Any = skeleton(config, job.model.lora, job.model.freeze)
    tower, vision = model.base_model.visual, config.vision_config
    mergers = _weights(tower.merger) + _weights(getattr(tower, "deepstack_merger_list", None))
    embedded = sum(p.numel() for p in tower.patch_embed.parameters() if p.dim() > 1)
    side = int(vision.patch_size * vision.spatial_merge_size)
    width, inner = int(vision.hidden_size), int(vision.intermediate_size)
    channels = int(getattr(vision, "in_channels", 3))
    whole = set(getattr(vision, "fullatt_block_indexes", range(int(vision.depth))))
    window = (int(getattr(vision, "window_size", 0)) // int(vision.patch_size)) ** 2
    return Tower(
        parameters=sum(p.numel() for n, p in tower.named_parameters() if ".lora_" not in n),
        trained=trains_vision(model),
        pixels=job.max_pixels or _limit(job, config),
        side=side,
        longest=job.max_prompt,
        merge=int(vision.spatial_merge_size),
        per_patch=_weights(tower.blocks) + embedded,
        per_token=mergers,
        patch=channels * int(vision.temporal_patch_size) * int(vision.patch_size) ** 2,
        hidden=width,
        kept=14 * width + 4 * inner if _gated(tower) else 10 * width + 2 * inner,
        features=int(vision.out_hidden_size) * (1 + len(getattr(vision, "deepstack_visual_indexes", ()))),
        spans=tuple(0 if layer in whole else window for layer in range(int(vision.depth))),
    )


def _weights(module: Any) -> int:
    """Of matrices: what multiplies."""
    return 0 if module is None else sum(p.numel() for p in module.parameters() if p.dim() > 1)


def _gated(tower: Any) -> bool:
    return any(name.endswith("gate_proj") for name, _ in tower.named_modules())


def _limit(job: Job, config: PretrainedConfig) -> int:
    """Pixels above which the model's own processor scales a picture down."""
    name = job.model.name_or_path
    if name in TINY_MODELS:
        return int(tiny_sight(config).processor.size["longest_edge"])
    if (known := PICTURE_PIXELS.get(config.model_type)) is not None and not Path(name).is_dir():
        return known
    return int(load_sight(name, config, job.model.revision).processor.size["longest_edge"])


_towers: dict[str, Tower] = {}
