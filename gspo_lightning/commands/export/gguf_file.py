"""Write a policy that was trained from a GGUF file as such a file again, for llama.cpp and what is built on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo_lightning.core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KINDS = ("F16", "Q8_0")
"""Types of the matrices: half precision, or 8 bits with a scale for every 32 numbers."""
_OTHER_WEIGHTS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization", "quantize.", "split.")
"""Metadata of a file that does not hold for other weights, or that the writer adds."""


def base_file(settings: dict[str, Any]) -> Path:
    """Return the GGUF file that a run began with.

    Its metadata is written again: the tokenizer in it is the one that was trained with, to the last token.

    Args:
        settings: of the model, from a checkpoint.

    Raises:
        UserError: the run began with another kind of model, or changed what the metadata says.
    """
    from gspo_lightning.policy.load.gguf import gguf_file

    file = gguf_file(str(settings["name_or_path"]))
    if file is None:
        problem = f"writes a model back that came as GGUF, but this run began with {settings['name_or_path']}"
        fix = "export without it, and let llama.cpp's convert_hf_to_gguf.py convert the folder"
        raise UserError("--gguf", problem, fix=fix)
    changed = settings.get("config_overrides")
    if changed:
        problem = f"the run changed {min(changed)} of the model's config, which the metadata of {file.name} would deny"
        raise UserError("--gguf", problem, fix="export without it, and convert the folder with llama.cpp")
    return file


def write_gguf(model: PreTrainedModel, base: Path, target: Path, kind: str) -> None:
    """Write a model's weights with the metadata of the file that it was read from.

    Norms, biases and routers stay in float32, as llama.cpp's converter leaves them; rows that 32 does not divide are
    written in half precision.

    Args:
        model: with adapters merged.
        base: file that the model was read from.
        target: file to write.
        kind: one of :data:`KINDS`.

    Raises:
        UserError: a weight is larger than half precision can hold.
    """
    import gguf

    from gspo_lightning.policy.load.gguf_config import ROPE_TENSORS
    from gspo_lightning.policy.load.gguf_tensors import places, to_file

    reader = gguf.GGUFReader(base)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(_OTHER_WEIGHTS):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if kind == "F16" else gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    table = places(model.config, state)
    for tensor in reader.tensors:
        if tensor.name in ROPE_TENSORS:
            writer.add_tensor(tensor.name, np.array(tensor.data))
            continue
        place = table[tensor.name]
        weight = state[place.name].float()
        if place.half is not None:  # transformers keeps two tensors of the file in one
            weight = weight.chunk(2, dim=1)[place.half]
        shape = tuple(int(size) for size in tensor.shape[::-1])  # GGUF lists the innermost dimension first
        values = to_file(weight.cpu().numpy(), tensor.name, model.config).reshape(shape)
        _add(writer, tensor.name, np.ascontiguousarray(values), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, name: str, values: np.ndarray, kind: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if values.ndim < 2 or "ffn_gate_inp" in name:
        writer.add_tensor(name, values)
    elif kind == "Q8_0" and values.shape[-1] % 32 == 0:
        eight = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(values, eight), raw_dtype=eight)
    elif np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise UserError("--gguf", f"{name} holds numbers that half precision cannot", fix="export without it")
    else:
        writer.add_tensor(name, values.astype(np.float16))
