"""The grid of curricula through its front door: two cells, interrupted in the second, repeated, and read."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from experiments.curricula.__main__ import main
from experiments.curricula.run import CONFIG
from gspo_lightning.loop.experience.loader import ExperienceLoader
from tests.runs import runs

VARIANTS = ["Uniform", "Informative"]


def tiny(path: Path) -> Path:
    """The grid's config at a toy size: hardly a cold start, few short responses."""
    content = yaml.safe_load(CONFIG.read_text())
    cold_start = content["model"]["cold_start"]
    cold_start["steps"] = 1
    for source in cold_start["demonstrations"]["init_args"]["sources"]:
        source["train"]["init_args"]["size"] = 64
    content["trainer"]["callbacks"] = [{"class_path": "RunSummary", "init_args": {"report": False}}]
    content["data"] |= {
        "group_size": 2, "prompts_per_rollout": 4, "minibatches_per_rollout": 2, "max_response_tokens": 2,
        "reward_workers": 1, "evaluation": {"limit": 6},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.thorough
def test_an_interrupted_grid_goes_on_with_its_missing_runs_and_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, root = tmp_path / "page.md", tmp_path / "root"
    argv = ["--root", str(root), "--output", str(page), "--config", str(tiny(tmp_path / "tiny.yaml"))]
    argv += ["--seeds", "1", "--iterations", "1", "--variants", *VARIANTS]
    with pytest.raises(SystemExit):
        main([*argv, "--only_read"])
    assert "holds no seed that every variant has finished" in capsys.readouterr().err
    original, updates = ExperienceLoader.mark_trained, list[int]()

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        updates.append(self.trained)
        if len(updates) == 2 + 2 + 1:  # of the cold start's run, of the first cell, of the second
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    assert main(argv) != 0
    assert not page.exists()
    folders = [root / "runs" / "Uniform-seed1" / "version_0", root / "runs" / "Informative-seed1" / "version_0"]
    done = (folders[0] / "summary.json").stat().st_mtime_ns
    assert main(argv) == 0
    assert len(updates) == 5 + 1  # only the cell that was interrupted goes on, from its checkpoint
    assert (folders[0] / "summary.json").stat().st_mtime_ns == done

    rows = [line.split("|")[1:-1] for line in page.read_text().splitlines() if line.startswith(("| Uniform", "| Info"))]
    assert [row[0].strip() for row in rows] == VARIANTS * 3
    for place, folder in enumerate(folders):  # tokens per useful group, counted in the recorded responses
        tokens, groups = 0, dict[tuple[str, str], set[float]]()
        for file in (folder / "rollouts").glob("*.jsonl"):
            for response in map(json.loads, file.read_text().splitlines()):
                tokens += len(response["completion_ids"])
                groups.setdefault((file.name, response["prompt"]), set()).add(response["reward"])
        useful = sum(len(rewards) > 1 for rewards in groups.values())
        assert len(groups) == 4
        assert rows[place][1].strip() == f"{tokens / max(useful, 1):.0f}"
        assert rows[2 + place][1].strip() == "-"  # nobody reaches 90 %
        last = runs.scalars(folder)["val/accuracy"][-1][1]
        assert rows[4 + place][1].strip() == f"{last:.3f}"
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    before = page.read_text()
    assert main([*argv, "--only_read"]) == 0
    assert page.read_text() == before
