"""Functions for ``PythonAgent``, as a user would write them: plain HTTP, without torch."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rollouts.gateway.address import Address


def ask(address: Address, messages: Any) -> Any:
    """One turn, through urllib."""
    body = json.dumps({"model": address.model, "messages": messages, "max_tokens": 6}).encode()
    headers = {"Authorization": f"Bearer {address.api_key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{address.base_url}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]


def two_turns(record: Mapping[str, Any], address: Address) -> dict[str, float]:
    """A plain function: it runs in a thread of its own."""
    assert "torch" not in sys.modules
    print("what an agent prints is not the protocol")
    talk = [{"role": "user", "content": record["prompt"]}]
    first = ask(address, talk)
    second = ask(address, [*talk, first, {"role": "user", "content": "+1="}])
    return {"reward": float(len(second["content"]))}


async def fails(record: Mapping[str, Any], address: Address) -> float:
    """Every rollout fails in the way its prompt says."""
    ask(address, [{"role": "user", "content": record["prompt"]}])
    kind = record["kind"]
    if kind == "dies":
        os._exit(3)
    if kind == "exits":
        sys.exit("enough")
    if kind == "environment":
        raise InfrastructureError("the machine is gone")
    if kind == "garbage":
        return "much"  # type: ignore[return-value]
    return 1.0


def slow(record: Mapping[str, Any], address: Address) -> None:
    """Takes longer than any deadline of a test."""
    time.sleep(60)


def one_argument(record: Mapping[str, Any]) -> None:
    """No agent."""


def large(record: Mapping[str, Any], address: Address) -> Any:
    """Returns more than a line may have."""
    ask(address, [{"role": "user", "content": record["prompt"]}])
    return {"reward": 1.0, "junk": "x" * (65 << 20)}


def torrent(record: Mapping[str, Any], address: Address) -> None:
    """Writes to the pipe of its worker, as no agent should: more than anybody reads, and not a line."""
    for number in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b"x" * (66 << 20))
        except OSError:
            continue
