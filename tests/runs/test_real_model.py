"""Four updates of SmolLM2-135M-Instruct, if ``make real-model`` has fetched it: ``make test-real-model``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs.runs import fit, scalars
from tools.real_model import model_file

CONFIG = ROOT / "configs" / "smollm2.yaml"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not model_file().is_file(), reason="the model is not there: make real-model fetches it"),
]


def test_four_updates_move_a_model_that_ends_its_answers_and_is_sometimes_right(tmp_path: Path) -> None:
    run = fit(
        tmp_path, f"--model.name_or_path={model_file()}", "--trainer.max_epochs=2", "--data.evaluation.limit=16",
        small=False, config=CONFIG,
    )  # fmt: skip
    seen = {tag: [value for _, value in points] for tag, points in scalars(run).items()}
    assert len(seen["optim/gradient_norm"]) == 4
    assert seen["val/terminated"][0] >= 0.8  # of the untrained model
    assert seen["reward/mean"][0] > 0
    assert all(0 < norm < 100 for norm in seen["optim/gradient_norm"])
    assert max(seen["noise/sampler_sequence_gap"]) < 3e-5  # a tenth of the clip range
    answers = [json.loads(line) for line in (run / "held_out_answers.jsonl").read_text().splitlines()]
    assert {a["update"] for a in answers} >= {0, 4}
    first, last = ([a["completion"] for a in answers if a["update"] == update] for update in (0, 4))
    assert first != last
    assert any(" " in text for text in last)  # words
