"""Whether the hub answers at all, asked once and without patience before the libraries ask with a lot of it.

transformers and datasets repeat a request that got no answer for 20 to 50 seconds, for each file.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Literal

from gspo_lightning.errors import UserError, first_line

TRUST = "then set model.trust_remote_code: true (gspo export and replay: --trust_remote_code)"
"""Where it is said that a model's code may be run: there, and in no other file."""

__all__ = ["TRUST", "check_no_kernel", "check_reachable"]

SECONDS = 3.0


@functools.cache
def check_reachable(field: str, name: str, kind: Literal["model", "dataset"]) -> None:
    """Refuse an id of the hub that nobody can be asked about. What the hub says about it is for the loaders to tell.

    Nothing is asked where the cache knows the id, or in offline mode.

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
    """No file names a kernel of the hub, which is code, too: transformers would download and run it.

    Args:
        field: what a message names.
        written: an implementation of attention or of experts, as a model's config, a checkpoint or a dump has it.
        trusted: whether a model's code may be run.

    Raises:
        UserError: it does, and may not.
    """
    if written and "/" in written and not trusted:
        raise UserError(
            field,
            f"its files name the kernel {written!r} of the hub, whose code would be run",
            fix=f"read that code; {TRUST}",
        )
