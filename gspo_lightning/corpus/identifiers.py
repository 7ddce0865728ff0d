"""Check that no two files share the id of a record."""

from __future__ import annotations

from hashlib import blake2b

from gspo_lightning.corpus.files import Inputs, Record
from gspo_lightning.errors import UserError

__all__ = ["Identifiers"]


class Identifiers:
    """Ids seen so far, about 100 bytes each; with a single file none are kept.

    Args:
        inputs: the files.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._seen: dict[bytes, tuple[int, int]] = {}

    def add(self, record: Record) -> None:
        """Add a record.

        Raises:
            UserError: another file has its id.
        """
        identifier = record.values.get("id")
        if len(self._inputs.paths) < 2 or identifier is None:
            return
        key = blake2b(repr(identifier).encode("utf-8", "replace"), digest_size=12).digest()
        file, number = self._seen.setdefault(key, (record.file, record.number))
        if file != record.file:
            raise UserError(
                self._inputs.name(record.file, record.number),
                f"has the id {str(identifier)[:80]!r}, which {self._inputs.name(file, number)} has, too",
                fix="give the records of each file ids of their own",
            )
