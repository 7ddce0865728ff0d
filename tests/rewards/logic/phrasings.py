"""How models word right answers to puzzles, and what must not be paid; split into halves by a fixed hash.

The development half may be looked at while a parser is changed; the held-out half says whether that was a rule or a
patch. A text stands in ``<answer>`` tags unless it is ``RAW`` (then it is the completion) or for a zebra grid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.core.randomness import stable_hash

__all__ = ["PHRASINGS", "Phrasing"]

RAW = "RAW:"
KNIGHTS, COUNTDOWN = "AbC", "3 5 7 = 22"
NAMED = {"Zoey": "knave", "Bob": "knight"}
SUDOKU = "1..3/..4./..3./3..4 = 1423/2341/4132/3214"
GRID = {"House 1": {"Name": "Eric", "Drink": "Tea"}, "House 2": {"Name": "Bob", "Drink": "milk"}}
OTHER = {"House 1": {"Name": "Bob", "Drink": "milk"}, "House 2": {"Name": "Eric", "Drink": "Tea"}}


@dataclass(frozen=True)
class Phrasing:
    """A completion for a record of a family; ``honest`` ones are right and have to be paid."""

    family: str
    answer: object
    text: str
    honest: bool

    @property
    def completion(self) -> str:
        if self.text.startswith(RAW):
            return self.text.removeprefix(RAW)
        return self.text if self.family == "zebra" else f"So this is it.\n<answer>{self.text}</answer>"

    @property
    def held_out(self) -> bool:
        return stable_hash(f"{self.family}/{self.text}") % 2 == 1


def _solution(grid: object, **dumped: object) -> str:
    return json.dumps({"reasoning": "by the clues", "solution": grid}, **dumped)  # type: ignore[arg-type]


_HONEST: dict[str, tuple[object, list[str]]] = {
    "knights": (KNIGHTS, [
        "AbC", "A is a knight, B is a knave, C is a knight", "**A** is a knight, **B** is a knave, **C** is a knight",
        "**A is a knight, B is a knave, C is a knight**", "A is the knight, B is the knave, C is the knight",
        "A is a **knight**, B is a **knave**, C is a **knight**.", "- **A**: Knight\n- **B**: Knave\n- **C**: Knight",
        "\\boxed{A is a knight, B is a knave, C is a knight}", "\\boxed{\\text{A is a knight, B is a knave, C is a knight}}",
        "$\\boxed{\\text{A: knight, B: knave, C: knight}}$", "`A` is a knight, `B` is a knave, `C` is a knight",
        "```\nA is a knight\nB is a knave\nC is a knight\n```", "`AbC`", "**AbC**", "\\boxed{AbC}", "AbC.",
        '{"A": "knight", "B": "knave", "C": "knight"}', "{'A': 'knight', 'B': 'knave', 'C': 'knight'}",
        '{"A": "knight", "B": "knave", "C": "knight",}', "{'A': 'Knight', 'B': 'Knave', 'C': 'Knight',}",
        '```json\n{"A": "knight", "B": "knave", "C": "knight"}\n```', "A: Knight\nB: Knave\nC: Knight",
        "A = knight; B = knave; C = knight", "A - knight, B - knave, C - knight", "A \u2013 knight, B \u2013 knave, C \u2013 knight",
        "A \u2192 knight, B \u2192 knave, C \u2192 knight", "A -> knight\nB -> knave\nC -> knight",
        "A (knight), B (knave), C (knight)", "A knight, B knave, C knight", "A and C are knights, B is a knave.",
        "A and C are knights, and B is a knave", "A, C are knights; B is a knave", "B is a knave, and A and C are knights.",
        "B is a knave; A and C are both knights", "Knights: A, C; Knaves: B", "Knights: A and C\nKnaves: B",
        "**Knights:** A, C\n**Knaves:** B", "Knaves: B. Knights: A, C.",
        "Therefore, A is a knight, B is a knave, and C is a knight.", "So A is a knight, B is a knave and C is a knight.",
        "The answer is: A is a knight, B is a knave, C is a knight", "Answer: A is a knight, B is a knave, C is a knight.",
        "1. **A** is a knight.\n2. **B** is a knave.\n3. **C** is a knight.", "| A | knight |\n| B | knave |\n| C | knight |",
        "a is a knight, b is a knave, c is a knight", "A is Knight, B is Knave, C is Knight", "A is a knight,\nB is a knave,\nC is a knight,",
        "*A* is a knight, *B* is a knave, *C* is a knight", "(A) knight, (B) knave, (C) knight",
        "$A$ is a knight, $B$ is a knave, $C$ is a knight", "A is a knight & B is a knave & C is a knight",
        "A is a knight, B is a knave, C is not a knave", "A IS A KNIGHT, B IS A KNAVE, C IS A KNIGHT", "a knight, b knave, c knight", "A isn't a knave, B isn't a knight, C isn't a knave",
        "Only B is a knave.", "Only A and C are knights", "B is the only knave.", "The only knave is B.", "Only B lies.",
        "A and C are the only knights", "B is a knave; the others are knights.", "B is a knave, the rest are knights",
        "B lies, everyone else tells the truth", "Everyone is a knight except B.", "Everyone except B is a knight",
        "A and C tell the truth; B lies.", "A and C always tell the truth, B always lies", "B is a liar, all others tell the truth.",
        "A is a truth-teller, B is a liar, C is a truth teller", "Truth-tellers: A, C; Liars: B", "B is not a knight; the other two are knights",
        "Only B is a knave, A and C are knights", "**Only B** is a knave.", "All are knights but B.", "C and A are not knaves, B is not a knight",
        "A: a knight, B: a knave, C: a knight", "A is a knight while B is a knave and C is a knight.",
        f"{RAW}I tried all cases. \\boxed{{A is a knight, B is a knave, C is a knight}}",
        f"{RAW}<think>A lies?</think>The final answer is $\\boxed{{AbC}}$.",
        f"{RAW}Thus: <answer> A is a knight, B is a knave, C is a knight </answer>\n\nHope this helps!",
    ]),
    "countdown": (COUNTDOWN, [
        "3*5+7", "3 * 5 + 7", "3 x 5 + 7", "3x5+7", "3 X 5 + 7", "3 \u00d7 5 + 7 = 22", "22 = 3*5+7", "22 = 3 x 5 + 7", "**3*5+7**",
        "`3*5+7`", "``3*5+7``", "\\boxed{3*5+7}", "\\boxed{3 \\times 5 + 7 = 22}", "$3 \\cdot 5 + 7$", "\\(3 \\times 5 + 7\\)",
        "\\[3 \\times 5 + 7 = 22\\]", "$$\\boxed{(3 \\times 5) + 7}$$", "3*5+7 = 22.", "3*5+7.", "[3*5]+7", "[3 x 5] + 7 = 22",
        "7 + (3 \u2217 5)", "7 + 3 \u2022 5", "7 + 3\u22c55", "```\n3*5+7\n```", "```python\n3*5+7\n```", "3*5 + 7 = 15 + 7 = 22", "3 \\times 5 + 7",
        "(3 \\times 5) + 7 = 15 + 7 = 22", "\\left(3 \\times 5\\right) + 7", "Answer: 3*5+7", "The answer is 3 * 5 + 7",
        "Expression: 3*5+7", "The expression is: (3*5)+7 = 22", "**Answer:** 3*5+7 = 22", "7 + 15 = 7 + 3*5 = 22", "  3 *5+ 7 \n",
        "3(5)+7", "(3)(5)+7 = 22", "7+(5)3", "3[5]+7", "7+3(5)",
        "3*5+7=22", "(3*5)+7 == 22", "3\u00b75+7", "*3 x 5 + 7*", "So 3*5+7 = 22", "**`3*5+7`**", "$3*5+7 = 22$.", "{3*5}+7",
        f"{RAW}We find $3 \\times 5 = 15$ and so \\boxed{{3 \\times 5 + 7}}.", f"{RAW}\\boxed{{3*5+7=22}}",
        f"{RAW}<think>22?</think>The answer is <answer>3 x 5 + 7 = 22</answer>.",
    ]),
    "sudoku": (SUDOKU, [
        "1423/2341/4132/3214", "1 4 2 3\n2 3 4 1\n4 1 3 2\n3 2 1 4", "[[1,4,2,3],[2,3,4,1],[4,1,3,2],[3,2,1,4]]",
        "[[1, 4, 2, 3], [2, 3, 4, 1], [4, 1, 3, 2], [3, 2, 1, 4],]", "((1,4,2,3),(2,3,4,1),(4,1,3,2),(3,2,1,4))",
        "**1423/2341/4132/3214**", "`1423/2341/4132/3214`", "```\n1423\n2341\n4132\n3214\n```", "```text\n1 4 2 3\n2 3 4 1\n4 1 3 2\n3 2 1 4\n```",
        "\\boxed{1423/2341/4132/3214}", "\\boxed{\\text{1423/2341/4132/3214}}", "$\\boxed{1423/2341/4132/3214}$", "1423/2341/4132/3214.",
        "| 1 | 4 | 2 | 3 |\n|---|---|---|---|\n| 2 | 3 | 4 | 1 |\n| 4 | 1 | 3 | 2 |\n| 3 | 2 | 1 | 4 |",
        "Row 1: 1 4 2 3\nRow 2: 2 3 4 1\nRow 3: 4 1 3 2\nRow 4: 3 2 1 4", "**Row 1:** 1423\n**Row 2:** 2341\n**Row 3:** 4132\n**Row 4:** 3214",
        "Answer: 1423/2341/4132/3214", "The answer is 1423/2341/4132/3214", '["1423", "2341", "4132", "3214"]', "['1423', '2341', '4132', '3214',]",
        "\\begin{bmatrix}1 & 4 & 2 & 3 \\\\ 2 & 3 & 4 & 1 \\\\ 4 & 1 & 3 & 2 \\\\ 3 & 2 & 1 & 4\\end{bmatrix}",
        "1 4 | 2 3\n2 3 | 4 1\n----+----\n4 1 | 3 2\n3 2 | 1 4", "1423\\2341\\4132\\3214", "1423; 2341; 4132; 3214", "1423 2341 4132 3214",
        "Solution:\n1423\n2341\n4132\n3214", "\u2502 1 4 \u2502 2 3 \u2502\n\u2502 2 3 \u2502 4 1 \u2502\n\u2502 4 1 \u2502 3 2 \u2502\n\u2502 3 2 \u2502 1 4 \u2502", "- 1423\n- 2341\n- 4132\n- 3214",
        f"{RAW}Filling in gives \\boxed{{1423/2341/4132/3214}}.", f"{RAW}<think>1..3</think><answer>**1423/2341/4132/3214**</answer> Done.",
    ]),
    "zebra": (GRID, [
        _solution(GRID), _solution(GRID, indent=2), f"I think:\n```json\n{_solution(GRID)}\n```\nDone.", str({"reasoning": "so", "solution": GRID}),
        str({"reasoning": "it's so", "solution": GRID}), _solution(GRID).replace('"Tea"}', '"Tea",}').replace("}}}", "},},}"),
        "```json\n" + _solution(GRID, indent=2).replace('"\n', '",\n') + "\n```",
        _solution(GRID).replace("Drink", "drink").replace("Name", "name"), _solution(GRID).replace("Drink", "DRINK"),
        _solution(GRID).replace("House ", "house "), _solution(GRID).replace("House 1", "House1").replace("House 2", "House2"),
        _solution(GRID).replace("House ", "house_"), _solution(GRID).lower(), _solution(GRID).replace("Eric", " eric "),
        _solution(GRID).replace('"Eric"', '"**Eric**"'), "```python\n" + str({"solution": GRID}) + "\n```",
        f"**Answer**\n\n```\n{_solution(GRID)}\n```", f"<answer>{_solution(GRID)}</answer>", _solution(GRID).replace('"solution"', '"Solution"'),
        str({"solution": GRID}).replace("}}}", "},},}"), _solution({**GRID, "House 2": {"Name": "Bob", "Drink": "milk", "Pet": "cat"}}),
        "\\boxed{" + _solution(GRID) + "}", f"<think>{_solution(OTHER)}</think>{_solution(GRID)}",
        f"First I tried {_solution(OTHER)} but clue 2 fails. So:\n{_solution(GRID)}", str({"reasoning": None, "solution": GRID}),
        _solution(GRID).replace('"by the clues"', '"line one\nline two"'),
    ]),
}  # fmt: skip

_HOSTILE: dict[str, tuple[object, list[str]]] = {
    "knights": (KNIGHTS, [
        "Only A is a knave.", "Only A is a knight.", "Only B is a knight", "Only B is a knave or only C is a knave.", "Not only B is a knave.",
        "Only B might be a knave", "If only B is a knave", "Only B is a knave, C is a knave", "Only B is a knave. A lies.", "Only B is a knave?",
        "B is the only knave or knight", "B is a knave; the others are knights; the others are knaves", "The others are knights.", "The rest lie",
        "A is a knight, B is a knave, C is a knight, the others are knaves", "Everyone is a knight.", "Everyone is a knight, B is a knave.",
        "Nobody is a knight.", "Nobody is a knave. B is a knave", "Everyone is a knight except B and C", "All are knights or B is not",
        "A and C tell the truth; B lies or not.", "A tells the truth about B, who lies; C tells the truth", "Neither A nor B is a knight; C is a knight",
        "B does not lie; the others tell the truth", "Only B is a knave, only C is a knave", "B says that he lies, the others are knights",
        "", " ", "abC", "ABC", "A is a knight, B is a knave", "A is a knight or a knave, B is a knave, C is a knight",
        "A is a knight, B is a knave, C is a knight or a knave", "A is a knight, B is a knave, C is either",
        "A is a knight, B is a knave, C is a knight, C is a knave", "A is a knight, B is a knave, C is a knight, A is a knave",
        "AbC or ABC", "AbC, ABC, aBC", "AbC abc", "AbC/abC", "A is not a knight, B is a knave, C is a knight",
        "A is a knight, B is not a knave, C is a knight", "A isn't a knight, B is a knave, C is a knight",
        "It is not true that A is a knight, B is a knave, C is a knight",
        "not AbC", "not (A is a knight, B is a knave, C is a knight)", "If A is a knight, B is a knave, C is a knight",
        "A is a knight? B is a knave? C is a knight?", "A may be a knight, B is a knave, C is a knight",
        "A is probably a knight, B is a knave, C is a knight", "A is a knight, B is a knave, C is a knight, I guess, or not",
        "A is a knight, B is a knave, C is a knight. Or: A is a knave, B is a knight, C is a knave.",
        "A and C are knights or B is a knave", "A and B are knights, B is a knave, C is a knight", "A, B and C are knights or knaves",
        "A, B and C are knights", "Knights: A, B, C; Knaves: A, B, C", "Knights: A, C; Knaves: A, B", "Knights: A, C", "Knights: B; Knaves: A, C",
        "Knights: A or C; Knaves: B", "A or C are knights, B is a knave", "A and C are knights, B is a knight",
        '{"A": "knight", "B": "knave", "C": "knight", "C": "knave"}', "{'A': 'knight', 'B': 'knave', 'C': 'knight', 'c': 'knave'}",
        "{'A': 'knight', 'B': 'knave', 'C': ['knight', 'knave']}", "{'A': 'knight', 'B': 'knave'}", "{'A': 'knight', 'B': 'knave', 'C': 'knight', 'D': 'knave'}",
        "A says: B is a knave and C is a knight. B says: A is a knave.", "A says B is a knave, C is a knight", "A is a knight, B is a knave, C is a knightmare",
        "~~A is a knight~~, B is a knave, C is a knight", "A is a knight, B is a knave, C is a knight. D is a knave.", "knight, knave, knight",
        "A: knight/knave, B: knave, C: knight", "| A | knight |\n| B | knave |\n| C | knight |\n| A | knave |", "Either A is a knight, B is a knave, C is a knight",
        "A is a knight, B is a knave, C is a knight is false", "\\boxed{AbC} \\boxed{ABC}", "\\boxed{AbC} or abC", "**AbC** or **ABC**",
        "A is a knight unless B is a knave, C is a knight", "neither A nor C are knights, B is a knave", "A and C are not knights, B is a knave",
        f"{RAW}AbC", f"{RAW}\\boxed{{AbC}} or \\boxed{{ABC}}", f"{RAW}<answer>AbC</answer> or <answer>ABC</answer>", f"{RAW}<answer>ABC</answer> \\boxed{{AbC}}",
        f"{RAW}\\boxed{{AbC}}, but I am not sure: \\boxed{{ABC}}", f"{RAW}<think>\\boxed{{AbC}}", f"{RAW}<think>\\boxed{{AbC}}</think>No idea.",
        f"{RAW}\\boxed{{AbC}} <answer>ABC</answer>",
        f"{RAW}\\boxed{{AbC}} but really ABC", f"{RAW}\\boxed{{AbC}}? No, ABC.",
    ]),
    "countdown": (COUNTDOWN, [
        "3(5+7)", "3(5)(7)", "(3)(5) 7", "3 5+7", "2(3*5-7)", "22(3*5+7)/(22)", "\\frac{3}{\\frac{5}{7}}", "\\frac{3*5+7",
        "", "22", "22 = 22", "3*5*7", "3+5+7", "3*5+8", "3*5+7 or 3+5*7", "3*5+7, 7+3*5*0", "3*5+7; 3+5+7", "3*5+7 = 23", "23 = 3*5+7",
        "22 = 3*5+8", "3*5+7 = 3+5*7 = 22", "3*5+7 != 22", "3*5+7 \u2260 22", "not 3*5+7", "3*5+7 is wrong", "3*5+7?", "3 5 7 = 22", "3, 5, 7",
        "Make 22 from the numbers 3, 5, 7: use each of them exactly once", "3*5+7+0", "3*5+7*1", "-7+3*5", "3**5+7", "(3*5+7", "3*5+7)", "35-7",
        "3*5 + 7 = 15 + 8 = 22", "15 + 7 = 22", "15 + 7", "3*5 = 15, 15 + 7 = 22", "22 = 15 + 7", "3*5+7 \u2248 22", "3*5+7 = 22 or 3+5+7 = 15",
        "\\boxed{3*5+7} \\boxed{3+5*7}", "\\boxed{3*5+7} or 22", "**3*5+7** or **3+5*7**", "`3*5+7` `3+5*7`", "3 xx 5 + 7", "3 x x 5 + 7",
        "x = 3*5+7", "3x5x7", "3e1", "__import__('os')", "3*5+7 if True else 0", "\u0663*5+7", "1 = 1", "22 = 22 = 22", "= 22", "3*5+7 =", "= 3*5+7",
        "3*5+7 = 22 = 23", "[3*5)+7", "(3*5]+7", "3*5+7 & 3+5*7", "3*5+7\n3+5*7", "Answer: 3*5+7 Answer: 3+5*7",
        f"{RAW}3*5+7", f"{RAW}\\boxed{{3*5+7}} or \\boxed{{3+5*7}}", f"{RAW}<answer>3+5*7</answer> \\boxed{{3*5+7}}", f"{RAW}<think>\\boxed{{3*5+7}}",
        f"{RAW}<answer>3*5+7</answer><answer>3+5*7</answer>",
        f"{RAW}\\boxed{{3*5+7}} or 3+5*7", f"{RAW}\\boxed{{3*5+7}} is not it",
    ]),
    "sudoku": (SUDOKU, [
        "", "1..3/..4./..3./3..4", "1423/2341/4132/3124", "1423/2341/4132", "1423/2341/4132/32141", "4423/2341/4132/3214",
        "1423/2341/4132/3214 or 1423/2341/4132/3124", "1423/2341/4132/3214\n1423/2341/4132/3124", "1/2 4 2 3/2341/4132/3214",
        "not 1423/2341/4132/3214", "1423/2341/4132/3215", "1243/2341/4132/3214", "0423/2341/4132/3214", "1423/2341/4132/321?",
        "Row 1: 1423\nRow 2: 2341\nRow 3: 4132", "Row 1: 1423\nRow 2: 2341\nRow 3: 4132\nRow 4: 3214\nRow 4: 3124", "Row 2: 1423\nRow 1: 2341\nRow 3: 4132\nRow 4: 3214",
        "1423/2341/4132/3(2|1)14", "[[1,4,2,3],[2,3,4,1],[4,1,3,2],[3,1,2,4]]", "1234/1234/1234/1234", "1423 maybe 2341 4132 3214", "all of 1234",
        "1..3/..4./..3./3..4 = 1423/2341/4132/3214", "\\boxed{1423/2341/4132/3214} \\boxed{1423/2341/4132/3124}", "**1423/2341/4132/3214** or another",
        "~~1423/2341/4132/3214~~", "14-23/2341/4132/3214 is wrong", "\u0661423/2341/4132/3214",
        f"{RAW}1423/2341/4132/3214", f"{RAW}<answer>1423/2341/4132/3124</answer> \\boxed{{1423/2341/4132/3214}}",
        f"{RAW}\\boxed{{1423/2341/4132/3214}} \\boxed{{1423/2341/4132/3124}}", f"{RAW}<think><answer>1423/2341/4132/3214</answer>",
    ]),
    "zebra": (GRID, [
        "", _solution(OTHER), _solution({**GRID, "House 2": {"Name": "Bob", "Drink": "tea"}}), _solution({"House 1": GRID["House 1"]}),
        _solution(GRID) + "\n" + _solution(OTHER), f"{_solution(GRID)} or {_solution(OTHER)}", str({"solution": GRID}) + str({"solution": OTHER}),
        _solution(GRID) + str({"solution": OTHER}), _solution({**GRID, "house 2": OTHER["House 2"]}), _solution({**OTHER, "house 1": GRID["House 1"], "house 2": GRID["House 2"]}),
        _solution({**GRID, "House2": {"Name": "Eric", "Drink": "milk"}}), _solution(GRID).replace('"Name": "Eric"', '"Name": "Bob", "Name": "Eric"'),
        _solution(GRID).replace('"Name": "Eric"', '"Name": "Bob", "name": "Eric"'), _solution(GRID).replace('"Eric"', '["Eric", "Bob"]'),
        _solution(GRID).replace('"Eric"', '"Eric or Bob"'), _solution(GRID).replace('"Eric"', '"Eric/Bob"'), _solution([GRID, OTHER]),
        _solution(GRID)[:-2], "{'solution': {'House 1': {'Name': 'Eric', 'Drink': 'Tea'}, 'House 2': {'Name': 'Bob'", json.dumps({"solutions": [GRID, OTHER]}),
        "- Name: Bob, Eric\n- Drink: Tea, milk", json.dumps({"solution": {house: {"Name": "...", "Drink": "..."} for house in GRID}}),
        _solution(GRID).replace("Eric", "not Eric"), str({"solution": GRID, "Solution": OTHER}), "{'solution': GRID}", "{solution: {House 1: {Name: Eric}}}",
        _solution(GRID).replace('"Eric"', "null"), f"<think>{_solution(GRID)}", f"<think>{_solution(GRID)}</think>I do not know.",
        _solution(GRID).replace('"Eric"', '{"Eric": 1}'), _solution({"House 1": "Eric, Tea", "House 2": "Bob, milk"}),
    ]),
}  # fmt: skip

_NAMED_HONEST = [
    "Zoey is a knave, Bob is a knight", "**Zoey**: knave, **Bob**: knight", '{"Zoey": "knave", "Bob": "knight"}', "Bob is the knight and Zoey is the knave.",
    "Knights: Bob\nKnaves: Zoey", "zoey is a knave, bob is a knight",
]  # fmt: skip
_NAMED_HOSTILE = [
    "Zoey is a knave, Bob is a knave",
    "Zoe is a knave, Bob is a knight",
    "Knights: Bob, Zoey; Knaves: Zoey",
    "Zoey or Bob is a knight",
]

LATER = Path(__file__).with_name("phrasings.jsonl").read_text(encoding="utf-8").splitlines()
"""Written when the parsers had been, without looking at them; the whole completion each."""

PHRASINGS = [
    *(Phrasing(family, answer, text, True) for family, (answer, texts) in _HONEST.items() for text in texts),
    *(Phrasing(family, answer, text, False) for family, (answer, texts) in _HOSTILE.items() for text in texts),
    *(Phrasing("knights", NAMED, text, True) for text in _NAMED_HONEST),
    *(Phrasing("knights", NAMED, text, False) for text in _NAMED_HOSTILE),
    *(
        Phrasing(row["family"], _HONEST[row["family"]][0], RAW + row["text"], row["honest"])
        for row in map(json.loads, LATER)
    ),
]  # fmt: skip
