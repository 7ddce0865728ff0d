"""Pictures beside answers: small copies of them in the run folder, in event files and on the page of a report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from gspo_lightning.cli import main
from gspo_lightning.core.pictures import Picture
from gspo_lightning.data.prompts.tasks.squares import SquaresTask
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.report.answers import ANSWERS, picture_cell, read_answers, thumbnail_file
from gspo_lightning.report.page import write_report
from gspo_lightning.training.callbacks.sheet import GAP, SHOWN, SIDE, Answer, draw_table, thumbnails
from tests.runs import runs
from tests.runs.test_vision_run import CONFIG, FEW
from tests.support.pictures import png

RED = (220, 30, 30)


def picture(data: bytes, name: str = "") -> Picture:
    return Picture(data, name, 0, 1, 1)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def reds(image: Image.Image) -> int:
    return int((np.asarray(image.convert("RGB")) == RED).all(-1).sum())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations, evaluated at 0, 2 and 4."""
    more = ["--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]
    return runs.fit(tmp_path_factory.mktemp("seen"), *FEW, *more, config=CONFIG)


def test_thumbnails_are_small_and_bare_whatever_the_picture_is() -> None:
    noise, tiny, long = (thumbnails((picture(png(1, *size)),))[0] for size in ((1200, 900), (8, 4), (1600, 16)))
    assert opened(noise).size == (SIDE, SIDE * 3 // 4)
    assert len(noise) < 3 * SIDE * SIDE * 1.1
    assert opened(tiny).size == (96, 48)  # twelve times as large, pixel by pixel
    assert opened(long).size == (SIDE, 2)
    hidden = PngImagePlugin.PngInfo()
    hidden.add_text("where", "at home")
    file = io.BytesIO()
    Image.open(io.BytesIO(png(2))).save(file, "PNG", pnginfo=hidden)
    assert b"at home" in file.getvalue()
    assert b"at home" not in thumbnails((picture(file.getvalue()),))[0]
    assert len(thumbnails(tuple(picture(png(i)) for i in range(9)))) == SHOWN


@pytest.mark.thorough
def test_event_files_show_the_pictures_of_the_same_answers(run: Path) -> None:
    """Read back from the real file: red squares of the first held-out prompts, in their order, at every evaluation."""
    events = runs.events(run)
    sheets = events.Images("held_out_pictures")
    assert [sheet.step for sheet in sheets] == [0, 2, 4]
    assert [sheet.step for sheet in events.Images("sample_pictures")] == [1, 3]
    records = SquaresTask(split="held_out", size=20).records()[:8]
    sheet = np.asarray(opened(sheets[-1].encoded_image_string).convert("RGB"))
    height = len(sheet) / 8  # short answers: all rows have the height of their picture
    for number, record in enumerate(records):
        shown = Image.fromarray(sheet[round(number * height) : round((number + 1) * height), : 96 + 2 * GAP])
        assert reds(shown) == int(record["answer"]) * 24 * 24  # squares of 8 pixels, three times as large


@pytest.mark.thorough
def test_the_report_shows_them_from_files_beside_it(run: Path, tmp_path: Path) -> None:
    for folder in (run, tmp_path / "elsewhere"):
        assert main(["report", str(run), f"--output={folder}"]) == 0
        page = (folder / "report.md").read_text()
        answers, examples = page.partition("## Held-out answers over time")[::2]
        assert "| pictures | prompt | answer | before | after |" in answers
        assert "| pictures | prompt | answer | update 0 |" in examples
        links = [part.partition(")")[0] for part in page.split("](")[1:]]
        assert links[0] == "report.png"
        assert len(links) == 1 + 3 + 8  # one picture for each example and each of the held-out answers
        assert all((folder / link).is_file() and ":" not in link for link in links)
    asked = {row["id"]: row for row in read_answers(run)}
    records = SquaresTask(split="held_out", size=20).records()
    for number in range(8):
        (name,) = asked[number]["pictures"]
        assert reds(opened((run / thumbnail_file(name)).read_bytes())) == int(records[number]["answer"]) * 24 * 24


def test_examples_with_the_same_text_are_different_ones_by_their_pictures(run: Path) -> None:
    examples = json.loads((run / "summary.json").read_text())["examples"]
    assert [example["prompt"] for example in examples] == ["?"] * 3
    assert len({tuple(example["pictures"]) for example in examples}) == 3


def test_nothing_but_a_hash_becomes_a_link(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    good, missing = "a" * 64, "b" * 64
    (tmp_path / thumbnail_file(good)).write_bytes(png(0))
    bad = ["../../secret", "https://example.org/a.png", "x](javascript:alert(1))", f"{good}\n", 3, None, missing]
    assert picture_cell(tmp_path, {"pictures": bad}) == "7 not shown"
    shown = picture_cell(tmp_path, {"pictures": [*bad, good]})
    assert shown == f"![picture]({thumbnail_file(good)}) and 7 more"
    for nothing in ({}, {"pictures": []}, {"pictures": "no list"}, {"pictures": None}):
        assert picture_cell(tmp_path, nothing) == " "
    rows = [{"update": u, "id": 0, "prompt": "?", "completion": "#1", "pictures": bad} for u in (0, 1)]
    (tmp_path / ANSWERS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "summary.json").write_text("{}")
    write_report([tmp_path], tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text()
    assert "7 not shown" in page
    assert "javascript" not in page
    assert not (tmp_path / "out" / "pictures").exists()


def test_a_sheet_cuts_long_texts_and_draws_what_no_font_has(tmp_path: Path) -> None:
    odd = "\ud800\x00\x1b[31m\u202e\U0001d4b3 你好 $\\frac{1}{2}$ |`<script>"
    texts = [("prompt", "word " * 5000), ("completion", odd), ("answer", ""), ("reward", "1")]
    answers = [Answer([png(0, 160, 40)], 5, texts)] * 40
    draw_table(answers, tmp_path / "sheet.png")
    image = opened((tmp_path / "sheet.png").read_bytes())
    assert image.width == 960
    assert image.height < 16 * 250


def test_examples_keep_their_pictures_in_a_checkpoint() -> None:
    media = (picture(png(0), "a" * 64),)
    examples = [{"prompt": "?", "media": media}, {"prompt": "!"}]
    experience = Experience([], {}, examples)
    state = experience.state_dict(range(0), begun=False)
    assert Experience.from_state_dict(state).examples == examples
    assert Experience.from_state_dict({**state, "media": None}).examples == [{"prompt": "?"}, {"prompt": "!"}]
    assert Experience.from_state_dict(experience.state_dict(range(0), begun=True)).examples == []
