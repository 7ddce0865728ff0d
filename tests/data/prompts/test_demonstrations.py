"""Files of demonstrations: what a record may be, and what is said about one that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import PromptFile

ASK, SAY = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}


def write(file: Path, *records: Any) -> PromptFile:
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return PromptFile(str(file))


def test_records_of_every_kind_in_their_order(tmp_path: Path) -> None:
    demos = write(
        tmp_path / "demos.jsonl",
        {"prompt": "1+1:", "completion": "#2", "answer": "2"},
        {"messages": [{"role": "system", "content": "be brief"}, ASK, SAY, ASK, SAY], "completion": None},
        {"prompt": [ASK], "completion": [SAY]},
        {"prompt": [ASK], "completion": "2"},
        {"prompt": "30-49", "completion": [SAY, ASK, SAY]},
    ).demonstrations()
    system = {"role": "system", "content": "be brief"}
    assert list(demos) == [
        ("1+1:", "#2"), ([system, ASK], [SAY, ASK, SAY]), ([ASK], [SAY]), ([ASK], "2"), ("30-49", [SAY, ASK, SAY]),
    ]  # fmt: skip


def test_columns_have_other_names_and_fields_of_a_table_are_null(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "demos.parquet"
    rows = [{"q": [{**ASK, "name": None}], "a": "2"}, {"q": [{**ASK, "name": "Ann"}], "a": "3"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    demos = PromptFile(str(file), {"prompt": "q", "completion": "a"}).demonstrations()
    assert list(demos) == [([ASK], "2"), ([{**ASK, "name": "Ann"}], "3")]
    assert demos.where(1) == "demos.parquet, record 2"


BAD: dict[str, tuple[Any, str]] = {
    "neither": ({"prompt": "1:", "response": "#1"}, "nor 'messages'; it has prompt, response"),
    "no prompt": ({"completion": "#1"}, "'prompt' must be a non-empty text, or a list of messages"),
    "an empty completion": ({"prompt": "1:", "completion": ""}, "'completion' must be a non-empty text"),
    "a number": ({"prompt": "1:", "completion": 1}, "'completion' must be a non-empty text"),
    "a user's last word": ({"messages": [ASK, SAY, ASK]}, "must begin with a question and end with"),
    "nobody asks": ({"messages": [SAY]}, "'messages' must begin with a question"),
    "nobody answers": ({"messages": [ASK]}, "end with a turn of the assistant"),
    "a completion that asks": ({"prompt": "1:", "completion": [ASK, SAY]}, "must begin and end with a turn of"),
    "a part of a message": ({"messages": [ASK, {"role": "assistant"}]}, "'messages', message 2: must have a text"),
    "an empty turn": ({"messages": [ASK, {"role": "assistant", "content": ""}]}, "message 2: a turn of the"),
    "a list": ([1], "is a JSON list, not an object"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_record_that_is_no_demonstration_is_named_by_its_line(tmp_path: Path, case: tuple[Any, str]) -> None:
    record, words = case
    file = tmp_path / "demos.jsonl"
    file.write_text('{"prompt": "1:", "completion": "#1"}\n\n' + json.dumps(record) + "\n")
    with pytest.raises(UserError) as caught:
        PromptFile(str(file)).demonstrations()
    assert caught.value.field == "demos.jsonl:3"
    assert words in caught.value.problem
