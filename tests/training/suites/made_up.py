"""Made-up problems in the layouts of the sets that the shipped suites read, with right and wrong answers."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import dataclass
from typing import Any

PYTHON = "a, b = map(int, input().split())\nprint({})"
CPP = '#include <cstdio>\nint main() {{ long long a, b; scanf("%lld %lld", &a, &b); printf("%lld\\n", {}); }}'


@dataclass(frozen=True)
class Sum:
    """``x a + y b + z`` of two numbers."""

    number: int

    @property
    def coefficients(self) -> tuple[int, int, int]:
        return 1 + self.number % 5, 2 + self.number % 7, self.number

    def value(self, a: int, b: int) -> int:
        x, y, z = self.coefficients
        return x * a + y * b + z

    @property
    def formula(self) -> str:
        x, y, z = self.coefficients
        return f"{x} * a + {y} * b + {z}"

    def tests(self, pairs: list[tuple[int, int]]) -> list[dict[str, str]]:
        return [{"input": f"{a} {b}\n", "output": f"{self.value(a, b)}\n"} for a, b in pairs]

    def right(self, language: str) -> str:
        return fenced(language, self.formula)

    def wrong(self, language: str) -> dict[str, str]:
        """Four kinds: off by one, right on the public test only, an error at run time, and no end."""
        public = (
            f"{self.value(1, 2)} if (a, b) == (1, 2) else 0"
            if language == "python"
            else (f"(a == 1 && b == 2) ? {self.value(1, 2)}LL : 0LL")
        )
        broken = "1 // (a - a)" if language == "python" else "a / (b - b)"
        endless = "\nwhile True: pass" if language == "python" else ""
        forever = (
            fenced(language, self.formula)
            if language == "python"
            else ("```cpp\nint main() { volatile long long i = 0; for (;;) i = i + 1; }\n```")
        )
        return {
            "off by one": fenced(language, f"{self.formula} + 1"),
            "public only": fenced(language, public),
            "raises": fenced(language, broken),
            "no end": forever.replace("\nprint(", f"{endless}\nprint(") if language == "python" else forever,
        }


def fenced(language: str, formula: str) -> str:
    code = (PYTHON if language == "python" else CPP).format(formula)
    return f"<think>easy</think> Here it is:\n```{language}\n{code}\n```\n"


def livecodebench(problem: Sum) -> dict[str, Any]:
    """A row of the set."""
    public, private = problem.tests([(1, 2)]), problem.tests([(3, 4), (-5, 60)])
    packed = pickle.dumps(json.dumps([{**test, "testtype": "stdin"} for test in private]))
    return {
        "question_title": f"Sum {problem.number}", "question_content": "Print the sum.", "platform": "atcoder",
        "question_id": f"abc{problem.number:03d}_a", "contest_id": f"abc{problem.number:03d}",
        "contest_date": f"2024-{1 + problem.number % 12:02d}-15T00:00:00", "starter_code": "",
        "difficulty": ("easy", "medium", "hard")[problem.number % 3],
        "public_test_cases": json.dumps([{**test, "testtype": "stdin"} for test in public]),
        "private_test_cases": base64.b64encode(zlib.compress(packed)).decode(), "metadata": "{}",
    }  # fmt: skip


def codeforces(problem: Sum, contest: int, index: str) -> dict[str, Any]:
    """A row of the set; problem B's output may be any number of the same parity, which its checker knows."""
    checker = (
        "import sys\nanswer, output = open(sys.argv[2]).read(), open(sys.argv[3]).read()\n"
        "print(int(int(answer) % 2 == int(output) % 2))\n"
    )
    return {
        "id": f"{contest}/{index}", "aliases": [], "contest_id": str(contest), "contest_name": "Round",
        "contest_type": "CF", "contest_start": 1700000000, "contest_start_year": 2023, "index": index,
        "time_limit": 2.0, "memory_limit": 256.0, "title": f"Sum {index}", "description": "Print the sum.",
        "input_format": "Two integers.", "output_format": "One integer.", "interaction_format": None, "note": None,
        "examples": problem.tests([(1, 2)]), "editorial": None, "rating": 800, "tags": ["math"], "testset_size": 2,
        "official_tests": problem.tests([(1, 2), (3, 4)]), "official_tests_complete": True, "input_mode": "stdio",
        "generated_checker": checker if index == "B" else None, "executable": True, "generated_tests": 0,
    }  # fmt: skip


def contest(number: int, points: dict[str, float | None], participants: int = 300) -> dict[str, Any]:
    """The public API's answers: file name -> content.

    Participants are rated 1000, 1005 ...; the j-th of them stands j-th: it has ``1500 - 5 j`` points, or in a contest
    without points 2 solved problems with a penalty of j. One guest more, with the most points, is not rated.
    """
    scored = any(worth is not None for worth in points.values())
    rows = [
        {"party": {"members": [{"handle": f"h{j}"}], "participantType": "CONTESTANT"},
         "points": 1500.0 - 5 * j if scored else 2.0, "penalty": 0 if scored else j, "rank": j + 1}
        for j in range(participants)
    ]  # fmt: skip
    rows.insert(0, {"party": {"members": [{"handle": "guest"}]}, "points": 9999.0, "penalty": 0, "rank": 0})
    problems = [
        {"contestId": number, "index": index, **({} if worth is None else {"points": worth})}
        for index, worth in points.items()
    ]
    standings = {"contest": {"id": number}, "problems": problems, "rows": rows}
    changes = [{"contestId": number, "handle": f"h{j}", "oldRating": 1000 + 5 * j} for j in range(participants)]
    return {
        "standings.json": {"status": "OK", "result": standings},
        "ratings.json": {"status": "OK", "result": changes},
    }


def aime(number: int) -> tuple[str, str]:
    """A question with an integer from 0 to 999, as the papers print it."""
    a, b = 17 * number + 8, 3 * number
    return f"Find the remainder when ${a} + {b}$ is divided by $1000$.", f"{(a + b) % 1000:03d}"


def zebra(number: int, houses: int, columns: int) -> dict[str, Any]:
    """A row of ZebraLogic's grid mode; in house h the c-th attribute has the value h + c + number, modulo."""
    names = ("Name", "Pet", "Drink", "Color", "Flower", "Car")[:columns]
    rows = [
        [str(h + 1), *(f"{name.lower()}{(h + c + number) % houses}" for c, name in enumerate(names))]
        for h in range(houses)
    ]
    told = "\n".join(
        f"{i}. {name} {value} is in house {row[0]}."
        for i, (row, name, value) in enumerate(
            ((row, name, value) for row in rows for name, value in zip(names, row[1:], strict=True)), 1
        )
    )
    return {
        "id": f"lgp-test-{houses}x{columns}-{number}", "size": f"{houses}*{columns}",
        "puzzle": f"There are {houses} houses, numbered 1 to {houses} from left to right.\n\n## Clues:\n{told}\n",
        "solution": {"header": ["House", *names], "rows": rows}, "created_at": "2024-07-03T21:21:29.209499",
    }  # fmt: skip


def solved(puzzle: dict[str, Any]) -> str:
    """What a model writes that has solved it."""
    header, rows = puzzle["solution"]["header"], puzzle["solution"]["rows"]
    grid = {f"House {row[0]}": dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    return json.dumps({"reasoning": "The clues say it.", "solution": grid})
