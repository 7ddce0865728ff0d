"""Read GGUF files, the format of llama.cpp, as folders in transformers format.

transformers reads such files, too, and says nothing of what it drops: scaled positions, tokens before a text, ways to
split it. Here every key and every tensor of a file is used, or the file is refused by name.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.extras import install_command
from gspo_lightning.policy.hub import check_path
from gspo_lightning.policy.load.gguf_config import ROPE_TENSORS, config_of
from gspo_lightning.policy.load.gguf_tensors import from_file, places
from gspo_lightning.policy.load.gguf_tokenizer import FIELD, ORIGINAL, tokenizer_of
from gspo_lightning.policy.load.loading_lock import LOADING
from gspo_lightning.policy.older_readers import add_older_names
from gspo_lightning.resume.cached_model import found_or_made

if TYPE_CHECKING:
    from gguf import GGUFReader

log = logging.getLogger(__name__)

READING = 3
"""Version of the reading: a folder of an older one is not used again."""


def loadable_name(name: str) -> str:
    """Return a name that transformers loads: the converted folder of a GGUF model, any other name as it is.

    A GGUF model is a ``.gguf`` file, or a folder that holds exactly one and no ``config.json``. It is dequantised to
    float32 once and kept under ``~/.cache/gspo_lightning/gguf`` (``XDG_CACHE_HOME`` moves it): training needs weights
    that small steps can change.

    Raises:
        UserError: the file does not exist, is one of several, or cannot be converted.
    """
    file = gguf_file(name)
    if file is None:
        return name
    stat = file.stat()
    return str(_converted(file, stat.st_size, stat.st_mtime_ns))


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a model's name stands for; None for any other name.

    Raises:
        UserError: the file does not exist, or is one of several.
    """
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
    made_from = [str(file), size, modified, metadata.version("transformers"), metadata.version("gguf"), READING]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "gspo_lightning" / "gguf" / hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]
    found_or_made(target, functools.partial(_convert, file), what=f"{file.name}, dequantised", steps=0)
    return target


def _convert(file: Path, folder: Path) -> None:
    """Write a GGUF file's weights, tokenizer and chat template as a folder in transformers format."""
    log.info("%s: %s is dequantised to float32, because training changes weights by less than its steps", FIELD, file)
    try:
        with LOADING:
            model, tokenizer = _read(file)
    except UserError as refusal:
        raise UserError(FIELD, f"{file.name} cannot be read as GGUF: {refusal.problem}", fix=refusal.fix) from refusal
    except Exception as error:  # any exception: a truncated file fails deep in its reader
        raise UserError(
            FIELD,
            f"{file.name} cannot be read as GGUF: {first_line(error)}",
            fix="use a file that is whole, or the original folder or hub id",
        ) from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    add_older_names(folder)


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model of a file, in float32, and its tokenizer."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = dict(_weights(reader))
    rope = {name: weights.pop(name)() for name in ROPE_TENSORS if name in weights}
    rows = next((int(tensor.shape[-1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"), 0)
    config = config_of(fields, rope, rows, tied="output.weight" not in weights)
    tokenizer = tokenizer_of(fields)
    if len(tokenizer) > rows:
        raise UserError(FIELD, f"its vocabulary of {len(tokenizer)} tokens has {rows} embeddings", fix=ORIGINAL)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    _fill(model, weights)
    model.tie_weights()
    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    model.generation_config.eos_token_id = sorted({end for end in ends if end is not None}) or None
    return model, tokenizer


def _weights(reader: GGUFReader) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yield name and reader of each tensor, which is dequantised when it is read."""
    from gguf import dequantize

    for tensor in reader.tensors:
        yield tensor.name, functools.partial(dequantize, tensor.data, tensor.tensor_type)


def _fill(model: PreTrainedModel, weights: Mapping[str, Callable[[], np.ndarray]]) -> None:
    """Give a model on the meta device the weights of a file.

    Raises:
        UserError: the file has a tensor that the model does not have, or lacks one.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if not _tied(model, name)}
    table = places(model.config, shapes)
    extra = weights.keys() - table.keys()
    if extra:
        problem = f"{len(extra)} of its tensors (such as {min(extra)}) belong to nothing in a model of its family"
        raise UserError(FIELD, problem, fix=ORIGINAL)
    missing = table.keys() - weights.keys()
    if missing:
        raise UserError(FIELD, f"it lacks {len(missing)} tensors (such as {min(missing)})", fix=ORIGINAL)
    state: dict[str, torch.Tensor] = {}
    for name, place in table.items():
        values = torch.from_numpy(np.array(from_file(weights[name](), name, model.config), dtype=np.float32))
        if place.half is None:
            state[place.name] = values.reshape(shapes[place.name])
        else:
            whole = state.setdefault(place.name, torch.empty(shapes[place.name]))
            whole.chunk(2, dim=1)[place.half].copy_(values)
    model.load_state_dict(state, strict=False, assign=True)


def _tied(model: PreTrainedModel, name: str) -> bool:
    return bool(model.config.tie_word_embeddings) and name == "lm_head.weight"
