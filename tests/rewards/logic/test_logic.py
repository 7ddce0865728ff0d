"""Logic puzzles: solutions are single (proven again by brute force here), right answers pay, and nothing else does."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import LogicPuzzle, RewardRunner, Sample
from gspo_lightning.rewards.logic import FAMILIES, Puzzle
from gspo_lightning.rewards.logic.countdown import evaluate
from gspo_lightning.rewards.logic.lenient import parse_object
from tests.rewards.logic.phrasings import PHRASINGS

GRID = {"House 1": {"Name": "Eric", "Drink": "Tea"}, "House 2": {"Name": "Bob", "Drink": "milk"}}
SUDOKU = "1..3/..4./..3./3..4 = 1423/2341/4132/3214"

GOLDS = {"knights": "AbC", "countdown": "3 5 7 = 22", "sudoku": SUDOKU, "zebra": json.dumps(GRID)}


def puzzles(family: str, difficulty: int, count: int) -> list[Puzzle]:
    drawn = (FAMILIES[family].generate(random.Random(i), difficulty) for i in itertools.count())
    return list(itertools.islice((p for p in drawn if p is not None), count))


def zebra(solution: object) -> str:
    return json.dumps({"reasoning": "so", "solution": solution})


# generators --------------------------------------------------------------------------------------------------------


def knights_that_fit(text: str) -> list[str]:
    """Read the English text, try all assignments."""
    said = dict(re.findall(r"([A-F]) says: (.*?)\.", text))
    names, found = sorted(said), []
    for truth in itertools.product([True, False], repeat=len(names)):
        who = dict(zip(names, truth, strict=True))

        def holds(claim: str, who: dict[str, bool] = who) -> bool:
            parts = [who[name] == (kind == "knight") for name, kind in re.findall(r"([A-F]) is a (kn\w+)", claim)]
            if " if and only if " in claim:
                return parts[0] is parts[1]
            return any(parts) if " or " in claim else all(parts)

        if all(holds(claim) == who[name] for name, claim in said.items()):
            found.append("".join(n if who[n] else n.lower() for n in names))
    return found


@pytest.mark.parametrize("difficulty", [1, 2, 3, 5])
def test_knights_have_one_solution(difficulty: int) -> None:
    for puzzle in puzzles("knights", difficulty, 30):
        assert knights_that_fit(puzzle.text) == [puzzle.answer]


def test_knights_notation_says_what_the_text_says_and_steps_end_at_the_solution() -> None:
    for puzzle in puzzles("knights", 2, 30):
        for claim, sentence in zip(puzzle.compact.split(";"), re.findall(r"says: (.*?)\.", puzzle.text), strict=True):
            letters = re.findall("[A-Ca-c]", claim.partition(":")[2])
            assert [c.upper() for c in letters] == re.findall("[A-C]", sentence)
            assert [c.isupper() for c in letters] == ["knight" in part for part in re.findall(r"is a (\w+)", sentence)]
        lines = puzzle.steps.rstrip(";").split(";")
        assert [a == b for a, b in (line.split(">") for line in lines)] == [False] * (len(lines) - 1) + [True]
        assert lines[-1] == f"{puzzle.answer}>{puzzle.answer}"
        assert lines[0].startswith("ABC>")


def full_grids() -> set[str]:
    """The 288 grids, from rows that are permutations."""
    rows = ["".join(p) for p in itertools.permutations("1234")]
    found = set()
    for grid in itertools.product(rows, repeat=4):
        columns = all(len({row[i] for row in grid}) == 4 for i in range(4))
        boxes = all(len({*grid[r][c : c + 2], *grid[r + 1][c : c + 2]}) == 4 for r in (0, 2) for c in (0, 2))
        if columns and boxes:
            found.add("/".join(grid))
    return found


@pytest.mark.thorough
def test_sudokus_have_one_solution() -> None:
    grids = full_grids()
    assert len(grids) == 288
    for difficulty, blanks in ((1, 4), (2, 6), (3, 8), (4, 10), (5, 12)):
        for puzzle in puzzles("sudoku", difficulty, 5):
            givens, _, solution = puzzle.answer.partition(" = ")
            assert givens.count(".") == blanks
            fits = [g for g in grids if all(a in (".", b) for a, b in zip(givens, g, strict=True))]
            assert fits == [solution]


def zebras_that_fit(text: str, answer: str) -> list[dict[str, dict[str, str]]]:
    """Read the English clues, try all grids."""
    columns = {c: v.split(", ") for c, v in re.findall(r"^- (\w+): (.*)$", text, flags=re.MULTILINE)}
    clues = re.findall(r"^\d+\. (.*)\.$", text, flags=re.MULTILINE)
    relations: dict[str, Callable[[int, int], bool]] = {
        "is in the same house as": lambda a, b: a == b,
        "is directly left of": lambda a, b: b - a == 1,
        "is somewhere to the left of": lambda a, b: a < b,
        "is next to": lambda a, b: abs(a - b) == 1,
        "has one house between it and": lambda a, b: abs(a - b) == 2,
    }
    found = []
    for grid in itertools.product(*(itertools.permutations(values) for values in columns.values())):
        house = {f"{c} {v}": i for c, values in zip(columns, grid, strict=True) for i, v in enumerate(values)}

        def holds(clue: str, house: dict[str, int] = house) -> bool:
            if match := re.fullmatch(r"(.*) is (not )?in house (\d)", clue):
                return (house[match[1]] + 1 == int(match[3])) != bool(match[2])
            words = next(w for w in relations if w in clue)
            left, right = clue.split(f" {words} ")
            return relations[words](house[left], house[right])

        if all(holds(clue) for clue in clues):
            rows = {
                f"House {i + 1}": {c: v[i] for c, v in zip(columns, grid, strict=True)} for i in range(len(grid[0]))
            }
            found.append(rows)
    return found


@pytest.mark.parametrize(("difficulty", "count"), [(1, 20), (2, 8)])
def test_zebras_have_one_solution_and_no_superfluous_clue(difficulty: int, count: int) -> None:
    for puzzle in puzzles("zebra", difficulty, count):
        assert zebras_that_fit(puzzle.text, puzzle.answer) == [json.loads(puzzle.answer)]
        for clue in re.findall(r"^\d+\. .*$", puzzle.text, flags=re.MULTILINE):
            assert len(zebras_that_fit(puzzle.text.replace(clue, ""), puzzle.answer)) > 1


@pytest.mark.parametrize("difficulty", [1, 3, 5])
def test_countdowns_can_be_solved(difficulty: int) -> None:
    for puzzle in puzzles("countdown", difficulty, 30):
        numbers, target = puzzle.answer.split(" = ")
        assert eval(puzzle.solution) == int(target)
        assert sorted(map(int, re.findall(r"\d+", puzzle.solution))) == [int(n) for n in numbers.split()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_a_puzzle_pays_for_its_own_solution_and_for_no_other(family: str, difficulty: int) -> None:
    first, *others = puzzles(family, difficulty, 3 if family == "zebra" else 20)
    reward = LogicPuzzle(family)

    def paid(solution: str) -> float | None:
        return reward.score(solution if family == "zebra" else f"<answer>{solution}</answer>", first.answer).reward

    assert paid(first.solution) == 1.0
    assert [paid(p.solution) for p in others if p.answer != first.answer] == [0.0] * sum(
        p.answer != first.answer for p in others
    )
    if first.compact:
        assert LogicPuzzle(family, marker="#").score(f"#{first.compact_solution}", first.answer).reward == 1.0


def test_the_same_draw_gives_the_same_puzzle() -> None:
    for family in FAMILIES.values():
        assert family.generate(random.Random(5), 2) == family.generate(random.Random(5), 2)


# checkers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "answer", "text", "share"),
    [
        ("knights", "AbC", "AbC", 1.0),
        ("knights", "AbC", " abC\n", 2 / 3),
        ("knights", "AbC", "A is a knight, B is a knave, C is a knight", 1.0),
        ("knights", "AbC", "(1) C: knight (2) B is a KNAVE. (3) a = knight.", 1.0),
        ("knights", "AbC", "- A is a knight\n- B is a knave\n- C is a knave", 2 / 3),
        ("knights", {"Zoey": "knave", "Zoe": "knight"}, "Zoe is a knight and Zoey is a knave.", 1.0),
        ("knights", '{"Ann": "knave"}', "Ann is a knave", 1.0),
        ("knights", "AbC", "A is a knight, B is a knave", 0.0),
        ("knights", "AbC", "A is a knight, B is a knave, C is a knight, C is a knave", 0.0),
        ("knights", "AbC", "A is a knight, B is a knave, C is a knight or a knave", 0.0),
        ("knights", "AbC", "A is a knight, B is a knave, C is a knight. D is a knight", 0.0),
        ("knights", "AbC", "A is a knightmare, B is a knave, C is a knight", 0.0),
        ("knights", "AbC", "AbC abC", 0.0),
        ("knights", "AbC", "bAC", 0.0),
        ("knights", "AbC", "Both A and C are knights. The rest are knaves.", 1.0),
        ("knights", "AbC", "Both A and B are knights. The rest are knaves.", 1 / 3),
        ("knights", "AbC", "", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7", 1.0),
        ("countdown", "3 5 7 = 22", "7 + (5 * 3) = 22", 1.0),
        ("countdown", {"numbers": [3, 5, 7], "target": 22}, r"5 \times 3 + 7", 1.0),
        ("countdown", {"numbers": [3, 5], "target": -2}, "3-5 = -2", 1.0),
        ("countdown", "1 5 5 5 = 24", "5*(5-1/5)", 1.0),
        ("countdown", "2 3 4 = 8", "(2/3)*(3*4)", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7 = 23", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7 = 22 = 22", 1.0),
        ("countdown", "3 5 7 = 22", "22", 0.0),
        ("countdown", "3 5 7 = 22", "3*5*7", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7+0", 0.0),
        ("countdown", "3 5 7 = 22", "-7+3*5", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7; 3+5+7", 0.0),
        ("countdown", "3 5 7 = 22", "(3*5+7", 0.0),
        ("countdown", "3 5 7 = 22", "3*5+7)", 0.0),
        ("countdown", "3 5 7 = 22", ")3*5+7(", 0.0),
        ("countdown", "3 5 7 = 22", "3 5 * 7 +", 0.0),
        ("countdown", "3 5 7 = 22", "3*(5)(7)", 0.0),
        ("countdown", "3 5 7 = 22", "()", 0.0),
        ("countdown", "3 5 = 15", "3/(5-5)", 0.0),
        ("countdown", "5 5 5 = 1", "5/(5-5)", 0.0),
        ("countdown", "3 5 7 = 22", "\u0663*5+7", 0.0),
        ("countdown", "2 9 = 512", "2**9", 0.0),
        ("sudoku", SUDOKU, "1423/2341/4132/3214", 1.0),
        ("sudoku", SUDOKU, "1 4 2 3\n2 3 4 1\n4 1 3 2\n3 2 1 4", 1.0),
        ("sudoku", SUDOKU, "[[1,4,2,3],[2,3,4,1],[4,1,3,2],[3,2,1,4]]", 1.0),
        ("sudoku", SUDOKU, "1423/2341/4132/3124", 0.8),
        ("sudoku", SUDOKU, "1243/2341/2231/3124", 0.3),
        ("sudoku", SUDOKU, "4423/2341/4132/3214", 0.0),
        ("sudoku", SUDOKU, "1423/2341/4132/32141", 0.0),
        ("sudoku", SUDOKU, "1423/2341/4132", 0.0),
        ("sudoku", SUDOKU, "1..3/..4./..3./3..4", 0.0),
        ("sudoku", SUDOKU, "1423/2341/4132/3215", 0.0),
        ("sudoku", "1234/3412/2143/4321", "1234341221434312", 0.875),
        ("zebra", GRID, zebra(GRID), 1.0),
        ("zebra", GRID, f"I think:\n```json\n{zebra(GRID)}\n```\nDone.", 1.0),
        ("zebra", json.dumps(GRID), zebra(GRID).replace("Drink", "drink"), 1.0),
        ("zebra", {"header": ["House", "Name"], "rows": [["1", "Eric"], ["2", "Bob"]]},
         zebra({"House 1": {"Name": " eric "}, "House 2": {"Name": "BOB"}}), 1.0),
        ("zebra", GRID, zebra({**GRID, "House 2": {"Name": "Bob", "Drink": "tea"}}), 0.75),
        ("zebra", GRID, zebra({"House 1": GRID["House 1"]}), 0.5),
        ("zebra", GRID, zebra(GRID) + zebra({}), 0.0),
        ("zebra", GRID, zebra({}) + zebra(GRID), 1.0),
        ("zebra", GRID, zebra(GRID) + '{"reasoning": "cut of', 1.0),
        ("zebra", GRID, json.dumps(GRID), 0.0),
        ("zebra", GRID, zebra({**GRID, "House 3": {}}), 1.0),
        ("zebra", GRID, zebra({**GRID, "House 2": {"Name": "Bob", "Drink": "milk", "Pet": "cat"}}), 1.0),
        ("zebra", GRID, zebra({**GRID, "House 2": {"Name": ["Bob", "Eric"], "Drink": "milk"}}), 0.75),
        ("zebra", GRID, '{"solution": {"House 1": {"Name": "Bob", "Name": "Eric"}}}', 0.0),
        ("zebra", GRID, zebra({"House 1": "Eric", "House 2": None}), 0.0),
        ("zebra", GRID, zebra("Eric lives in house 1"), 0.0),
        ("zebra", GRID, "[1, 2", 0.0),
    ],
)  # fmt: skip
def test_share_of_right_cells(family: str, answer: object, text: str, share: float) -> None:
    completion = text if family == "zebra" else f"<answer>{text}</answer>"
    assert LogicPuzzle(family, partial=True).score(completion, answer).reward == pytest.approx(share)
    assert LogicPuzzle(family).score(completion, answer).reward == float(share == 1.0)


@pytest.mark.parametrize(
    ("marker", "completion", "truncated", "reward", "detail"),
    [
        ("<answer>", "AbC, so <answer>AbC</answer> as I said: <b>AbC</b>", False, 1.0, ""),
        ("<answer>", "<think><answer>abc</answer></think><answer>AbC</answer>", True, 1.0, ""),
        ("<answer>", "<think><answer>AbC</answer>", False, 0.0, "the thinking has no end"),
        ("<answer>", "<answer>AbC</answer><answer>AbC</answer>", False, 0.0, "2 times <answer>"),
        ("<answer>", "<answer>AbC", False, 0.0, "<answer> is not closed"),
        ("<answer>", "AbC", False, 0.0, "no <answer>"),
        ("#", "ABC>ABc;#AbC", False, 1.0, ""),
        ("#", "#AbC", True, 0.0, "truncated"),
        ("#", "#AbC#AbC", False, 0.0, "2 times #"),
        ("#", "#AbC abc", False, 0.0, "not like: A is a knight, B is a knave"),
        ("", "AbC", False, 1.0, ""),
        ("", "The answer is AbC", False, 1.0, ""),
        ("", "I say AbC", False, 0.0, "not like: A is a knight, B is a knave"),
        ("<answer>", "so \\boxed{AbC}.", True, 1.0, ""),
        ("<answer>", "<think>\\boxed{abc}</think>\\boxed{\\text{AbC}}", False, 1.0, ""),
        ("<answer>", "\\boxed{AbC} or \\boxed{ABC}", False, 0.0, "no <answer>"),
        ("<answer>", "\\boxed{AbC", False, 0.0, "the box is not closed"),
        ("#", "\\boxed{AbC}", False, 0.0, "no #"),
        ("", "", False, 0.0, "A is not named"),
    ],
)
def test_where_the_final_answer_is_looked_for(
    marker: str, completion: str, truncated: bool, reward: float, detail: str
) -> None:
    score = LogicPuzzle("knights", marker=marker).score(completion, "AbC", truncated)
    assert (score.reward, score.status, score.detail) == (reward, "ok", detail)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("held_out", [False, True])
def test_right_answers_are_paid_in_the_words_of_models_and_nothing_else_is(family: str, held_out: bool) -> None:
    chosen = [p for p in PHRASINGS if p.family == family and p.held_out is held_out]
    assert min(sum(p.honest for p in chosen), sum(not p.honest for p in chosen)) > 10
    paid = {p.text: LogicPuzzle(family).score(p.completion, p.answer).reward == 1.0 for p in chosen}
    assert [p.text for p in chosen if p.honest and not paid[p.text]] == []
    assert [p.text for p in chosen if not p.honest and paid[p.text]] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}), ("{'a': 'it\\'s \"b\"', }", {"a": 'it\'s "b"'}), ("{}", {}),
        ("{'a': [None, true,],}", {"a": [None, True]}),
        ('{"a": "line\nline"}', {"a": "line\nline"}),
        ("{'a': -1.5e3}", {"a": -1500}), ('{"a": {"b": {}}}', {"a": {"b": {}}}),
        ("{", None), ("{'a'}", None), ("{'a': 1 'b': 2}", None), ("{'a': 1, 'A ': 2}", None),
        ("{a: 1}", None), ("{'a': x}", None),
        ("{'a': 1,, 'b': 2}", None), ("{'a': f()}", None), ("{'a': 'b}", None), ("{'a': (1, 2)}", None),
        ("{'a': 1+1}", None),
        ("{,}", None),
        ('{"a": ' * 30 + "1" + "}" * 30, None), ("{'a': '\\q'}", {"a": "\\q"}),
        ('{"a": "\\( x\\ud83d\\n"}', {"a": "\\( x\ud83d\n"}),
        ("[1]", None), ("{'a': [1}", None),
    ],
)  # fmt: skip
def test_objects_as_models_write_them(text: str, value: object) -> None:
    if value is None:
        with pytest.raises(ValueError, match=r"."):
            parse_object(text)
    else:
        assert parse_object(text) == (value, len(text))


def test_padding_with_every_answer_pays_nothing() -> None:
    letters = ["".join(c) for c in itertools.product("Aa", "Bb", "Cc")]
    lists = [f"A is a {a}, B is a {b}" for a in ("knight", "knave") for b in ("knight", "knave")]
    grids = [zebra({"House 1": {"Name": n}, "House 2": {"Name": m}}) for n, m in (("Eric", "Bob"), ("Bob", "Eric"))]
    for joined in (" ", ", ", "\n", " or "):
        for partial in (False, True):
            for family, answer, guesses in (("knights", "AbC", letters), ("knights", "Ab", lists)):
                text = f"<answer>{joined.join(guesses)}</answer>"
                assert LogicPuzzle(family, partial=partial).score(text, answer).reward == 0.0
        last = LogicPuzzle("zebra").score(joined.join(grids), {"House 1": {"Name": "Eric"}, "House 2": {"Name": "Bob"}})
        assert last.reward == 0.0  # the last grid counts, and only that one


def test_threshold_pays_nearly_right_answers_in_full() -> None:
    assert LogicPuzzle("sudoku", marker="", threshold=0.8).score("1423/2341/4132/3124", SUDOKU).reward == 1.0
    assert LogicPuzzle("sudoku", marker="", threshold=0.81).score("1423/2341/4132/3124", SUDOKU).reward == 0.0


def test_expressions_follow_the_rules_of_arithmetic() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = str(rng.randint(1, 9))
        for _ in range(rng.randint(1, 5)):
            text = rng.choice(
                [f"({text})", f"{text}{rng.choice('+-*')}{rng.randint(1, 9)}", f"{rng.randint(1, 9)}-({text})"]
            )
        assert evaluate(re.findall(r"\d+|\D", text)) == eval(text), text
    assert evaluate(["8", "/", "4", "/", "3"]) == Fraction(2, 3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("answer", ["", "?", 7, [], {}, {"a": 1}, "{", '{"numbers": [3.5], "target": 3}', "1" * 5000])
def test_a_record_without_a_usable_answer_is_missing_not_zero(family: str, answer: object) -> None:
    score = LogicPuzzle(family, marker="").score("x", answer)
    assert (score.reward, str(score.status)) == (None, "missing")
    assert "the record's answer is not understood" in score.detail


def test_records_may_name_their_family() -> None:
    mixed = LogicPuzzle(marker="")
    assert mixed.required_columns() == ("answer", "family")
    assert mixed.score("AbC", "AbC", family="knights").reward == 1.0
    assert "did you mean knights" in mixed.score("AbC", "AbC", family="knihts").detail
    with (
        RewardRunner({"r": mixed}, num_workers=1) as runner,
        pytest.raises(UserError, match="needs the column 'family'"),
    ):
        runner.check({"answer"})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"family": "knihts"}, "LogicPuzzle.family: 'knihts' is not a family; did you mean knights"),
        ({"threshold": 0.0}, r"LogicPuzzle.threshold: is 0.0; it must lie in \(0, 1\]"),
        ({"threshold": 1.5}, "LogicPuzzle.threshold"),
        ({"threshold": 0.5, "partial": True}, "means nothing with partial"),
        ({"max_characters": 0}, "LogicPuzzle.max_characters"),
    ],
)
def test_settings_that_cannot_work_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LogicPuzzle(**chosen)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="AbC knight,:isa\n(1)[]{}\"'=+-*/23457./|<answer>#\\\u00e9", max_size=60), st.booleans())
def test_any_text_gets_a_reward(text: str, truncated: bool) -> None:
    for family, answer in GOLDS.items():
        for marker in ("", "#", "<answer>"):
            score = LogicPuzzle(family, marker=marker, partial=True).score(text, answer, truncated)
            assert str(score.status) == "ok"
            assert score.reward is not None
            assert 0 <= score.reward <= 1


@pytest.mark.thorough
def test_hostile_answers_are_judged_in_time_and_never_executed() -> None:
    open_braces = '{"solution": ' * 5000
    texts = [
        "(" * 100_000, "(" * 9000 + "3*5+7" + ")" * 9000, "9" * 19_000, "3*5+7" * 3000, "3" + " " * 19_000 + "*5+7",
        "__import__('os')._exit(1)", "().__class__.__base__", "3*5+7 if 1 else 0", "[x:=3]*5+7", "9**9**9",
        "\x00" * 1000,
        "`" * 19_000, "*a" * 9000, "$" * 19_000, "**" * 9000, "**" + "`" * 900 + "x", "\\boxed{" * 2000,
        "\\text{" * 2000 + "}" * 2000,
        "A, " * 6000, "A" + " " * 19_000, "A,\n" * 6000 + "and B are knights", "Knights: " + "A, " * 6000,
        "{'a': '" * 2000, "{'a': [" * 3000,
        "3 x " * 4000, "3*5+7 = " * 2000 + "22", "9*" * 9000 + "9 = 3*5+7", "\\frac{" * 3000, "Row 1: " * 2000,
        "so " * 6000, "answer: " * 2000,
        "{" * 100_000, open_braces, open_braces + "}" * 5000, '{"solution": {"House 1": ' + "1" * 19_000 + "}}",
        "[" * 100_000, '{"' * 9000, "A is a " * 5000, "(1) " * 5000, "A is a knight, " * 2000, "and " * 5000, "\ud800",
        "x" * 1_000_000, "1" * 1_000_000,
    ]  # fmt: skip
    samples = [
        Sample(f"{family}/{i}", "", text, (), {"answer": gold, "family": family})
        for family, gold in GOLDS.items()
        for i, text in enumerate(texts)
    ]
    with RewardRunner({"r": LogicPuzzle(marker="", partial=True)}, num_workers=1, deadline_s=1.0) as runner:
        scores = runner.score(samples)
    paid = {s.id: score.reward for s, score in zip(samples, scores, strict=True) if score.reward}
    assert paid == {"countdown/1": 1.0, "countdown/4": 1.0}  # brackets and blanks around a right answer
    assert {str(score.status) for score in scores} == {"ok", "model_error"}
