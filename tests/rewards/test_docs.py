"""docs/rewards.md: its plug-ins do what they say, its commands run, its table names what is registered."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gspo_lightning import cli
from gspo_lightning.core.registry import components, import_plugins
from gspo_lightning.data.prompts import LogicTask, PromptFile
from gspo_lightning.rewards import RewardRunner, Sample
from tests import ROOT

DOCS = (ROOT / "docs" / "rewards.md").read_text()


@pytest.fixture
def folder(page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page shows, as the working directory."""
    made = page_folder("rewards")
    monkeypatch.chdir(made)
    return made


def test_every_built_in_reward_is_in_the_table() -> None:
    import gspo_lightning.rewards as room

    built_in = {n for n, c in components("rewards").items() if c.__module__.startswith("gspo_lightning.")}
    assert built_in <= set(re.findall(r"^\| `(\w+)` \|", DOCS, flags=re.MULTILINE))
    assert built_in <= set(room.__all__)


def test_plug_ins_of_the_page_do_what_they_say(folder: Path) -> None:
    import_plugins([folder / "plugins" / "last_line.py", folder / "plugins" / "together.py"])
    known = components("rewards")
    samples = [
        Sample("0", "", "so\nYes please", columns={"answer": "Yes please"}),
        Sample("1", "", "YES PLEASE", columns={"answer": "Yes please"}),
        Sample("2", "", "no", columns={"answer": "Yes please"}),
        Sample("3", "", " ", columns={"answer": "Yes please"}),
        Sample("4", "", "no", columns={"answer": ""}),
    ]
    parts = {name: known[name]() for name in ("LastLine", "Unlike", "Asks")}
    with RewardRunner(parts, num_workers=1) as runner:
        runner.check(samples[0].columns)
        scores = runner.score(samples)
    found = {name: [score.parts[name].reward for score in scores] for name in parts}
    assert found["LastLine"] == [1.0, 0.5, 0.0, 0.0, None]
    assert str(scores[3].parts["LastLine"].status) == "model_error"
    assert found["Unlike"] == pytest.approx([0.8, 0.8, 0.6, 0.8, 0.6])
    assert found["Asks"] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_puzzles_can_be_written_to_a_file(folder: Path) -> None:
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL) if "zebra.jsonl" in b]
    exec(compile(block, "rewards.md", "exec"), {"__name__": "docs"})
    records = PromptFile(str(folder / "zebra.jsonl")).records()
    assert [{**r} for r in records] == LogicTask("zebra", size=20).records()


def test_commands_of_the_page_run(folder: Path) -> None:
    rewards = []
    for block in re.findall(r"```bash\n(.*?)```", DOCS, flags=re.DOTALL):
        for line in block.splitlines():
            assert cli.main(shlex.split(line)[1:]) == 0
            rewards.append([json.loads(row)["reward"] for row in (folder / "scores.jsonl").read_text().splitlines()])
    assert rewards == [[0.0, 0.0, None], [1.0, 0.0, None]]
