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
    found = _parts(tag)
    return found[1] if found is not None and found[0] == run else None


def is_newer(tag: str, than: str) -> bool:
    """Return True if both tags are of one run, and the first was sent later.

    >>> is_newer("a1b2-12-3", "a1b2-8-2"), is_newer("a1b2-8-2", "a1b2-12-3"), is_newer("c3d4-12-3", "a1b2-8-2")
    (True, False, False)
    """
    one, other = _parts(tag), _parts(than)
    return one is not None and other is not None and one[0] == other[0] and one[2] > other[2]


def _parts(tag: str) -> tuple[str, int, int] | None:
    run, *numbers = tag.split("-")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    return run, int(numbers[0]), int(numbers[1])
