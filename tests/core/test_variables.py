"""Which variables of a config are secrets, and what stands in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.variables import check_settings, check_variables, read_variables, without_secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "anything-at-all"),
        ("db-password", "hunter2"),
        ("GH", "ghp_0123456789abcdefghij"),
        ("HEADER", "Bearer abc"),
        ("MODEL", "sk-proj-0123456789abcdefghij"),
    ],
)
def test_a_secret_by_its_value_is_refused_without_being_repeated(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f"Tool.environment.{name}: is a secret") as refused:
        check_variables({name: value}, "Tool.environment")
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "$OPENAI_API_KEY"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKEN", "512"),
        ("KEYBOARD", "german"),
        ("API_KEY", ""),
        ("PRICE", "$5"),
        ("MODEL", "sk-small"),
    ],
)
def test_other_variables_are_taken_as_they_are(name: str, value: str) -> None:
    assert check_variables({name: value}, "Tool.environment") == {name: value}


def test_the_trainers_value_takes_the_place_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPO_TEST_KEY", "secret-value")
    given = {"KEY": "$GSPO_TEST_KEY", "PRICE": "$5"}
    assert read_variables(given, "Tool.environment") == {"KEY": "secret-value", "PRICE": "$5"}
    assert without_secrets("denied: secret-value, $5", given) == "denied: $GSPO_TEST_KEY, $5"
    monkeypatch.delenv("GSPO_TEST_KEY")
    with pytest.raises(UserError, match=r"KEY: names the variable GSPO_TEST_KEY, which is not set"):
        read_variables(given, "Tool.environment")
    assert without_secrets("denied", given) == "denied"


KEY = "sk-proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"logger": [{"init_args": {"api_key": "anything"}}]}, "logger.init_args.api_key"),
        ({"logger": {"tracking_uri": "https://me:hunter2@host/x"}}, "logger.tracking_uri"),
        ({"agent": {"command": ["serve", "--api-key", "hunter2"]}}, "agent.command.api-key"),
        ({"agent": {"command": ["serve", "--api-key=hunter2"]}}, "agent.command"),
        ({"agent": {"command": f"curl -H 'Authorization: Bearer {KEY}' x"}}, "agent.command"),
        ({"agent": {"command": ["env", f"OPENAI_API_KEY={KEY}", "run"]}}, "agent.command"),
        ({"headers": {"X-API-Key": "hunter2"}}, "headers.X-API-Key"),
        ({"judge": {"options": {"extra": [[{"hub": "hf_" + "a1" * 17}]]}}}, "judge.options.extra.hub"),
        ({"path": "postgresql://u:p@h/db"}, "path"),
    ],
)
def test_a_secret_in_any_setting_is_refused_without_being_repeated(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match="holds a password or a key, and a run saves its config") as refused:
        check_settings(settings)
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"name_or_path": "hf-internal-testing/tiny-random-LlamaForCausalLM", "pad_token": "<|pad|>"},
        {"path": "/data/sk-learn-0123456789abcdefghij", "url": "http://127.0.0.1:8000", "git": "ssh://git@host/x"},
        {"columns": {"key": "id", "token": "word", "answer": "secret"}},
        {"api_key": "$WANDB_API_KEY", "password": None, "secret": False},
        {"system_prompt": "Parse https://user:pass@host.", "rubric": {"password": "is it kept?"}},
        {"command": ["serve", "--port", "8000", "--key=$KEY"], "environment": {"PLAIN": "Bearer 1"}},
        {"text": "Bearer authentication is explained"},
    ],
)
def test_other_settings_are_taken_as_they_are(settings: dict[str, Any]) -> None:
    check_settings(settings)


@pytest.mark.parametrize("command", ["fit", "fit-reward"])
def test_a_run_with_a_secret_in_its_config_does_not_begin(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = f"{{class_path: CSVLogger, init_args: {{save_dir: {tmp_path}, name: {KEY}}}}}"
    config = "quickstart" if command == "fit" else "reward_model"
    words = [command, f"--config={config}", f"--trainer.default_root_dir={tmp_path}", f"--trainer.logger={logger}"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "error: trainer.logger.init_args.name: holds a password or a key" in said
    assert KEY not in said
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY in file.read_text()]
