"""Where a server is, and the key that it asks for."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gspo_lightning.addresses import UNIX, check_address, is_loopback
from gspo_lightning.errors import UserError

__all__ = ["KEY", "Endpoint", "PrivateFolder", "check_host", "given", "on_port", "on_socket"]

KEY = "VLLM_API_KEY"
"""Environment variable with the key of servers that are given by their URLs; vLLM itself reads the same."""
LONGEST = 100
"""Bytes that the path of a socket may have: 107 on Linux, 103 on macOS."""


@dataclass(frozen=True)
class Endpoint:
    """One server.

    Args:
        url: ``http://host:port``, ``https://host:port`` or ``unix:/path``.
        key: that every request carries, or None; never shown.
    """

    url: str
    key: str | None = field(default=None, repr=False)


def given(urls: Sequence[str], plain_http: bool, field: str = "data.rollouts.urls") -> list[Endpoint]:
    """Servers that run already, with the key of the environment.

    Args:
        urls: of the servers.
        plain_http: whether a key may go to another host unencrypted.
        field: the setting that names them, for messages.

    Raises:
        UserError: one is not a URL, holds a secret, or would get the key over a network that others may read.
    """
    key = os.environ.get(KEY) or None
    for url in urls:
        check_address(url, field, KEY, key=key, plain_http=plain_http, sockets=True)
    return [Endpoint(url.rstrip("/").removesuffix("/v1"), key) for url in urls]


def check_host(host: str, plain_http: bool) -> None:
    """Servers of our own may listen on that address.

    Raises:
        UserError: their keys would go over a network that others may read.
    """
    if not (plain_http or is_loopback(host)):
        raise UserError(
            "data.rollouts.host",
            f"is {host!r}: anyone who can read that network would see the key of the server, and could run code on it",
            fix="omit host (a socket file on this machine); plain_http: true if nobody else can read that network",
        )


def on_port(host: str) -> Endpoint:
    """A new key, and a port of ``host``, on this machine, that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port = int(listener.getsockname()[1])
    return Endpoint(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", secrets.token_urlsafe(32))


def on_socket(folder: Path, number: int) -> Endpoint:
    """A new key, and the socket file of the server with that number."""
    return Endpoint(f"{UNIX}{folder / f'{number}.sock'}", secrets.token_urlsafe(32))


class PrivateFolder:
    """A folder that only this user may enter, for the sockets of servers; made once, removed by :meth:`close`."""

    def __init__(self) -> None:
        self.root: Path | None = None

    def make(self) -> Path:
        """The folder, with mode 700."""
        if self.root is None:
            place = tempfile.gettempdir()
            if len(os.fsencode(place)) > LONGEST - 64:  # a socket of vLLM's own has 36 letters
                place = "/tmp"
            self.root = Path(tempfile.mkdtemp(prefix="gspo-sockets-", dir=place))
        return self.root

    def close(self) -> None:
        """Remove it and what is in it."""
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
        self.root = None
