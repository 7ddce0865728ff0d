"""Prompts from JSONL, Parquet and datasets: columns, and one clear message for everything that is wrong with a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask, HubPrompts, PromptFile, map_columns, open_prompts

RECORDS: list[dict[str, Any]] = [
    {"prompt": "1+1:", "answer": "2", "level": 1},
    {"prompt": "Grüße 😀", "answer": "3", "level": 2},
    {"prompt": [{"role": "user", "content": "hi"}], "answer": "x", "level": 3},
]


def jsonl(file: Path, records: list[Any]) -> str:
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return str(file)


def parquet(file: Path, records: list[Any]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    return str(file)


def refused(path: str, columns: Mapping[str, str] | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        PromptFile(path, columns).records()
    return caught.value


def test_jsonl_gives_its_records_in_order(tmp_path: Path) -> None:
    assert list(PromptFile(jsonl(tmp_path / "p.jsonl", RECORDS)).records()) == RECORDS


def test_parquet_gives_the_same_records(tmp_path: Path) -> None:
    texts = RECORDS[:2]
    assert list(PromptFile(parquet(tmp_path / "p.parquet", texts)).records()) == texts
    chats = [{"prompt": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}]
    assert list(PromptFile(parquet(tmp_path / "c.parquet", chats)).records()) == chats


def test_blank_lines_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}')
    assert list(PromptFile(str(file)).records()) == [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_columns_are_renamed_and_the_others_kept(write: Any, tmp_path: Path) -> None:
    suffix = {"jsonl": "p.jsonl", "parquet": "p.parquet"}[write.__name__]
    path = write(tmp_path / suffix, [{"question": "1+1:", "solution": "2", "level": 3, "prompt": "theirs"}])
    found = list(PromptFile(path, {"prompt": "question", "answer": "solution"}).records())
    assert found == [{"prompt": "1+1:", "answer": "2", "level": 3}]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": "a", "answer": "b"}, {"prompt": 1, "answer": 2}),
        ({"a": "b", "b": "a"}, {"a": 2, "b": 1}),  # swapped
        ({"prompt": "a", "title": "a"}, {"prompt": 1, "title": 1, "b": 2}),  # one column under two names
        ({"prompt": "none"}, {"a": 1, "b": 2}),
        ({}, {"a": 1, "b": 2}),
    ],
)
def test_map_columns(columns: dict[str, str], expected: dict[str, int]) -> None:
    assert map_columns({"a": 1, "b": 2}, columns) == expected


def test_a_malformed_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"prompt": "b",}\n')
    error = refused(str(file))
    assert error.field == "p.jsonl:3"
    assert "is not JSON" in error.problem
    column = 15 if sys.version_info >= (3, 13) else 16  # of the comma itself, or of what follows it
    assert f"at column {column}" in error.problem


@pytest.mark.parametrize(("line", "kind"), [("[1, 2]", "list"), ('"text"', "str"), ("17", "int"), ("null", "NoneType")])
def test_a_line_that_is_no_object_is_named(line: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    assert str(refused(str(file))) == f"p.jsonl:2: is a JSON {kind}, not an object"


def test_a_line_in_another_encoding_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n' + '{"prompt": "Grüße"}\n'.encode("latin-1"))
    error = refused(str(file))
    assert error.field == "p.jsonl:2"
    assert "is not UTF-8" in error.problem


@pytest.mark.parametrize("content", ["", "\n\n", "  \n"])
def test_an_empty_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    assert "holds no records" in refused(str(tmp_path / "p.jsonl")).problem


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), tmp_path / "p.parquet")
    assert "holds no records" in refused(str(tmp_path / "p.parquet")).problem


def test_a_missing_prompt_column_lists_what_there_is_and_how_to_map_it(tmp_path: Path) -> None:
    error = refused(jsonl(tmp_path / "p.jsonl", [{"question": "1", "answer": "2"}]))
    assert error.field == "data.columns"
    assert "p.jsonl:1 has no column 'prompt'; it has answer, question" in error.problem
    assert error.fix is not None
    assert "data.columns" in error.fix


@pytest.mark.parametrize("prompt", ["", 7, [], [1], ["text"], [{"content": "no role"}], {"role": "user"}])
def test_a_prompt_must_be_text_or_messages(prompt: object, tmp_path: Path) -> None:
    error = refused(jsonl(tmp_path / "p.jsonl", [{"prompt": "fine"}, {"prompt": prompt}]))
    assert "p.jsonl:2: 'prompt' must be a non-empty text or a list of chat messages" in error.problem


def test_a_missing_file_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UserError, match=r"the prompt file 'such\.jsonl' does not exist"):
        PromptFile("no/such.jsonl")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [])
    with pytest.raises(UserError, match=r"'trian\.jsonl' does not exist; did you mean train\.jsonl\?"):
        PromptFile(str(tmp_path / "trian.jsonl"))


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("prompt\n1\n")
    with pytest.raises(UserError, match=r"'p\.txt' is not a file of records\n  fix: give \.jsonl, \.json, \.csv, "):
        PromptFile(str(tmp_path / "p.txt"))


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_text("not a table")
    assert "is not a Parquet file" in refused(str(tmp_path / "p.parquet")).problem


def test_open_prompts_knows_sets_files_and_ids(tmp_path: Path) -> None:
    task = ChainTask("train", 4)
    assert open_prompts(task, {"prompt": "x"}) is task
    found = open_prompts(jsonl(tmp_path / "p.jsonl", [{"q": "1"}]), {"prompt": "q"})
    assert isinstance(found, PromptFile)
    assert list(found.records()) == [{"prompt": "1"}]
    for missing in ("missing.parquet", "missing.csv.gz"):
        with pytest.raises(UserError, match="does not exist"):
            open_prompts(missing, {})  # a known suffix is a file, never a hub id
    hub = open_prompts("someone/some-data", {"prompt": "q"})
    assert isinstance(hub, HubPrompts)
    assert (hub.path, hub.split, hub.columns) == ("someone/some-data", "train", {"prompt": "q"})


def test_text_that_is_no_prompt_source_is_refused_without_being_shown() -> None:
    for text in ("prompt,answer\nsecret,1\n", "secret " * 900, '{"class_path": "secret"}', "secret\0"):
        with pytest.raises(UserError, match="neither a file, nor a hub id, nor a prompt set") as caught:
            open_prompts(text, {})
        assert "secret" not in str(caught.value)


def test_a_folder_means_its_training_file(tmp_path: Path) -> None:
    """Read here: ``datasets`` would copy its records into a cache."""
    with pytest.raises(UserError, match="holds 0 files of records that begin with 'train'"):
        open_prompts(str(tmp_path), {})
    (tmp_path / "data").mkdir()
    parquet(tmp_path / "data" / "train-00000-of-00001.parquet", [{"q": "1:"}])
    jsonl(tmp_path / "data" / "test.jsonl", [{"q": "2:"}])
    found = open_prompts(str(tmp_path), {"prompt": "q"})
    assert isinstance(found, PromptFile)
    assert list(found.records()) == [{"prompt": "1:"}]
    jsonl(tmp_path / "train.jsonl", [{"q": "3:"}])
    with pytest.raises(UserError, match="holds 2 files of records"):
        open_prompts(str(tmp_path), {})


@pytest.mark.parametrize("splits", [False, True])
def test_a_folder_of_save_to_disk_is_refused_with_the_way_to_a_file(splits: bool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": "1+1", "answer": "2"}])
    (datasets.DatasetDict({"train": rows}) if splits else rows).save_to_disk(str(tmp_path / "kept"))
    with pytest.raises(UserError) as caught:
        open_prompts(str(tmp_path / "kept"), {})
    error = caught.value
    assert error.problem == "the folder 'kept' was written by save_to_disk of datasets, whose files are no records"
    assert error.fix is not None
    of_split = '["train"]' if splits else ""
    assert f'load_from_disk(FOLDER){of_split}.to_parquet("train.parquet")' in error.fix
    loaded = datasets.load_from_disk(str(tmp_path / "kept"))
    (loaded["train"] if splits else loaded).to_parquet(str(tmp_path / "kept" / "train.parquet"))
    named = open_prompts(str(tmp_path / "kept" / "train.parquet"), {})
    beside = open_prompts(str(tmp_path / "kept"), {})
    assert isinstance(named, PromptFile)
    assert isinstance(beside, PromptFile)
    assert list(beside.records()) == list(named.records()) == [{"prompt": "1+1", "answer": "2"}]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"prompt": "question"},
            "columns.prompt: is 'question', which is not a column of p.jsonl; it has gold, meta, q",
        ),
        ({"prompt": "q", "answer": "glod"}, "is 'glod', which is not a column of p.jsonl (did you mean gold?)"),
        ({"prompt": "q", "answer": "meta.gold"}, "data.columns.answer: is 'meta.gold', which is not a column"),
        ({"prompt": "q", "answer": ["gold", "kind"]}, "data.columns.answer: is 'kind', which is not a column"),
    ],
)
def test_a_mapped_column_that_is_not_there_is_named(columns: Any, expected: str, tmp_path: Path) -> None:
    rows = [{"q": "1"}, {"q": "2", "gold": "3", "meta": {"level": 1}}]
    assert expected in str(refused(jsonl(tmp_path / "p.jsonl", rows), columns))


def test_a_mapped_column_may_be_missing_in_some_records(tmp_path: Path) -> None:
    rows = [{"q": "1"}, {"q": "2", "gold": "3"}]
    found = list(PromptFile(jsonl(tmp_path / "p.jsonl", rows), {"prompt": "q", "answer": "gold"}).records())
    assert found == [{"prompt": "1"}, {"prompt": "2", "answer": "3"}]


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that ``datasets`` can load, with its cache beside it."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    parquet(folder / "train-00000-of-00001.parquet", [{"question": "1+1:", "answer": "2"}, {"question": "2:"}])
    parquet(folder / "test-00000-of-00001.parquet", [{"question": "3:", "answer": "3"}])
    return str(folder)


def test_a_data_set_gives_the_records_of_its_split(data_set: str) -> None:
    columns = {"prompt": "question"}
    found = list(HubPrompts(data_set, columns=columns).records())
    assert found == [{"prompt": "1+1:", "answer": "2"}, {"prompt": "2:", "answer": None}]
    assert list(HubPrompts(data_set, split="test", columns=columns).records()) == [{"prompt": "3:", "answer": "3"}]


def test_faulty_hub_data_set_is_one_message(data_set: str) -> None:
    with pytest.raises(UserError, match="record 1 has no column 'prompt'; it has answer, question"):
        HubPrompts(data_set).records()
    with pytest.raises(UserError, match=r"cannot be loaded as a data set: .*validation"):
        HubPrompts(data_set, split="validation").records()
    with pytest.raises(UserError, match="is not a file here, and cannot be loaded as a data set") as caught:
        HubPrompts("nobody/no-such-data").records()  # no network in the tests
    assert len(str(caught.value).splitlines()) == 2
