"""Runs on the Hugging Face hub: ``hf://NAME/REPO@REVISION`` becomes a run folder of this machine to continue in.

``PushToHub`` writes such a repository: checkpoints with their manifests, ``config.yaml`` and the numbers of the run.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from filelock import FileLock

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.temp_files import remove, temp_path
from gspo_lightning.resume.files import write_text
from gspo_lightning.resume.writer import claim_version

log = logging.getLogger(__name__)

SCHEME = "hf://"
ORIGIN = "hub.json"
"""File of a run folder that names the repository and the commit it was downloaded from."""
RUN_FILES = ("config.yaml", "scalars.jsonl")
"""Files of a run folder that go to the hub beside a checkpoint."""


def is_on_hub(given: str) -> bool:
    """True for an address such as ``hf://NAME/REPO@REVISION``."""
    return given.startswith(SCHEME)


def cached_runs() -> Path:
    """Return the folder for runs of the hub that are only read."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "gspo_lightning"


def downloaded_run(address: str, folder: Path) -> Path:
    """Return the run folder of an address, after a download if this machine does not have that commit yet.

    The same command can be repeated after an accident: it continues in the folder that it made the first time. Ranks
    that start at once get one folder.

    Args:
        address: ``hf://NAME/REPO`` for the branch ``main``, or with ``@`` and a branch, tag or commit.
        folder: parent of the run folders ``version_N``.

    Raises:
        UserError: the hub does not answer or lacks it, or it holds no checkpoint.
    """
    from huggingface_hub import HfApi, snapshot_download

    repository, _, revision = address.removeprefix(SCHEME).partition("@")
    fix = (
        "give hf://NAME/REPO or hf://NAME/REPO@REVISION of a repository of PushToHub; private ones need `hf auth login`"
    )
    try:
        commit = str(HfApi().repo_info(repository, revision=revision or None).sha)
    except Exception as error:  # no valid id, not found, private, offline: the library's own words
        raise UserError("ckpt_path", f"{address!r} cannot be read: {first_line(error)}", fix=fix) from error
    origin = json.dumps({"repository": repository, "commit": commit}) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".hub.lock"):
        versions = sorted(folder.glob("version_*"), key=_number)
        for version in versions:
            if (version / ORIGIN).is_file() and (version / ORIGIN).read_text(encoding="utf-8") == origin:
                return version
        unfinished = temp_path(folder / "hub")
        remove(unfinished)
        patterns = ["checkpoints/*", *RUN_FILES]
        try:
            snapshot_download(repository, revision=commit, allow_patterns=patterns, local_dir=unfinished)
        except Exception as error:
            remove(unfinished)
            raise UserError("ckpt_path", f"{address!r} cannot be read: {first_line(error)}", fix=fix) from error
        remove(unfinished / ".cache")
        if not any((unfinished / "checkpoints").glob("*.ckpt")):
            remove(unfinished)
            raise UserError("ckpt_path", f"{address!r} holds no checkpoint", fix=fix)
        write_text(unfinished / ORIGIN, origin)
        target = folder / f"version_{claim_version(folder, lambda: _next(folder))}"
        os.rename(unfinished, target)
    log.info("%s: commit %s is in %s", address, commit[:12], target)
    return target


def _number(version: Path) -> int:
    number = version.name.removeprefix("version_")
    return int(number) if number.isdigit() else -1


def _next(folder: Path) -> int:
    return 1 + max((_number(version) for version in folder.glob("version_*")), default=-1)
