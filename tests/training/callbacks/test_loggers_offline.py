"""Trackio and Weights & Biases themselves, offline: numbers, and checkpoints as artifacts. Skipped without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger

from tests.runs import runs

LEARNS = [*runs.UNTAUGHT, "--model.optimizer.init_args.lr=0.003"]
BEST = {"class_path": "LastCheckpoint", "init_args": {"keep_last": 1, "keep_best": 1}}


def logger(class_path: str, **arguments: Any) -> list[str]:
    callbacks = f"--trainer.callbacks=[{json.dumps(BEST)}]"
    return [callbacks, f"--trainer.logger={json.dumps({'class_path': class_path, 'init_args': arguments})}"]


class Noted(CSVLogger):
    """Lightning's logger that notes the checkpoints it is told of."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        found = checkpoint_callback
        paths = [Path(path).name for path in (found.last_model_path, found.best_model_path)]
        told.append((*paths, found.current_score, found.best_model_score))


told: list[tuple[Any, ...]] = []


def test_a_logger_is_told_of_every_checkpoint_as_lightning_does(tmp_path: Path) -> None:
    told.clear()
    run = runs.fit(
        tmp_path, *LEARNS, *logger("tests.training.callbacks.test_loggers_offline.Noted", save_dir=str(tmp_path))
    )
    assert [names[0] for names in told] == ["step-00000002.ckpt", "step-00000004.ckpt"]
    rewards = dict(runs.scalars(run)["reward/mean"])
    assert [score for _, _, score, _ in told] == pytest.approx([rewards[2], rewards[4]])
    best = max((2, 4), key=lambda step: rewards[step])
    assert told[-1][1] == f"step-{best:08d}.ckpt"
    assert told[-1][3] == pytest.approx(rewards[best])


def test_weights_and_biases_keep_checkpoints_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, the last one, none; in one test, because wandb cannot be begun again once its threads have ended."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "CACHE_DIR": "cache", "DATA_DIR": "data"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / value) if "DIR" in name else value)
    logged: list[tuple[str, list[str], bytes]] = []
    own = wandb.sdk.wandb_run.Run.log_artifact

    def noted(self: Any, artifact: Any, *more: Any, aliases: list[str] | None = None, **others: Any) -> Any:
        if artifact.type == "model":  # tables of answers are artifacts, too
            (entry,) = artifact.manifest.entries.values()
            logged.append((artifact.name, list(aliases or []), Path(entry.local_path).read_bytes()))
        return own(self, artifact, *more, aliases=aliases, **others)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log_artifact", noted)
    kept: list[tuple[str | bool, int]] = []
    try:
        for log_model in ("all", True, False):
            logged.clear()
            root = tmp_path / str(log_model)
            options = {"project": "gspo", "save_dir": str(root), "log_model": log_model}  # refused with offline: true
            root.mkdir()
            run = runs.fit(root, *LEARNS, *logger("lightning.pytorch.loggers.WandbLogger", **options))
            wandb.finish()
            kept.append((log_model, len(logged)))
            if logged:
                assert logged[-1][0].startswith("model-")
                assert logged[-1][1][0] == "latest"
                assert logged[-1][2] == (run / "checkpoints" / "step-00000004.ckpt").read_bytes()
            (written,) = root.glob("wandb/offline-run-*/run-*.wandb")
            assert written.stat().st_size > 10_000
    finally:
        wandb.teardown()
    assert kept == [("all", 2), (True, 1), (False, 0)]


def test_trackio_keeps_numbers_answers_and_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    name = f"run-{tmp_path.name}"
    made = logger("gspo_lightning.training.callbacks.TrackioLogger", project="gspo-test", name=name, log_model="all")
    run = runs.fit(tmp_path, *LEARNS, *made, "--trainer.max_epochs=1")
    resumed = runs.fit(tmp_path, *LEARNS, *made, "--ckpt_path=last")
    assert resumed == run
    rows = trackio.SQLiteStorage.get_logs("gspo-test", name)
    rewards = {row["step"]: row["reward/mean"] for row in rows if "reward/mean" in row}
    assert rewards == {step: pytest.approx(value) for step, value in runs.scalars(run)["reward/mean"]}
    kinds = {value["_type"] for row in rows for value in row.values() if isinstance(value, dict) and "_type" in value}
    assert {"trackio.histogram", "trackio.markdown"} <= kinds
    (record,) = [r for r in trackio.SQLiteStorage.list_artifacts("gspo-test") if r["name"] == f"model-{name}"]
    assert record["type"] == "model"
    kept = [file.read_bytes() for file in (tmp_path / "trackio").rglob("*") if file.is_file()]
    assert (run / "checkpoints" / "step-00000004.ckpt").read_bytes() in kept
