"""A mixture as a prompt set: its records, its names, the rewards of its sources."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask, Mixture, MixtureSource, PromptFile
from gspo_lightning.data.prompts.mixture import all_rewards
from gspo_lightning.data.prompts.sets import PromptSets
from gspo_lightning.rewards import ExactMatch, FormatReward
from gspo_lightning.rewards.by_record import ByRecord


def written(file: Path, *rows: dict[str, object]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def two(tmp_path: Path) -> Mixture:
    math = written(tmp_path / "math.v2.jsonl", {"question": "1+1:", "answer": "2"}, {"question": "1+2:", "answer": "3"})
    return Mixture([MixtureSource(math, columns={"prompt": "question"}), MixtureSource(ChainTask(size=3), weight=2.0)])


def test_records_follow_one_another_and_say_where_they_are_from(two: Mixture) -> None:
    records = two.records()
    assert len(records) == 5
    assert [r["source"] for r in records] == ["math", "math", "ChainTask", "ChainTask", "ChainTask"]
    assert records[1] == {"prompt": "1+2:", "answer": "3", "source": "math"}
    assert list(records) == [records[i] for i in range(5)]
    assert [d[0] for d in Mixture([MixtureSource(ChainTask(size=3))]).demonstrations()] == [
        r["prompt"] for r in ChainTask(size=3).records()
    ]


def test_a_column_of_that_name_is_said_and_kept_where_it_is_mapped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "a.jsonl", {"prompt": "1:", "source": "the web"})
    with caplog.at_level(logging.WARNING):
        assert Mixture([MixtureSource(path)]).records()[0]["source"] == "a"
    assert "source 'a' has a column 'source' of its own" in caplog.text
    caplog.clear()
    mapped = Mixture([MixtureSource(path, columns={"prompt": "prompt", "origin": "source"})]).records()[0]
    assert (mapped["source"], mapped["origin"]) == ("a", "the web")
    assert not caplog.text


def test_messages_name_the_source_and_its_own_record(two: Mixture, tokenizer: object) -> None:
    two.sources[1] = MixtureSource(PromptFile(two.sources[0].train, {"prompt": "answer"}), name="other")  # type: ignore[arg-type]
    sets = PromptSets({"train": two}, {}, 1, None, {})
    with pytest.raises(UserError, match=r"data.train: no prompt is left: all 4 exceed"):
        PromptSets({"train": two}, {}, 0, None, {}).load("train", tokenizer)  # type: ignore[arg-type]
    loaded = sets.load("train", tokenizer)  # type: ignore[arg-type]
    assert [p.text for p in loaded] == ["2", "3"]  # the others have more than one token
    assert [(part.name, part.places) for part in sets.parts("train")] == [("math", range(0)), ("other", range(2))]


def test_the_first_held_out_prompts_are_of_every_source(tmp_path: Path, tokenizer: object) -> None:
    sources = [
        MixtureSource(ChainTask(size=20), weight=3, name="a"),
        MixtureSource(ChainTask(size=20, operands=3), name="b"),
    ]
    sets = PromptSets({"val": Mixture(sources)}, {}, 16, None, {})
    sets.load("val", tokenizer)  # type: ignore[arg-type]
    assert list(sets.first("val", 8)) == [0, 1, 2, 3, 4, 5, 20, 21]
    assert sets.source_names("val") == ["a", "b"]
    assert [p.columns["source"] for batch in sets.share("val", 8, 3) for p in batch] == ["a"] * 6 + ["b"] * 2


def test_rewards_of_sources_stand_beside_and_before_common_ones() -> None:
    own, common, other = ExactMatch(), FormatReward("."), FormatReward("..")
    mixture = Mixture([MixtureSource("a.jsonl", rewards={"correct": own}), MixtureSource("b.jsonl")])
    found = all_rewards({"correct": common, "form": other}, mixture, None, "file.jsonl")
    assert found == {"correct": ByRecord("source", {"a": own}, common), "form": other}
    assert all_rewards({}, mixture) == {"correct": ByRecord("source", {"a": own})}
    by = {"by": "source", "b": common}
    assert all_rewards({"correct": by}, mixture) == {"correct": ByRecord("source", {"b": common, "a": own})}
    with pytest.raises(UserError, match="chooses by 'kind', and the source 'a' has one of that name, too"):
        all_rewards({"correct": {"by": "kind", "b": common}}, mixture)


def test_a_mixture_of_nothing_or_of_mixtures_is_refused() -> None:
    with pytest.raises(UserError, match=r"Mixture.sources: is empty"):
        Mixture([])
    with pytest.raises(UserError, match=r"sources\[0\].train: is a mixture itself"):
        Mixture([MixtureSource(Mixture([MixtureSource("a.jsonl")]), name="m")])
    with pytest.raises(UserError, match=r"sources\[1\].name: is 'a', as another"):
        Mixture([MixtureSource("x/a.jsonl"), MixtureSource("y/a.jsonl")])


def test_a_difficulty_that_is_no_number_is_named(tmp_path: Path, tokenizer: object) -> None:
    path = written(
        tmp_path / "a.jsonl", {"prompt": "1:", "difficulty": "2.5"}, {"prompt": "2:", "difficulty": "Level 5"}
    )
    sets = PromptSets({"train": path}, {}, 9, None, {})
    sets.load("train", tokenizer)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"data.train: a.jsonl:2: 'difficulty' is 'Level 5', which is not a number"):
        sets.difficulty("train")
