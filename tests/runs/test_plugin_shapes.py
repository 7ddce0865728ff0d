"""A plug-in whose tensors have a wrong shape is refused before anything is loaded or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs

OBJECTIVE = """
from dataclasses import dataclass
from gspo_lightning.objectives import Objective, Rows, Term


@dataclass(repr=False)
class ScalarLoss(Objective):
    def term(self, rows: Rows) -> Term:
        return Term(loss=-(rows.log_ratio * rows.token_advantages).mean(), ratio=rows.log_ratio.detach().exp())
"""
ADVANTAGES = """
from gspo_lightning.loop.advantages import Advantages


class BatchMean(Advantages):
    def compute(self, rewards, groups):
        return rewards.mean()
"""


@pytest.mark.parametrize(
    ("code", "chosen", "words"),
    [
        (OBJECTIVE, "--model.objective=ScalarLoss", ["ScalarLoss.term", "loss", "shape ()", "[N, T] = (2, 3)"]),
        (ADVANTAGES, "--data.advantages=BatchMean", ["BatchMean.compute", "shape ()", "[M] = (8,)"]),
    ],
)
def test_plugin_with_a_wrong_shape_is_named_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, chosen: str, words: list[str]
) -> None:
    plugin = tmp_path / f"wrong_{len(code)}.py"
    plugin.write_text(code)
    root = tmp_path / "root"
    runs.fit(root, "--model.cold_start=null", f"--plugins={plugin}", chosen, code=2)
    shown = capsys.readouterr().err
    assert all(word in shown for word in words), shown
    assert "Traceback" not in shown
    assert not root.exists()
