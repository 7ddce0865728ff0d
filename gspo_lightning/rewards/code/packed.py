"""LiveCodeBench's private tests: base64 of zlib of a pickle of JSON text, decoded without running the pickle."""

from __future__ import annotations

import base64
import binascii
import functools
import io
import json
import pickle
import zlib
from typing import Any, NoReturn

__all__ = ["MOST_BYTES", "unpack_tests"]

MOST_BYTES = 1 << 28
"""Maximum size in bytes after unpacking; the largest tests of the data set are some tens of MB."""


@functools.lru_cache(maxsize=4)  # the completions of a group come one after another
def unpack_tests(text: str) -> Any:
    """Decode tests from the packed form, or from plain JSON, which some copies of the data set hold.

    Raises:
        ValueError: the text is neither, is too large, or the pickle holds anything but text.

    >>> packed = base64.b64encode(zlib.compress(pickle.dumps('[{"input": "1"}]'))).decode()
    >>> unpack_tests(packed) == unpack_tests('[{"input": "1"}]') == [{"input": "1"}]
    True
    """
    if text.lstrip()[:1] in ("[", "{"):
        return json.loads(text)
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the private tests are neither JSON nor base64 of zlib: {error}") from error
    if unzip.unconsumed_tail:
        raise ValueError(f"the private tests are larger than {MOST_BYTES} bytes")
    try:
        found = _OnlyText(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError, TypeError, UnicodeError) as error:
        raise ValueError(f"the private tests are no pickle of text: {error}") from error
    if not isinstance(found, str):
        raise ValueError(f"the private tests are a pickle of {type(found).__name__}, not of text")
    return json.loads(found)


class _OnlyText(pickle.Unpickler):
    """Unpickler that builds text only and refuses to look up or call anything."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to look up a class or function.

        Raises:
            pickle.UnpicklingError: always; the message names it.
        """
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse to load a persistent object.

        Raises:
            pickle.UnpicklingError: always.
        """
        raise pickle.UnpicklingError("it asks for something persistent, which is refused")
