"""Preference pairs in all of TRL's forms, and what is no pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import PromptFile
from gspo_lightning.data.prompts.preferences import Pair, read_preferences

ASK = {"role": "user", "content": "1+1?"}
TWO, ONE = {"role": "assistant", "content": "2"}, {"role": "assistant", "content": "1"}


def read(*records: dict[str, Any]) -> list[Pair]:
    return list(read_preferences(records, lambda number: f"place {number}"))


def test_texts_with_a_prompt_and_without() -> None:
    explicit, implicit = read(
        {"prompt": "1+1:", "chosen": "2", "rejected": "1"}, {"chosen": "1+1:2", "rejected": "1+1:1", "margin": 1.5}
    )
    assert (explicit.prompt, explicit.chosen, explicit.rejected, explicit.margin) == ("1+1:", "2", "1", 0.0)
    assert (implicit.prompt, implicit.chosen, implicit.margin) == (None, "1+1:2", 1.5)
    assert explicit.key != implicit.key


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [ASK], "chosen": [TWO], "rejected": [ONE]},
        {"chosen": [ASK, TWO], "rejected": [ASK, ONE]},
        {"prompt": "1+1?", "chosen": [ASK, TWO], "rejected": [ASK, ONE]},
    ],
)
def test_messages_are_split_at_the_last_one(record: dict[str, Any]) -> None:
    (pair,) = read(record)
    assert (pair.prompt, pair.chosen, pair.rejected) == ((ASK,), (TWO,), (ONE,))
    assert pair.conversational


def test_a_table_has_texts_as_margins(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("question,good,bad,margin\n1+1:,2,1,0.5\n1+2:,3,1,\n")
    columns: dict[str, str | list[str]] = {"prompt": "question", "chosen": "good", "rejected": "bad"}
    pairs = PromptFile(str(tmp_path / "p.csv"), columns).preferences()
    assert [(p.prompt, p.chosen, p.rejected, p.margin) for p in pairs] == [
        ("1+1:", "2", "1", 0.5), ("1+2:", "3", "1", 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "p", "chosen": "2"}, "has no column 'rejected'; it has chosen, prompt"),
        ({"chosen": "2", "rejected": [ONE]}, "must both be texts, or both lists of messages"),
        (
            {"prompt": [ASK], "chosen": "2", "rejected": "1"},
            "'prompt' is a list of messages, but the answers are texts",
        ),
        ({"prompt": "other", "chosen": [ASK, TWO], "rejected": [ASK, ONE]}, "messages that do not hold it"),
        ({"chosen": [TWO], "rejected": [ONE]}, "must be the same up to their last message"),
        ({"chosen": "2", "rejected": "1", "margin": "much"}, "'margin' must be a finite number"),
        ({"chosen": "2", "rejected": "1", "margin": True}, "'margin' must be a finite number"),
        ({"chosen": "2", "rejected": 1}, "'rejected' must be a text, or a list of messages"),
        ({"chosen": [{"role": "user"}], "rejected": [ONE]}, "message 1: must have a text as 'role' and one as"),
        ({"prompt": "", "chosen": "2", "rejected": "1"}, "'prompt' is empty"),
    ],
)
def test_malformed_preference_pair_is_named_by_place_and_column(record: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^place 0: .*{message}"):
        read(record)


def test_a_line_of_a_file_is_named(tmp_path: Path) -> None:
    lines = [{"chosen": "2", "rejected": "1"}, {"chosen": "secret"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"p\.jsonl:2: has no column 'rejected'") as caught:
        PromptFile(str(tmp_path / "p.jsonl")).preferences()
    assert "secret" not in str(caught.value)
