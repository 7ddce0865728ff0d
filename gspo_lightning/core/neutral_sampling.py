"""Neutral sampling of servers: without these fields a server samples as its ``generation_config.json`` says."""

from __future__ import annotations

from collections.abc import Iterable

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Field of a request -> the value that changes no distribution, for vLLM, SGLang and llama.cpp."""
EXTENSIONS = ("top_k", "min_p", "repetition_penalty")
"""Fields beyond OpenAI's own: another server may refuse or ignore them."""


def refused_fields(refusal: str, removable: Iterable[str]) -> set[str]:
    """Return the fields that a refusal of a request names; it is sent again without them.

    >>> refused_fields("status 400: Unrecognized request argument supplied: top_k", NEUTRAL)
    {'top_k'}
    """
    return {name for name in removable if name in refusal}
