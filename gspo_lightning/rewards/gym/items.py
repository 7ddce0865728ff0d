"""Items of reasoning-gym's families: generate, serialize and score them; imported only in separate processes.

Importing the package takes seconds. It happens here: in the process that makes items, and in reward workers.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from gspo_lightning.core.tolerance import is_right
from gspo_lightning.rewards.gym.families import EXACT, FORMS, unknown_family
from gspo_lightning.rewards.logic.final import layers

Source = Any
"""A data set of reasoning-gym."""
Entry = dict[str, Any]
_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])|\d[eE][-+]?\d{4,}", re.IGNORECASE)
"""Text that passes floating-point comparisons written the wrong way round, or takes for ever to evaluate."""
_SPACE = re.compile(r"\s+")


def known_families() -> list[str]:
    """Return the names of all families, sorted."""
    return sorted(DATASETS)


def open_source(family: str, seed: int, size: int, config: Mapping[str, Any]) -> Source:
    """Create a data set of a family.

    Raises:
        ValueError: an unknown family, or settings that it does not take.
    """
    if family not in DATASETS:
        raise ValueError(unknown_family(family, known_families()))
    try:
        return reasoning_gym.create_dataset(family, seed=seed, size=size, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"{family} does not take {dict(config)}: {error}") from error


def make_item(source: Source, index: int, seed: int) -> Entry:
    """Generate an item from the source's seed and the index alone, although some families use global generators."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry: Entry = source[index]
    return entry


def write_entry(entry: Entry) -> str | None:
    """Serialize an item as a Python literal, without metadata that is not literal; None if it has no answer."""
    if not isinstance(entry.get("answer"), str):
        return None
    metadata = {k: v for k, v in entry["metadata"].items() if _is_literal(v)}
    return repr({"question": entry["question"], "answer": entry["answer"], "metadata": metadata})


def read_entry(text: str) -> Entry:
    """Parse a serialized item; tuples stay tuples.

    Raises:
        ValueError: the text is not an item.
    """
    try:
        entry = ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the entry is no literal: {type(error).__name__}") from error
    if not isinstance(entry, dict) or not {"question", "answer", "metadata"} <= entry.keys():
        raise ValueError("the entry has no question, answer and metadata")
    return entry


def graded(source: Source, family: str, text: str, entry: Entry) -> bool:
    """True if the family's scorer fully accepts an answer, with or without its wrapping.

    An answer for which the scorer raises is not accepted.
    """
    return any(_right(source, family, layer, entry) for layer in layers(text) if layer)


def _right(source: Source, family: str, text: str, entry: Entry) -> bool:
    gold = str(entry["answer"])
    if family in EXACT:
        return _canonical(text) == _canonical(gold)
    if family in FORMS and FORMS[family].fullmatch(text) is None:
        return False
    if _NOT_FINITE.search(text) is not None and _NOT_FINITE.search(gold) is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return is_right(float(source.score_answer(text, entry)))
        except MemoryError:
            raise
        except Exception:  # third-party code on model text: any exception means not accepted
            return False


def _canonical(text: str) -> str:
    return _SPACE.sub(" ", text.strip().strip("$").replace(",", "").removesuffix(".")).strip().casefold()


def _is_literal(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
