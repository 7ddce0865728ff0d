"""Check that the Hugging Face hub answers, once and with a short timeout, before libraries retry at length.

transformers and datasets repeat an unanswered request for 20 to 50 seconds, for each file.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Literal

from gspo_lightning.core.errors import UserError, first_line

TRUST = "then set model.trust_remote_code: true (gspo export and replay: --trust_remote_code)"
"""Instruction to allow a model's code to run; no other file holds it."""

SECONDS = 3.0


def check_path(field: str, name: str) -> None:
    """Refuse the path of a model that does not exist; any other name may be a hub id or a built-in model.

    Raises:
        UserError: no such folder, or no such ``.gguf`` file.
    """
    if name.lower().endswith(".gguf"):
        if not os.path.isfile(name):
            raise UserError(field, f"the file {name!r} does not exist")
    elif (name.startswith(("/", "./", "../", "~")) or name.count("/") > 1) and not os.path.isdir(name):
        raise UserError(field, f"the folder {name!r} does not exist")


@functools.cache
def check_reachable(field: str, name: str, kind: Literal["model", "dataset"]) -> None:
    """Refuse a hub id if the hub does not answer. Loaders report what the hub says about the id.

    Sends no request if the cache has the id, or in offline mode.

    Raises:
        UserError: no answer.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE or _cached(name, kind):
        return
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return
    except Exception as error:
        where = "a folder" if kind == "model" else "a file of records"
        raise UserError(
            field,
            f"{name!r} is not here, and {constants.ENDPOINT} gives no answer ({first_line(error)})",
            fix=f"give {where}, or check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what is cached",
        ) from error


def _cached(name: str, kind: str) -> bool:
    from huggingface_hub import constants

    hub = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
    sets = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")
    return hub.is_dir() or (kind == "dataset" and (sets / name.replace("/", "___").lower()).is_dir())


def check_no_kernel(field: str, written: str | None, trusted: bool) -> None:
    """Refuse a file that names a kernel of the hub, which is code that transformers would download and run.

    Args:
        field: setting named in the message.
        written: implementation of attention or experts in a model's config, a checkpoint or a dump.
        trusted: True if a model's code may be run.

    Raises:
        UserError: a kernel is named, and code is not trusted.
    """
    if written and "/" in written and not trusted:
        raise UserError(
            field,
            f"its files name the kernel {written!r} of the hub, whose code would be run",
            fix=f"read that code; {TRUST}",
        )
