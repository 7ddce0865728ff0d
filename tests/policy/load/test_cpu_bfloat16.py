"""One line says where a processor multiplies bfloat16, by its instruction set: in a run, and in a plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.policy.kernels import processor as processors
from gspo_lightning.policy.load.cpu_bfloat16 import bfloat16_line
from tests.runs import runs

CPU = torch.device("cpu")
WIDE = '--model.config_overrides={"hidden_size": 144}'
TOLD = "this processor has AMX-BF16: products of bfloat16 may be faster (--config bf16)"


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of /proc/cpuinfo, of a processor with both."""
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile amx_bf16\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processors, "CPU_INFO", path)
    return path


@pytest.mark.parametrize(
    ("width", "device", "precision", "said"),
    [
        (576, CPU, "32-true", True), (None, CPU, "32-true", True), (128, CPU, "32-true", False),
        (576, CPU, "bf16-mixed", False), (576, torch.device("meta"), "32-true", False),
    ],
)  # fmt: skip
def test_wide_models_in_float32_on_a_cpu_get_the_line(
    processor: Path, width: int | None, device: torch.device, precision: str, said: bool
) -> None:
    assert (bfloat16_line(width, device, precision) is not None) == said


@pytest.mark.thorough
def test_a_run_logs_the_line_and_changes_nothing(
    processor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*runs.UNTAUGHT, "--data.val=null", "--data.prompts_per_rollout=2", "--data.group_size=2"]
    run = runs.fit(tmp_path, *short, WIDE, "--trainer.max_epochs=1")
    assert capsys.readouterr().err.count(TOLD) == 1
    assert runs.checkpoint(run)["gspo_precision"] == "32-true"
    runs.fit(tmp_path, *short, "--trainer.max_epochs=1")
    assert TOLD not in capsys.readouterr().err


def test_a_plan_prints_the_line_for_this_machine_only(processor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"--config={runs.QUICKSTART}", "--device=cpu", WIDE]) == 0
    assert capsys.readouterr().out.count(TOLD) == 1
    assert main(["plan", f"--config={runs.QUICKSTART}", "--device=80GB", "--trainer.accelerator=gpu", WIDE]) == 0
    assert TOLD not in capsys.readouterr().out
