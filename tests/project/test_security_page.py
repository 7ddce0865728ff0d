"""SECURITY.md names the files that hold prompts or answers, and the ways by which weights are sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gspo_lightning.commands.evaluate.run import SAMPLES
from gspo_lightning.data.corpus.output import dropped_file
from gspo_lightning.report import answers
from gspo_lightning.report.answers import ANSWERS
from gspo_lightning.rollouts.vllm.weight_transport import Transport
from tests import ROOT

PAGE = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        ANSWERS,
        SAMPLES,
        f"{answers.FOLDER}/",
        dropped_file(Path("OUTPUT")).name,
        "~/.cache/gspo_lightning/reasoning_gym",
        "summary.json",
        "predictions",
        "`gspo score`",
    ],
)
def test_places_where_prompts_and_answers_are_written_are_listed(name: str) -> None:
    (table,) = re.findall(r"^\| where \| what \| mode \|\n(.*?)\n\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert name in table


def test_each_way_of_sending_weights_is_said() -> None:
    said = PAGE.lower()
    assert not [way for way in get_args(Transport) if way not in said]
    assert "nothing is sent by" not in said
