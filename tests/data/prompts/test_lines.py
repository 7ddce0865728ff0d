"""JSON lines stay in their file: what is kept of them, and what happens to a file under a run."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.corpus import lines as corpus_lines
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.prompts import on_demand
from gspo_lightning.data.prompts.encode import EncodedPrompts, Encoder, encode_prompts
from gspo_lightning.data.prompts.files import PromptFile
from gspo_lightning.data.prompts.formats import read_rows
from gspo_lightning.data.prompts.on_demand import JsonLines
from gspo_lightning.data.prompts.sets import PromptSets


def written(file: Path, rows: int, note: str = "") -> str:
    lines = [json.dumps({"prompt": f"{i % 10}+1:", "answer": str((i + 1) % 10), "note": note}) for i in range(rows)]
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def encoded(path: str, tokenizer: PreTrainedTokenizerFast, longest: int = 9) -> tuple[EncodedPrompts, list[Prompt]]:
    seen: list[Prompt] = []
    encoder = Encoder(tokenizer, None, {}, "data.train")
    return EncodedPrompts(PromptFile(path).records(), encoder, longest, seen.append), seen


def test_a_row_is_found_from_either_end_and_between_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n\n \t\n{"n": "\xc3\xbc\xe2\x80\xa8"}\n\n{"n": 2}')
    rows = JsonLines(str(file))
    assert [rows[i] for i in (0, 1, 2, -1)] == [{"n": 0}, {"n": "ü\u2028"}, {"n": 2}, {"n": 2}]
    assert rows[1:] == list(rows)[1:]
    assert [a["n"] == b["n"] for a, b in zip(rows, rows, strict=True)] == [True] * 3  # two readers at a time
    with pytest.raises(IndexError):
        rows[3]


def test_lines_longer_than_a_block_are_whole(tmp_path: Path) -> None:
    texts = ["a" * 3_000_000, "b", "c" * 1_048_575]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    rows = JsonLines(str(tmp_path / "p.jsonl"))
    assert [row["prompt"] for row in rows] == [rows[i]["prompt"] for i in range(3)] == texts


def test_a_line_without_end_is_named_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some MB of gzip may be a line of many GB."""
    monkeypatch.setattr(corpus_lines, "LONGEST_LINE", 1 << 21)
    whole, long = b'{"prompt": "a"}\n', b'{"prompt": "' + b"a" * (1 << 22) + b'"}\n'
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(whole + long))
    (tmp_path / "p.jsonl").write_bytes(whole + long)
    with pytest.raises(UserError, match=r"^p\.jsonl\.gz:2: has more than 2 MiB in one line"):
        read_rows(str(tmp_path / "p.jsonl.gz"))
    with pytest.raises(UserError, match=r"^p\.jsonl: has more than 2 MiB in one line"):
        read_rows(str(tmp_path / "p.jsonl"))
    with pytest.raises(UserError, match=r"^p\.jsonl:2: has more than 2 MiB in one line"):
        list(Inputs([tmp_path / "p.jsonl"]).records())


def test_prompts_of_a_file_cost_their_index(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, None, {}, "data.train")

    def kept(rows: int) -> int:
        """Bytes that are held beside the prompts of a file of so many rows."""
        path = written(tmp_path / f"{rows}.jsonl", rows, note="x" * 200)
        tracemalloc.start()
        try:
            prompts = EncodedPrompts(PromptFile(path).records(), encoder, 9, lambda _: None)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(prompts) == rows
        assert prompts[rows - 1].columns["answer"] == str(rows % 10)
        return held

    kept(10)  # what the first call of all sets up once
    # 12 bytes a row and what arrays have in reserve; as rows they would be 900 each
    assert kept(8_000) - kept(4_000) < 4_000 * 30


def test_a_prompt_asked_for_is_the_one_that_was_seen(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": "1+1:" if i % 3 else "1+1+1+1:", "answer": i} for i in range(600)]  # several calls
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts, seen = encoded(str(file), tokenizer, longest=6)
    assert list(prompts) == seen == encode_prompts(rows, tokenizer, max_prompt_tokens=6)
    assert [p.id for p in seen] == [i for i in range(600) if i % 3]
    assert prompts[1] == prompts.by_id(2) == seen[1]
    assert prompts[-2:] == seen[-2:]


def test_a_run_goes_on_with_the_file_that_it_began_with(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    file = tmp_path / "p.jsonl"
    prompts, seen = encoded(written(file, 50), tokenizer)
    with open(file, "a", encoding="utf-8") as more:
        more.write('{"prompt": "9*9:"}\nno JSON yet')
    os.utime(file, (0, 0))
    assert list(prompts) == seen
    written(tmp_path / "other.jsonl", 50, note="other")
    os.replace(tmp_path / "other.jsonl", file)
    assert list(prompts) == seen
    file.unlink()
    assert prompts[49] == seen[49]


@pytest.mark.parametrize("content", [b"", b'{"prompt": "9+9:"}\n' * 50, b'{"prompt": "0+1:"'])
def test_a_file_that_was_overwritten_is_refused(
    content: bytes, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = tmp_path / "p.jsonl"
    prompts, _ = encoded(written(file, 50), tokenizer)
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"^p.jsonl: record 41 has changed since this run began.*\n  fix: write "):
        prompts[40]


def test_nothing_is_left_open(tmp_path: Path) -> None:
    rows, before = JsonLines(written(tmp_path / "p.jsonl", 3)), len(os.listdir("/proc/self/fd"))
    assert rows[2]["answer"] == "3"
    del rows
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_run_parses_every_row_once_before_it_begins(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is asked for once more; what is wrong with a row is said under the name of the set."""
    path, parsed = written(tmp_path / "p.jsonl", 50), list[str]()
    original = on_demand.parse_line
    monkeypatch.setattr(on_demand, "parse_line", lambda line, where: parsed.append(where) or original(line, where))
    sets = PromptSets({"train": path}, {}, 9, None, {})
    loaded = sets.load("train", tokenizer)
    assert len(parsed) == len(loaded) == 50
    assert loaded[7].text == "7+1:"
    assert len(parsed) == 51
    (tmp_path / "bad.jsonl").write_text('{"prompt": "1+1:"}\n{"prompt": ""}\n')
    with pytest.raises(UserError, match=r"data.val: bad.jsonl:2: 'prompt' must be a non-empty text"):
        PromptSets({"val": str(tmp_path / "bad.jsonl")}, {}, 9, None, {}).load("val", tokenizer)
