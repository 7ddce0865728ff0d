"""dedup, decontaminate, filter, mix, split, convert: what they keep, drop and say, by files."""

from __future__ import annotations

import importlib.metadata
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning import __version__
from gspo_lightning.commands.data.mix import order
from gspo_lightning.data.corpus.decontamination_report import about, read_report
from gspo_lightning.data.corpus.minhash import grams, jaccard
from gspo_lightning.data.corpus.text import normalised
from tests.commands.data.files import data, read, write

LONG = "A farmer has seventeen sheep, and all but nine of them run away. How many sheep does the farmer have left?"
OTHER = "The sum of two consecutive odd numbers is eighty-eight. What is the larger one of these two numbers?"
FORMATS = pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])


@FORMATS
def test_dedup_keeps_the_first_and_names_it(tmp_path: Path, suffix: str) -> None:
    near = LONG.replace("sheep", "goats", 1)
    prompts = [LONG, OTHER, LONG, f"  {LONG.upper()} ", near, "1+1:", "1+2:"]
    records = [{"id": f"r{i}", "prompt": prompt, "n": i} for i, prompt in enumerate(prompts)]
    source, target = write(tmp_path / f"a{suffix}", records), tmp_path / f"b{suffix}"
    before = source.read_bytes()
    data("dedup", "--input", source, "--output", target)
    assert source.read_bytes() == before
    assert read(target) == [records[0], records[1], records[5], records[6]]
    dropped = read(tmp_path / f"b{suffix}.dropped.jsonl")
    place = "line" if suffix == ".jsonl" else "record"
    assert [(d["id"], d["reason"], d["repeats"]) for d in dropped] == [
        ("r2", "the same prompt", {"file": source.name, place: 1}),
        ("r3", "the same but for case and white space", {"file": source.name, place: 1}),
        ("r4", "nearly the same", {"file": source.name, place: 1}),
    ]
    assert [d["record"] for d in dropped] == records[2:5]
    exact = jaccard(grams(normalised(LONG)), grams(normalised(near)))
    assert 0.7 <= exact < 1
    assert dropped[2]["similarity"] == pytest.approx(exact, abs=1e-4)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(
        [f"a{suffix}", f"b{suffix}", f"b{suffix}.dropped.jsonl"]
    )


def test_lines_are_copied_byte_by_byte(tmp_path: Path) -> None:
    lines = [
        b'{"prompt":"one",   "x": 1.50, "y": "\\u00e9"}\r\n',
        b"\n",
        '{"b": 1e3, "prompt": "\u00e9t\u00e9"}\n'.encode(),
        b'{"prompt": [{"role": "user", "content": "hello there"}]}',
    ]
    source, target = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    source.write_bytes(b"".join(lines))
    data("dedup", "--input", source, "--output", target)
    assert target.read_bytes() == lines[0] + lines[2] + lines[3] + b"\n"


def test_threshold_one_keeps_what_differs(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"prompt": LONG}, {"prompt": LONG.replace("nine", "ten")}])
    data("dedup", "--input", source, "--output", tmp_path / "b.jsonl", "--threshold", 1)
    assert len(read(tmp_path / "b.jsonl")) == 2


@FORMATS
def test_decontaminate_drops_leaks_and_certifies_the_rest(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = write(tmp_path / f"bench{suffix}", [{"problem": LONG, "answer": "9"}])
    records = [
        {"q": f"Think. {LONG} Explain.", "answer": "nine"},
        {"q": OTHER, "answer": "9"},
        {"q": LONG, "answer": "#### 9"},
    ]
    source, target = write(tmp_path / f"train{suffix}", records), tmp_path / f"clean{suffix}"
    words = ("--column", "q", "--against", benchmark, "--against_column", "problem")
    data("decontaminate", "--input", source, "--output", target, *words)
    assert read(target) == records[1:2]
    dropped = read(Path(f"{target}.dropped.jsonl"))
    assert [(d["rule"], d["share"], d["same_answer"]) for d in dropped] == [("8-grams", 1, False), ("8-grams", 1, True)]
    assert dropped[0]["repeats"] == {"file": benchmark.name, "line" if suffix == ".jsonl" else "record": 1}
    assert "1 kept records have an answer of the benchmarks" in capsys.readouterr().out
    report = read_report(target)
    assert report is not None
    assert report.sha256 == sha256(target.read_bytes()).hexdigest()
    assert [(b.file, b.sha256, b.prompts) for b in report.against] == [
        (benchmark.name, sha256(benchmark.read_bytes()).hexdigest(), 1)
    ]
    assert about(target) == (f"{target.name}: decontaminated against {benchmark.name} (1 prompts)", True)


def test_a_checkout_without_metadata_certifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on PYTHONPATH, where nobody has installed the package."""
    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    source, benchmark = (write(tmp_path / f"{name}.jsonl", [{"prompt": name * 9}]) for name in ("a", "b"))
    data("decontaminate", "--input", source, "--output", tmp_path / "c.jsonl", "--against", benchmark)
    report = json.loads((tmp_path / "c.jsonl.decontaminated.json").read_text())
    assert report["version"] == __version__


def not_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_decontamination_report_is_carried_on_while_it_holds(tmp_path: Path) -> None:
    benchmark = write(tmp_path / "bench.jsonl", [{"prompt": LONG}])
    source = write(tmp_path / "a.jsonl", [{"prompt": OTHER}, {"prompt": OTHER}, {"prompt": "What is 3+4?"}])
    data("decontaminate", "--input", source, "--output", tmp_path / "b.jsonl", "--against", benchmark)
    data("dedup", "--input", tmp_path / "b.jsonl", "--output", tmp_path / "c.jsonl")
    said = about(tmp_path / "c.jsonl")
    assert said is not None
    assert said[1]
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')
    said = about(tmp_path / "c.jsonl")
    assert said is not None
    assert not said[1]
    data("dedup", "--input", tmp_path / "c.jsonl", "--output", tmp_path / "d.jsonl")
    assert about(tmp_path / "d.jsonl") is None


def test_mix_takes_any_weights_whose_ratio_is_a_number(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"{n}.jsonl", [{"prompt": f"{n}{i}"} for i in range(8)]) for n in "ab"]
    found = {}
    for weights in ((1, 1), (1e308, 1e308), (5e-324, 5e-324), (1.5e308, 0.5e308), (3, 1), (1e308, 1e-308)):
        target = tmp_path / f"{len(found)}.jsonl"
        data("mix", "--input", *sources, "--output", target, "--weights", *weights)
        found[weights] = [row["prompt"] for row in read(target)]
    assert found[1e308, 1e308] == found[5e-324, 5e-324] == found[1, 1]
    assert found[1.5e308, 0.5e308] == found[3, 1]
    assert found[1e308, 1e-308] == [f"a{i}" for i in range(8)]


@FORMATS
def test_filter_takes_both_ends_in(tmp_path: Path, suffix: str) -> None:
    rates = [0.0, 0.1, 0.5, 0.9, 1.0, None]
    records = [{"prompt": f"{i}", "pass_rate": rate} for i, rate in enumerate(rates)]
    source, target = write(tmp_path / f"a{suffix}", records), tmp_path / f"b{suffix}"
    data("filter", "--input", source, "--output", target, "--pass_rate", 0.1, 0.9)
    assert read(target) == records[1:4]
    dropped = read(Path(f"{target}.dropped.jsonl"))
    assert [d["reason"] for d in dropped] == ["too hard", "too easy", "no pass rate"]


def test_filter_does_not_drop_for_rounding(tmp_path: Path) -> None:
    """Rates of other programs are means of floats: three answers worth .1 have .10000000000000002."""
    records = [{"prompt": f"{i}", "pass_rate": rate} for i, rate in enumerate([sum([0.1] * 3) / 3, 0.7 + 0.2, 0.901])]
    assert [r["pass_rate"] for r in records] == [0.10000000000000002, 0.8999999999999999, 0.901]
    source = write(tmp_path / "a.jsonl", records)
    data("filter", "--input", source, "--output", tmp_path / "b.jsonl", "--pass_rate", 0, 0.1)
    assert read(tmp_path / "b.jsonl") == records[:1]
    data("filter", "--input", source, "--output", tmp_path / "c.jsonl", "--pass_rate", 0.9, 0.9)
    assert read(tmp_path / "c.jsonl") == records[1:2]


@FORMATS
def test_mix_keeps_quotas_and_the_order_of_each_file(tmp_path: Path, suffix: str) -> None:
    a = write(tmp_path / f"a{suffix}", [{"prompt": f"a{i}"} for i in range(30)])
    b = write(tmp_path / f"b{suffix}", [{"prompt": f"b{i}"} for i in range(30)])
    data("mix", "--input", a, b, "--weights", 3, 1, "--output", tmp_path / f"m{suffix}")
    mixed = [record["prompt"] for record in read(tmp_path / f"m{suffix}")]
    assert [p for p in mixed if p[0] == "a"] == [f"a{i}" for i in range(30)]
    assert [p for p in mixed if p[0] == "b"] == [f"b{i}" for i in range(10)]
    for end in range(1, len(mixed) + 1):
        assert abs(sum(p[0] == "b" for p in mixed[:end]) - end / 4) < 1
    data("mix", "--input", a, b, "--size", 5, "--output", tmp_path / f"n{suffix}")
    assert [r["prompt"] for r in read(tmp_path / f"n{suffix}")] == ["a0", "b0", "a1", "b1", "a2"]
    data("mix", "--input", a, b, "--size", 70, "--output", tmp_path / f"o{suffix}", code=2)
    assert list(order([0, 2])) == [1, 1]


def test_mix_loses_no_row_between_the_parts_of_a_parquet_file(tmp_path: Path) -> None:
    """Rows are written 8,192 at a time."""
    sources = [write(tmp_path / f"{n}.parquet", [{"prompt": f"{n}{i}"} for i in range(4100)]) for n in "ab"]
    data("mix", "--input", *sources, "--output", tmp_path / "m.parquet")
    expected = [f"{n}{i}" for i in range(4100) for n in "ab"]
    assert [record["prompt"] for record in read(tmp_path / "m.parquet")] == expected


@FORMATS
def test_split_parts_no_near_duplicates(tmp_path: Path, suffix: str) -> None:
    topics = ["sheep", "goats", "horses", "ducks", "camels", "rabbits", "zebras", "otters", "geese", "lions"]
    base = [f"{topic} {LONG[::step]} {topic * 3}" for step, topic in enumerate(topics, 1)]
    records = [{"prompt": p + "!" * i} for p in base for i in range(3)] + [{"prompt": base[0].upper()}]
    source, target = write(tmp_path / f"a{suffix}", records), tmp_path / f"train{suffix}"
    data("split", "--input", source, "--output", target, "--share", 0.2)
    train, out = read(target), read(tmp_path / f"train.held_out{suffix}")
    assert sorted(r["prompt"] for r in [*train, *out]) == sorted(r["prompt"] for r in records)
    assert 1 <= len(out) <= 6
    for a in train:
        for b in out:
            assert jaccard(grams(normalised(a["prompt"])), grams(normalised(b["prompt"]))) < 0.7
    data("split", "--input", source, "--output", tmp_path / f"again{suffix}", "--share", 0.2)
    assert read(tmp_path / f"again.held_out{suffix}") == out


@pytest.mark.parametrize(
    ("output", "held_out"),
    [
        ("both.jsonl", "./both.jsonl"),
        ("both.jsonl", "{here}/both.jsonl"),
        ("{here}/both.jsonl", "sub/../both.jsonl"),
        ("both.jsonl", "link/both.jsonl"),
        ("link/both.jsonl", "{here}/link/../here/both.jsonl"),
    ],
)
def test_split_refuses_one_file_under_two_names(
    output: str, held_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "link").symlink_to(here)
    monkeypatch.chdir(here)
    write(here / "a.jsonl", [{"prompt": f"{i} " + "word " * i} for i in range(1, 30)])
    before = sorted(here.iterdir())
    names = [name.format(here=here) for name in (output, held_out)]
    data("split", "--input", "a.jsonl", "--output", names[0], "--held_out", names[1], code=2)
    assert "is named twice" in capsys.readouterr().err
    assert sorted(here.iterdir()) == before


CONVERTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gsm8k": ({"question": "q", "answer": "#### 4"}, {"prompt": "q", "answer": "#### 4"}),
    "math": (
        {"problem": "p", "level": "1", "type": "t", "solution": "s"},
        {"prompt": "p", "level": "1", "type": "t", "answer": "s"},
    ),
    "dapo17k": (
        {"prompt": [{"role": "user", "content": "p"}], "data_source": "d", "reward_model": {"ground_truth": "4"}},
        {"prompt": [{"role": "user", "content": "p"}], "data_source": "d", "reward_model": {"ground_truth": "4"},
         "answer": "4"},
    ),
    "taco": (
        {"question": "q", "starter_code": "def f():", "input_output": "{}", "tags": "[]", "raw_tags": "[]"},
        {"prompt": "q\n\ndef f():", "answer": {"input_output": "{}", "tags": "[]", "raw_tags": "[]"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_convert_knows_the_columns_of_public_sets(tmp_path: Path, name: str) -> None:
    theirs, ours = CONVERTED[name]
    source = write(tmp_path / "theirs.jsonl", [theirs])
    data("convert", "--input", source, "--output", tmp_path / "ours.jsonl")
    (found,) = read(tmp_path / "ours.jsonl")
    assert {key: found[key] for key in ours} == ours


def test_convert_changes_formats_and_takes_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("task,gold\n1+1,2\n2+2,4\n")
    columns = json.dumps({"prompt": "task", "answer": "gold"})
    data("convert", "--input", tmp_path / "a.csv", "--output", tmp_path / "a.parquet", "--columns", columns)
    assert read(tmp_path / "a.parquet") == [{"prompt": "1+1", "answer": "2"}, {"prompt": "2+2", "answer": "4"}]
    data("convert", "--input", tmp_path / "a.csv", "--output", tmp_path / "b.jsonl", code=2)


def test_convert_keeps_columns_that_the_first_record_lacks(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "b", "answer": "4"}, {"prompt": "c", "tools": [{"n": 1}]}]
    data("convert", "--input", write(tmp_path / "a.jsonl", rows), "--output", tmp_path / "b.parquet")
    data("convert", "--input", tmp_path / "b.parquet", "--output", tmp_path / "c.jsonl")
    for file in ("b.parquet", "c.jsonl"):
        there = [{name: one for name, one in row.items() if one is not None} for row in read(tmp_path / file)]
        assert there == rows


@pytest.mark.parametrize(
    ("value", "said"),
    [(2**64, "in Parquet: 'n': Python int too large"), ({}, "Parquet cannot hold the records: Cannot write struct")],
)
def test_convert_names_values_that_parquet_has_no_type_for(
    value: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.jsonl", [{"prompt": "a", "n": value}])
    data("convert", "--input", source, "--output", tmp_path / "b.parquet", code=2)
    shown = capsys.readouterr().err
    assert "error: --output: " in shown
    assert said in shown
    assert "fix: write .jsonl" in shown


def test_convert_writes_no_bytes_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.parquet", [{"prompt": "a", "image": {"bytes": b"\x89PNG"}}])
    data("convert", "--input", source, "--output", tmp_path / "b.jsonl", code=2)
    assert "error: a.parquet, record 1: holds bytes, which are not JSON" in capsys.readouterr().err


def test_convert_names_what_neither_format_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "y": 1}\n{"prompt": "\\ud800", "y": NaN}\n')
    data("convert", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "b.jsonl", code=2)
    assert "error: a.jsonl:2: holds NaN" in capsys.readouterr().err
    data("convert", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "b.parquet", code=2)
    assert "error: --output: a column cannot have one type in Parquet" in capsys.readouterr().err


def test_a_byte_order_mark_does_not_travel(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"prompt": "one"}])
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "two"}\n')
    data("dedup", "--input", a, tmp_path / "b.jsonl", "--output", tmp_path / "c.jsonl")
    assert (tmp_path / "c.jsonl").read_bytes() == b'{"prompt": "one"}\n{"prompt": "two"}\n'
