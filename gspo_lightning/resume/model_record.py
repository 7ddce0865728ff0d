"""Compare the model of a checkpoint with that of a config, before weights are loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume.changes import Change, changes, same_content
from gspo_lightning.resume.folders import is_folder
from gspo_lightning.resume.reading import check_shards

log = logging.getLogger(__name__)

Shape = tuple[int, ...]
_POLICY = "policy."
"""Prefix of the policy's weights; callbacks may keep others beside them."""


@dataclass(frozen=True)
class ModelRecord:
    """Model whose weights a checkpoint holds."""

    checkpoint: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``name_or_path``, ``config_overrides``, ``lora`` as the run's config had them; empty if nothing records them."""
    folder: str | None = None
    """Working directory of the run; None if that is not recorded."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Name -> shape of every weight; with adapters only of these."""
    masks_padding: bool = False
    """True if the run never samples rows of the vocabulary without a token; False for runs older than that."""

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path, settings: Mapping[str, Any] | None) -> ModelRecord:
        """Read the record.

        Args:
            content: content of the checkpoint, of a folder of shards without its weights.
            path: the checkpoint.
            settings: of the model as it was loaded.
        """
        run = content.get("gspo_run") or {}
        recorded = (run.get("config") or {}).get("model")
        if recorded is None:  # adapters were then saved with the result of a cold start as their model
            recorded = settings if settings is not None and settings.get("lora") is None else {}
        masks = bool((settings or {}).get("mask_padding", False))
        return cls(str(path), recorded, run.get("folder"), _shapes(content, path), masks)

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.settings.get("name_or_path", "another model"))

    def check_settings(self, model: Mapping[str, Any], *, allowed: bool) -> None:
        """Refuse a config with another model.

        Args:
            model: ``model`` of the config.
            allowed: True if names and fields may differ (``--allow_changed_config true``); weights must fit anyway.

        Raises:
            UserError: it has another name, other fields, or adapters where the checkpoint has none, or none.
        """
        if not self.settings or allowed:
            return
        folders = None if self.folder is None else (self.folder, os.getcwd())
        differences = changes(_compared(self.settings), _compared(model), folders)
        differences += self._rescaled(model, folders)
        names = [change for change in differences if change.name == "name_or_path"]
        same_name = _last_part(self.settings) == _last_part(model)  # such as a folder of another machine
        if names and same_name and not self._is_beside(model):
            _say(f"{self.checkpoint}: {names[0]}; taken for one model in two places")
            differences = [change for change in differences if change not in names]
        if differences:
            raise self._refused(
                model,
                "; ".join(f"model.{change}" for change in differences),
                "; --allow_changed_config true if these are two names of one model, whose weights fit",
            )

    def _is_beside(self, model: Mapping[str, Any]) -> bool:
        """True if both models are on this machine, and they are two."""
        recorded = os.path.join(self.folder or os.getcwd(), str(self.settings.get("name_or_path")))
        configured = os.path.abspath(str(model.get("name_or_path")))
        return os.path.exists(recorded) and os.path.exists(configured) and not same_content(recorded, configured)

    def _rescaled(self, model: Mapping[str, Any], folders: tuple[str, str] | None) -> list[Change]:
        """Return what adapters of the same sizes are multiplied by, if it differs: no weight shows it."""
        before = self.settings.get("lora") or {}
        now = model.get("lora") or {}
        if "alpha" not in before or not now:
            return []
        names = ("alpha", "start_from")  # adapters to start from bring their own scale
        return changes(
            {f"lora.{name}": before.get(name) for name in names},
            {f"lora.{name}": now.get(name) for name in names},
            folders,
        )

    def check_weights(self, model: Mapping[str, Any], shapes: Mapping[str, Shape], *, adapters: bool) -> None:
        """Refuse weights that do not fit a model, in place of torch.

        Args:
            model: ``name_or_path`` of the config's model.
            shapes: name -> shape of its weights.
            adapters: True if the checkpoint holds adapters only.

        Raises:
            UserError: a weight is missing, superfluous or of another shape.
        """
        held = {name: shape for name, shape in self.shapes.items() if name.startswith(_POLICY)}
        names = held.keys() & shapes.keys() if adapters else held.keys() | shapes.keys()
        for name in sorted(names):
            if held.get(name) != shapes.get(name):
                there = _shape(held.get(name))
                here = _shape(shapes.get(name))
                raise self._refused(model, f"{name} is {there} there and {here} here")

    def _refused(self, model: Mapping[str, Any], why: str, way_out: str = "") -> UserError:
        run = Path(self.checkpoint).parent.parent / "config.yaml"
        config = f"the config of its run ({run})" if run.is_file() else "the config of its run"
        return UserError(
            "ckpt_path",
            f"{self.checkpoint} holds weights of {self.name}, and the model of this config is "
            f"{model.get('name_or_path')}: {why}",
            fix=f"give {config}, or a checkpoint of a run of this config{way_out}",
        )


def _compared(model: Mapping[str, Any]) -> dict[str, Any]:
    adapters = "adapters" if model.get("lora") is not None else None
    overrides = model.get("config_overrides") or None
    return {"name_or_path": model.get("name_or_path"), "config_overrides": overrides, "lora": adapters}


def _last_part(model: Mapping[str, Any]) -> str:
    return Path(str(model.get("name_or_path"))).name


def _shapes(content: Mapping[str, Any], path: Path) -> dict[str, Shape]:
    if not is_folder(path):
        return {name: tuple(weight.shape) for name, weight in content["state_dict"].items()}
    index = check_shards(path, "ckpt_path").state_dict_metadata
    shapes = {}
    for key, entry in index.items():
        part, _, name = key.partition(".")
        size = getattr(entry, "size", None)  # of a tensor
        if size is not None and part in ("state_dict", "model"):
            shapes[name] = tuple(size)
    return shapes


def _shape(shape: Shape | None) -> str:
    return "absent" if shape is None else " x ".join(map(str, shape)) or "a number"


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)
