"""Weight tags on a server: the run, the optimizer step, and the number of updates that the run has sent."""

from __future__ import annotations


def tag_of(run: str, version: int, count: int) -> str:
    """Return the tag of the ``count``-th weights of a run.

    Args:
        run: without a dash.
        version: optimizer steps.
        count: number of weight updates: two updates of one version need not have the same weights.
    """
    return f"{run}-{version}-{count}"


def run_of(tag: str) -> str:
    """Return the run that sent these weights."""
    return tag.partition("-")[0]


def version_in(tag: str, run: str) -> int | None:
    """Return the optimizer steps of these weights; None if the tag is not one of this run.

    >>> version_in("a1b2-12-3", "a1b2"), version_in("default", "a1b2")
    (12, None)
    """
    parts = _parts(tag)
    return parts[1] if parts is not None and parts[0] == run else None


def is_newer(tag: str, than: str) -> bool:
    """Return True if both tags are of one run, and the first was sent later.

    >>> is_newer("a1b2-12-3", "a1b2-8-2"), is_newer("a1b2-8-2", "a1b2-12-3"), is_newer("c3d4-12-3", "a1b2-8-2")
    (True, False, False)
    """
    parts = _parts(tag)
    other = _parts(than)
    if parts is None or other is None:
        return False
    run, _, count = parts
    other_run, _, other_count = other
    return run == other_run and count > other_count


def _parts(tag: str) -> tuple[str, int, int] | None:
    run, *numbers = tag.split("-")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    return run, int(numbers[0]), int(numbers[1])
