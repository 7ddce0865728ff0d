"""The simulation behind the threshold of ``held_out_fall``."""

from __future__ import annotations

import pytest

from experiments.lab.held_out_fall import main, simulate


def test_paired_errors_see_a_fall_and_hardly_warn_without_one() -> None:
    calm = simulate(0.2, 0.0, runs=50)
    fallen = simulate(0.2, 0.5, runs=50)
    assert calm.paired_4 <= calm.paired_3 < 0.5
    assert fallen.paired_4 == 1.0


def test_table_has_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs=4"]) == 0
    assert capsys.readouterr().out.count("| Beta(") == 4
