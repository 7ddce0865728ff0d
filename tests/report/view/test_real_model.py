"""The page over a run of SmolLM2-135M-Instruct, if ``make real-model`` has fetched it: ``make test-view``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.view.browser import browser, needs_browser
from tests.report.view.looking import look_at, tokens_of
from tests.report.view.serving import served
from tests.runs import runs
from tests.runs.test_real_model import CONFIG
from tools.real_model import model_file

pytestmark = [
    pytest.mark.long,
    needs_browser,
    pytest.mark.skipif(not model_file().is_file(), reason="the model is not there: make real-model fetches it"),
]


def test_every_view_of_a_real_model(tmp_path: Path) -> None:
    options = [f"--model.name_or_path={model_file()}", "--trainer.max_epochs=1", "--data.max_response_tokens=24"]
    run = runs.fit(tmp_path, *options, config=CONFIG)
    with browser() as window, served([run]) as address:
        for look in ("light", "phone"):
            look_at(window, address, [run], look)
        window.open(f"{address}#rollouts")
        question = window.run("return document.querySelector('tbody tr td:nth-child(2)').innerText")
        assert "How many" in question, "what a reader looks for, not the system prompt that all prompts begin with"
        assert "Answer with one calculation" not in question
        words = [row["tokens"]["text"] for row in tokens_of(run)]
        assert any(len(text) > 4 for texts in words for text in texts), "tokens of more than a letter"
