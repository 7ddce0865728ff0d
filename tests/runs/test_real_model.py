"""Four updates of SmolLM2-135M-Instruct, and the commands of docs/real_model.md: ``make test-real-model``.

They need the model that ``make real-model`` fetches.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from experiments.smollm2.__main__ import main as write_results
from experiments.smollm2.rejection import main as write_demonstrations
from gspo_lightning.cli import main
from gspo_lightning.policy.kernels.processor import bfloat16_instructions
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


SLOW_BFLOAT16 = pytest.mark.skipif(
    bfloat16_instructions() is None, reason="ten minutes where the processor has no instructions for bfloat16"
)


@pytest.mark.parametrize("precision", ["32-true", pytest.param("bf16-mixed", marks=SLOW_BFLOAT16)])
def test_sampled_log_probabilities_are_those_of_training_to_the_last_bit(tmp_path: Path, precision: str) -> None:
    run = fit(
        tmp_path, f"--model.name_or_path={model_file()}", "--model.batch_invariant=true", "--trainer.max_epochs=1",
        "--data.prompts_per_rollout=2", "--data.group_size=4", "--data.max_response_tokens=16", "--data.val=null",
        f"--trainer.precision={precision}", small=False, config=CONFIG,
    )  # fmt: skip
    noise = [value for _, value in scalars(run)["noise/sampler_logprob_gap"]]
    assert noise
    assert set(noise) == {0.0}


def shortened(arguments: list[str]) -> list[str]:
    """One small iteration, few problems, one step of a cold start."""
    short = [*arguments, f"--model.name_or_path={model_file()}"]
    if arguments[0] == "evaluate":
        return [*short, "--limit=6", *(["--model.cold_start.steps=1"] if "demos.jsonl" in arguments else [])]
    small = ["--data.prompts_per_rollout=2", "--data.group_size=4", "--data.evaluation.limit=2"]
    return [*short, "--trainer.max_epochs=1", *small]


def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "real_model.md").read_text()
    reproduce = page[page.index("## Reproduce it") :]
    lines = [line for block in re.findall(r"```bash\n(.*?)```", reproduce, re.DOTALL) for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "gspo":
            assert main(shortened(arguments)) == 0, line
        elif arguments[:2] == ["-m", "experiments.smollm2.rejection"]:
            assert write_demonstrations(arguments[2:]) == 0
        else:
            assert arguments[:2] == ["-m", "experiments.smollm2"]
            assert write_results([*arguments[2:], f"--output={tmp_path}", f"--picture={tmp_path / 'p.png'}"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["problems"] == 6
    assert (tmp_path / "demos.jsonl").read_text().splitlines()
    assert (tmp_path / "runs" / "rejection" / "results.json").is_file()
