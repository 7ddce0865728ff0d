"""Numbers beyond those of floats and of 64 bits, in files that a resume reads: refused with the file and the field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.parsing import whole_number
from gspo_lightning.resume import Manifest, damage, manifests
from tests.runs import runs

BEYOND = ["1e400", "-1e400", "1" + "0" * 400, "1" + "0" * 5000, "NaN", "0.5", "true", '"4"', "null", "[]", "9" * 20]
FIELDS = ["step", "serial", "format", "ranks", "score", "files"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    few = ["--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=2"]
    return runs.fit(tmp_path_factory.mktemp("numbers"), *runs.UNTAUGHT, *few)


def spoilt(checkpoint: Path, field: str, text: str) -> str:
    """The manifest with a number in the place of another; what stood there before."""
    file = checkpoint.with_name(f"{checkpoint.name}.manifest.json")
    before = file.read_text()
    content: dict[str, Any] = json.loads(before)
    if field == "files":
        content["files"] = {name: ["@", digest] for name, (_, digest) in content["files"].items()}
    else:
        content[field] = "@"
    file.write_text(json.dumps(content).replace('"@"', text))
    return before


VALID = {("ranks", "null"), ("score", "null"), ("score", "0.5"), ("score", "9" * 20)}
WRONG = [(field, text) for field in FIELDS for text in BEYOND if (field, text) not in VALID]


@pytest.mark.thorough("step 1e400 5")
@pytest.mark.parametrize(("field", "text"), WRONG, ids=[f"{field} {text[:6]} {len(text)}" for field, text in WRONG])
def test_a_manifest_with_such_a_number_is_no_manifest(run: Path, field: str, text: str) -> None:
    checkpoint = (run / "checkpoints" / "last.ckpt").resolve()
    before = spoilt(checkpoint, field, text)
    try:
        with pytest.raises(ValueError, match=re.escape(field)):
            Manifest.read(checkpoint)
        why = damage(checkpoint)
        assert why is not None
        assert why.startswith(f"its manifest cannot be read: {field}")
        assert len(why) < 200
        assert checkpoint not in dict(manifests(checkpoint.parent))
    finally:
        checkpoint.with_name(f"{checkpoint.name}.manifest.json").write_text(before)


def test_a_resume_names_the_file_and_the_field(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = (run / "checkpoints" / "last.ckpt").resolve()
    before = spoilt(checkpoint, "step", "1e400")
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, "--data.val=null"]
    try:
        code = main([*argv, f"--trainer.default_root_dir={run.parents[1]}", f"--ckpt_path={checkpoint}"])
    finally:
        checkpoint.with_name(f"{checkpoint.name}.manifest.json").write_text(before)
    said = capsys.readouterr().err
    assert code == 2, said
    assert f"{checkpoint}" in said
    assert "step is inf, not a whole number of at most 64 bits" in said
    assert "Traceback" not in said


@pytest.mark.thorough("-3", "0", "null", "text1")
@pytest.mark.parametrize("text", ["1e400", "1" + "0" * 400, "0", "-3", "null"])
def test_a_token_budget_that_is_none_is_named_and_left_out(
    run: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "memory.json").write_text(f'{{"configured": 4096, "budget": {text}, "why": "memory ran out"}}')
    try:
        options = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=2"]
        runs.fit(run.parents[1], *options, "--ckpt_path=last")
    finally:
        (run / "memory.json").unlink()
    assert f"{run / 'memory.json'} cannot be read (budget is " in caplog.text
    assert "the token budget is the configured one again" in caplog.text


def test_whole_number_accepts_exactly_64_bit_integers() -> None:
    assert [whole_number(n) for n in (2**63 - 1, -(2**63), 0.0, -2.0)] == [2**63 - 1, -(2**63), 0, -2]
    for wrong in (2**63, -(2**63) - 1, 2.0**63, float("nan"), True, "1", None):
        with pytest.raises(ValueError, match=r"budget is .*, not a whole number of at most 64 bits"):
            whole_number(wrong, "budget")
