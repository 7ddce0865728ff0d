"""docs/environments.md: its environment does what the page says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gspo_lightning.core.registry import components, import_plugins
from gspo_lightning.core.types import Prompt


def test_a_later_right_answer_is_worth_less(page_folder: Callable[[str], Path]) -> None:
    import_plugins([page_folder("environments") / "plugins" / "second_chance.py"])
    environment = components("environments")["SecondChance"]()
    prompt = Prompt(id=0, text="1+1:", token_ids=(1,), columns={"answer": "2"})
    again = [{"role": "user", "content": "That is not right. Try again."}]

    def play(*completions: str) -> list[object]:
        assert asyncio.run(environment.reset(prompt)) == []
        return [asyncio.run(environment.step(completion)) for completion in completions]

    assert play("#2") == [([], 1.0, True)]
    assert play("#3", "so #2") == [(again, 0.0, False), ([], 0.5, True)]
    assert play("#3", "#4") == [(again, 0.0, False), (again, 0.0, True)]
