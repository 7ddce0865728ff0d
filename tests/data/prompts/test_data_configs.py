"""Every file of ``configs/data``, against a copy of its set in the set's own layout: columns, types, splits, files."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

from gspo_lightning.data.prompts import HubPrompts, PromptFile
from gspo_lightning.data.prompts.pictures.columns import parts_of
from gspo_lightning.data.prompts.pictures.reading import picture_file
from gspo_lightning.data.prompts.prompt_set import PromptSet
from gspo_lightning.rewards import CodeExecutor, IFVerifier, LogicPuzzle, MathVerifier, Sample
from gspo_lightning.rewards.reward import Reward
from tests.support.pictures import png

CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "data").glob("*.yaml"))
REWARDS: Mapping[str, type[Reward]] = {c.__name__: c for c in (CodeExecutor, IFVerifier, LogicPuzzle, MathVerifier)}
TESTS = pyarrow.struct([("input", pyarrow.list_(pyarrow.string())), ("output", pyarrow.list_(pyarrow.string()))])
ARGUMENTS = dict.fromkeys(
    (
        "num_highlights", "relation", "num_words", "num_placeholders", "prompt_to_repeat", "num_bullets",
        "section_spliter", "num_sections", "capital_relation", "capital_frequency", "keywords", "num_paragraphs",
        "language", "let_relation", "letter", "let_frequency", "end_phrase", "forbidden_words", "keyword", "frequency",
        "num_sentences", "postscript_marker", "first_word", "nth_paragraph",
    )
)  # fmt: skip
"""Of one instruction of IFEval: every argument that there is, those of other kinds empty."""
ADD = "a, b = map(int, input().split())\nprint(a + b)"


def packed(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def case(given: str, expected: str, kind: str) -> dict[str, str]:
    return {"input": given, "output": expected, "testtype": kind}


@dataclass
class Copy:
    """Rows of a set, what its hub repository keeps them in, and a right and a wrong completion for each row."""

    rows: list[dict[str, Any]]
    right: list[str]
    wrong: list[str]
    config: str = "default"
    splits: tuple[str, ...] = ("train",)
    suffix: str = "parquet"
    types: dict[str, pyarrow.DataType] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    """As datasets notes them in a Parquet file; for pictures."""

    def write(self, folder: Path) -> None:
        """As the hub has it: a card that names the files of each split, and the files."""
        files = {split: f"{self.config}/{split}-00000-of-00001.{self.suffix}" for split in self.splits}
        card = {
            "configs": [{"config_name": self.config, "data_files": [{"split": s, "path": p} for s, p in files.items()]}]
        }
        (folder / self.config).mkdir(parents=True)
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n# a copy\n")
        for path in files.values():
            if self.suffix == "json":
                (folder / path).write_text("".join(json.dumps(row) + "\n" for row in self.rows))
                continue
            table = pyarrow.Table.from_pylist(self.rows)
            for name, kind in self.types.items():
                table = table.set_column(
                    table.schema.get_field_index(name), name, pyarrow.array([r[name] for r in self.rows], type=kind)
                )
            if self.features:
                noted = {"huggingface": json.dumps({"info": {"features": self.features}})}
                table = table.replace_schema_metadata(noted)
            pyarrow.parquet.write_table(table, folder / path)


def lcb_row(content: str, starter: str, metadata: str, public: list[Any], private: list[Any]) -> dict[str, Any]:
    return {
        "question_title": "A", "question_content": content, "platform": "atcoder", "question_id": "abc1_a",
        "contest_id": "abc1", "contest_date": "2023-08-21T00:00:00", "starter_code": starter, "difficulty": "easy",
        "public_test_cases": json.dumps(public), "private_test_cases": packed(private), "metadata": metadata,
    }  # fmt: skip


def taco_row(question: str, starter: str, tests: dict[str, Any]) -> dict[str, Any]:
    return {
        "question": question, "solutions": json.dumps([ADD]), "starter_code": starter,
        "input_output": json.dumps(tests), "difficulty": "EASY", "raw_tags": "['math']", "name": None,
        "source": "codeforces", "tags": "['Mathematics']", "skill_types": "[]", "url": None,
        "Expected Auxiliary Space": None, "time_limit": "2.0 seconds", "date": None, "picture_num": "0",
        "memory_limit": "256.0 megabytes", "Expected Time Complexity": None,
    }  # fmt: skip


STARTER = "class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        "
TOTAL = "class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        return sum(xs) + y"
COPIES: dict[str, Copy] = {
    "dapo17k": Copy(
        [{
            "data_source": "math_dapo", "prompt": [{"content": "Solve: 6 * 7", "role": "user"}], "ability": "MATH",
            "reward_model": {"ground_truth": "42", "style": "rule-lighteval/MATH_v2"}, "extra_info": {"index": "9a9b"},
        }],
        ["Answer: \\boxed{42}"], ["Answer: \\boxed{41}"],
    ),
    "gsm8k": Copy(
        [{"question": "Tom has 40 and gets 2.", "answer": "He has 40 + 2 = <<40+2=42>>42.\n#### 42"}],
        ["\\boxed{42}"], ["\\boxed{40}"], "main", ("train", "test"),
    ),
    "math": Copy(
        [{"problem": "What is $6 \\cdot 7$?", "level": "Level 1", "solution": "It is $\\boxed{42}$.", "type": "?"}],
        ["\\boxed{42}"], ["\\boxed{67}"], splits=("train", "test"),
    ),
    "geometry3k": Copy(
        [
            {
                "images": [{"bytes": png(0), "path": "images_0.png"}], "problem": "<image>Find $x$.",
                "answer": "2 \\sqrt { 221 }",
            },
        ],
        ["\\boxed{2\\sqrt{221}}"], ["\\boxed{2\\sqrt{22}}"], splits=("train", "validation", "test"),
        features={
            "images": {"feature": {"_type": "Image"}, "_type": "List"},
            **{name: {"dtype": "string", "_type": "Value"} for name in ("problem", "answer")},
        },
    ),
    "livecodebench": Copy(
        [
            lcb_row("Add.", "", "{}", [case("1 2\n", "3\n", "stdin")], [case("5 6\n", "11\n", "stdin")]),
            lcb_row(
                "Total.", STARTER, '{"func_name": "total"}', [case("[1]\n2", "3", "functional")],
                [case("[]\n0", "0", "functional")],
            ),
        ],
        [f"```python\n{ADD}\n```", f"```python\n{TOTAL}\n```"], ["print(3)", TOTAL.replace("sum(xs) + y", "3")],
        "release_v5", ("test",),
    ),
    "taco": Copy(
        [
            taco_row("Add.", "", {"inputs": ["3 4\n", "1 1\n"], "outputs": ["7\n", "2\n"]}),
            taco_row("Total.", "def total(xs, y):\n\t", {"fn_name": "total", "inputs": [[[1], 2]], "outputs": [[3]]}),
        ],
        [ADD, "def total(xs, y):\n    return sum(xs) + y"], ["print(7)", "def total(xs, y):\n    return y"],
        suffix="json",
    ),
    "codecontests": Copy(
        [{
            "name": "1_A. Add", "description": "Add.", "public_tests": {"input": ["3 4\n"], "output": ["7\n"]},
            "private_tests": {"input": ["1 1\n"], "output": ["2\n"]}, "generated_tests": {"input": [], "output": []},
            "source": 2, "difficulty": 7, "solutions": {"language": [3], "solution": [ADD]},
            "incorrect_solutions": {"language": [3], "solution": ["print(7)"]}, "cf_contest_id": 1, "cf_index": "A",
            "cf_points": 0.0, "cf_rating": 800, "cf_tags": ["math"], "is_description_translated": False,
            "untranslated_description": "", "time_limit": {"seconds": 2, "nanos": 500000000},
            "memory_limit_bytes": 256000000, "input_file": "", "output_file": "",
        }],
        [ADD], ["print(7)"], splits=("train", "valid", "test"),
        types={"public_tests": TESTS, "private_tests": TESTS, "generated_tests": TESTS},
    ),
    "ifeval": Copy(
        [{
            "key": 1000, "prompt": "Name a planet, in capitals and without a comma. Say the word rings twice or more.",
            "instruction_id_list": [
                "punctuation:no_comma", "change_case:english_capital", "keywords:frequency",
            ],
            "kwargs": [ARGUMENTS, ARGUMENTS, {**ARGUMENTS, "relation": "at least", "keyword": "rings", "frequency": 2}],
        }],
        ["SATURN HAS RINGS UPON RINGS."], ["SATURN, WHICH HAS RINGS UPON RINGS."], suffix="json",
    ),
}  # fmt: skip
MADE_HERE = {"puzzles", "reasoning_gym"}
"""No set of the hub: a file of one's own, and puzzles that are generated (``tests/data/prompts/tasks``)."""


def test_every_file_has_a_copy_here() -> None:
    assert {path.stem for path in CONFIGS} == {*COPIES, *MADE_HERE}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_in_the_sets_layout_loads_and_is_judged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    copy, data = COPIES[name], settings(name)
    copy.write(tmp_path / "set")
    (spec,) = data["rewards"].values()
    if "numpy" in str(spec):
        request.getfixturevalue("numpy_for_programs")
    reward = built(spec)
    for source in filter(None, (data["train"], data["val"])):
        _, config, split = source.split(":")
        prompts = HubPrompts(str(tmp_path / "set"), config, split, data.get("columns"))
        judged(prompts, copy, reward)


def test_geometry_problems_bring_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    COPIES["geometry3k"].write(tmp_path / "set")
    columns = settings("geometry3k")["columns"]
    (record,) = HubPrompts(str(tmp_path / "set"), "default", "train", columns).records()
    (message,) = parts_of(record)
    picture, text = message["content"]
    assert text == {"type": "text", "text": "Find $x$."}
    shown = Image.open(io.BytesIO(picture_file(picture["image"])))
    assert shown.tobytes() == Image.open(io.BytesIO(png(0))).tobytes()


def test_a_functional_problem_shows_its_starter_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    COPIES["livecodebench"].write(tmp_path / "set")
    columns = settings("livecodebench")["columns"]
    stdin, functional = HubPrompts(str(tmp_path / "set"), "release_v5", "test", columns).records()
    assert stdin["prompt"] == "Add."
    assert functional["prompt"] == f"Total.\n\n{STARTER}"


def test_puzzles_are_a_file_of_ones_own(tmp_path: Path) -> None:
    data = settings("puzzles")
    row = {"question": "Make 22 from 3, 5, 7.", "answer": "3 5 7 = 22", "family": "countdown"}
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (record,) = PromptFile(str(file), data["columns"]).records()
    reward = LogicPuzzle()
    for text, pay in (("<answer>3*5+7</answer>", 1.0), ("<answer>22</answer>", 0.0)):
        assert reward.score(text, record["answer"], family=record["family"]).reward == pay


def settings(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONFIGS[0].parent / f"{name}.yaml").read_text())["data"]
    return found


def built(spec: str | Mapping[str, Any]) -> Reward:
    if isinstance(spec, str):
        return REWARDS[spec]()
    return REWARDS[spec["class_path"]](**spec.get("init_args", {}))


def judged(prompts: PromptSet, copy: Copy, reward: Reward) -> None:
    for record, right, wrong in zip(prompts.records(), copy.right, copy.wrong, strict=True):
        assert record["prompt"]
        rest = {name: value for name, value in record.items() if name != "prompt"}
        assert reward.score_one(Sample("0", record["prompt"], right, columns=rest)).reward == 1.0
        assert reward.score_one(Sample("0", record["prompt"], wrong, columns=rest)).reward == 0.0
