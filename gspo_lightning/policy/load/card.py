"""Parts that the model cards of policies and of reward models share: header, origin of the model, settings.

Local paths are not published: a file appears by its name, a hub model or data set by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gspo_lightning.core.escape import cell, code
from gspo_lightning.policy.tiny import TINY_MODELS


def is_hub_id(name: str) -> bool:
    """True if a name is a hub id (``owner/name``) rather than a path.

    >>> is_hub_id("Qwen/Qwen3-0.6B"), is_hub_id("./model"), is_hub_id("/models/a")
    (True, False, False)
    """
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def setting(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at a path in a config; None where there is none.

    >>> setting({"data": {"group_size": 8}}, ("data", "group_size")), setting({}, ("data", "train"))
    (8, None)
    """
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def header(
    base: str, sources: Iterable[Any], pipeline_tag: str, tags: Sequence[str], library: str = "transformers"
) -> str:
    """Return the YAML header that the hub reads.

    Args:
        base: name of the base model; listed if it is on the hub.
        sources: of the data; those that are hub data sets are listed.
        pipeline_tag: the hub's name of the model's task.
        tags: further labels.
        library: that loads the folder.
    """
    from huggingface_hub import ModelCardData

    hub = {text.split(":")[0] for text in sources if isinstance(text, str) and is_hub_id(text.split(":")[0])}
    data = ModelCardData(
        base_model=base if is_hub_id(base) else None,
        datasets=sorted(hub) or None,
        library_name=library,
        pipeline_tag=pipeline_tag,
        tags=list(tags),
    )
    return f"---\n{data.to_yaml()}\n---"


def origin(base: str) -> str:
    """Return the base model as Markdown: a link for a hub id, the last part of a path; says if it is built in.

    >>> origin("/models/mine"), origin("Qwen/Qwen3-0.6B")
    ('`mine`', '[Qwen/Qwen3-0.6B](https://huggingface.co/Qwen/Qwen3-0.6B)')
    """
    link = f"[{cell(base)}](https://huggingface.co/{quote(base)})"
    built = ", a tiny model that is built from a config" if base in TINY_MODELS else ""
    return (link if is_hub_id(base) else code(Path(base).name, table=False)) + built
