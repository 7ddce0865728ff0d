"""IFEval's kinds of instructions: for each what follows it and what does not, by hand; records that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import IFVerifier, RewardRunner, Sample
from gspo_lightning.rewards.instructions.checks import CHECKS
from gspo_lightning.rewards.instructions.sentences import count_sentences
from gspo_lightning.rewards.instructions.text import language_of

pytest.importorskip("py3langid")

WEATHER = {
    "en": "The weather is nice today and we are going to the beach.",
    "es": "Hoy hace buen tiempo y vamos a la playa con los niños.",
    "pt": "Hoje o tempo está bom e vamos à praia com as crianças.",
    "ar": "الطقس جميل اليوم ونحن ذاهبون إلى الشاطئ.",
    "hi": "आज मौसम अच्छा है और हम समुद्र तट पर जा रहे हैं।",
    "fr": "Il fait beau aujourd'hui et nous allons à la plage.",
    "ru": "Сегодня хорошая погода, и мы идём на пляж.",
    "de": "Heute ist das Wetter schön und wir gehen an den Strand.",
    "ja": "今日は天気がいいので、海に行きます。",
    "it": "Oggi il tempo è bello e andiamo in spiaggia con i bambini.",
    "bn": "আজ আবহাওয়া সুন্দর এবং আমরা সৈকতে যাচ্ছি।",
    "uk": "Сьогодні гарна погода, і ми йдемо на пляж.",
    "th": "วันนี้อากาศดีและเรากำลังไปชายหาด",
    "ur": "آج موسم اچھا ہے اور ہم ساحل سمندر پر جا رہے ہیں۔",
    "ta": "இன்று வானிலை நன்றாக உள்ளது, நாங்கள் கடற்கரைக்குச் செல்கிறோம்.",
    "te": "ఈ రోజు వాతావరణం బాగుంది మరియు మేము బీచ్‌కి వెళ్తున్నాము.",
    "bg": "Днес времето е хубаво и отиваме на плажа.",
    "ko": "오늘은 날씨가 좋아서 우리는 해변에 갑니다.",
    "pl": "Dzisiaj jest ładna pogoda i idziemy na plażę.",
    "he": "מזג האוויר יפה היום ואנחנו הולכים לחוף הים.",
    "fa": "امروز هوا خوب است و ما به ساحل می‌رویم.",
    "vi": "Hôm nay thời tiết đẹp và chúng tôi đi ra bãi biển.",
    "ne": "आज मौसम राम्रो छ र हामी समुद्र तटमा जाँदैछौं।",
    "sw": "Leo hali ya hewa ni nzuri na tunaenda ufukweni na watoto.",
    "kn": "ಇಂದು ಹವಾಮಾನ ಚೆನ್ನಾಗಿದೆ ಮತ್ತು ನಾವು ಕಡಲತೀರಕ್ಕೆ ಹೋಗುತ್ತಿದ್ದೇವೆ.",
    "mr": "आज हवामान छान आहे आणि आम्ही समुद्रकिनाऱ्यावर जात आहोत.",
    "gu": "આજે હવામાન સારું છે અને અમે દરિયાકિનારે જઈ રહ્યા છીએ.",
    "pa": "ਅੱਜ ਮੌਸਮ ਚੰਗਾ ਹੈ ਅਤੇ ਅਸੀਂ ਬੀਚ 'ਤੇ ਜਾ ਰਹੇ ਹਾਂ।",
    "ml": "ഇന്ന് കാലാവസ്ഥ നല്ലതാണ്, ഞങ്ങൾ കടൽത്തീരത്തേക്ക് പോകുന്നു.",
    "fi": "Tänään on kaunis sää ja menemme rannalle lasten kanssa.",
    "zh": "今天天气很好，我们要去海边。",
}
"""The languages of IFEval's prompts, and Chinese."""

CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["river", "C++"]}, ["A River in c++."], ["A river in C.", "c++ alone"]),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"},
     ["Tea, and tea.", "teatime with tea"], ["tea", "coffee"]),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "less than"}, ["tea", "coffee"], ["tea tea"]),
    ("keywords:forbidden_words", {"forbidden_words": ["war", "C++"]}, ["warm and wary, in C"],
     ["War!", "the war", "in c++", "a (war)"]),
    ("keywords:letter_frequency", {"letter": "Q", "let_frequency": 2, "let_relation": "at least"},
     ["Quick, quiet", "qq"], ["quick", "kick"]),
    ("keywords:letter_frequency", {"letter": "!", "let_frequency": 1, "let_relation": "less than"}, ["calm"], ["oh!"]),
    ("language:response_language", {"language": "fr"}, [WEATHER["fr"]], [WEATHER["en"], WEATHER["it"], "12 34"]),
    ("language:response_language", {"language": "zh-cn"}, [WEATHER["zh"]], [WEATHER["ja"]]),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"},
     ["One. Two! Three?", "Dr. Who came. He left. \u201cWhy?\u201d", "Eins\u3002Zwei\uff01Drei"],
     ["One. Two.", "Dr. J. Smith has 3.5 e.g. dollars.", "... ... ...", "1. Go\n2. Stay"]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, ["One."], ["One. Two."]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb", "***\na ***b\n***"],
     ["a", "a***b***c", "a\n***\n***\nb", "a\n\nb"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"},
     ["one two three"], ["one two", "..."]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, ["one two"], ["one two three"]),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Jasper"},
     ["One.\n\njasper, two.", "One.\n\n\"Jasper\" two."],
     ["One.\n\nTwo Jasper.", "Jasper\n\nb", "a\n\nJasper\n\nb", "a"]),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["Dear [name] of [town]"],
     ["Dear [name]", "Dear [na\nme] [x]", "]["]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["Bye\n\nP.S. more", "p. s. more"], ["PS more"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S. more", "p. p. s more"], ["P.S. more"]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n* b", "So:\n - a\n - b"],
     ["* a", "* a\n- b\n* c", "1. a\n2. b", "** a\n** b"]),
    ("detectable_format:constrained_response", {}, ["My answer is yes.", "Well. My answer is maybe."],
     ["Yes.", "My answer is yes. My answer is no.", "my answer is yes"]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, ["*a* and *b*", "**a**, *b*"],
     ["*a*", "* a\n* b", "** **, **"]),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     ["Section 1\na\nSection 2\nb"], ["Section 1\na", "SECTION 1 SECTION 2", "Section one Section two"]),
    ("detectable_format:json_format", {}, ['{"a": [1, null]}', '```json\n{"a": 1}\n```', "```\n[]\n```"],
     ["{'a': 1}", '{"a": 1} done', "{", '{"a": NaN}', "[" * 5000]),
    ("detectable_format:title", {}, ["<<On tea>>\nText", "x <<a -> b>> y"], ["<On tea>", "<< >>", "<<a\nb>>", ">><<"]),
    ("combination:two_responses", {}, ["a\n******\nb", "******a******b"], ["a", "a******a", "a******b******c",
     "a************b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, ["write a poem.\n\nRoses"],
     ["Roses", "Write a poem.", "Sure. Write a poem. Roses"]),
    ("startend:end_checker", {"end_phrase": "Any other questions?"},
     ['So. any other questions?"', "Any other questions?"],
     ["Any other questions? No.", "So."]),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     ["NASA and ESA", "WELL-KNOWN U.S. base"], ["NASA", "WELL-KNOWN", "Nasa Esa", "12 34"]),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}, ["none"], ["NO"]),
    ("change_case:english_capital", {}, [WEATHER["en"].upper()], [WEATHER["en"], WEATHER["de"].upper(), "12"]),
    ("change_case:english_lowercase", {}, [WEATHER["en"].lower()], [WEATHER["en"], WEATHER["de"].lower(), "12"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b"]),
    ("startend:quotation", {}, ['"quoted"', ' "a "b" c"\n'], ['"', '""', '"a', "'a'"]),
]  # fmt: skip


def verdict(kind: str, arguments: dict[str, Any], text: str, **settings: Any) -> float | None:
    return IFVerifier(**settings).score(text, [kind], [arguments]).reward


@pytest.mark.parametrize(("kind", "arguments", "right", "wrong"), CASES)
def test_each_ifeval_kind_pays_right_texts_and_no_wrong_ones(
    kind: str, arguments: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    everything = {"num_words": None, "keywords": None, **arguments}  # the columns of the data set hold nulls
    for loose in (False, True):
        assert [t for t in right if verdict(kind, everything, t, loose=loose) != 1.0] == []
    assert [t for t in [*wrong, "", " \n"] if verdict(kind, everything, t) != 0.0] == []


def test_every_kind_of_the_paper_has_cases() -> None:
    assert {kind for kind, *_ in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


@pytest.mark.parametrize("code", WEATHER)
def test_languages_are_told_apart(code: str) -> None:
    assert language_of(WEATHER[code]) == code
    others = [other for other in WEATHER if other != code]
    assert [verdict("language:response_language", {"language": other}, WEATHER[code]) for other in others] == [0.0] * 30


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", 0), ("no end", 1), ("One. two", 1), ("One. Two", 2), ("Really?! Yes.", 2), ("It is 3.14. Pi.", 2),
        ("Mr. and Mrs. Smith, Prof. Jones. They met.", 2), ("I met J. K. Rowling. She wrote.", 2), ("So am I. You?", 2),
        ("1. First this.\n2. Then that.", 2), ("(Done.) Next.", 2), ("**Bold.** Next.", 2), ("Wait... what? Yes.", 2),
        ("?!?!", 0), ("He said \"Go!\" and went.", 1),
        # small letters
        ("it rained. we stayed. why not?", 3), ("who came? nobody. pity!", 3), ("First. then we slept. so did she.", 3),
        ("he met dr. lee, e.g. on sunday. fine.", 2), ("wait... what? yes.", 2), ("\"no!\" he said. she left.", 2),
        ("She codes. npm broke. It was late.", 2), ("It works. macOS does too. iOS, too.", 3),
        # abbreviations at the end
        ("Was it cold? No. We swam.", 3), ("is it? no. it isn't.", 3), ("I saw fig. B. Nice.", 2),
        ("See no. 7 and Nos. 8 to 9, Vol. II, p. 3 there.", 1),
        ("Eat a fig. Drink water.", 2), ("Tell the gen. She waits for Gen. Roe.", 2),
        ("We need vitamin D. It helps.", 2), ("He got a B. Nobody minded.", 2),
        ("Exit by gate C. Trains leave there.", 2), ("We left at 9 a.m. Rain fell.", 2),
        ("We left at 9 a.m. Monday, in the U.S. Navy way.", 1), ("She lives in the U.K. She likes it.", 2),
        ("Harry S. Truman and B. A. King met.", 1), ("Sammy Davis Jr. sang. So did King Jr. The end.", 3),
        ("Tea, milk, etc. Prices vary. Ask Acme Inc. in May.", 3), ("It ends on Sept. 5. Bye.", 2),
        # marks of other scripts
        ("\u06a9\u062a\u0627\u0628 \u06c1\u06d2\u06d4 \u0642\u0644\u0645 \u06c1\u06d2\u06d4", 2),
        ("\u0623\u064a\u0646\u061f \u0647\u0646\u0627.", 2), ("\u0906\u0913\u0964 \u091c\u093e\u0913\u0965", 2),
        ("\u1230\u120b\u121d\u1362 \u12f0\u1205\u1293\u1362", 2),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: int) -> None:
    assert count_sentences(text) == sentences


INTRODUCTIONS = (
    "Of course, this is what you wanted to have: ",
    "Certainly! Below you will find everything in that language, as you said: ",
)


@pytest.mark.parametrize("code", [c for c in WEATHER if not any("a" <= letter <= "z" for letter in WEATHER[c])])
def test_a_few_words_in_a_script_of_its_own_are_no_text_in_the_language(code: str) -> None:
    for introduction in INTRODUCTIONS:
        text = introduction + WEATHER[code][:12]
        assert (language_of(text), verdict("language:response_language", {"language": code}, text)) == ("en", 0.0)
    assert verdict("language:response_language", {"language": code}, f"{WEATHER[code]} (SQL)") == 1.0
    assert verdict("language:response_language", {"language": "en"}, f"{WEATHER['en']} {WEATHER[code][:8]}") == 1.0


def test_an_ideograph_counts_as_two_letters() -> None:
    assert language_of("\u6211\u4eec\u7528 Python \u5199\u7a0b\u5e8f") == "zh"  # six of them, and six Latin letters
    assert language_of("\u30c6\u30b9\u30c8\u3092 pytest \u3067\u66f8\u304d\u307e\u3059\u3002") == "ja"


def test_all_instructions_count_and_a_fraction_can_be_paid() -> None:
    ids = ["punctuation:no_comma", "detectable_format:title", "startend:quotation", "length_constraints:number_words"]
    arguments: list[dict[str, Any] | None] = [{}, {}, None, {"num_words": 2, "relation": "at least"}]
    score = IFVerifier().score("<<Tea>> and more", ids, arguments)
    assert (score.reward, score.detail) == (0.0, "startend:quotation")
    assert IFVerifier("fraction").score("<<Tea>> and more", ids, arguments).reward == 0.75
    assert IFVerifier().score('"<<Tea>> and more"', json.dumps(ids), json.dumps(arguments)).reward == 1.0


def test_loose_accuracy_forgives_introductions_and_asterisks() -> None:
    json_kind = "detectable_format:json_format"
    for text in ('Sure, here it is:\n{"a": 1}', '{"a": 1}\nAnything else?', 'Sure:\n{"a": 1}\nBye', '**{"a": 1}**'):
        assert (verdict(json_kind, {}, text), verdict(json_kind, {}, text, loose=True)) == (0.0, 1.0)
    for text in ('Sure:\nhere:\n{"a": 1}', "Sure:", ""):
        assert verdict(json_kind, {}, text, loose=True) == 0.0


def test_the_thinking_is_not_judged() -> None:
    assert verdict("punctuation:no_comma", {}, "<think>a, b</think>ab") == 1.0
    unfinished = IFVerifier().score("<think>a b", ["punctuation:no_comma"], [{}])
    assert (unfinished.reward, str(unfinished.status)) == (0.0, "model_error")
    assert (
        IFVerifier(max_characters=3).score("abcd", ["punctuation:no_comma"], [{}]).detail == "longer than 3 characters"
    )


@pytest.mark.parametrize(
    ("ids", "arguments", "why"),
    [
        (["punctuation:no_coma"], [{}], "did you mean punctuation:no_comma"),
        (["length_constraints:number_words"], [{"num_words": 5}], "needs 'relation' in kwargs"),
        (["length_constraints:number_words"], [{"num_words": 5, "relation": "exactly"}], "neither 'less than' nor"),
        (
            ["length_constraints:number_words"],
            [{"num_words": 2.5, "relation": "at least"}],
            "2.5 is not a whole number",
        ),
        (["keywords:existence"], [{"keywords": []}], "is empty"),
        (["keywords:existence"], [{"keywords": "tea"}], "is text, but no JSON"),
        (
            ["keywords:letter_frequency"],
            [{"letter": "ab", "let_frequency": 1, "let_relation": "at least"}],
            "'ab' is no",
        ),
        (["language:response_language"], [{"language": "xx"}], "'xx' is not a code of a language"),
        (["startend:quotation"], [], "1 ids in instruction_id_list, but 0 entries in kwargs"),
        ([], [], "instruction_id_list is empty"),
        (7, [{}], "instruction_id_list is a int, not a list"),
        ("[", [{}], "no JSON"),
    ],
)
def test_a_record_without_usable_instructions_is_missing_not_zero(ids: object, arguments: object, why: str) -> None:
    score = IFVerifier().score("text", ids, arguments)
    assert (score.reward, str(score.status)) == (None, "missing")
    assert why in score.detail


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"scoring": "some"}, "IFVerifier.scoring: is 'some'"),
        ({"max_characters": 0}, "IFVerifier.max_characters: is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IFVerifier(**chosen)


@pytest.mark.thorough
def test_recorded_completions_are_scored_by_the_columns_of_the_data_set(tmp_path: Path) -> None:
    record = {
        "id": "a", "prompt": "Say it.", "completion": "Aye", "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{"num_words": None}],
    }  # fmt: skip
    lines = [record, {**record, "id": "b", "completion": "Aye, aye"}, {**record, "id": "c", "kwargs": []}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths = [f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    assert main(["score", "--reward", "IFVerifier", *paths]) == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["reward"], line["status"]) for line in found] == [(1.0, "ok"), (0.0, "ok"), (None, "missing")]


FULL = {
    "keywords": ["a"], "keyword": "a", "frequency": 1, "relation": "at least", "forbidden_words": ["b"], "letter": "a",
    "let_frequency": 1, "let_relation": "at least", "language": "en", "num_sentences": 1, "num_paragraphs": 1,
    "num_words": 1, "nth_paragraph": 1, "first_word": "a", "num_placeholders": 1, "postscript_marker": "P.S.",
    "num_bullets": 1, "num_highlights": 1, "section_spliter": "S", "num_sections": 1, "prompt_to_repeat": "a",
    "end_phrase": "a", "capital_frequency": 1, "capital_relation": "at least",
}  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='aAb1.!? \n*-[]<>"`{}:,#\u3002', max_size=60))
def test_any_text_gets_a_share(text: str) -> None:
    score = IFVerifier("fraction", loose=True).score(text, list(CHECKS), [FULL] * 25)
    assert score.reward is not None
    assert 0 <= score.reward <= 1


@pytest.mark.thorough
def test_hostile_texts_are_judged_in_time() -> None:
    pieces = [
        "[",
        "<<",
        "*",
        "**",
        "******",
        "`",
        "a.",
        '"',
        "\n\n",
        "P.",
        "\ud800",
        "S1",
        "```json",
        "\u3002",
        "- ",
        "a",
    ]
    texts = [(piece * 20_000)[:20_000] for piece in pieces] + ["x" * 1_000_000]
    columns = {"instruction_id_list": list(CHECKS), "kwargs": [FULL] * 25}
    samples = [Sample(str(i), "", text, (), columns) for i, text in enumerate(texts)]
    with RewardRunner({"r": IFVerifier("fraction", loose=True)}, num_workers=1, deadline_s=3.0) as runner:
        scores = runner.score(samples)
    assert {str(score.status) for score in scores[:-1]} == {"ok"}
    assert str(scores[-1].status) == "model_error"
