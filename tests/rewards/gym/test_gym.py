"""reasoning-gym's families: stored answers are paid, and nothing that is empty, padded, hedged or nonsense is.

By default a few families; ``make test-long`` tries all of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

pytest.importorskip("reasoning_gym")

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import PromptFile
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.rewards import ReasoningGym, RewardRunner, Sample
from gspo_lightning.rewards.gym import families
from gspo_lightning.rewards.gym.families import EXACT, FORMS, REFUSED, check_families
from gspo_lightning.rewards.gym.generate import items
from gspo_lightning.rewards.gym.items import graded, known_families, open_source, read_entry

FEW = ["chain_sum", "gsm_symbolic", "maze", "quantum_lock", "letter_jumble", "complex_arithmetic", "syllogism"]
JUDGED = [family for family in known_families() if family not in REFUSED]
HOSTILE = "__import__('os').getpid()"


def request(*families: str, size: int, seed: int = 3, split: range = range(10), **config: object) -> dict[str, Any]:
    return {"families": families, "configs": {families[0]: config}, "size": size, "seed": seed, "split": list(split)}


def paddings(answer: str, other: str, question: str) -> dict[str, str]:
    """What is not an answer, or more than one; no wrong ones: families may have several right answers."""
    return {
        "empty": "", "space": " \n", "dot": ".", "fox": "the quick brown fox", "question": question, "hostile": HOSTILE,
        "hostile list": f"[{HOSTILE}]", "nan": "nan", "complex nan": "nan+nanj", "infinity": "inf",
        "braces": "[" * 3000,
        "digits": "9" * 5000, "exponent": "1e999999999", "division": "1/0", "none": "None",
        "padded": f"I think it is {answer} or maybe not 17", "twice": f"{answer} {answer}",
        "two lines": f"{answer}\n{answer}",
        "or": f"{answer} or {other}", "or before": f"{other} or {answer}", "not": f"not {answer}",
        "hedged": f"{answer}?",
        "comma": f"{answer}, {other}", "lines": f"{answer}\n{other}", "list": f"[{answer}, {other}]",
        "strings": f'["{answer}", "{other}"]', "wrong": f"{answer} is wrong", "both": f"{other}\n{answer}",
        "either": f"{answer}/{other}", "json": f'{{"a": "{answer}", "b": "{other}"}}',
    }  # fmt: skip


HEARD: list[list[str]] = []
"""Texts that were compiled while somebody listened."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "compile" and arguments[0] is not None:
        for heard in HEARD:
            heard.append(str(arguments[0]))


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hear)  # cannot be taken away again


@contextlib.contextmanager
def compiled() -> Iterator[list[str]]:
    """What is compiled or evaluated from text while it is open."""
    _listen()
    HEARD.append(heard := [])
    try:
        yield heard
    finally:
        HEARD.remove(heard)


def check_family(family: str, size: int) -> None:
    records = list(items(request(family, size=size)))
    assert len(records) == size
    source = open_source(family, 0, 1, {})
    answers = [record["answer"] for record in records]
    wrong: list[tuple[str, str]] = []
    for record in records:
        answer, entry = record["answer"], read_entry(record["entry"])
        assert graded(source, family, answer, entry), answer
        assert graded(source, family, f" **{answer}**\n", entry) or "*" in answer or family in FORMS, answer
        other = next((a for a in answers if a != answer), "7")
        with compiled() as texts:
            before = time.process_time()
            for kind, text in paddings(answer, other, record["question"]).items():
                if graded(source, family, text, entry):
                    wrong.append((kind, text[:200]))
            assert time.process_time() - before < ReasoningGym.deadline_s  # all thirty together
        assert not [text for text in texts if "getpid" in text]
    assert wrong == []


@pytest.mark.parametrize("family", FEW)
def test_a_family_pays_its_answers_and_nothing_else(family: str) -> None:
    check_family(family, 3)


@pytest.mark.long
@pytest.mark.parametrize("family", JUDGED)
def test_every_family_pays_its_answers_and_nothing_else(family: str) -> None:
    check_family(family, 4 if family in ("knight_swap", "sokoban", "futoshiki") else 12)


PAY_FOR_NOTHING = {
    "advanced_geometry": 0.01, "arc_agi": 0.05, "color_cube_rotation": 0.01, "emoji_mystery": 0.01,
    "fraction_simplification": 0.01, "game_of_life_halting": 1.0, "palindrome_generation": 0.05,
    "power_function": 0.01, "prime_factorization": 0.01, "rearc": 0.05, "sentence_reordering": 0.05,
    "tower_of_hanoi": 0.05, "tsumego": 0.01,
}  # fmt: skip
"""Families whose own scorers pay an answer of nothing, or of white space, so much."""
LOSE_TUPLES = ("arc_agi", "rearc")
"""Families whose own scorers do not pay their own answers once an item was JSON: its tuples are lists then."""


@pytest.mark.thorough("arc_agi")
@pytest.mark.parametrize("family", sorted(PAY_FOR_NOTHING))
def test_an_answer_of_nothing_is_worth_nothing_although_the_scorer_pays_it(family: str) -> None:
    source = open_source(family, 1, 2, {})
    (record, *_) = items(request(family, size=1))
    entry = read_entry(record["entry"])
    assert max(float(source.score_answer(text, entry)) for text in ("", " ")) == PAY_FOR_NOTHING[family]
    reward = ReasoningGym()
    for text in ("", "<answer></answer>", "<answer> </answer>", "<answer>\n\n</answer>", "<answer>****</answer>"):
        assert reward.score(text, family, record["entry"]).reward == 0.0


@pytest.mark.thorough("arc_agi")
@pytest.mark.parametrize("family", [*LOSE_TUPLES, "chain_sum", "maze"])
def test_items_survive_files_and_their_answers_are_still_right(family: str, tmp_path: Path) -> None:
    (record, *_) = items(request(family, size=1))
    rows = [{"prompt": "x", **record}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]) + "\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        (read,) = PromptFile(str(tmp_path / name)).records()
        found = ReasoningGym().score(f"<answer>{record['answer']}</answer>", family, read["entry"])
        assert found.reward == 1.0
    source, entry = open_source(family, 1, 1, {}), read_entry(record["entry"])
    as_json = json.loads(json.dumps(entry))
    assert (source.score_answer(record["answer"], as_json) == 1.0) == (family not in LOSE_TUPLES)


def test_an_empty_answer_that_is_paid_a_hundredth_would_be_learned() -> None:
    """Nobody is right: the advantages of the empty answers do not depend on how little they are paid."""
    groups = torch.zeros(8, dtype=torch.int64)
    for paid in (0.05, 0.01, 0.0001):
        found = GroupNormalised()(torch.tensor([paid] * 2 + [0.0] * 6), groups)
        assert found[0].item() == pytest.approx(6 / 8 / (3 / 14) ** 0.5, rel=0.03)


TINY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_items_depend_on_the_request_alone_and_splits_are_disjoint() -> None:
    train = list(items(request("chain_sum", "maze", size=20, split=range(4, 9))))
    assert list(items(request("chain_sum", "maze", size=20, split=range(4, 9)))) == train
    assert [record["family"] for record in train] == ["chain_sum", "maze"] * 10
    first = [
        {r["question"] for r in items(request("chain_sum", size=15, split=range(4, 9), seed=s, **TINY))} for s in (0, 1)
    ]
    held_out = {r["question"] for r in items(request("chain_sum", size=15, split=range(9, 10), **TINY))}
    assert len(first[0]) == len(held_out) == 15
    assert first[0] != first[1]
    assert not (first[0] | first[1]) & held_out


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("chian_sum", size=1), "'chian_sum' is not a family of reasoning-gym; did you mean chain_sum"),
        (request("chain_sum", size=1, terms=3), "chain_sum does not take {'terms': 3}"),
        (request("chain_sum", size=1, min_terms=9, max_terms=2), "chain_sum does not take"),
        (request("chain_sum", size=300, split=range(9, 10), **TINY), r"chain_sum has only \d+ items for this split"),
    ],
)
def test_items_that_cannot_be_made_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(items(asked))


def test_an_execution_would_be_seen() -> None:
    with compiled() as texts:
        eval("len('getpid')")
    assert any("len('getpid')" in text for text in texts)


def test_every_family_that_is_named_exists_and_refused_ones_say_why() -> None:
    known = set(known_families())
    assert set(REFUSED) | EXACT | set(FORMS) <= known
    assert len(JUDGED) == len(known) - len(REFUSED) == 90
    for family, why in REFUSED.items():
        with pytest.raises(UserError, match=f"ReasoningGym.families: {family} is refused: {why[:20]}"):
            check_families(["chain_sum", family])
    with pytest.raises(UserError, match="is empty"):
        check_families([])
    with pytest.raises(UserError, match="names a family twice"):
        check_families(["maze", "maze"])


@pytest.mark.parametrize("family", ["puzzle24", "spiral_matrix", "n_queens", "string_insertion", "binary_matrix"])
def test_a_refused_family_does_execute_answers(family: str) -> None:
    """What the refusal keeps out; in a process that is not the trainer's, with an expression that does nothing."""
    source = open_source(family, 3, 10, {})
    with compiled() as texts, contextlib.suppress(Exception):
        source.score_answer("[len('abc')]" if family != "puzzle24" else "len('abc')", source[0])
    assert any("len" in text for text in texts)


@pytest.fixture(scope="module")
def runner() -> Iterator[RewardRunner]:
    with RewardRunner({"r": ReasoningGym()}, num_workers=1) as started:
        yield started


def test_answers_are_judged_in_workers_and_hostile_ones_in_time(runner: RewardRunner) -> None:
    record = next(items(request("chain_sum", size=1)))
    answer = record["answer"]
    texts = {
        f"<answer>{answer}</answer>": 1.0, f"so <answer> **{answer}** </answer>.": 1.0, f"\\boxed{{{answer}}}": 1.0,
        f"<think>no</think><answer>{answer}</answer>": 1.0, answer: 0.0,
        f"<answer>{answer}</answer><answer>1</answer>": 0.0,
        f"<answer>{answer} or 7</answer>": 0.0, f"<think><answer>{answer}</answer>": 0.0, "": 0.0,
        f"<answer>{'9' * 30_000}</answer>": 0.0, f"<answer>{HOSTILE}</answer>": 0.0,
    }  # fmt: skip
    samples = [Sample(str(i), record["question"], text, columns=record) for i, text in enumerate(texts)]
    runner.check(record)
    assert [score.reward for score in runner.score(samples)] == list(texts.values())
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1 << 31


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"family": "countdown", "entry": "{}"}, "countdown is refused: its scorer executes"),
        ({"family": "chian_sum", "entry": "{}"}, "did you mean chain_sum"),
        ({"family": "chain_sum", "entry": "{}"}, "the entry has no question, answer and metadata"),
        ({"family": "chain_sum", "entry": HOSTILE}, "the entry is no literal: ValueError"),
        ({"family": "chain_sum", "entry": "{" * 9000}, "the entry is no literal"),
        ({"family": "maze", "entry": "{'question': '', 'answer': '', 'metadata': {}}"}, "own answer is not paid"),
        (
            {"family": "chain_sum", "entry": "{}", "config": {"terms": 3}},
            "chain_sum does not take {'terms': 3}",
        ),
    ],
)
def test_a_record_that_cannot_be_judged_is_missing_not_zero(
    runner: RewardRunner, columns: dict[str, Any], why: str
) -> None:
    (score,) = runner.score([Sample("0", "", "<answer>1</answer>", columns=columns)])
    assert (score.reward, str(score.status)) == (None, "missing")
    assert why in score.detail


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families.importlib.metadata, "version", lambda name: "0.1.26")
    with pytest.raises(UserError, match=r"reasoning-gym is 0.1.26, but its scorers were only tested in 0.1.25"):
        ReasoningGym()
