"""Write files of models such that transformers 4 reads them, too, as vLLM releases and other tools still do.

transformers 5 writes the base of rotary positions and the class of a tokenizer where version 4 does not look: it would
rotate by its default, 10,000, and say nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KEPT_ELSEWHERE = ("rope_theta", "partial_rotary_factor")


def add_older_names(folder: Path) -> None:
    """Add to ``config.json`` and ``tokenizer_config.json`` of a folder what transformers 4 reads in them.

    Args:
        folder: written by transformers 5; a file that is not there is left out.
    """
    for name, change in (("config.json", _config), ("tokenizer_config.json", _tokenizer)):
        file = folder / name
        if file.is_file():
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            change(content)
            file.write_text(json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def _config(content: dict[str, Any]) -> None:
    """Name a rotation's base and scaling as version 4 does; a config inside, of text or vision, likewise."""
    for inner in content.values():
        if isinstance(inner, dict) and "model_type" in inner:
            _config(inner)
    rope = content.get("rope_parameters") or {}
    if set(rope) == {"full_attention", "sliding_attention"}:  # Gemma 3
        content["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if "rope_theta" not in rope:
        return
    content |= {name: rope[name] for name in _KEPT_ELSEWHERE if name in rope}
    if rope.get("rope_type", "default") != "default":
        scaling = {name: value for name, value in rope.items() if name not in _KEPT_ELSEWHERE}
        if content.get("model_type") == "phi3":  # whose version 4 takes these three and computes the rest
            scaling = {"type": rope["rope_type"], **{name: rope[name] for name in ("short_factor", "long_factor")}}
        content["rope_scaling"] = scaling


def _tokenizer(content: dict[str, Any]) -> None:
    """Name the class of a tokenizer that is all in ``tokenizer.json``, and its other special tokens."""
    if content.get("tokenizer_class") == "TokenizersBackend":
        content["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(content.get("extra_special_tokens"), list):
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
