"""Jobs run in order, one at a time, ahead of the one that takes their results."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gspo_lightning.loop.experience.prefetcher import CancelledError, Job, RolloutPrefetcher


def jobs(made: list[int], done: list[int]) -> Callable[[int], Job[int]]:
    def make(iteration: int) -> Job[int]:
        made.append(iteration)

        def job(check: Callable[[], None]) -> int:
            assert threading.current_thread() is not threading.main_thread()
            check()
            done.append(iteration)
            return 10 * iteration

        return job

    return make


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_so_many_jobs_are_handed_in_ahead_and_none_beyond_the_end(ahead: int) -> None:
    made: list[int] = []
    done: list[int] = []
    line: RolloutPrefetcher[int] = RolloutPrefetcher(ahead)
    for iteration in range(6):
        assert line.take(iteration, 6, jobs(made, done)) == 10 * iteration
        assert made == list(range(min(iteration + ahead + 1, 6)))
    assert done == list(range(6))
    line.close()


def test_results_do_not_mix_when_a_job_is_slow() -> None:
    gate, order = threading.Event(), list[int]()

    def make(iteration: int) -> Job[int]:
        def job(check: Callable[[], None]) -> int:
            if iteration == 1:
                assert gate.wait(30)
            order.append(iteration)
            return iteration

        return job

    line: RolloutPrefetcher[int] = RolloutPrefetcher(2)
    assert line.take(0, None, make) == 0  # 1 and 2 are handed in; 2 has to wait for 1
    assert order == [0]
    gate.set()
    assert line.take(1, None, make) == 1
    assert line.take(2, None, make) == 2
    line.close()
    assert order[:3] == [0, 1, 2]


def test_prefetcher_reraises_the_error_of_a_job_and_continues() -> None:
    def make(iteration: int) -> Job[int]:
        def job(check: Callable[[], None]) -> int:
            if iteration == 1:
                raise OSError("the server is gone")
            return iteration

        return job

    line: RolloutPrefetcher[int] = RolloutPrefetcher(1)
    assert line.take(0, None, make) == 0
    with pytest.raises(OSError, match="the server is gone"):
        line.take(1, None, make)
    assert line.take(2, None, make) == 2
    line.close()


def test_close_ends_a_job_at_its_next_check_and_leaves_no_thread() -> None:
    begun = threading.Event()
    ended: list[str] = []

    def make(iteration: int) -> Job[int]:
        def job(check: Callable[[], None]) -> int:
            if iteration:
                begun.set()
            try:
                while iteration:
                    check()
            except CancelledError:
                ended.append("cancelled")
                raise
            return iteration

        return job

    line: RolloutPrefetcher[int] = RolloutPrefetcher(2)
    assert line.take(0, None, make) == 0
    assert begun.wait(30)
    line.close()
    assert ended == ["cancelled"]
    assert not [t for t in threading.enumerate() if t.name.startswith("rollouts-")]
    assert line.take(0, 1, make) == 0  # and it can be used again
