"""Which variables of a config are secrets, and what stands in their place."""

from __future__ import annotations

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.variables import check_variables, read_variables, without_secrets


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
