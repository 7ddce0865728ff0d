"""Models of a checkpoint: weights from a file or a folder of shards, adapters merged; reward models exported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.host_memory import return_freed_memory

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from gspo_lightning.policy.load.model_settings import ModelSettings
    from gspo_lightning.policy.policy import Policy

PREFIX = "policy.model."
"""Of the weights of a policy in a checkpoint."""
REWARD_PREFIX = "model."
"""Of the weights of a reward model in a checkpoint."""


def checkpoint_policy(checkpoint: Path, *, trust_remote_code: bool = False) -> Policy:
    """Load the policy of a checkpoint, with adapters merged into its weights.

    Args:
        checkpoint: written by ``gspo fit``; it records its base model.
        trust_remote_code: run Python code that the model's repository ships.

    Raises:
        UserError: the checkpoint does not exist or cannot be read.
    """
    from gspo_lightning.resume import read_checkpoint

    return policy_of(read_checkpoint(checkpoint, "checkpoint"), checkpoint, trust_remote_code=trust_remote_code)


def policy_of(
    content: dict[str, Any], checkpoint: Path, *, trust_remote_code: bool = False, merge: bool = True,
    on_disk: Path | None = None,
) -> Policy:  # fmt: skip
    """Load the policy from the content of a checkpoint, with adapters merged into its weights unless told otherwise.

    Args:
        content: content of the checkpoint; of a folder of shards, without its weights.
        checkpoint: its path.
        trust_remote_code: run Python code that the model's repository ships.
        merge: merge adapters into the weights.
        on_disk: folder for files that hold the weights of a folder of shards, which are then never all in memory; the
            policy can be saved, not called. Not with adapters.

    Raises:
        UserError: the checkpoint cannot be read, or belongs to another base model.
    """
    import torch

    from gspo_lightning.policy.adapters.lora import check_base, check_names, frozen_norm, merge_adapters
    from gspo_lightning.policy.load.loading import load_policy
    from gspo_lightning.policy.load.model_settings import ModelSettings
    from gspo_lightning.resume.resumption import REWARD_MODEL

    if REWARD_MODEL in content:
        raise UserError("checkpoint", f"{checkpoint} holds a reward model", fix="give a checkpoint of gspo fit")
    if "gspo_lightning" not in content:
        raise UserError("checkpoint", f"{checkpoint} was not written by gspo fit")
    settings = ModelSettings.of_file(content["gspo_lightning"]["model"], trust_remote_code)
    policy = load_policy(settings, weights=on_disk is None)
    if settings.lora is not None:
        check_base(content, frozen_norm(policy))
    state = content.get("state_dict") or sharded_weights(checkpoint, on_disk=on_disk)
    weights = {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}
    if settings.lora is not None:
        check_names(weights, policy.model.state_dict())
    else:
        dtypes = [weight.dtype for weight in weights.values() if weight.is_floating_point()]
        policy.model.to(dtypes[0] if dtypes else torch.float32)
    policy.model.load_state_dict(weights, strict=settings.lora is None, assign=on_disk is not None)
    policy.model.tie_weights()
    if merge:
        merge_adapters(policy.model)
    return policy


def reward_model_in(
    content: dict[str, Any], checkpoint: Path, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, ModelSettings]:
    """Load the reward model of a checkpoint, with adapters merged into its weights, and its settings.

    Args:
        content: content of the checkpoint.
        checkpoint: written by ``gspo fit-reward``.
        trust_remote_code: run Python code that the model's repository ships.

    Raises:
        UserError: the model cannot be loaded, or differs from the one trained.
    """
    from gspo_lightning.policy.adapters.lora import BASE_NORM
    from gspo_lightning.policy.load.model_settings import ModelSettings
    from gspo_lightning.resume.resumption import REWARD_MODEL
    from gspo_lightning.training.reward_models.weights import reward_model_of

    settings = ModelSettings.of_file(content[REWARD_MODEL]["model"], trust_remote_code)
    state = content["state_dict"] if "state_dict" in content else sharded_weights(checkpoint, REWARD_PREFIX)
    return reward_model_of(settings, state, content.get(BASE_NORM)), settings


def sharded_weights(checkpoint: Path, prefix: str = PREFIX, on_disk: Path | None = None) -> dict[str, Any]:
    """Load ``{"policy.model.<name>": tensor}`` from a folder of shards; see :func:`unsharded`."""
    from gspo_lightning.resume.unsharded import unsharded

    return unsharded(checkpoint, "checkpoint", prefix, on_disk)


def weights_of_files(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    """Return a model's weights under the names and in the shapes of its files, converted layer by layer.

    transformers converts all at once: the experts of a mixture would be in memory twice.

    Args:
        model: a model whose weights are mapped.
        folder: folder for more mapped files, of what the conversion copies.
    """
    import torch
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    from gspo_lightning.resume.unsharded import mapped

    state = remove_tied_weights_from_state_dict(model.state_dict(), model)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        layer = re.match(r".*?\.\d+\.", name)
        layers.setdefault(name if layer is None else layer.group(), {})[name] = tensor
    weights: dict[str, Tensor] = {}
    for layer_weights in layers.values():
        mapped_addresses = {tensor.data_ptr() for tensor in layer_weights.values()}
        for name, tensor in revert_weight_conversion(model, layer_weights).items():
            if tensor.data_ptr() not in mapped_addresses or not tensor.is_contiguous():  # a copy in memory
                tensor = mapped(folder, tensor.shape, tensor.dtype).copy_(tensor)
            weights[name] = tensor
        return_freed_memory()
    meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    at_once = {name: tensor.shape for name, tensor in revert_weight_conversion(model, meta).items()}
    assert at_once == {name: tensor.shape for name, tensor in weights.items()}, "converted across layers"
    return weights


def export_reward_model(
    content: dict[str, Any], checkpoint: Path, output: Path, sources: Sequence[Path], *, trust_remote_code: bool = False
) -> None:
    """Write the folder that ``gspo fit-reward`` writes at the end of a run, for any of its checkpoints.

    The card has the results on held-out pairs and the figure of the run if they belong to this checkpoint.

    Args:
        content: content of the checkpoint.
        checkpoint: written by ``gspo fit-reward``.
        output: folder to write; an existing export is replaced.
        sources: files and folders that must not be replaced.
        trust_remote_code: run Python code that the model's repository ships.

    Raises:
        UserError: the model cannot be loaded, or ``output`` is not an export.
    """
    from gspo_lightning.policy.load.loading import load_tokenizer
    from gspo_lightning.resume.resumption import REWARD_MODEL, run_of
    from gspo_lightning.training.reward_models.export import export
    from gspo_lightning.training.reward_models.record import PICTURE, read_results

    model, settings = reward_model_in(content, checkpoint, trust_remote_code=trust_remote_code)
    reads = content[REWARD_MODEL]["text"]
    provenance = content.get("gspo_run") or {}
    updates = int(content["global_step"])
    folder = run_of(checkpoint)
    results = None if folder is None else read_results(folder, updates)
    card = {
        "config": provenance.get("config") or {"model": {"name_or_path": settings.name_or_path}, "data": {}},
        "results": results,
        "updates": updates,
        "data": provenance.get("data", {}),
        "versions": provenance.get("versions", {}),
        "reads": reads,
        "picture": None if folder is None or results is None else folder / PICTURE,
    }
    export(output, model, load_tokenizer(settings), reads, card, [*sources, Path(settings.name_or_path)])
