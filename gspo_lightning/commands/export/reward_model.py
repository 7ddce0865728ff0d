"""Export of a checkpoint's reward model to a folder in transformers format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.commands.export.weights import reward_model_in
from gspo_lightning.policy.loading import load_tokenizer
from gspo_lightning.resume.resumption import REWARD_MODEL, run_of
from gspo_lightning.reward_models.export import export
from gspo_lightning.reward_models.record import PICTURE, read_results

__all__ = ["export_reward_model"]


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
    model, settings = reward_model_in(content, checkpoint, trust_remote_code=trust_remote_code)
    reads, run = content[REWARD_MODEL]["text"], content.get("gspo_run") or {}
    updates, folder = int(content["global_step"]), run_of(checkpoint)
    results = None if folder is None else read_results(folder, updates)
    of_card = {
        "config": run.get("config") or {"model": {"name_or_path": settings.name_or_path}, "data": {}},
        "results": results, "updates": updates, "data": run.get("data", {}), "versions": run.get("versions", {}),
        "reads": reads, "picture": None if folder is None or results is None else folder / PICTURE,
    }  # fmt: skip
    export(output, model, load_tokenizer(settings), reads, of_card, [*sources, Path(settings.name_or_path)])
