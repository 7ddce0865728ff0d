"""Options of the verifier, and records whose answer nobody can read."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import MathVerifier, RewardRunner, Sample, ScoreStatus

UNREADABLE = r"\frac{1}{"


def paid(verifier: MathVerifier, answer: str, written: str, prompt: str = "") -> bool:
    return verifier.score(f"\\boxed{{{written}}}", answer, prompt).reward == 1.0


def test_evaluated_does_not_take_the_task_for_its_answer() -> None:
    verifier = MathVerifier(evaluated=True)
    assert not paid(verifier, "391", r"17 \times 23")
    assert not paid(verifier, "391", "17*23")
    assert paid(verifier, "391", r"17 \times 23 = 391")
    assert paid(verifier, "391", "391.0")
    assert not paid(verifier, "x+1", r"\frac{x^2-1}{x-1}", prompt=r"Simplify $\frac{x^2-1}{x-1}$.")
    assert paid(verifier, "x+1", "1+x", prompt=r"Simplify $\frac{x^2-1}{x-1}$.")
    assert paid(verifier, "2^{10}", "2^{10}")  # the record itself is not evaluated
    assert not paid(verifier, "1024", "2^{10}")
    assert paid(MathVerifier(), "1024", "2^{10}")  # by default only sums, differences, products and quotients


def test_form_option_pays_only_factored_or_expanded_answers() -> None:
    factored, expanded = MathVerifier(form="factored"), MathVerifier(form="expanded")
    assert paid(factored, "(x-1)(x+1)", "(x+1)(x-1)")
    assert not paid(factored, "(x-1)(x+1)", "x^2-1")
    assert not paid(factored, "2(x+1)(x-1)", "(2x+2)(x-1)")
    assert paid(expanded, "x^2+2x+1", "1+x^2+2x")
    assert not paid(expanded, "x^2+2x+1", "(x+1)^2")
    assert paid(MathVerifier(), "x^2-1", "(x+1)(x-1)")


def test_decimals_and_strict() -> None:
    assert paid(MathVerifier(decimals=2), "3.14", "3.141")
    assert not paid(MathVerifier(decimals=3), "3.14", "3.141")
    assert paid(MathVerifier(strict=False), "f(x)", "f(y)")
    assert not paid(MathVerifier(), "f(x)", "f(y)")


@pytest.mark.parametrize(
    ("kind", "answer", "right", "wrong"),
    [
        ("integer", "42", ["42", "42.0", r"42 \text{ cm}", "x = 42"], ["6*7", "41", "x"]),
        ("number", "0.5", ["1/2", r"\frac{1}{2}", "50\\%"], [r"\sin 30^\circ", "0.4"]),
        ("choice", "(B)", ["B", "b", r"\textbf{(B) }7"], ["A", "7", "A or B"]),
        ("set", "1, 2, x+1", ["x+1, 2, 1", r"\{2, 1, 1+x\}"], ["1, 2", "1, 2, x", "1, 2, x+1, 5"]),
        ("text", "New York", ["new york", r"\text{New York}"], ["York New", "York"]),
        ("expression", "A", ["A"], ["B"]),
    ],
)
def test_answer_types(kind: str, answer: str, right: list[str], wrong: list[str]) -> None:
    verifier = MathVerifier(answer_type=kind)  # type: ignore[arg-type]
    assert [paid(verifier, answer, text) for text in right] == [True] * len(right)
    assert [paid(verifier, answer, text) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize("kind", ["any", "integer", "number"])
@pytest.mark.parametrize(
    "text",
    [
        *("3 + 7 = 10.", "3 + 7 = 10 apples", "10 = 3 + 7", "$3 + 7 = 10$", r"\boxed{3 + 7 = 10}"),
        *("5 x 2 = 10", "5 \u00d7 2 = 10", "20 \u00f7 2 = 10", r"\frac{20}{2} = 10", "1,010 - 1,000 = 10"),
        *("3 + 5 + 2 = 8 + 2 = 10", "12 - 5 = 7\n7 + 3 = 10.", "total = 3 + 7 = 10", "2^3 + 2 = 10"),
    ],
)
def test_calculation_with_its_result_is_an_answer(kind: str, text: str) -> None:
    """A calculation and its result was worth 0 where computer algebra was off (answer_type: integer or number)."""
    assert MathVerifier(answer_type=kind).score(text, "10").reward == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["any", "integer", "number"])
@pytest.mark.parametrize(
    "text", ["3 + 8 = 10", "11 = 10", "10 = 11", "3 + 7 = 10 = 11", r"\boxed{3 + 8 = 10}", "3 + 7"]
)
def test_false_calculation_is_no_answer(kind: str, text: str) -> None:
    assert MathVerifier(answer_type=kind).score(text, "10").reward == 0.0  # type: ignore[arg-type]


def test_answer_types_by_column() -> None:
    verifier = MathVerifier(answer_type="column")
    assert verifier.score(r"\boxed{\sqrt{1764}}", "42", answer_type="any").reward == 1.0
    assert verifier.score(r"\boxed{\sqrt{1764}}", "42", answer_type="integer").reward == 0.0
    score = verifier.score(r"\boxed{42}", "42", answer_type="Numerical")
    assert score.status == "missing"
    assert "'Numerical', none of any, integer" in score.detail
    assert MathVerifier().score(r"\boxed{\sqrt{1764}}", "42", answer_type="integer").reward == 1.0  # not asked for


@pytest.mark.parametrize("settings", [{"form": "prime"}, {"answer_type": "integers"}])
def test_unknown_words_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UserError, match="it must be"):
        MathVerifier(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("any", UNREADABLE), ("any", "$$"), ("integer", "1/2"), ("number", "x"), ("choice", "42"), ("any", "")],
)
def test_other_answers_to_an_unparsable_record_are_missing(kind: str, answer: str) -> None:
    verifier = MathVerifier(answer_type=kind)  # type: ignore[arg-type]
    for completion in (f"\\boxed{{{answer}}}", r"\boxed{1}", "", "<think>"):
        score = verifier.score(completion, answer)
        assert (score.reward, score.status) == (None, ScoreStatus.MISSING)
        assert "the record's answer" in score.detail


@pytest.mark.parametrize(
    "answer", [r"\forall P \exists Q", r"A \subseteq B", r"1, 2, 3, \ldots", r"AB \perp CD", r"x \mid y"]
)
def test_verbatim_copy_of_an_unparsable_answer_is_paid(answer: str) -> None:
    verifier = MathVerifier()
    assert [verifier.score(text, answer).reward for text in (f"${answer}$", f"So $\\boxed{{ {answer} }}$.")] == [
        1.0,
        1.0,
    ]
    assert verifier.score(r"\boxed{7}", answer).status is ScoreStatus.MISSING
    assert verifier.score(f"Not \\boxed{{{answer}}}.", answer).status is ScoreStatus.MISSING


@pytest.mark.thorough
def test_start_up_counts_records_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    others = [({"answer": "7" if i % 3 else UNREADABLE, "id": f"r{i}"}, "?") for i in range(9)]
    with RewardRunner({"math": MathVerifier()}, num_workers=1) as runner, caplog.at_level(logging.WARNING):
        runner.check({"answer": "42"}, others=others)
        runner.check({"answer": "42"}, others=others)
    (said,) = [r.getMessage() for r in caplog.records if "no reward" in r.getMessage()]
    assert said.startswith("rewards.math: 3 of 9 records looked at will have no reward")
    assert "the first is r0: the record's answer cannot be read" in said
    assert said.endswith("; then r3, r6")


@pytest.mark.thorough
def test_score_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [(r"\boxed{1}", "1"), (r"\boxed{1}", UNREADABLE), (r"\boxed{2}", UNREADABLE), (r"\boxed{2}", "1")]
    lines = [{"id": f"s{i}", "completion": text, "answer": answer} for i, (text, answer) in enumerate(records)]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["score", "--reward", "MathVerifier", "--input", str(source), "--output", str(target)]) == 0
    said = capsys.readouterr().out
    assert "mean reward 0.5000; 2 missing, 2 ok" in said
    assert "missing, 2, first s1: the record's answer cannot be read as mathematics or words" in said
    rewards = [json.loads(line)["reward"] for line in target.read_text(encoding="utf-8").splitlines()]
    assert rewards == [1.0, None, None, 0.0]


@pytest.mark.thorough
def test_score_pays_no_withdrawn_answer_and_every_honest_spelling(tmp_path: Path) -> None:
    """Of each kind the examples that were once judged otherwise; the tables are in ``cases/rules.jsonl``."""
    cases = [
        (r"The answer is \boxed{7}, but this is incorrect.", "7", 0.0),
        (r"Do not answer \boxed{7}.", "7", 0.0),
        (r"\boxed{7} ... No wait, I forgot the sign ... it is 5", "7", 0.0),
        (r"\boxed{7} is what you would get if you forgot the sign", "7", 0.0),
        ("7 or not 7", "7", 0.0),
        ("anything but 7", "7", 0.0),
        (r"\boxed{B: 7, C: 8}", "B", 0.0),
        (r"\boxed{2024-03-05}", "2024-05-03", 0.0),
        (r"\boxed{(2,1)}", "x=1, y=2", 0.0),
        (r"\boxed{\phantom{42}}", "42", 0.0),
        (r"\boxed{\ldots 42}", "42", 0.0),
        ("```python\nprint(42)\n```", "42", 0.0),
        (r"the answer is not 7 but \boxed{5}", "5", 1.0),
        (r"\boxed{12\text{ cm}\,}", "12", 1.0),
        (r"\boxed{\,4\,096}", "4096", 1.0),
        (r"\boxed{49\pi\text{ square units}}", r"49\pi", 1.0),
        (r"\boxed{3\text{ to }4}", "3:4", 1.0),
        (r"\boxed{\text{A and C}}", "A, C", 1.0),
        (r"$x=\boxed{3}, y=\boxed{4}$", "(3,4)", 1.0),
        (r"\boxed{6\text{ hours }30\text{ minutes}}", "6 hours and 30 minutes", 1.0),
        (r"\boxed{x \equiv 10 \pmod{7}}", r"x \equiv 3 \pmod 7", 1.0),
        (r"\boxed{\frac{5\pi}{4} + n\pi, n \in Z}", r"x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z}", 1.0),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"id": str(i), "completion": text, "answer": gold} for i, (text, gold, _) in enumerate(cases)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["score", "--reward", "MathVerifier", "--input", str(source), "--output", str(target)]) == 0
    rewards = [json.loads(line)["reward"] for line in target.read_text(encoding="utf-8").splitlines()]
    assert rewards == [reward for _, _, reward in cases]


@pytest.mark.parametrize("kind", ["any", "integer", "number"])
def test_a_calculation_is_no_answer_whatever_the_type(kind: str) -> None:
    verifier = MathVerifier(answer_type=kind)  # type: ignore[arg-type]
    for text in ("17 + 39", "112/2", r"\frac{112}{2}"):
        assert not paid(verifier, "56", text)
    assert paid(verifier, "56", "56.0")


def test_evaluated_also_refuses_what_the_default_refuses() -> None:
    for text in ("112/2", r"\frac{112}{2}", "56/1"):
        assert not paid(MathVerifier(), "56", text)
        assert not paid(MathVerifier(evaluated=True), "56", text)


@pytest.mark.thorough
def test_score_pays_no_repeated_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy repeats "What is 17 + 39?"; the table is in ``cases/rules.jsonl``, class ``left to compute``."""
    cases = [
        ("17 + 39", "56", 0.0),
        (r"\boxed{17 + 39}", "56", 0.0),
        (r"\boxed{8 \times 7}", "56", 0.0),
        (r"\boxed{112/2}", "56", 0.0),
        (r"\boxed{60 - 4}", "56", 0.0),
        (r"\boxed{0.2 + 0.3}", "0.5", 0.0),
        (r"\boxed{17 + 39 = 56}", "56", 1.0),
        (r"\boxed{56 \text{ cm}}", "56", 1.0),
        (r"\boxed{5.6 \times 10^1}", "56", 1.0),
        (r"\boxed{2^3 \cdot 7}", "56", 1.0),
        (r"\boxed{4!}", "24", 1.0),
        (r"\boxed{2/4}", "0.5", 1.0),
        (r"\boxed{2/4}", "1/2", 1.0),
        (r"\boxed{39 + 17}", "17 + 39", 1.0),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"id": str(i), "completion": text, "answer": gold} for i, (text, gold, _) in enumerate(cases)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["score", "--reward", "MathVerifier", "--input", str(source), "--output", str(target)]) == 0
    rewards = [json.loads(line)["reward"] for line in target.read_text(encoding="utf-8").splitlines()]
    assert rewards == [reward for _, _, reward in cases]
    assert "mean reward 0.5714; 14 ok" in capsys.readouterr().out


def test_computer_algebra_error_makes_the_sample_missing_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from gspo_lightning.rewards.math import library

    def raises(*_: object, **__: object) -> bool:
        raise TypeError("Invalid comparison of non-real I")

    monkeypatch.setattr(library, "equal", raises)
    score = MathVerifier().score(r"\boxed{\sqrt{x}}", r"\sqrt{y+1}")
    detail = "the grader failed on this answer: TypeError: Invalid comparison of non-real I"
    assert (score.reward, score.status, score.detail) == (None, "missing", detail)


@pytest.mark.thorough
def test_samples_are_judged_in_a_worker_with_their_prompt() -> None:
    samples = [Sample("a", "What is 17*23?", r"\boxed{17*23}", (), {"answer": "391", "answer_type": "number"})]
    with RewardRunner({"math": MathVerifier(evaluated=True, answer_type="column")}, num_workers=1) as runner:
        assert runner.score(samples)[0].reward == 0.0


def test_a_letter_that_is_called_wrong_may_be_what_was_asked_for() -> None:
    """Which statement is wrong? A number that is called wrong is taken back."""
    verifier = MathVerifier(require_box=False)
    assert verifier.score("The answer is B: this is wrong.", "B").reward == 1.0
    assert verifier.score("The answer is 7: this is wrong.", "7").reward == 0.0
