"""Tests that are assert statements, taken apart in several threads."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

from gspo_lightning.rewards.code.asserts import parse


def test_tests_are_parsed_by_several_threads_at_once() -> None:
    """A collection in the middle of a parse lets another thread begin: one depth for two trees (SystemError)."""
    test = "\n".join(f"assert f({i}) == [a + ({i} * (a - 1)) for a in range({i})]" for i in range(40))

    def turn_of_another_thread(phase: str, info: dict[str, int]) -> None:
        time.sleep(1e-5)

    before = gc.get_threshold()
    gc.callbacks.append(turn_of_another_thread)
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: len(parse(test, "", "f")), range(16)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(turn_of_another_thread)
    assert found == [40] * 16
