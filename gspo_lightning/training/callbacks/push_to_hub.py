"""Upload a run to the Hugging Face hub while it trains: checkpoints to resume from, and the model."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.temp_files import remove, temp_path
from gspo_lightning.resume import manifest_path
from gspo_lightning.resume.hub import RUN_FILES
from gspo_lightning.training.callbacks.background import Background
from gspo_lightning.training.callbacks.checkpoints import last_checkpoint
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger(__name__)

UPLOADS = "hub.jsonl"
"""File of a run folder with the step and the commit of every upload."""
FIELD = "trainer.callbacks.PushToHub"
LAST_S = 1800.0
"""Seconds to wait for the upload at the end of a run."""


class PushToHub(Callback):
    """Uploads the newest checkpoint and its model to a repository of the hub, in the background.

    A commit holds the model in transformers format, exported in a process of its own, the checkpoint with its manifest,
    ``config.yaml`` and ``scalars.jsonl``; older checkpoints are in older commits. ``--ckpt_path hf://NAME/REPO@COMMIT``
    resumes from it. An upload that fails is a warning, and the next one makes up for it. If uploads take longer than
    ``every_n_updates``, those in between are left out.

    Args:
        repository: ``NAME/REPO``. One that is not there is made, private; a public one is refused unless ``private``
            is false. The token comes from ``hf auth login`` or HF_TOKEN.
        every_n_updates: optimizer steps between two uploads, >= 1; the iteration that completes them ends with a
            checkpoint. The last checkpoint of a run is always uploaded.
        private: make a private repository, and upload to no public one.
        model: upload the model in transformers format as well.
    """

    def __init__(self, repository: str, every_n_updates: int = 100, private: bool = True, model: bool = True) -> None:
        if every_n_updates < 1:
            raise UserError(f"{FIELD}.every_n_updates", f"is {every_n_updates}; it must be at least 1")
        self.repository = repository
        self.every_n_updates = every_n_updates
        self.private = private
        self.model = model
        self._background = Background()
        self._run = Path()
        self._trust = False
        self._last = 0
        """Step from which the next upload is counted."""
        self._taken = -1
        """Step of the newest checkpoint that was taken for an upload."""
        self._ending = False
        self._stopped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the name of the repository, and follow the checkpoints of the run.

        Raises:
            UserError: the name is not valid, or the run keeps no checkpoints.
        """
        self._run = run_folder(trainer)
        if stage != "fit":
            return
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        try:
            validate_repo_id(self.repository)
        except HFValidationError as error:
            raise UserError(f"{FIELD}.repository", str(error), fix="give NAME/REPO") from error
        checkpoints = last_checkpoint(trainer)
        if checkpoints is None:
            raise UserError(FIELD, "uploads checkpoints, but this run keeps none", fix="leave enable_checkpointing on")
        self._trust = gspo_module(pl_module).settings.trust_remote_code
        checkpoints.followers.append(self)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the checkpoint that a resumed run begins with."""
        self._last = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the checkpoint that follows, whatever its step."""
        self._ending = True

    def wants(self, step: int) -> bool:
        """True every ``every_n_updates`` steps."""
        return step // self.every_n_updates > self._last // self.every_n_updates

    def saved(self, path: Path, step: int) -> None:
        """Upload a checkpoint if it is time."""
        if not self._stopped and (self._ending or self.wants(step)):
            self._take(path, step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload what the run ended with, if it was saved before the end."""
        self._ending = True
        path = self._run / "checkpoints" / f"step-{trainer.global_step:08d}.ckpt"
        if trainer.is_global_zero and path.exists() and self._taken != trainer.global_step:
            self._take(path, trainer.global_step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wait for the last upload, when everything else is done."""
        if not self._background.wait(LAST_S):
            log.warning("hub: the upload to %s has not ended after %d s; it is given up", self.repository, LAST_S)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Begin no upload any more, and wait for none: a checkpoint must be written before the process is killed."""
        self._stopped = True
        self._background.drop()

    def _take(self, path: Path, step: int) -> None:
        """Keep what an upload needs, whatever happens to the checkpoint meanwhile, and start it."""
        self._last = self._taken = step
        staged = temp_path(self._run / f"upload-{step}")
        try:
            stage(path, staged)
        except OSError as error:
            log.warning("hub: update %d is not uploaded: %s", step, error)
            return
        self._background.submit(lambda: self._upload(staged, path.name, step), lambda: remove(staged))

    def _upload(self, staged: Path, name: str, step: int) -> None:
        """Upload a staged run folder; anything that goes wrong is a warning."""
        try:
            if self.model:
                export_beside(staged, name, trust_remote_code=self._trust)
            commit = self._push(staged, step)
            with open(self._run / UPLOADS, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "repository": self.repository, "commit": commit}) + "\n")
            log.info("hub: update %d is hf://%s@%s", step, self.repository, commit)
        except Exception as error:  # training goes on, whatever the hub, the network or the disk do
            log.warning(
                "hub: update %d was not uploaded to %s: %s; training goes on, and the next upload has all of it",
                step, self.repository, first_line(error),
            )  # fmt: skip
        finally:
            remove(staged)

    def _push(self, staged: Path, step: int) -> str:
        """Upload a folder as one commit; return its id.

        Raises:
            UserError: the repository is public.
        """
        from huggingface_hub import HfApi

        hub: HfApi = HfApi()
        hub.create_repo(self.repository, private=self.private, exist_ok=True)
        if self.private and not hub.repo_info(self.repository).private:
            raise UserError(self.repository, "is public", fix="make it private, or set PushToHub.private: false")
        commit: Any = hub.upload_folder(
            repo_id=self.repository,
            folder_path=staged,
            delete_patterns=["checkpoints/*"],
            commit_message=f"Update {step} of {self._run.parent.name}/{self._run.name}",
        )
        return str(commit.oid)


def stage(checkpoint: Path, folder: Path) -> None:
    """Make a folder with a checkpoint, its manifest and the files of its run; large files are linked, not copied.

    Args:
        checkpoint: a file or a folder of shards in ``checkpoints/`` of a run folder.
        folder: is made.

    Raises:
        OSError: it cannot be written.
    """
    remove(folder)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    if checkpoint.is_dir():
        shutil.copytree(checkpoint, checkpoints / checkpoint.name, copy_function=_link)
    else:
        _link(checkpoint, checkpoints / checkpoint.name)
    shutil.copy(manifest_path(checkpoint), checkpoints)
    run = checkpoint.parents[1]
    for name in RUN_FILES:
        if (run / name).is_file():
            shutil.copy(run / name, folder)


def _link(source: Any, target: Any) -> None:
    """Link a file; copy it on a file system without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def export_beside(staged: Path, name: str, *, trust_remote_code: bool) -> None:
    """Put the model of a staged checkpoint in transformers format beside it, by a process of its own on the CPU.

    Loading a model changes settings of a whole process, such as torch's default dtype.

    Raises:
        RuntimeError: the export fails, with its message.
    """
    output = staged / "model"
    command = [sys.executable, "-m", "gspo_lightning", "export", str(staged / "checkpoints" / name), str(output)]
    if trust_remote_code:
        command.append("--trust_remote_code")
    process = subprocess.run(
        command,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},  # training has the GPU
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"the export failed: {' '.join(process.stdout.split())[-300:]}")
    for file in output.iterdir():
        file.rename(staged / file.name)
    output.rmdir()
