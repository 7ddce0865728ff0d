"""Write files of models such that transformers 4 reads them, too, as vLLM releases and other tools still do.

transformers 5 writes the base of rotary positions and the class of a tokenizer where version 4 does not look: it would
rotate by its default, 10,000, and say nothing.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

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
    if rope.get("rope_type", "default") == "default":
        return
    if content.get("model_type") != "phi3":
        content["rope_scaling"] = {name: value for name, value in rope.items() if name not in _KEPT_ELSEWHERE}
    elif _phi3_computes(content, rope):
        factors = {name: rope[name] for name in ("short_factor", "long_factor")}
        content["rope_scaling"] = {"type": rope["rope_type"], **factors}
    else:
        log.warning(
            "transformers 4 cannot read the positions of this Phi-3: it computes attention_factor from the lengths of "
            "the context, and the model has another; use transformers 5"
        )


def _phi3_computes(content: dict[str, Any], rope: dict[str, Any]) -> bool:
    """True if a Phi-3's attention is scaled as version 4 computes from lengths: it reads no number for it.

    Version 5 prefers what version 4 reads, and would then compute it, too.
    """
    original = content["original_max_position_embeddings"]
    stretch = content["max_position_embeddings"] / original
    if rope.get("original_max_position_embeddings", original) != original:
        return False
    computed = _attention_factor(stretch, original)
    meant = rope.get("attention_factor")
    if meant is None:
        meant = _attention_factor(rope.get("factor") or stretch, original)
    return math.isclose(meant, computed, rel_tol=1e-6)


def _attention_factor(stretch: float, original: int) -> float:
    """Return what LongRoPE (arXiv 2402.13753) multiplies rotations by for a context ``stretch`` times longer."""
    return 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))


def _tokenizer(content: dict[str, Any]) -> None:
    """Name the class of a tokenizer that is all in ``tokenizer.json``, and its other special tokens."""
    if content.get("tokenizer_class") == "TokenizersBackend":
        content["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(content.get("extra_special_tokens"), list):
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
