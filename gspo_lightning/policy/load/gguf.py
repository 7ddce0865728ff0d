"""Read GGUF files, the format of llama.cpp, as folders in transformers format."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from importlib import metadata, util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.extras import install_command
from gspo_lightning.policy.hub import check_path
from gspo_lightning.policy.load.loading_lock import LOADING
from gspo_lightning.resume.cached_model import found_or_made

log = logging.getLogger(__name__)

FIELD = "model.name_or_path"


def loadable_name(name: str) -> str:
    """Return a name that transformers loads: the converted folder of a GGUF model, any other name as it is.

    A GGUF model is a ``.gguf`` file, or a folder that holds exactly one and no ``config.json``. It is dequantised to
    float32 once and kept under ``~/.cache/gspo_lightning/gguf`` (``XDG_CACHE_HOME`` moves it): training needs weights
    that small steps can change.

    Raises:
        UserError: the file does not exist, is one of several, or cannot be converted.
    """
    file = _gguf_file(name)
    if file is None:
        return name
    stat = file.stat()
    return str(_converted(file, stat.st_size, stat.st_mtime_ns))


def _gguf_file(name: str) -> Path | None:
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        check_path(FIELD, name)
        return path.resolve()
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.resolve().glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UserError(FIELD, f"the folder {name!r} holds {len(files)} GGUF files ({names})", fix="name one of them")
    return files[0] if files else None


@functools.cache
def _converted(file: Path, size: int, modified: int) -> Path:
    if util.find_spec("gguf") is None:
        raise UserError(FIELD, f"{file.name} is a GGUF file, which needs the package gguf", fix=install_command("gguf"))
    made_from = [str(file), size, modified, metadata.version("transformers"), metadata.version("gguf")]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "gspo_lightning" / "gguf" / hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]
    found_or_made(target, functools.partial(_convert, file), what=f"{file.name}, dequantised", steps=0)
    return target


def _convert(file: Path, folder: Path) -> None:
    """Write a GGUF file's weights, tokenizer and chat template as a folder in transformers format."""
    log.info("%s: %s is dequantised to float32, because training changes weights by less than its steps", FIELD, file)
    try:
        with LOADING:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            read: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32
            )
    except Exception as error:  # any exception: a truncated file fails deep in its reader
        raise UserError(
            FIELD,
            f"{file.name} cannot be read as GGUF: {first_line(error)}",
            fix="use a file that is whole, of a family whose GGUF files transformers reads (its documentation lists "
            "them), or the original folder or hub id",
        ) from error
    config = read.config
    del config.quantization_config  # the weights are plain now; with this mark they could not be saved
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
