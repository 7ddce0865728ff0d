"""Read torch files from untrusted sources: run none of their code, and report errors in plain words.

This is the one place where such a file is opened: checkpoints, folders of shards and dumps are read or inspected here.
A manifest beside a file says that it is intact, not who wrote it.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from gspo_lightning.core.errors import UserError, first_line

_NAMED = re.compile(r"Unsupported (?:global: GLOBAL|class) ([\w.]+)|(?:GLOBAL|class) ([\w.]+) was not an allowed")
_METADATA = {
    "torch.distributed.checkpoint.metadata": None,  # all of it: plain records
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size", "device"),
    "pathlib": ("Path", "PosixPath", "PurePosixPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePosixPath"),  # as Python 3.13 alone writes them
    "collections": ("OrderedDict",),
}
"""Module -> names that the index of a folder of shards may contain, in addition to dtypes."""


def read_tensors(path: Path, field: str, *, fix: str | None = None, mmap: bool = False) -> Any:
    """Read a file of tensors and plain values.

    Args:
        path: the file.
        field: the path's name in messages.
        fix: the fix in messages.
        mmap: leave tensors on the disk until they are used.

    Raises:
        UserError: it cannot be read, or only by running code.
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu", mmap=mmap)
    except Exception as error:  # a torn or foreign file can make torch raise anything
        raise UserError(field, f"{path} cannot be read: {fault_of(error)}", fix=fix) from error


def fault_of(error: BaseException) -> str:
    """Return why a file could not be read, without torch's advice to load it in a way that runs its code."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    match = _NAMED.search(text)
    if match is not None:
        name = match.group(1) or match.group(2)
        return f"it is made with {name}, which would run code; only tensors and plain values are read"
    if "Weights only load failed" in text or "weights_only" in text or isinstance(error, pickle.UnpicklingError):
        return "it is damaged, or no file of tensors and plain values"
    if "PytorchStreamReader" in text or isinstance(error, EOFError):
        return "it is torn, or no file of torch"
    return first_line(error)


def check_shards(folder: Path, field: str, *, fix: str | None = None) -> Metadata:
    """Return the index of a checkpoint folder, after checking that torch can load it without running code.

    torch reads the index of such a folder, and its values that are not tensors, by unpickling their content.

    Raises:
        UserError: loading would run code, or the folder is torn.
    """
    try:
        index: Metadata | None = None
        for file in sorted(folder.glob("*.metadata")):
            content = _Index(io.BytesIO(file.read_bytes())).load()
            if file.name == ".metadata":
                index = content
        if not isinstance(index, Metadata):
            raise UserError(field, f"{folder} cannot be read: its index is missing, or none", fix=fix)
        for piece in _pieces(folder, index):
            torch.load(io.BytesIO(piece), weights_only=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(field, f"{folder} cannot be read: {fault_of(error)}", fix=fix) from error
    return index


def _pieces(folder: Path, index: Metadata) -> Iterator[bytes]:
    """Yield the stored bytes of values that are not tensors."""
    plain = {name for name, kind in index.state_dict_metadata.items() if isinstance(kind, BytesStorageMetadata)}
    for where, stored in (index.storage_data or {}).items():
        file = folder / stored.relative_path
        if getattr(stored, "transform_descriptors", None) or file.parent != folder or not file.is_file():
            raise pickle.UnpicklingError(f"{stored.relative_path} is not a file of this folder")
        if stored.offset + stored.length > file.stat().st_size:
            raise EOFError(stored.relative_path)
        if where.fqn in plain:
            with open(file, "rb") as shard:
                shard.seek(stored.offset)
                yield shard.read(stored.length)


class _Index(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return the class only if an index may contain it."""
        if (module_name, global_name) == ("builtins", "getattr"):
            return _member  # Python 3.11.2, for one, writes members of enumerations so
        names = _METADATA.get(module_name, ())
        if names is None:  # all records of this module
            cls = super().find_class(module_name, global_name)
            if _is_record(cls):
                return cls
        elif global_name in names:
            return super().find_class(module_name, global_name)
        elif module_name == "torch":
            constant = getattr(torch, global_name, None)
            if isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
                return constant
        raise pickle.UnpicklingError(f"Unsupported class {module_name}.{global_name}")


def _member(kind: Any, name: str) -> Any:
    """Return a member of an enumeration of the index; no other attribute."""
    if _is_record(kind) and issubclass(kind, Enum) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"Unsupported class {getattr(kind, '__name__', 'builtins')}.{name}")


def _is_record(value: object) -> bool:
    """True for a class defined in that module; names that it only imports are refused."""
    return isinstance(value, type) and value.__module__ == "torch.distributed.checkpoint.metadata"
