"""Which models are one model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume.model_record import ModelRecord


def record(name: str, folder: Path | None = None, **more: object) -> ModelRecord:
    settings = {"name_or_path": name, "config_overrides": None, "lora": None, **more}
    return ModelRecord("run/checkpoints/a.ckpt", settings, None if folder is None else str(folder))


def test_a_folder_is_one_model_by_whatever_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "link").symlink_to("models/mine")
    monkeypatch.chdir(tmp_path)
    record("mine/../mine", tmp_path / "models").check_settings({"name_or_path": "link"}, allowed=False)
    with pytest.raises(UserError, match=r"model.name_or_path: other/../other -> link"):
        record("other/../other", tmp_path / "models").check_settings({"name_or_path": "link"}, allowed=False)


@pytest.mark.parametrize("name", ["/other/machine/Qwen3-4B", "Qwen/Qwen3-4B"])
def test_a_model_that_was_moved_is_still_that_model(name: str) -> None:
    record(name).check_settings({"name_or_path": "/here/Qwen3-4B", "config_overrides": {}}, allowed=False)


@pytest.mark.parametrize("names", [("model", "model"), ("old/model", "new/model"), ("./model", "../there/model")])
def test_two_models_of_one_name_are_two(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects with a folder ``model`` each; a copy of a project has the same model."""
    there, here = tmp_path / "here", tmp_path / "there"
    folders = [(there / names[0]).resolve(), (here / names[1]).resolve()]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("weights")
    monkeypatch.chdir(here)
    held, model = record(names[0], there), {"name_or_path": names[1], "config_overrides": {}}
    held.check_settings(model, allowed=False)
    (folders[1] / "model.safetensors").write_text("Weights")
    with pytest.raises(UserError, match=r"model\.name_or_path: \S+model -> \S+model"):
        held.check_settings(model, allowed=False)
    held.check_settings(model, allowed=True)


def test_another_name_may_be_allowed_but_no_other_weights() -> None:
    model = {"name_or_path": "Qwen3-4B"}
    held = ModelRecord("a.ckpt", {"name_or_path": "Qwen3-4B-Base"}, None, {"policy.model.w": (2, 3), "other.w": (1,)})
    with pytest.raises(UserError, match="holds weights of Qwen3-4B-Base, and the model of this config is Qwen3-4B: "):
        held.check_settings(model, allowed=False)
    held.check_settings(model, allowed=True)
    held.check_weights(model, {"policy.model.w": (2, 3)}, adapters=False)
    with pytest.raises(UserError, match=r"policy.model.w is 2 x 3 there and 3 x 2 here"):
        held.check_weights(model, {"policy.model.w": (3, 2)}, adapters=False)
    with pytest.raises(UserError, match=r"policy.model.b is absent there and 3 here"):
        held.check_weights(model, {"policy.model.w": (2, 3), "policy.model.b": (3,)}, adapters=False)
    held.check_weights(model, {"policy.model.w": (2, 3), "policy.model.b": (3,)}, adapters=True)


def test_a_checkpoint_without_a_record_is_not_judged_by_its_name() -> None:
    content = {"global_step": 1, "state_dict": {}, "gspo_lightning": {"model": {}}}
    adapters = {
        "name_or_path": "runs/cold_start/0a1b",
        "lora": {"r": 4},
    }  # a cold start's result, not the config's model
    ModelRecord.of(content, Path("a.ckpt"), adapters).check_settings({"name_or_path": "tiny-qwen3"}, allowed=False)
    whole = ModelRecord.of(content, Path("a.ckpt"), {"name_or_path": "tiny-qwen3", "lora": None})
    with pytest.raises(UserError, match="tiny-qwen3 -> other"):
        whole.check_settings({"name_or_path": "other"}, allowed=False)
