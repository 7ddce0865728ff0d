"""Rollout sources written with former names of the interface go on working, and a message says the new names."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import gspo_lightning.rollouts
from gspo_lightning import errors
from gspo_lightning.rollouts import ResponsePrefix, RolloutSource
from gspo_lightning.types import Prompt, Rollout


@pytest.fixture(autouse=True)
def every_message(caplog: pytest.LogCaptureFixture) -> None:
    errors.say_renamed.cache_clear()  # once a process otherwise
    caplog.set_level(logging.WARNING)


def test_what_a_source_overrides_under_former_names_is_used(caplog: pytest.LogCaptureFixture) -> None:
    called = []

    class Older(RolloutSource):
        renews = True

        def generate(self, *_: Any, **__: Any) -> list[list[Rollout]]:
            return []

        def rest(self) -> None:
            called.append("rest")

        def renew(self, policy: Any, version: int) -> None:
            called.append(f"renew {version}")

        def use_less_memory(self) -> int:
            return 7

    source = Older()
    source.sleep()
    source.update_weights_in_flight(None, 3)  # type: ignore[arg-type]
    assert called == ["rest", "renew 3"]
    assert source.reduce_batch() == 7
    assert source.updates_in_flight is True
    assert "Older.rest is called sleep now" in caplog.text
    assert caplog.text.count("the old name still works") == 4


def test_a_source_with_the_new_names_gets_no_message(caplog: pytest.LogCaptureFixture) -> None:
    class Newer(RolloutSource):
        def generate(self, *_: Any, **__: Any) -> list[list[Rollout]]:
            return []

        def sleep(self) -> None: ...

    Newer().sleep()
    assert not caplog.text


def test_a_response_prefix_has_its_former_names(caplog: pytest.LogCaptureFixture) -> None:
    assert gspo_lightning.rollouts.Beginning is ResponsePrefix
    prompt = Prompt(0, "", (3,), {"max_response_tokens": 5})
    (prefix,) = ResponsePrefix.groups([prompt], 1, 9)
    assert prefix.room == prefix.token_budget == 5
    assert prompt.room(9) == prompt.token_budget(9) == 5
    for old in ("rollouts.Beginning is", "Beginning.room is", "Prompt.room is"):
        assert old in caplog.text
    with pytest.raises(AttributeError, match="no attribute 'Begin'"):
        _ = gspo_lightning.rollouts.Begin
