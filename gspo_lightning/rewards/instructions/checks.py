"""Checks of IFEval's 25 kinds of instructions (arXiv 2311.07911): functions of a text and a kind's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gspo_lightning.core.parsing import load_json
from gspo_lightning.rewards.instructions.sentences import count_sentences
from gspo_lightning.rewards.instructions.text import capital_words, language_of, paragraphs, words

_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_BULLET = re.compile(r"^\s*(?:\*[^*\n]|-)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_DOUBLE_HIGHLIGHT = re.compile(r"\*\*[^\n*]*\*\*")
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*(?:```)?\s*", re.DOTALL | re.IGNORECASE)


def _holds(count: int, relation: str, limit: int) -> bool:
    return count < limit if relation == "less than" else count >= limit


def _times(word: str, text: str) -> int:
    return len(re.findall(re.escape(word), text, flags=re.IGNORECASE))


def existence(text: str, keywords: Sequence[str]) -> bool:
    """True if every keyword occurs, in upper or lower case, also within a word."""
    return all(_times(word, text) for word in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """True if a keyword occurs less than, or at least, ``frequency`` times."""
    return _holds(_times(keyword.strip(), text), relation, frequency)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    """True if none of the words occurs as a word of its own."""
    return not any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text, flags=re.IGNORECASE) for w in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """True if a letter occurs less than, or at least, ``let_frequency`` times."""
    return _holds(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """True if the text is in the language; a text without letters is in none."""
    return language_of(text) == language


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """True if the text has less than, or at least, ``num_sentences`` sentences."""
    return _holds(count_sentences(text), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """True if the text has ``num_paragraphs`` paragraphs separated by ``***``.

    Only the parts before the first and after the last separator may be empty.
    """
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return all(parts[1:-1]) and sum(map(bool, parts)) == num_paragraphs


def number_words(text: str, num_words: int, relation: str) -> bool:
    """True if the text has less than, or at least, ``num_words`` words."""
    return _holds(len(words(text)), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """True if the text has ``num_paragraphs`` paragraphs and one of them begins with ``first_word``.

    Empty lines separate paragraphs; ``nth_paragraph`` counts from 1.
    """
    parts = paragraphs(text)
    if sum(bool(p.strip()) for p in parts) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    chosen = parts[nth_paragraph - 1].split()
    first = re.split(r"[.,?!'\"]", chosen[0].lstrip("'").lstrip('"'))[0] if chosen else ""
    return first.lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """True if the text has at least ``num_placeholders`` ``[placeholders]``."""
    return len(_PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """True if the text has a postscript that begins with the marker."""
    marker = postscript_marker.strip()
    spelled = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker, re.escape(marker.lower()))
    return re.search(spelled, text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """True if the text has exactly ``num_bullets`` lines that begin with ``*`` or ``-``."""
    return len(_BULLET.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    """True if exactly one of "My answer is yes.", "My answer is no." and "My answer is maybe." occurs."""
    return sum(choice in text for choice in _CHOICES) == 1


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """True if the text has at least ``num_highlights`` ``*highlights*``; ``**bold**`` ones count, too."""
    single = sum(bool(h.strip("*").strip()) for h in _HIGHLIGHT.findall(text))
    double = sum(bool(h[2:-2].strip()) for h in _DOUBLE_HIGHLIGHT.findall(text))
    return single + double >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """True if the text has at least ``num_sections`` sections, each begun by the word and a number."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """True if the text is JSON and nothing else, possibly in a fence."""
    fenced = _FENCE.fullmatch(text)
    try:
        load_json(fenced[1] if fenced else text, parse_constant=_no_json)
    except ValueError:
        return False
    return True


def title(text: str) -> bool:
    """True if the text has a title in ``<<double angular brackets>>``, on one line."""
    for line in text.split("\n"):
        start = line.find("<<")
        end = line.rfind(">>")
        if 0 <= start < end and line[start:end].strip("<> \t"):
            return True
    return False


def two_responses(text: str) -> bool:
    """True if the text is two different responses separated by ``******``."""
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """True if the text begins with the request, word for word, and an answer follows."""
    response = text.strip().lower()
    prompt = prompt_to_repeat.strip().lower()
    return response.startswith(prompt) and response != prompt


def end_checker(text: str, end_phrase: str) -> bool:
    """True if the text ends with the phrase; quotation marks after it do not count."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """True if less than, or at least, ``capital_frequency`` words are in capitals."""
    return _holds(len(capital_words(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """True if the text is in English and in capital letters."""
    return text.isupper() and language_of(text) == "en"


def english_lowercase(text: str) -> bool:
    """True if the text is in English and in small letters."""
    return text.islower() and language_of(text) == "en"


def no_comma(text: str) -> bool:
    """True if the text has no comma."""
    return "," not in text


def quotation(text: str) -> bool:
    """True if the text is wrapped in double quotation marks."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"'


def _no_json(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
    "startend:quotation": quotation,
}
"""Id of a kind -> its check. The arguments of a check are the kind's public ``kwargs``."""
