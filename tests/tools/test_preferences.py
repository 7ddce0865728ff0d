"""The preference pairs that ship are what their generator writes, and as noisy as it says."""

from __future__ import annotations

import json

import pytest

from tools.preferences import FILES, FOLDER, bayes, pairs, utility


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_generator_writes(name: str) -> None:
    rows = [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    assert rows == list(pairs(*FILES[name]))
    share = sum(utility(row["chosen"]) > utility(row["rejected"]) for row in rows) / len(rows)
    assert all(utility(row["chosen"]) != utility(row["rejected"]) for row in rows)
    assert share == pytest.approx(bayes(rows), abs=3 * (0.83 * 0.17 / len(rows)) ** 0.5)


def test_no_prompt_is_in_both_files() -> None:
    prompts = [{json.loads(line)["prompt"] for line in (FOLDER / name).read_text().splitlines()} for name in FILES]
    assert not prompts[0] & prompts[1]
