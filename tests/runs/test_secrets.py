"""A key that programs of a run need is named in the config, and is in none of the files that the run leaves."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.sandbox import choose
from tests.runs import runs

KEY = "correct-horse-battery-staple-7316"
FEW = [*runs.UNTAUGHT, "--trainer.num_sanity_val_steps=0", "--data.record_rollouts=true", "--data.val=null"]
AGENT = """
import json, os, sys, urllib.request
record = json.load(sys.stdin)
body = json.dumps({"messages": [{"role": "user", "content": record["prompt"]}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(address, body, headers)).read()
if record["rollout"].endswith("/1"):
    sys.exit("no access with " + os.environ["SERVICE_TOKEN"])
print("used " + os.environ["SERVICE_TOKEN"])
print(json.dumps({"reward": float(len(os.environ["SERVICE_TOKEN"]))}))
"""
SERVER = """
import hashlib, os, sys
from mcp.server import MCPServer

def look(text: str) -> str:
    return "0"

open(sys.argv[1], "w").write(hashlib.sha256(os.environ["SERVICE_TOKEN"].encode()).hexdigest())
server = MCPServer("looking", log_level="ERROR")
server.tool()(look)
server.run(transport="stdio")
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPO_TEST_SERVICE_TOKEN", KEY)


def holding(folder: Path, word: str = KEY) -> list[str]:
    """The files below a folder that hold a word."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [str(path) for path in files if word.encode() in path.read_bytes()]


def of_agent(folder: Path, value: str) -> str:
    (folder / "agent").mkdir()
    (folder / "agent" / "agent.py").write_text(AGENT)
    command = ["python", str(folder / "agent" / "agent.py")]
    arguments = {"command": command, "environment": {"SERVICE_TOKEN": value}}
    return json.dumps({"class_path": "CommandAgent", "init_args": arguments})


def of_server(folder: Path, value: str) -> str:
    (folder / "server.py").write_text(SERVER)
    command = [sys.executable, str(folder / "server.py"), str(folder / "started")]
    arguments = {"tool": "look", "command": command, "environment": {"SERVICE_TOKEN": value}}
    return json.dumps({"class_path": "McpTool", "init_args": arguments})


def agents(folder: Path, value: str) -> list[str]:
    rollouts = ["--data.rollouts=AgentRollouts", f"--data.rollouts.agent={of_agent(folder, value)}"]
    return [*rollouts, "--data.rollouts.max_missing_rate=1.0", "--data.rewards={solved: EnvironmentReward}"]


def test_the_key_of_an_agent_is_in_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        choose("bubblewrap")
    except UserError:
        pytest.skip("bubblewrap does not work here: make sandbox; gspo doctor")
    run = runs.fit(tmp_path / "root", *FEW, *agents(tmp_path, "$GSPO_TEST_SERVICE_TOKEN"), "--trainer.max_epochs=1")
    rows = [json.loads(line) for line in (run / "rollouts" / "000000.jsonl").read_text().splitlines()]
    assert {row["reward"] for row in rows} == {float(len(KEY)), None}
    assert main(["view", str(run), "--output", str(run / "page.html")]) == 0
    assert main(["report", str(run)]) == 0
    assert main(["export", str(run), str(run / "exported")]) == 0
    assert "$GSPO_TEST_SERVICE_TOKEN" in (run / "config.yaml").read_text()
    assert not holding(run)
    said = capsys.readouterr()
    assert KEY not in said.out + said.err


@pytest.mark.thorough
def test_the_key_of_a_tool_server_is_in_no_file(tmp_path: Path) -> None:
    tool = of_server(tmp_path, "$GSPO_TEST_SERVICE_TOKEN")
    config = runs.ROOT / "configs" / "calculator.yaml"
    options = [*FEW, f"--data.rollouts.environment.tools={{calculator: {tool}}}", "--trainer.max_epochs=1"]
    run = runs.fit(tmp_path / "root", *options, config=config)
    assert (tmp_path / "started").read_text() == hashlib.sha256(KEY.encode()).hexdigest()
    assert not holding(run)


@pytest.mark.thorough("correct-horse-battery-staple-7316")
@pytest.mark.parametrize("value", [KEY, "$GSPO_TEST_NOT_SET"])
def test_a_key_by_its_value_and_one_that_is_not_set_are_refused(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *FEW, *agents(tmp_path, value)]
    assert main([*argv, f"--trainer.default_root_dir={root}"]) == 2
    said = capsys.readouterr().err
    assert "CommandAgent.environment.SERVICE_TOKEN: " in said
    assert KEY not in said
    assert ('SERVICE_TOKEN: "$NAME"' if value == KEY else "export GSPO_TEST_NOT_SET=...") in said
    assert not [path for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
