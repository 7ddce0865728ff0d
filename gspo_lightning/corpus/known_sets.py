"""Columns of public data sets under our names; ``configs/data`` holds a config for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["KNOWN_SETS", "recognised"]

Columns = Mapping[str, str | list[str]]
KNOWN_SETS: Mapping[str, Columns] = {
    "gsm8k": {"prompt": "question", "answer": "answer"},
    "math": {"prompt": "problem", "answer": "solution"},
    "dapo17k": {"prompt": "prompt", "answer": "reward_model.ground_truth"},
    "livecodebench": {
        "prompt": ["question_content", "starter_code"],
        "answer": ["public_test_cases", "private_test_cases", "metadata", "starter_code"],
    },
    "taco": {"prompt": ["question", "starter_code"], "answer": ["input_output", "tags", "raw_tags"]},
    "codecontests": {
        "prompt": "description",
        "answer": [
            "public_tests", "private_tests", "generated_tests", "time_limit", "input_file", "output_file", "cf_tags",
        ],
    },
    "aime2024": {"id": "id", "prompt": "problem", "answer": "answer"},
    "math500": {"id": "unique_id", "prompt": "problem", "answer": "answer"},
    "puzzles": {"prompt": "question", "answer": "answer"},
    "ours": {"prompt": "prompt"},
}  # fmt: skip
"""Our name -> theirs, as ``data.columns``. Sets with the same columns cannot be told apart: name the set."""
_TELLING: Mapping[str, Collection[str]] = {
    "dapo17k": ("prompt", "reward_model", "data_source"),
    "livecodebench": ("question_content", "public_test_cases", "private_test_cases"),
    "taco": ("question", "input_output", "starter_code"),
    "codecontests": ("description", "public_tests", "generated_tests"),
    "math500": ("unique_id", "problem", "solution", "answer"),
    "math": ("problem", "solution", "level", "type"),
    "aime2024": ("problem", "solution", "answer"),
    "puzzles": ("question", "answer", "family"),
    "gsm8k": ("question", "answer"),
    "ours": ("prompt",),
}
"""Columns by which a set is recognised; the first match is taken, so more specific sets stand first."""


def recognised(names: Collection[str]) -> str | None:
    """Return the known set with these columns; None if there is none.

    >>> recognised({"question", "answer"}), recognised({"problem", "solution", "level", "type"}), recognised({"text"})
    ('gsm8k', 'math', None)
    """
    return next((name for name, wanted in _TELLING.items() if set(wanted) <= set(names)), None)
