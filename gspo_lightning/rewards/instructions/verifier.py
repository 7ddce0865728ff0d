"""Reward for following instructions that a program can verify."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.thinking import UNFINISHED, after_thinking
from gspo_lightning.rewards.instructions.checks import CHECKS
from gspo_lightning.rewards.instructions.text import check_installed, load_languages
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Score

RELATIONS = ("less than", "at least")
SYNONYMS = {"zh-cn": "zh", "zh-tw": "zh"}


class BadInstructionError(ValueError):
    """A record's instructions that cannot be read, which is not the model's mistake."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: the id of its kind and the kind's arguments."""

    id: str
    arguments: Mapping[str, Any]

    def followed(self, text: str) -> bool:
        """True if a text follows the instruction; an empty text follows none."""
        return bool(text.strip()) and CHECKS[self.id](text, **self.arguments)


def read_instructions(ids: object, arguments: object) -> list[Instruction]:
    """Parse a record's instructions; both columns may be JSON text, and null arguments are left out.

    >>> read_instructions(["punctuation:no_comma"], [{"num_words": None}])
    [Instruction(id='punctuation:no_comma', arguments={})]

    Raises:
        BadInstructionError: no instructions, an unknown kind, or an argument that is missing or of another type.
    """
    names = _list("instruction_id_list", ids)
    if not names:
        raise BadInstructionError("instruction_id_list is empty")
    entries = _list("kwargs", arguments) if arguments is not None else [{}] * len(names)
    if len(names) != len(entries):
        raise BadInstructionError(f"{len(names)} ids in instruction_id_list, but {len(entries)} entries in kwargs")
    return [_instruction(name, _mapping(entry)) for name, entry in zip(names, entries, strict=True)]


def _list(column: str, value: object) -> list[Any]:
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError as error:
            raise BadInstructionError(f"{column} is text, but no JSON: {error}") from error
    tolist = getattr(value, "tolist", None)  # an array, as Parquet readers give it
    value = tolist() if callable(tolist) else value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    raise BadInstructionError(f"{column} is a {type(value).__name__}, not a list")


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        value = load_json(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInstructionError(f"an entry of kwargs is a {type(value).__name__}, not a mapping")
    return {str(k): v for k, v in value.items() if v is not None}


def _instruction(name: object, given: Mapping[str, Any]) -> Instruction:
    if not isinstance(name, str) or name not in CHECKS:
        raise BadInstructionError(f"{name!r} is not a kind of instruction; {did_you_mean(str(name), CHECKS)}")
    parameters = list(inspect.signature(CHECKS[name]).parameters)[1:]
    for parameter in parameters:
        if parameter not in given:
            raise BadInstructionError(f"{name} needs {parameter!r} in kwargs")
    try:
        return Instruction(name, {parameter: _READERS[parameter](given[parameter]) for parameter in parameters})
    except ValueError as error:
        raise BadInstructionError(f"{name}: {error}") from error


def _whole(value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) and value >= 0:
        return int(value)
    raise ValueError(f"{value!r} is not a whole number from 0 on")


def _from_one(value: object) -> int:
    if (number := _whole(value)) < 1:
        raise ValueError(f"{value!r} is below 1")
    return number


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{value!r} is not text")


def _letter(value: object) -> str:
    if len(text := _text(value).strip()) != 1:
        raise ValueError(f"{value!r} is not a single letter")
    return text


def _texts(value: object) -> list[str]:
    texts = [_text(v) for v in _list("its list", value)]
    if not texts:
        raise ValueError("its list is empty")
    return texts


def _relation(value: object) -> str:
    if value not in RELATIONS:
        raise ValueError(f"{value!r} is neither 'less than' nor 'at least'")
    return str(value)


def _language(value: object) -> str:
    code = SYNONYMS.get(_text(value).lower(), _text(value).lower())
    if code not in load_languages():
        raise ValueError(f"{value!r} is not a code of a language that is known, such as 'en'")
    return code


_READERS: dict[str, Callable[[object], Any]] = {
    "keywords": _texts,
    "keyword": _text,
    "frequency": _whole,
    "relation": _relation,
    "forbidden_words": _texts,
    "letter": _letter,
    "let_frequency": _whole,
    "let_relation": _relation,
    "language": _language,
    "num_sentences": _whole,
    "num_paragraphs": _whole,
    "num_words": _whole,
    "nth_paragraph": _from_one,
    "first_word": _text,
    "num_placeholders": _whole,
    "postscript_marker": _text,
    "num_bullets": _whole,
    "num_highlights": _whole,
    "section_spliter": _text,
    "num_sections": _whole,
    "prompt_to_repeat": _text,
    "end_phrase": _text,
    "capital_frequency": _whole,
    "capital_relation": _relation,
}
"""Argument -> the function that converts it; raises ValueError."""


class IFVerifier(Reward):
    """1 if a completion follows all of its record's instructions, or the share that it follows.

    The kinds are IFEval's 25 (arXiv 2311.07911), by their public ids and arguments: the columns ``instruction_id_list``
    and ``kwargs`` of the data set, unchanged. The text after ``</think>`` is checked.

    Args:
        scoring: ``all_or_nothing`` (IFEval's accuracy by prompt), or ``fraction`` of the instructions.
        loose: a text that follows an instruction without its first line, its last line, both, or its asterisks
            follows it (IFEval's loose accuracy): an introduction such as "Sure, here it is:" is fine.
        max_characters: longer completions are worth 0 (``model_error``).

    Raises:
        UserError: an invalid setting, or py3langid is not installed.

    >>> verifier = IFVerifier()
    >>> verifier.score("Yes. No comma here.", ["punctuation:no_comma"], [{}]).reward
    1.0
    >>> verifier.score("Yes, one.", ["punctuation:no_comma"], [{}]).detail
    'punctuation:no_comma'
    """

    finds_answers = True
    no_answer = f"{UNFINISHED}|longer than .*"

    def __init__(
        self,
        scoring: Literal["all_or_nothing", "fraction"] = "all_or_nothing",
        loose: bool = False,
        max_characters: int = 20_000,
    ) -> None:
        if scoring not in ("all_or_nothing", "fraction"):
            raise UserError("IFVerifier.scoring", f"is {scoring!r}; it must be all_or_nothing or fraction")
        if max_characters < 1:
            raise UserError("IFVerifier.max_characters", f"is {max_characters}; it must be at least 1")
        check_installed()
        self.scoring = scoring
        self.loose = loose
        self.max_characters = max_characters

    def prepare(self) -> None:
        """Load the language detection model."""
        load_languages()

    def score(
        self, completion: str, instruction_id_list: object, kwargs: object, unfinished_thought: bool = False
    ) -> Score:
        """Check all instructions; ``detail`` lists the kinds that were not followed."""
        try:
            instructions = read_instructions(instruction_id_list, kwargs)
        except BadInstructionError as error:
            return Score.missing(f"the record's instructions are not understood: {error}")
        text = after_thinking(completion, unfinished_thought)
        if text is None:
            return Score.model_error(UNFINISHED)
        if len(text) > self.max_characters:
            return Score.model_error(f"longer than {self.max_characters} characters")
        broken = [instruction.id for instruction in instructions if not self._followed(instruction, text)]
        share = 1 - len(broken) / len(instructions)
        return Score(share if self.scoring == "fraction" else float(not broken), detail=", ".join(broken))

    def _followed(self, instruction: Instruction, text: str) -> bool:
        forms = _forms(text) if self.loose else (text,)
        return any(instruction.followed(form) for form in forms)


def _forms(text: str) -> Iterator[str]:
    """Return IFEval's eight forms of a text for loose scoring.

    >>> list(_forms("Sure:\\n*a*"))
    ['Sure:\\n*a*', 'Sure:\\na', '*a*', 'a', 'Sure:', 'Sure:', '', '']
    """
    lines = text.split("\n")
    for kept in (lines, lines[1:], lines[:-1], lines[1:-1]):
        form = "\n".join(kept).strip()
        yield form if kept is not lines else text
        yield form.replace("*", "")
