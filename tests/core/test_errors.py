"""One error model: what a user reads, what crosses a process boundary."""

from __future__ import annotations

import pickle

import pytest

from gspo_lightning.core.errors import GSPOError, InfrastructureError, UserError, did_you_mean


def test_a_user_error_says_field_problem_and_fix() -> None:
    error = UserError("data.group_size", "is 1; a group needs 2", fix="use 2")
    assert str(error) == "data.group_size: is 1; a group needs 2\n  fix: use 2"
    assert (error.field, error.problem, error.fix) == ("data.group_size", "is 1; a group needs 2", "use 2")


def test_a_user_error_without_a_fix_is_one_line() -> None:
    assert str(UserError("trainer", "is wrong")) == "trainer: is wrong"


@pytest.mark.parametrize("fix", [None, "do this"])
def test_a_user_error_survives_pickling(fix: str | None) -> None:
    error = UserError("plugins", "x.py is broken", fix=fix)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UserError
    assert (again.field, again.problem, again.fix, str(again)) == ("plugins", "x.py is broken", fix, str(error))


def test_the_classes_say_whose_mistake_it_is() -> None:
    assert issubclass(UserError, GSPOError)
    assert issubclass(UserError, ValueError)
    assert issubclass(InfrastructureError, GSPOError)
    assert not issubclass(InfrastructureError, ValueError)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gspo", "did you mean GSPO? known: DrGRPO, GSPO"),  # only the case is wrong
        ("DRGPRO", "did you mean DrGRPO? known: DrGRPO, GSPO"),
        ("zebra", "known: DrGRPO, GSPO"),  # nothing is near: no guess
        ("grey", "known: DrGRPO, GSPO"),  # two letters of DrGRPO
        ("DrGRandom", "did you mean DrGRPO? known: DrGRPO, GSPO"),  # the same beginning
    ],
)
def test_did_you_mean_names_the_nearest_and_all(typed: str, expected: str) -> None:
    assert did_you_mean(typed, ["GSPO", "DrGRPO"]) == expected


def test_did_you_mean_with_nothing_known() -> None:
    assert did_you_mean("x", []) == "known: (none)"
