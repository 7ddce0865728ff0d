"""Address of one session of the gateway, as clients need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """URLs and key of one session.

    Args:
        base_url: for OpenAI clients; ends in ``/v1``.
        api_key: key of this session only; sent as ``Authorization: Bearer`` or ``x-api-key``.
        model: name of the model; any other name is accepted, too.
        socket: path of the socket file the gateway listens on, empty if it listens on 127.0.0.1.
    """

    base_url: str
    api_key: str
    model: str = "policy"
    socket: str = ""

    @property
    def anthropic_url(self) -> str:
        """URL for Anthropic clients, which append ``/v1`` themselves."""
        return self.base_url.removesuffix("/v1")

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables from which clients take URL and key."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }
