"""Relative paths in a YAML: from the working directory, else beside the file that names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.configs import located

REWARD = """\
from gspo_lightning.rewards import Reward

class NAME(Reward):
    def score(self, completion: str) -> float:
        return len(completion) % 3 / 2
"""
TRAIN = """\
plugins: [mine.py]
trainer: {accelerator: cpu, max_epochs: 1, default_root_dir: out, enable_progress_bar: false}
model: {optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1e-3}}}
data:
  train: train.jsonl
  rewards: {mine: NAME}
  group_size: 2
  prompts_per_rollout: 4
  minibatches_per_rollout: 1
  max_prompt_tokens: 8
  max_response_tokens: 4
  reward_workers: 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with a config, its data and its plug-in; the command runs in another one."""
    name = "".join(word.capitalize() for word in request.node.name.split("_"))  # classes outlive a test
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(REWARD.replace("NAME", name))
    (folder / "train.yaml").write_text(TRAIN.replace("NAME", name))
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"{i}:"}) + "\n" for i in range(8)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


@pytest.mark.thorough
def test_a_run_finds_them_says_where_and_resumes(project: Path) -> None:
    config = f"--config={project / 'train.yaml'}"
    assert main(["fit", config]) == 0
    (run,) = Path("out/train").iterdir()  # what is written stays in the working directory
    written = yaml.safe_load((run / "config.yaml").read_text())
    assert written["plugins"] == [str(project / "mine.py")]
    assert written["data"]["train"] == str(project / "train.jsonl")
    assert written["model"]["optimizer"]["init_args"]["lr"] == 0.001
    assert main(["fit", config, "--ckpt_path=last", "--trainer.max_epochs=2"]) == 0
    assert json.loads((run / "summary.json").read_text())["updates"] == 2


def test_the_working_directory_comes_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.jsonl").write_text('{"prompt": "1:"}\n')
    assert main(["fit", f"--config={project / 'train.yaml'}", "--print_config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["data"]["train"] == "train.jsonl"
    assert shown["plugins"] == [str(project / "mine.py")]


def test_a_missing_plugin_is_named_as_it_is_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "mine.py").unlink()
    assert main(["fit", f"--config={project / 'train.yaml'}"]) == 2
    assert "plugins: 'mine.py' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("data: {train: rows.jsonl}", "rows.jsonl"),
        ("data: {train: {class_path: PromptFile, init_args: {path: sub/rows.jsonl}}}", "sub/rows.jsonl"),
        ("data.val: 'rows.jsonl'", "rows.jsonl"),
        ("model: {name_or_path: weights}", "weights"),
        ("model: {cold_start: {demonstrations: rows.jsonl}}", "rows.jsonl"),
        ("plugins: sub", "sub"),
        ("plugins: [rewards.py, other]", "rewards.py"),
        ("data: {rewards: {mine: {class_path: Mine, init_args: {words: rows.jsonl}}}}", "rows.jsonl"),
    ],
)
def test_which_settings_are_paths(text: str, setting: str, tmp_path: Path) -> None:
    here, start = tmp_path / "here", tmp_path / "start"
    for folder in (here / "sub", here / "weights", start):
        folder.mkdir(parents=True)
    for name in ("rows.jsonl", "sub/rows.jsonl", "rewards.py"):
        (here / name).touch()
    meant = yaml.safe_load(text.replace(setting, str(here / setting), 1))
    assert yaml.safe_load(located(text, here, start)) == meant
    assert located(text, start, start) == text


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {default_root_dir: out.d}",  # is written
        "model: {objective: GSPO}",  # a name, not a path
        "data: {train: absent.jsonl}",
        "data: {columns: {prompt: 3}}",
        "data: [broken",
        "- out.d",
        "",
    ],
)
def test_everything_else_stays_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "GSPO").mkdir()
    (tmp_path / "out.d").mkdir()
    assert located(text, tmp_path, tmp_path / "start") == text


def test_the_rest_of_a_config_keeps_its_meaning(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    text = "model: &m {a: 1e-3, b: '1e-3', c: 1.0e-6, d: yes}\nx: *m\ndata: {train: &t rows.jsonl, val: *t}  # note\n"
    found, before = yaml.safe_load(located(text, tmp_path, tmp_path / "start")), yaml.safe_load(text)
    assert found["data"] == dict.fromkeys(("train", "val"), str(tmp_path / "rows.jsonl"))
    assert (found["model"], found["x"]) == (before["model"], before["x"])


def test_the_text_of_a_message_is_not_read_as_yaml(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "1", "note": "x: y"}}}
    said = [
        {"role": "user", "content": "Keep the large ones in this list: ['7', '25']"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "[25]"},
        {"role": "user", "content": [{"type": "text", "text": "sum: 3"}]},
        {"role": "assistant", "content": "null"},
    ]
    Path("overlay.yaml").write_text(yaml.safe_dump({"data": {"system_prompt": said}}))
    written = f"--config={project / 'train.yaml'}", "--config=overlay.yaml"
    assert main(["fit", *written, "--print_config"]) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["data"]["system_prompt"] == said
    Path("again.yaml").write_text(shown)
    assert main(["fit", "--config=again.yaml", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["system_prompt"] == said
