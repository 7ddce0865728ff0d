"""Server endpoints: an address and the key of the server."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gspo_lightning.core.addresses import UNIX, check_address, is_loopback
from gspo_lightning.core.errors import UserError

KEY = "VLLM_API_KEY"
"""Environment variable with the key of servers that are given by their URLs; vLLM itself reads the same."""
LONGEST = 100
"""Limit for the path of a socket, in bytes: the system allows 107 on Linux, 103 on macOS."""


@dataclass(frozen=True)
class Endpoint:
    """Address and key of one server.

    Args:
        url: ``http://host:port``, ``https://host:port`` or ``unix:/path``.
        key: sent with every request, or None; never shown.
    """

    url: str
    key: str | None = field(default=None, repr=False)


def given(urls: Sequence[str], plain_http: bool, field: str = "data.rollouts.urls") -> list[Endpoint]:
    """Return the endpoints of running servers, with the key from the environment.

    Args:
        urls: URLs of the servers.
        plain_http: True if a key may go to another host unencrypted.
        field: the setting that names them, for messages.

    Raises:
        UserError: a URL is malformed, holds a secret, or would get the key over a network that others may read.
    """
    key = os.environ.get(KEY) or None
    for url in urls:
        check_address(url, field, KEY, key=key, plain_http=plain_http, sockets=True)
    return [Endpoint(url.rstrip("/").removesuffix("/v1"), key) for url in urls]


def check_host(host: str, plain_http: bool) -> None:
    """Refuse an address on which started servers must not listen.

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
    """Return an endpoint with a new key and a free port of ``host`` on this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port = int(listener.getsockname()[1])
    return Endpoint(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", secrets.token_urlsafe(32))


def on_socket(folder: Path, number: int) -> Endpoint:
    """Return an endpoint with a new key and the socket file of server ``number``."""
    return Endpoint(f"{UNIX}{folder / f'{number}.sock'}", secrets.token_urlsafe(32))


class PrivateFolder:
    """Folder that only this user may enter, for the sockets of servers; made once, removed by :meth:`close`."""

    def __init__(self) -> None:
        self.root: Path | None = None

    def make(self) -> Path:
        """Create the folder on the first call, with mode 700, and return it."""
        if self.root is None:
            place = tempfile.gettempdir()
            if len(os.fsencode(place)) > LONGEST - 64:  # a socket of vLLM's own has 36 letters
                place = "/tmp"
            self.root = Path(tempfile.mkdtemp(prefix="gspo-sockets-", dir=place))
        return self.root

    def close(self) -> None:
        """Remove the folder and its contents."""
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
        self.root = None
