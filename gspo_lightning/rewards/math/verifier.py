r"""Math reward: equality as mathematics, not as text, and no reward for tricks.

It judges one answer that the completion commits to (``text``, ``commitment``) against a readable reference answer
(``gold``). Rules cover what mathematics software does not know (units, bases, times, words, options), and Math-Verify
covers the rest (``comparison``, ``library``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.thinking import UNFINISHED, after_thinking
from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.comparison import Comparison
from gspo_lightning.rewards.math.forms import asked_form, has_form, is_task, lacks_primes
from gspo_lightning.rewards.math.gold import ANSWER_TYPES, Gold, bare, read_gold, refusal, spelled
from gspo_lightning.rewards.math.notation import bare_latex, canonical, unwrapped
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.parts import parts
from gspo_lightning.rewards.math.question import Question, read_question
from gspo_lightning.rewards.math.text import Extracted, boxed, labelled_boxes, without_hidden
from gspo_lightning.rewards.math.unboxed_answer import committed, concluded
from gspo_lightning.rewards.math.units import quantity
from gspo_lightning.rewards.math.withdrawn_boxes import taken_back
from gspo_lightning.rewards.math.words import options
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Score

_OPERATION = re.compile(
    r"\d\s*(?:[+*\u00d7\u00f7]|(?<=\d)\s*-|\\times|\\cdot|\\div)\s*[\d.]|\d\s*!|\\(?:sum|prod|int|iint|oint|lim|binom|tbinom|dbinom|gcd|lcm)(?![a-zA-Z])"
    r"|\\frac\s*\{\s*d(?:\^\d)?[a-z]?\s*\}\s*\{\s*d|\d\s*\^\s*\{?\s*\d|\\b?mod(?![a-zA-Z])"
)
_EQUALS = re.compile(r"(?<![<>!\\])=")
_SIGN = re.compile(r"\\[$%]|[$%\u20ac\u00a3\u00a5]|\^\s*\{?\s*\\circ\s*\}?")
"""Currency, percent or degree beside each number of a sum."""
_OPERATOR = r"\\(?:times|cdot|div|over)(?![a-zA-Z])"
_CALCULATION = re.compile(rf"(?:\d,(?=\d{{3}}(?!\d))|[-+*/:.()\[\]{{}}\d ]|\\[{{}}]|\\frac|{_OPERATOR})+")
_STEP = re.compile(rf"(?<=[\d.)}}\]])[-+*/:]|\\frac|{_OPERATOR}")
_FRACTION = re.compile(r"/|:|\\frac|\\over")


class MathVerifier(Reward):
    r"""1 if the final answer equals ``answer`` mathematically, otherwise 0.

    The final answer is the last ``\boxed{...}`` after any ``<think>...</think>``. LaTeX, fractions, sets, intervals,
    percentages, units and equations such as ``x = 42`` are understood. If a record's answer cannot be read, a
    completion that repeats it is right and any other has no reward (*missing*).

    If the record's answer is an integer or a decimal, with or without a unit, an answer that leaves a sum, difference,
    product or quotient of numbers to compute is worth 0, since it may only repeat the question: ``17 + 39``,
    ``8 \cdot 7`` or ``\frac{112}{2}`` for 56. ``17 + 39 = 56`` is right, and so are powers, factorials,
    ``5.6 \times 10^1`` and mixed numbers. A fraction of integers is a number unless its value is an integer: ``1/2`` or
    ``2/4`` for 0.5 is right, as it is for ``1/2``.

    Args:
        require_box: an answer outside a box is worth 0. Otherwise, without a box, the last sentence that commits to a
            value counts. Boxes are unambiguous: ask for them in the prompt, require them.
        max_characters: longer answers are worth 0 (``model_error``); without a box the end is read, up to this length.
        decimals: decimal places to which numbers with a decimal point must agree. By default a decimal equals an exact
            value, or a longer decimal, if it is that value rounded to the places it shows and shows at least six
            significant digits; an integer of the record equals only itself.
        strict: names of variables matter, and a set is not a tuple; Math-Verify's option of that name.
        evaluated: any answer that still contains the task is worth 0, also a power or factorial (``2^{10}`` for
            1024) or an expression of the prompt.
        form: ``factored`` or ``expanded`` also requires that form of a polynomial; ``any`` only requires equality.
        answer_type: the type of all records' answers: ``integer``, ``number``, ``expression``, ``choice``, ``set``,
            ``text``; ``any`` detects it. ``column`` reads it from each record's column ``answer_type``. Integers,
            numbers, choices and text are compared without computer algebra, and answers of any other type are wrong.

    >>> verifier = MathVerifier()
    >>> verifier.score(r"6 * 7 is \boxed{42}.", "42").reward, verifier.score(r"\boxed{41}", "42").reward
    (1.0, 0.0)
    """

    reads_answers = True
    finds_answers = True

    def __init__(
        self,
        require_box: bool = False,
        max_characters: int = 2000,
        decimals: int | None = None,
        strict: bool = True,
        evaluated: bool = False,
        form: Literal["any", "factored", "expanded"] = "any",
        answer_type: Literal["any", "integer", "number", "expression", "choice", "set", "text", "column"] = "any",
    ) -> None:
        if max_characters < 1:
            raise UserError("MathVerifier.max_characters", f"is {max_characters}; it must be at least 1")
        if decimals is not None and not 0 <= decimals <= 15:
            raise UserError("MathVerifier.decimals", f"is {decimals}; it must lie in 0 to 15")
        if form not in ("any", "factored", "expanded"):
            raise UserError("MathVerifier.form", f"is {form!r}; it must be any, factored or expanded")
        if answer_type not in (*ANSWER_TYPES, "column"):
            raise UserError(
                "MathVerifier.answer_type", f"is {answer_type!r}; it must be one of {', '.join(ANSWER_TYPES)}, column"
            )
        self.require_box = require_box
        self.max_characters = max_characters
        self.decimals = decimals
        self.evaluated = evaluated
        self.form = form
        self.answer_type = answer_type
        self.strict = strict

    def prepare(self) -> None:
        """Import Math-Verify and use it once, which takes more than a second, before a deadline runs."""
        if self.answer_type not in ("integer", "number", "choice", "text"):
            library.warm_up()

    def score(
        self,
        completion: str,
        answer: object,
        prompt: object = "",
        answer_type: object = None,
        unfinished_thought: bool = False,
    ) -> Score:
        """Compare the final answer with the record's; ``detail`` says why there was nothing to compare.

        ``prompt`` is a text, or a list of chat messages, as a record may have it.
        """
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return Score.missing(f"the answer must be text or a number, not {type(answer).__name__}")
        kind = self.answer_type
        if kind == "column":
            if answer_type not in ANSWER_TYPES:
                return Score.missing(f"the record's answer_type is {answer_type!r}, none of {', '.join(ANSWER_TYPES)}")
            kind = answer_type
        question = read_question(_text_of(prompt))
        gold = read_gold(str(answer), question.options)
        unreadable = refusal(gold, kind)
        text = after_thinking(completion, unfinished_thought)
        extracted = self._final(text, gold, question)
        if unreadable is not None:
            repeated = gold.text and kind not in ("integer", "number", "choice") and not extracted.reason
            return (
                Score(1.0)
                if repeated and bare_latex(spelled(unwrapped(extracted.text))) == gold.canonical
                else Score.missing(unreadable)
            )
        if extracted.reason:
            return Score.model_error(extracted.reason) if extracted.too_long else Score(0.0, detail=extracted.reason)
        try:
            compare = Comparison(self.decimals, self.strict, question)
            same, reason = compare.same(gold, extracted.text, kind, boxed=extracted.boxed, formula=extracted.formula)
            if same:
                reason = self._in_form(gold, extracted, question)
        except MemoryError:
            raise
        except Exception as error:  # computer algebra may raise anything on model text
            return Score.missing(f"the grader failed on this answer: {type(error).__name__}: {str(error)[:80]}")
        return Score(float(same and not reason), detail=reason)

    def _final(self, text: str | None, gold: Gold, question: Question) -> Extracted:
        """Return the answer that the text after the thinking commits to."""
        if text is None:
            return Extracted(reason=UNFINISHED)
        text = without_hidden(text)
        last_box = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
        if last_box >= 0 and (self.require_box or last_box > concluded(text)):
            extracted = boxed(text, self.max_characters)
            labels = [] if gold.prose else [label for label, _ in parts(gold.text) or ()]
            labelled = labelled_boxes(text, labels) if len(labels) > 1 and not extracted.reason else None
            if labelled is not None:
                extracted = replace(extracted, text=", ".join(f"({label}) {labelled[label].text}" for label in labels))
            if not extracted.reason and any(map(taken_back, (extracted, *(labelled or {}).values()))):
                return Extracted(reason="the box is taken back")
            return extracted
        if self.require_box:
            return Extracted(reason="no box")
        listed = gold.option is not None or (question.options and options(gold.text, joined=True) is not None)
        return committed(text, self.max_characters, options=listed)

    def _in_form(self, gold: Gold, extracted: Extracted, question: Question) -> str:
        """Return why an equal answer is not in the required form; empty if it is."""
        given = spelled(unwrapped(extracted.text))
        if bare_latex(given) == gold.canonical:
            return ""
        if left_to_compute(gold, given) or (self.evaluated and unevaluated(gold.text, given, question.text)):
            return "not evaluated"
        if is_task(gold.text, given, question) or lacks_primes(gold.text, given, question):
            return "the task in place of its answer"
        form = self.form
        if form == "any" and self.answer_type in ("any", "expression"):
            form = asked_form(gold.text, question)
        if form != "any":
            readings = [item for item in library.parse(given, boxed=True) if not isinstance(item, str)]
            if readings and not has_form(readings, form):
                return f"not {form}"
        return ""


def left_to_compute(gold: Gold, given: str) -> bool:
    r"""True if the record's answer is an integer or decimal and the answer only a calculation that gives it.

    A quotient of integers that is no integer is a fraction, not a calculation: 5/10 is a way to write 0.5.

    >>> left_to_compute(read_gold("56"), "17 + 39"), left_to_compute(read_gold("56"), "17 + 39 = 56")
    (True, False)
    >>> left_to_compute(read_gold("0.5"), "5/10"), left_to_compute(read_gold("0.5"), "0.2 + 0.3")
    (False, True)
    """
    if not _written_out(bare(gold.quantity.value)):
        return False
    sides = [canonical(_SIGN.sub("", bare(quantity(side).value))) for side in _EQUALS.split(given)]
    return _calculates(sides[-1]) and not any(map(_written_out, sides))


def _written_out(text: str) -> bool:
    """True if a text is an integer or decimal in digits."""
    return literal(text) is not None and not re.search(r"[a-zA-Z/\\^]", text)


def _calculates(text: str) -> bool:
    """True if a text consists of numbers and of at least one operation that a fraction does not need."""
    steps = _STEP.findall(text) if _CALCULATION.fullmatch(text) else []
    if len(steps) == 1 and _FRACTION.fullmatch(steps[0]) and "." not in text:
        above, below = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", text)[-2:])
        return below != 0 and above % below == 0
    return bool(steps)


def unevaluated(gold: str, given: str, prompt: str) -> bool:
    r"""True if an answer contains the task: an operation that the record's answer lacks, or a part of the prompt.

    >>> unevaluated("391", r"17 \times 23", ""), unevaluated("391", "391", "")
    (True, False)
    >>> unevaluated("x+1", "(x^2-1)/(x-1)", "Simplify (x^2-1)/(x-1)")
    True
    """
    last = _EQUALS.split(given)[-1].strip()
    if literal(gold) is not None:
        return literal(last) is None
    if _OPERATION.search(last) and not _OPERATION.search(gold):
        return True
    copied = canonical(last)
    return len(copied) > 3 and copied != canonical(gold) and copied in canonical(prompt)


def _text_of(prompt: object) -> str:
    """Return the text of a prompt; of chat messages what the last user's says, for earlier ones ask something else."""
    if isinstance(prompt, str):
        return prompt
    messages = prompt if isinstance(prompt, list | tuple) else []
    latest: object = ""
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") == "user":
            latest = message.get("content")
    return latest if isinstance(latest, str) else ""
