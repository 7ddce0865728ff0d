"""docs/models.md says what is so: families are measured again and compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tools.models import measure, tiny
from tools.models.__main__ import main
from tools.models.measure import Row
from tools.models.pool import measure_all
from tools.models.table import PATH, inserted, read, version, write

FEW = ["gemma3_text", "llama", "mamba", "minimax", "qwen3", "qwen3_5_text", "qwen3_next", "rwkv"]
BOUND = 2e-4
"""Nats in float32; 5e-5 is the largest that was seen."""

table = pytest.fixture(scope="module")(lambda: read(PATH.read_text()))


def check(row: Row, table: dict[str, tuple[str, str]]) -> None:
    """As the table says; and right, or refused with a reason."""
    assert (row.layout if row.sampler else "", row.sampler) == table[row.family], row
    assert not row.wrong, row
    if row.sampler:
        assert row.training is not None
        assert row.sampling is not None
        assert 0 < row.training < BOUND  # 0: nothing was computed in another way
        assert 0 < row.sampling < BOUND
        assert row.layout == "packed" or row.reason
    else:
        assert row.reason


@pytest.mark.thorough("minimax", "qwen3_5_text", "qwen3_next")
@pytest.mark.parametrize("family", FEW)
def test_a_family_is_what_the_table_says(family: str, table: dict[str, tuple[str, str]]) -> None:
    check(measure.measure(family), table)


@pytest.mark.long
def test_every_family_is_what_the_table_says(table: dict[str, tuple[str, str]]) -> None:
    if version(PATH.read_text()) != transformers.__version__:
        pytest.skip(f"docs/models.md is of another transformers than {transformers.__version__}")
    torch.set_num_threads(1)
    assert set(table) == set(tiny.FAMILIES)
    assert sum(1 for _, sampler in table.values() if sampler) >= 100
    for family in tiny.FAMILIES:
        check(measure.measure(family), table)


@pytest.mark.thorough
def test_a_family_that_is_neither_right_nor_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not measure.measure("rwkv").wrong
    monkeypatch.setattr(measure, "verify_decoding", lambda *_, **__: None)
    row = measure.measure("rwkv")
    assert row.wrong
    assert row.training is not None
    assert row.training < BOUND
    assert row.sampling is not None
    assert row.sampling > 1
    assert Row("x", "X", "padded", "padded", 1e-6, float("nan")).wrong
    assert Row("x", "X", "padded", "padded", 1e-2, 1e-6).wrong


def test_models_table_reads_back_as_written() -> None:
    rows = [
        Row("b", "B", "padded", "generate", 1.23e-6, 4e-6, "a | in a\nreason " + "x" * 300),
        Row("a", "A", "packed", "lean", 1e-6, 4e-6),
        Row("c", "C", "padded", "", 1e-6, None, "refused"),
        Row("e", "E", "padded", reason="crashes: TypeError: no"),
        Row("d", "D", reason="needs timm", built=False),
    ]
    text = write(rows, {"transformers": "5.16.1", "torch": "2.10.0"})
    assert version(text) == "5.16.1"
    assert read(text) == {
        "a": ("packed", "lean"),
        "b": ("padded", "generate"),
        "c": ("", ""),
        "d": ("", ""),
        "e": ("", ""),
    }
    assert "**2 can be trained** (1 packed, 1 padded), 1 are refused by name, 1 fail with an error" in text
    assert "1 could not be built" in text
    assert max(map(len, text.splitlines())) < 300
    page = PATH.read_text()
    changed = inserted(text, page)
    assert read(changed) == read(text)
    assert changed.partition("## Families")[0] == page.partition("## Families")[0]


def test_families_that_are_refused_for_one_reason_share_a_line_with_their_numbers() -> None:
    def off(nats: str) -> str:
        return (
            f"rows padded: off by {nats} nats from whole rows of 6 tokens; transformers' generate: off by {nats} nats"
        )

    rows = [Row("a", "A", reason=off("2")), Row("b", "B", reason=off("0.04")), Row("c", "C", reason="looks: ahead")]
    text = write(rows, {"transformers": "5.16.1", "torch": "2.10.0"})
    assert "| a (2), b (0.04) | no decoding gives the numbers of whole rows |" in text
    assert "| c | looks: ahead |" in text
    assert read(text) == dict.fromkeys("abc", ("", ""))


@pytest.mark.parametrize(("limit", "memory", "said"), [(0.01, 2**34, "took more than 0.01 s"), (60, 2**26, "died")])
def test_a_family_that_hangs_or_eats_the_memory_takes_nobody_with_it(limit: float, memory: int, said: str) -> None:
    found: list[dict[str, object]] = []
    measure_all(["qwen3", "rwkv"], 2, limit, memory, found.append)
    assert sorted(str(row["family"]) for row in found) == ["qwen3", "rwkv"]
    assert all(said in str(row["reason"]) and not row["built"] for row in found)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_command_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "models.md"
    assert main(["--family=llam?", "--family=rwkv", "--jobs=1", f"--output={output}"]) == 0
    assert read(output.read_text()) == {"llama": ("packed", "lean"), "rwkv": ("", "")}
    assert main(["--family=no-such"]) == 2
    assert "no family matches" in capsys.readouterr().out


def test_an_error_of_a_models_own_code_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyError("inside")

    assert not measure.measure("llama").crashed
    monkeypatch.setattr(measure, "check_head", crash)
    row = measure.measure("llama")
    assert row.crashed
    assert row.built
    assert row.reason == "crashes: KeyError: 'inside'"
