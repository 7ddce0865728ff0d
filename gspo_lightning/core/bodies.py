"""Read bodies of HTTP replies within limits: bytes as sent and unpacked, nesting of JSON, UTF-8 only.

One MB of gzip may unpack to 1 GB, and parsed JSON takes up to 25 times the memory of its text. Nothing here imports
torch or aiohttp: reward workers send requests to servers, too.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.escape import whole_values

if TYPE_CHECKING:
    import aiohttp

ACCEPTED = {"Accept-Encoding": "gzip, deflate"}
"""Headers of every request: the encodings that :func:`read_body` can unpack piece by piece."""
BASE = 4 << 20
"""Bytes that any reply may have."""
PER_TOKEN = 64
"""Further bytes for every token of requested text."""
PER_DETAILED_TOKEN = 512
"""Further bytes per token with its id and its log-probability: vLLM writes 66 to 140."""
PER_ROUTED_TOKEN = 4096
"""Further bytes per token that may come with its experts (58 layers x 8 experts in base64: 2.5 KB)."""
OF_AN_ERROR = 64 << 10
"""Bytes that are read of an error body; the rest is left unread."""
DEEPEST = 100
"""Most levels of nested JSON."""
_PIECE = 64 << 10
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Matches an unterminated string, too: searched again from each of its quotes, it would take quadratic time."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class BodyError(Exception):
    """A body is too long, too deeply nested, or in an unsupported encoding or character set."""


@dataclass(frozen=True, slots=True)
class Body:
    """The unpacked body of a reply."""

    data: bytes
    charset: str | None

    @property
    def text(self) -> str:
        """Body as UTF-8 text; invalid bytes are replaced."""
        return self.data.decode(errors="replace")

    def json(self) -> Any:
        """Return the parsed JSON, halves of characters escaped; None for an empty body.

        Raises:
            BodyError: it is not JSON, nested too deeply, or declared in a character set other than UTF-8.
        """
        if self.charset is not None and not _is_utf8(self.charset):
            raise BodyError(f"the reply is in the character set {self.charset[:40]!r}, but JSON is read as UTF-8")
        if not self.data.strip():
            return None
        if _deeper(self.data, DEEPEST):
            raise BodyError(f"the reply is nested more than {DEEPEST} levels deep, or its brackets do not match")
        try:
            values = json.loads(self.text)
            return whole_values(values) if b"\\u" in self.data else values
        except ValueError as error:
            raise BodyError(f"it gave no JSON: {self.text[:100]!r}") from error


def reply_limit(request: Mapping[str, Any] | None, per_token: int = PER_DETAILED_TOKEN) -> int:
    """Return the bytes that the reply to a request may have: a base, plus an amount for each requested token.

    Args:
        request: the body that is sent.
        per_token: bytes for a token that comes with more than its text.

    >>> reply_limit(None) == BASE, reply_limit({"max_tokens": 1000}) - BASE
    (True, 64000)
    >>> reply_limit({"prompt": [1, 2], "max_tokens": 8, "n": 4, "logprobs": 0}) - BASE == 40 * PER_DETAILED_TOKEN
    True
    """
    fields = dict(request or {})
    sampling_params = fields.get("sampling_params")
    if isinstance(sampling_params, Mapping):
        fields |= sampling_params
    # a request may be anything: a client wrote it
    prompt = fields.get("prompt") or fields.get("token_ids")
    prompt_tokens = len(prompt) if isinstance(prompt, list) else 0
    max_tokens = fields.get("max_tokens")
    response_tokens = max_tokens if isinstance(max_tokens, int) else 0
    n = fields.get("n")
    responses = n if isinstance(n, int) else 1
    detailed = "logprobs" in fields or "return_token_ids" in fields
    bytes_per_token = per_token if detailed else PER_TOKEN
    return BASE + max(0, (response_tokens + prompt_tokens) * bytes_per_token * responses)


async def read_body(reply: aiohttp.ClientResponse, limit: int) -> Body:
    """Return the body of a reply whose session has ``auto_decompress=False``; of an error only the beginning.

    Args:
        reply: whose headers have come.
        limit: most bytes, as sent and unpacked.

    Raises:
        BodyError: it has more, or is compressed in an unsupported way.
    """
    if reply.status >= 300:
        with suppress(BodyError):
            return Body((await _read(reply, OF_AN_ERROR))[0][:OF_AN_ERROR], None)
        return Body(b"", None)
    data, sent = await _read(reply, limit)
    if max(len(data), sent) > limit:
        raise BodyError(
            f"the reply has more than the {limit:,} bytes that are read of a reply to this request ({sent:,} came, "
            f"unpacked to at least {len(data):,}); see that an inference server answers at this address, and what it, "
            "or a proxy in front of it, sends"
        )
    return Body(data, reply.charset)


async def _read(reply: aiohttp.ClientResponse, most: int) -> tuple[bytes, int]:
    """Return the unpacked data and the number of bytes read for it; stop when either is more than ``most``."""
    stream = _Stream(reply.headers.get("Content-Encoding", ""))
    unpacked: list[bytes] = []
    size = 0
    sent = 0
    async for piece in reply.content.iter_chunked(_PIECE):
        sent += len(piece)
        unpacked.append(stream.unpack(piece, most + 1 - size))
        size += len(unpacked[-1])
        if max(sent, size) > most:
            reply.close()
            break
    return b"".join(unpacked), sent


class _Stream:
    """Decompressor of gzip and deflate, piece by piece; deflate may lack zlib's header, against the standard.

    Raises:
        BodyError: another compression.
    """

    def __init__(self, encoding: str) -> None:
        self._name = encoding.strip().lower().removeprefix("x-")
        self._zlib: Any = None
        if self._name not in ("", "identity", "gzip", "deflate"):
            raise BodyError(f"the reply is packed as {encoding[:40]!r}; gzip and deflate are read")

    def unpack(self, piece: bytes, most: int) -> bytes:
        """Unpack a piece, at most ``most`` bytes of it.

        Raises:
            BodyError: it is not what its header says.
        """
        if self._name in ("", "identity"):
            return piece
        if self._zlib is None:
            self._zlib = zlib.decompressobj(self._window_bits(piece))
        try:
            unpacked = bytes(self._zlib.decompress(piece, most))
        except zlib.error as error:
            raise BodyError(f"the reply cannot be unpacked as {self._name}: {error}") from error
        if self._zlib.unused_data:
            raise BodyError(f"the reply goes on after the end of its {self._name}")
        return unpacked

    def _window_bits(self, beginning: bytes) -> int:
        """Return zlib's code of the format: 31 for gzip, 15 for deflate with zlib's header, -15 without."""
        if self._name == "gzip":
            return 31
        has_header = beginning[0] & 0xF == 8  # zlib's header begins with its only method of compression
        return 15 if has_header else -15


def _is_utf8(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name in ("utf-8", "ascii")
    except (LookupError, ValueError):
        return False


def _deeper(data: bytes, levels: int) -> bool:
    """True if JSON has more levels of brackets, whatever the parser and its stack would do with it.

    >>> _deeper(b'[{"a": "]["}]', 1), _deeper(b'[{"a": "]["}]', 2)
    (True, False)
    """
    brackets = _STRING.sub(b"", data).translate(_BRACKETS, b"").translate(None, _NO_BRACKETS)
    for _ in range(levels):  # each pass removes the innermost pairs
        fewer = brackets.replace(b"[]", b"")
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    return bool(brackets)
