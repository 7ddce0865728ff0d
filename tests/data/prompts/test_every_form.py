"""A record has one meaning: as JSON lines, in a folder, as Parquet of three writers, on the hub, and for rewards."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from gspo_lightning.cli import main
from gspo_lightning.data.prompts import HubPrompts, PromptFile, open_prompts
from gspo_lightning.data.prompts.encode import encode_prompts
from tests.support.hub import Hub, connect, hub_server

Rows = list[dict[str, Any]]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
OTHER = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TALK = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "weather", "content": "sun"},
]
SUM = [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "", "tool_calls": [OTHER]}]
HARD: Rows = [
    {"prompt": TALK, "answer": "2024-01-05", "level": 1, "about": {"source": "a"}},
    {"prompt": SUM, "answer": "007", "level": 2, "about": {"page": 3, "tags": ["x"]}},
    {"prompt": TALK, "answer": "1.50", "level": 3, "about": {"inner": {"deep": [{"k": "v"}, {"n": 1}]}}},
    {"prompt": SUM, "answer": "null", "level": 4, "about": {}},
    {"prompt": SUM, "answer": "true", "level": 5, "about": {"when": "2024-01-05T10:00:00"}},
    {"prompt": SUM, "answer": "1e3", "level": 6, "about": {"when": "12:30"}},
    {"prompt": SUM, "answer": "", "level": 2**63 - 1, "about": {"source": "NaN"}},
]
MIXED: Rows = [
    {"prompt": "a", "answer": "Rome", "about": {"x": "1"}},
    {"prompt": "b", "answer": 4, "about": {"x": 1}},
    {"prompt": "c", "answer": [1, "z", {"k": None}], "about": {"x": [1.5]}},
    {"prompt": "d", "answer": {"a": 1}, "about": {"x": {"y": "007"}}},
    {"prompt": "e", "answer": 2**70, "about": {"x": True}},
]


def lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def file(rows: Rows, folder: Path) -> Rows:
    (folder / "train.jsonl").write_text(lines(rows))
    return list(map(dict, PromptFile(str(folder / "train.jsonl")).records()))


def array(rows: Rows, folder: Path) -> Rows:
    (folder / "train.json").write_text(json.dumps(rows, indent=1))
    return list(map(dict, PromptFile(str(folder / "train.json")).records()))


def folder_of_packed_lines(rows: Rows, folder: Path) -> Rows:
    half = len(rows) // 2
    (folder / "train-0.jsonl.gz").write_bytes(gzip.compress(lines(rows[:half]).encode()))
    (folder / "train-1.json.gz").write_bytes(gzip.compress(lines(rows[half:]).encode()))
    return list(map(dict, HubPrompts(str(folder)).records()))


def folder_of_a_packed_array(rows: Rows, folder: Path) -> Rows:
    (folder / "train.json.gz").write_bytes(gzip.compress(json.dumps(rows, indent=1).encode()))
    return list(map(dict, HubPrompts(str(folder)).records()))


def folder_of_lines(rows: Rows, folder: Path) -> Rows:
    half = len(rows) // 2
    (folder / "train-0.jsonl").write_text(lines(rows[:half]))
    (folder / "train-1.json").write_text(lines(rows[half:]))
    return list(map(dict, HubPrompts(str(folder)).records()))


def by_datasets(rows: Rows, folder: Path) -> Rows:
    Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(folder / "train.parquet")
    return list(map(dict, open_prompts(str(folder), {}).records()))


def by_datasets_through_json(rows: Rows, folder: Path) -> Rows:
    Dataset.from_list(rows, on_mixed_types="use_json").to_json(folder / "train.jsonl")
    return list(map(dict, HubPrompts(str(folder)).records()))


def by_pyarrow(rows: Rows, folder: Path) -> Rows:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet", row_group_size=2)
    records = PromptFile(str(folder / "train.parquet")).records()
    assert [records[i] for i in range(len(rows))] == list(records)  # one by one, and from beginning to end
    return list(map(dict, records))


def by_pandas(rows: Rows, folder: Path) -> Rows:
    frame = pandas.DataFrame(rows, index=[7 + i for i in range(len(rows))])  # an index that becomes a column
    frame.to_parquet(folder / "train.parquet")
    return list(map(dict, HubPrompts(str(folder)).records()))


def converted(rows: Rows, folder: Path) -> Rows:
    (folder / "in.jsonl").write_text(lines(rows))
    words = ["data", "convert", f"--input={folder / 'in.jsonl'}", f"--output={folder / 'out.parquet'}"]
    assert main(words) == 0
    assert main(["data", "convert", f"--input={folder / 'out.parquet'}", f"--output={folder / 'back.jsonl'}"]) == 0
    return [json.loads(line) for line in (folder / "back.jsonl").read_text().splitlines()]


FORMS: list[Callable[[Rows, Path], Rows]] = [
    file, array, folder_of_lines, folder_of_packed_lines, folder_of_a_packed_array, by_datasets,
    by_datasets_through_json, by_pyarrow, by_pandas, converted,
]  # fmt: skip
ANY_TYPE = [file, array, folder_of_lines, folder_of_packed_lines, folder_of_a_packed_array, by_datasets]
"""Forms that hold values of several types in a column."""


def plain(rows: Rows) -> Rows:
    """Rows without their null columns: a table has every column in every row."""
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_record_is_read_as_it_was_written(form: Callable[[Rows, Path], Rows], tmp_path: Path) -> None:
    assert plain(form(HARD, tmp_path)) == HARD


@pytest.mark.parametrize("form", ANY_TYPE, ids=lambda form: form.__name__)
def test_a_column_of_several_types_is_as_it_was_written(form: Callable[[Rows, Path], Rows], tmp_path: Path) -> None:
    rows = MIXED
    if form is by_datasets:  # its integers end at 64 bits, and it reads "1" as 1 beside numbers before it writes
        rows = [{**row, "about": {"x": [row["about"]["x"]]}} for row in MIXED[1:-1]]
    assert plain(form(rows, tmp_path)) == rows


def values(draw: random.Random, depth: int) -> Any:
    texts = ["2024-01-05", "007", "1.50", "null", "true", "", "12:30", "ä\n", "-0", "1e400", '{"a": 1}']
    if depth == 0 or draw.random() < 0.5:
        return draw.choice(texts)
    if draw.random() < 0.5:
        return [values(draw, 0) for _ in range(draw.randint(1, 3))]
    return {name: draw.choice(texts) for name in draw.sample("abc", draw.randint(1, 3))}


@pytest.mark.parametrize("seed", range(6))
def test_random_records_mean_the_same_in_every_form(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    kinds = {name: draw.choice([0, 1, 2]) for name in "pqr"}
    rows = []
    for number in range(12):
        row: dict[str, Any] = {"prompt": f"{number}", "answer": values(draw, 0)}
        for name, kind in kinds.items():
            many = {key: values(draw, 0) for key in draw.sample("abc", draw.randint(1, 3))}
            row[name] = values(draw, 0) if kind == 0 else many if kind == 1 else [many, {"a": values(draw, 0)}]
        rows.append(row)
    for form in FORMS:
        (folder := tmp_path / form.__name__).mkdir()
        assert form(rows, folder) == rows, form.__name__


def test_the_hub_gives_what_its_files_hold(hub: Hub, tmp_path: Path) -> None:
    Dataset.from_list(HARD, on_mixed_types="use_json").to_parquet(tmp_path / "t.parquet")
    repository = hub.repository("o/lines", "datasets")
    repository.commit("a", {"data/train.jsonl": lines(HARD).encode(), "data/test.jsonl": lines(HARD[:2]).encode()})
    repository = hub.repository("o/table", "datasets")
    repository.commit("a", {"data/train-00000-of-00001.parquet": (tmp_path / "t.parquet").read_bytes()})
    assert list(map(dict, HubPrompts("o/lines").records())) == HARD
    assert list(map(dict, HubPrompts("o/lines", split="test").records())) == HARD[:2]
    assert list(map(dict, HubPrompts("o/lines", split="train[1:3]+test").records())) == HARD[1:3] + HARD[:2]
    assert plain(list(map(dict, HubPrompts("o/table").records()))) == HARD


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_server() as found:
        connect(found, tmp_path / "home", monkeypatch)
        settings = {"HF_ENDPOINT": found.endpoint, "HF_HUB_OFFLINE": False, "HF_DATASETS_OFFLINE": False}
        for name, value in (settings | {"HF_DATASETS_CACHE": tmp_path / "cache"}).items():
            monkeypatch.setattr(datasets.config, name, value)
        monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
        yield found


@pytest.mark.parametrize("form", [file, array, folder_of_lines, folder_of_packed_lines], ids=lambda form: form.__name__)
def test_half_a_character_of_a_record_is_escaped(
    form: Callable[[Rows, Path], Rows], tmp_path: Path, characters: PreTrainedTokenizerFast
) -> None:
    rows: Rows = [{"prompt": "1+1 \ud83d", "answer": ["\ude00", {"k\ud83d": 1}]}] * 2
    found = form(rows, tmp_path)
    assert found == [{"prompt": "1+1 \\ud83d", "answer": ["\\ude00", {"k\\ud83d": 1}]}] * 2
    (first, _) = encode_prompts(found, characters, max_prompt_tokens=99)
    assert first.text == "1+1 \\ud83d"


def test_dates_decimals_and_maps_of_a_table_are_the_values_of_json(tmp_path: Path) -> None:
    import datetime
    import uuid

    table = pyarrow.table(
        {
            "prompt": ["a"],
            "day": pyarrow.array([datetime.date(2024, 1, 5)]),
            "big": pyarrow.array([Decimal(2**90)], pyarrow.decimal128(38, 0)),
            "price": pyarrow.array([Decimal("1.50")], pyarrow.decimal128(9, 2)),
            "map": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
            "kind": pyarrow.array(["x"]).dictionary_encode(),
            "at": pyarrow.array([datetime.datetime(2024, 1, 5, 10)]),
            "took": pyarrow.array([[datetime.timedelta(seconds=90)]]),
            "uuid": pyarrow.array([uuid.UUID(int=5).bytes], pyarrow.uuid()),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (row,) = PromptFile(str(tmp_path / "t.parquet")).records()
    assert row == {
        "prompt": "a", "day": "2024-01-05", "big": 2**90, "price": "1.50", "map": {"k": 1}, "kind": "x",
        "at": "2024-01-05T10:00:00", "took": ["0:01:30"], "uuid": "00000000-0000-0000-0000-000000000005",
    }  # fmt: skip


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}{% if m.name is defined %} name {{ m.name }}{% endif %}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
)


@pytest.mark.parametrize("form", [file, by_datasets, by_pyarrow, by_pandas], ids=lambda form: form.__name__)
def test_the_template_sees_no_padding(
    form: Callable[[Rows, Path], Rows], tmp_path: Path, characters: PreTrainedTokenizerFast
) -> None:
    (first, second, *_) = encode_prompts(form(HARD, tmp_path), characters, max_prompt_tokens=999)
    assert first.text == 'user: Weather?;assistant: {"city": "Rome"};tool name weather: sun;'
    assert second.text == 'user: 1+2?;assistant: {"a": 1, "b": 2};'


def test_null_fields_of_messages_in_lines_are_no_fields(tmp_path: Path, characters: PreTrainedTokenizerFast) -> None:
    rows = [{"prompt": [{"role": "user", "content": "x", "name": None, "tool_calls": None}]}]
    (prompt,) = encode_prompts(file(rows, tmp_path), characters, max_prompt_tokens=99)
    assert prompt.text == "user: x;"
    assert prompt.messages == ({"role": "user", "content": "x"},)


@pytest.fixture
def characters() -> PreTrainedTokenizerFast:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {chr(i): i - 31 for i in range(32, 127)} | {"<unk>": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="~", chat_template=TEMPLATE)
