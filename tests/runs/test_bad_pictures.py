"""Files that are no good pictures, through ``gspo fit``: each is named in one line, and none reaches a rollout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.data.prompts.pictures.test_pictures import bomb
from tests.runs import runs
from tests.support.pictures import png

CONFIG = runs.ROOT / "configs" / "vision.yaml"
GOOD = png(0)
BAD = {
    "truncated": (GOOD[: len(GOOD) // 2], "is damaged"),
    "0 x 0": (bomb(0, 0), "a picture "),
    "a text file": (b"there is no picture here, only words\n" * 9, "is no picture"),
    "100 megapixels": (bomb(10_000, 10_000), "has 10000 x 10000 pixels; 50,000,000 are the most"),
    "a decompression bomb": (bomb(60_000, 60_000), "a picture "),
}


def records(folder: Path, kinds: list[str]) -> Path:
    """Four good records, and behind each of the first ones a bad one."""
    lines = []
    for number in range(max(4, len(kinds))):
        (folder / f"good{number}.png").write_bytes(png(number))
        lines.append({"prompt": "?", "image": str(folder / f"good{number}.png"), "answer": "1"})
        if number < len(kinds):
            file = folder / f"bad{number}.png"
            file.write_bytes(BAD[kinds[number]][0])
            lines.append({"prompt": "?", "image": str(file), "answer": "1"})
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "set.jsonl"


def few(file: Path) -> list[str]:
    sizes = ["--data.prompts_per_rollout=4", "--data.group_size=2", "--data.minibatches_per_rollout=1"]
    return [f"--data.train={file}", "--data.val=null", *sizes, *runs.UNTAUGHT, "--trainer.max_epochs=2"]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_stops_the_run_before_it_starts(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *few(records(tmp_path, [kind])), config=CONFIG, code=2)
    said = capsys.readouterr().err
    assert BAD[kind][1] in said
    assert "set.jsonl:2: a picture" in said
    assert "fix: mend or drop the record, or set data.pictures.bad: drop" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("**/events.out*"))


@pytest.mark.thorough
def test_bad_pictures_are_dropped_one_line_each_and_none_reaches_a_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = records(tmp_path, list(BAD))
    run = runs.fit(tmp_path, *few(file), "--data.pictures.bad=drop", "--data.record_rollouts=true", config=CONFIG)
    said = capsys.readouterr().err
    for number, kind in enumerate(BAD):
        (line,) = [line for line in said.splitlines() if f"set.jsonl:{2 * number + 2}:" in line]
        assert "dropped" in line
        assert BAD[kind][1] in line
    rows = [json.loads(row) for part in (run / "rollouts").iterdir() for row in part.read_text().splitlines()]
    assert len(rows) == 2 * 4 * 2
    good = {hashlib.sha256(png(number)).hexdigest() for number in range(5)}
    assert all(set(row["pictures"]) <= good for row in rows)


@pytest.mark.parametrize(
    ("name", "token"),
    [("tiny-qwen3-vl", "<|video_pad|>"), ("tiny-smolvlm", "<image>"), ("tiny-gemma3", "<image_soft_token>")],
)
def test_a_placeholder_in_a_text_stops_the_run(
    tmp_path: Path, name: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps({"prompt": f"1{token}?", "answer": "1"}) + "\n")
    runs.fit(tmp_path, *few(tmp_path / "set.jsonl"), f"--model.name_or_path={name}", config=CONFIG, code=2)
    assert f"a text holds {token}, which stands for a picture" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_placeholder_in_a_demonstration_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shown.jsonl").write_text(json.dumps({"prompt": "1?", "completion": "#1<|image_pad|>"}) + "\n")
    taught = [f"--model.cold_start.demonstrations={tmp_path / 'shown.jsonl'}", "--model.cold_start.steps=1"]
    options = [option for option in few(records(tmp_path, [])) if option not in runs.UNTAUGHT]
    runs.fit(tmp_path, *options, *taught, config=CONFIG, code=2)
    said = capsys.readouterr().err
    assert "shown.jsonl:1: the completion holds <|image_pad|>, which stands for a picture" in said
