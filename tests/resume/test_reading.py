"""An index of a folder of shards may name members of enumerations as old versions of Python write them, and no code."""

from __future__ import annotations

import pathlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.state_dict_saver import save

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume.reading import check_shards


class AsPython3_11_2(pickle.Pickler):  # noqa: N801
    """Writes a member of an enumeration as that version does, by ``getattr``."""

    def __init__(self, file: Any, name: str = "") -> None:
        super().__init__(file)
        self.name = name

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, metadata._MEM_FORMAT_ENCODING):
            return getattr, (type(obj), self.name or obj.name)
        return NotImplemented


def written(folder: Path, name: str = "") -> Path:
    save({"weights": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    index = pickle.loads((folder / ".metadata").read_bytes())
    with (folder / ".metadata").open("wb") as file:
        AsPython3_11_2(file, name).dump(index)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    return folder


def test_members_of_enumerations_are_read(tmp_path: Path) -> None:
    index = check_shards(written(tmp_path / "step.ckpt"), "checkpoint")
    assert list(index.state_dict_metadata) == ["weights"]


def test_paths_of_python_3_13_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pathlib._local", pathlib)  # a module of that version and of later ones
    folder = tmp_path / "step.ckpt"
    save({"weights": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    index = pickle.loads((folder / ".metadata").read_bytes())
    content = pickle.dumps(index, protocol=3).replace(b"cpathlib\n", b"cpathlib._local\n")
    assert b"cpathlib._local\nPosixPath\n" in content
    (folder / ".metadata").write_bytes(content)
    assert list(check_shards(folder, "checkpoint").state_dict_metadata) == ["weights"]


@pytest.mark.parametrize("name", ["mro", "__init_subclass__", "__members__"])
def test_shard_index_with_a_private_enum_attribute_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"it is made with _MEM_FORMAT_ENCODING\.{name}, which would run code"):
        check_shards(written(tmp_path / "step.ckpt", name), "checkpoint")
