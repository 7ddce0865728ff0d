"""Addresses of servers: check a URL, and whether a key may be sent to it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from gspo_lightning.core.errors import UserError

IDLE_S = 2.0
"""Seconds after which a client closes an idle connection.

vLLM closes one after 5 seconds, and a request that is written at that moment is lost. Iterations of about 5 seconds hit
it again and again.
"""
UNIX = "unix:"
"""Prefix of the URL of a server that listens on a socket file."""


def check_address(
    url: str, field: str, variable: str, *, key: str | None, plain_http: bool, sockets: bool = False
) -> None:
    """Check that requests, and a key with them, may be sent to a URL.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        field: the setting that names it, for messages.
        variable: the environment variable that holds the key.
        key: the key of requests; None if there is none.
        plain_http: allow a key to go to another host unencrypted.
        sockets: also accept ``unix:/path`` as a URL.

    Raises:
        UserError: it is not a URL, holds a secret, or would get the key over a network that others may read.

    >>> check_address("http://127.0.0.1:8000", "data.rollouts.urls", "VLLM_API_KEY", key="secret", plain_http=False)
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts = urlsplit("")
        host = None
    if sockets and url.startswith(UNIX) and parts.path:
        return
    if parts.scheme not in ("http", "https") or not host:
        fix = "http://host:port, or unix:/path/to/socket" if sockets else "http://host:port"
        raise UserError(field, f"{url[:200]!r} is not a URL", fix=fix)
    if "@" in parts.netloc or parts.query:
        raise UserError(
            field,
            f"the URL of {host} holds a password or a query, and a run saves its config",
            fix=f"remove it from the URL; a server's key belongs in the environment variable {variable}",
        )
    if key and parts.scheme == "http" and not (plain_http or is_loopback(host)):
        raise UserError(
            field,
            f"{url} would get the key of {variable} unencrypted over the network",
            fix=f"https://, a tunnel that ends on 127.0.0.1, or no {variable}; plain_http: true if nobody else can "
            "read that network",
        )


def is_loopback(host: str) -> bool:
    """True if a host is this machine.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("127.0.0.1.example.org")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
