"""Resolve ``--ckpt_path``, and check that a run continues from a checkpoint with the same meaning."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume.changes import changes, forbidden
from gspo_lightning.resume.files import sha256
from gspo_lightning.resume.find import find_checkpoint, newest_of_run, newest_run, read_checkpoint
from gspo_lightning.resume.folders import is_folder
from gspo_lightning.resume.hub import cached_runs, downloaded_run, is_on_hub
from gspo_lightning.resume.last import run_of_config
from gspo_lightning.resume.manifest import Manifest
from gspo_lightning.resume.model_record import ModelRecord
from gspo_lightning.resume.writer import Writer

log = logging.getLogger(__name__)

REWARD_MODEL = "gspo_reward_model"
"""Key under which a checkpoint names its reward model; a policy's checkpoint lacks it."""
Provenance = dict[str, Any]
"""Origin of a checkpoint: ``{"config", "folder", "versions", "data", "datasets", "plugins", "threads"}``."""


@dataclass
class Resumption:
    """Starting point of a run, as given by ``--ckpt_path``."""

    path: str | None = None
    """The checkpoint to load, absolute and without links; None starts from the beginning."""
    run: Path | None = None
    """The run folder to continue in; None makes a new one."""
    first_step: int = 0
    """Scalars from this step on belong to this run, not to the one that was interrupted."""
    before: Provenance = field(default_factory=dict)
    now: Provenance = field(default_factory=dict)
    allowed: bool = False
    """True if the meaning of the run may change."""
    changed: list[str] = field(default_factory=list)
    """Settings, versions and prompts that differ from the checkpoint's, as they were logged."""
    model: ModelRecord | None = None
    """The model of the checkpoint."""

    @classmethod
    def of(
        cls, given: str | None, folder: Path, *, writer: Writer | None, reward_model: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Resolve ``--ckpt_path``.

        Args:
            given: a checkpoint, a run folder (its newest checkpoint), ``hf://NAME/REPO@REVISION``, ``last``, or None.
            folder: folder with the runs of all configs whose first file has one name.
            writer: the writer of a run that continues: its folder is locked before its content is trusted. With
                ``last``, a run that has no checkpoint yet (or no run at all) starts from the beginning, in the same
                folder: the same command can be repeated after an accident at any moment. None only reads, beside the
                run's own writer.
            reward_model: True if the checkpoint must hold a reward model, False for a policy.
            config: config of this command: ``last`` is the newest run of it; None takes the newest run of all.

        Raises:
            UserError: the checkpoint is missing, damaged, unreadable or of the other kind, another process writes
                the run, or ``last`` finds runs of other configs only.
        """
        if not given:
            return cls()
        if is_on_hub(given):
            given = str(downloaded_run(given, cached_runs() if writer is None else folder))
        if given != "last":
            return cls._given(Path(given), writer, reward_model)
        run = newest_run(folder) if config is None else run_of_config(folder, config, only_reads=writer is None)
        if writer is not None and run is not None:
            writer.enter(run)
        resumption = None if run is None else cls._last(run, reward_model)
        if resumption is not None:
            return resumption
        if writer is None:
            raise UserError(
                "ckpt_path", f"'last', but no run in {folder} has a checkpoint", fix="give a path, or leave it out"
            )
        _say(f"no checkpoint in {run or folder} yet: starting from the beginning")
        return cls(None, run)

    @classmethod
    def _given(cls, path: Path, writer: Writer | None, reward_model: bool) -> Self:
        """Load a checkpoint, or the newest one of a run folder, after locking its run for a writer."""
        is_run = (path / "checkpoints").is_dir()
        run = path if is_run else run_of(path)
        if writer is not None and path.exists() and run is not None:
            writer.enter(run)
        newest = cls._last(path, reward_model, field="--ckpt_path") if is_run else None
        return cls._at(path, reward_model) if newest is None else newest

    @classmethod
    def _at(cls, path: Path, reward_model: bool) -> Self:
        """Load the checkpoint at a path, which may be the link to the newest; retry if the link moves."""
        while True:
            checkpoint = path.resolve()
            try:
                return cls._from(checkpoint, reward_model)
            except UserError:
                if path.resolve() == checkpoint:
                    raise

    @classmethod
    def _last(cls, run: Path, reward_model: bool, field: str = "") -> Self | None:
        """Load the newest intact checkpoint; retry if the running training removes old ones meanwhile.

        Args:
            run: the run folder.
            reward_model: see :meth:`of`.
            field: name in messages of an argument that gave the folder itself; with ``last`` it is empty, and a run
                without any checkpoint gives None.
        """
        while True:
            before = _names(run)
            try:
                newest = newest_of_run(run, field) if field else find_checkpoint(run, ranks=_elastic_ranks())
                resumption = None if newest is None else cls._from(newest.checkpoint, reward_model)
            except UserError:
                if _names(run) == before:
                    raise
                continue
            if newest is not None:
                _say(str(newest))
            return resumption

    @classmethod
    def _from(cls, path: Path, reward_model: bool) -> Self:
        path = path.resolve()  # ranks may be given the same file by different words
        content = read_checkpoint(path)
        if (REWARD_MODEL in content) != reward_model:
            held, command = ("policy", "gspo fit-reward") if reward_model else ("reward model", "gspo fit")
            raise UserError("ckpt_path", f"{path} holds a {held}", fix=f"give a checkpoint of {command}")
        settings = content[REWARD_MODEL]["model"] if reward_model else content.get("gspo_lightning", {}).get("model")
        before = dict(content.get("gspo_run", {}))
        record = ModelRecord.of(content, path, settings)
        return cls(str(path), run_of(path), int(content["global_step"]) + 1, before, model=record)

    @property
    def content_id(self) -> str | None:
        """Checksum of the checkpoint: equal on machines that reach its folder by different paths; None without one.

        A checkpoint without a manifest is known by its path.
        """
        if self.path is None:
            return None
        try:
            files = sorted(Manifest.read(Path(self.path)).files.items())
        except (OSError, ValueError):
            return self.path
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()

    def check_model(self, config: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another model than the config's.

        Raises:
            UserError: it is of another one, without permission.
        """
        if self.model is not None:
            self.model.check_settings(config["model"], allowed=bool(config.get("allow_changed_config")))

    def check_layout(self, *, sharded: bool) -> None:
        """Refuse to train on from shards without a strategy that shards: the optimizer's state is cut like weights.

        Args:
            sharded: True if the strategy reads folders of shards.

        Raises:
            UserError: the checkpoint is a folder of shards, and the strategy reads files only.
        """
        if self.path is not None and not sharded and is_folder(Path(self.path)):
            raise UserError(
                "trainer.strategy",
                f"reads checkpoints that are one file, and {self.path} is a folder of shards",
                fix="go on with the strategy of its run (such as --config fsdp2, on any number of devices); "
                "validate, test, predict, evaluate and export read it with any strategy",
            )

    def check_config(self, config: Mapping[str, Any], versions: Mapping[str, str], plugins: Iterable[str]) -> None:
        """Store this run's config, log its differences from the checkpoint's, and refuse a changed meaning.

        Raises:
            UserError: a setting that decides what is learnt has changed, without permission.
        """
        settings = plain(config)
        self.allowed = bool(settings.get("allow_changed_config"))
        self.now = {
            "config": settings,
            "folder": os.getcwd(),  # in which the config's relative paths were found
            "versions": dict(versions),
            "plugins": plugin_fingerprints(plugins),
        }
        if not self.before:
            return
        folder = self.before.get("folder")
        folders = None if folder is None else (folder, os.getcwd())
        differences = changes(self.before.get("config", {}), settings, folders)
        differences += changes({"plugins": self.before.get("plugins", {})}, {"plugins": self.now["plugins"]})
        serious = forbidden(differences)
        if serious and not self.allowed:
            raise _refused(self.path, [str(change) for change in serious])
        if any(change.name == "model.optimizer.class_path" for change in differences):
            raise UserError(
                "model.optimizer",
                f"is another class than in {self.path}, whose state it cannot take over",
                fix="keep the class, or export the checkpoint and start a new run from it",
            )
        for change in differences:
            if not change.bookkeeping:
                self._note(str(change))
        for change in changes(self.before.get("versions", {}), dict(versions)):
            self._note(f"version of {change} (the last digits of results may differ)")

    def check_prompts(
        self,
        prompts: Mapping[str, Mapping[str, Any]],
        commits: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> Provenance:
        """Check the prompts likewise; return what this run's checkpoints will carry.

        Args:
            prompts: ``{"train": Fingerprint.value(), "val": ...}``; under the name of a setting, demonstrations or
                adapters that are needed to make the start of the run again.
            commits: hub id -> commit of the data sets that were read.
            threads: of a rank that computes on a CPU, whose sums they cut; None on another device.

        Raises:
            UserError: the training prompts or what the run starts from have changed, without permission.
        """
        self.now["data"] = {name: dict(value) for name, value in prompts.items()}
        self.now["datasets"] = dict(commits or {})
        self.now["threads"] = threads
        if threads is not None and self.before.get("threads") not in (None, threads):
            self._note(
                f"threads of a rank: {self.before['threads']} -> {threads} (the last digits of results may differ)"
            )
        earlier = self.before.get("data", {})
        for name, fingerprint in self.now["data"].items():
            if name not in earlier or earlier[name] == fingerprint:
                continue
            is_setting = "." in name  # demonstrations or adapters that the run starts from
            field = name if is_setting else f"data.{name}"
            count_before = earlier[name].get("prompts")
            count_now = fingerprint.get("prompts")
            if count_before is None or count_now is None:
                difference = f"{field}: its content differs"
            else:
                difference = f"{field}: {count_before} prompts -> {count_now} (their content differs)"
            if (name == "train" or is_setting) and not self.allowed:
                raise _refused(self.path, [difference])
            self._note(difference)
        return self.now

    def _note(self, change: str) -> None:
        self.changed.append(change)
        _say(f"changed since the checkpoint: {change}")

    @property
    def optimizer_changed(self) -> bool:
        """True if the optimizer's settings differ from those that the checkpoint will restore."""
        sections = [(side.get("config") or {}).get("model", {}).get("optimizer") for side in (self.before, self.now)]
        return bool(self.before) and sections[0] != sections[1]


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as plain values, as checkpoints record it."""
    values: dict[str, Any] = json.loads(json.dumps(dict(config), default=str))
    return values


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder of a checkpoint; None if it is in none."""
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else None


def _elastic_ranks() -> int | None:
    """Return the number of ranks that torchrun has started, which may change from restart to restart; else None."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def _names(run: Path) -> list[str]:
    folder = run / "checkpoints"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def _refused(path: str | None, differences: list[str]) -> UserError:
    text = "; ".join(differences[:4])
    if len(differences) > 4:
        text += f"; and {len(differences) - 4} more"
    return UserError(
        "ckpt_path",
        f"{path} was written by a run that meant something else: {text}",
        fix="restore these settings, start a new run, or say --allow_changed_config true if you mean it",
    )


class Fingerprint:
    """Number and SHA-256 of prompts (:class:`gspo_lightning.core.types.Prompt`) with columns, added one by one."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._count = 0
        self._json = json.JSONEncoder(sort_keys=True, default=str)

    def add(self, prompt: Any) -> None:
        """Add the next prompt."""
        fields = [prompt.id, prompt.text, list(prompt.token_ids), dict(prompt.columns)]
        if prompt.media:
            fields.append([[picture.sha256, *picture.shape] for picture in prompt.media])
        self._digest.update(self._json.encode(fields).encode())
        self._count += 1

    def value(self) -> dict[str, Any]:
        """Return number and digest of all prompts added so far."""
        return {"prompts": self._count, "sha256": self._digest.hexdigest()}


def plugin_fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each plug-in file, by file name (a folder stands for its files)."""
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.py")) if path.is_dir() else [path]
    return {file.name: sha256(file) for file in files if file.is_file()}


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)
