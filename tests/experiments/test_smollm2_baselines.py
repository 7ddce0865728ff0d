"""Leave-one-out beside the group's mean, and longer runs: the order of the steps, and their tables."""

from __future__ import annotations

from experiments.smollm2 import baselines_page
from experiments.smollm2.baselines import steps
from experiments.smollm2.baselines_page import along, beside, held_out


def results() -> dict[str, object]:
    """Two seeds of 192 problems: seed 1 has 12 more right with leave-one-out, seed 2 none."""
    half = "1" * 96 + "0" * 96
    more = "1" * 108 + "0" * 84
    right = {"untrained-0": "0" * 192}
    right |= {f"{arm}-seed{s}-20": half for arm in ("LeaveOneOut", "GroupMean") for s in (1, 2)}
    right |= {"LeaveOneOut-seed1-20": more, "GroupMean-seed1-60": more}
    norms = {"LeaveOneOut": 1.2, "GroupMean": 0.9}
    curves = {
        f"{arm}-seed{s}": {
            tag: [(u, norm if tag == "optim/gradient_norm" else 0.25) for u in range(1, 61 if s == 1 else 21)]
            for tag in baselines_page.CURVES
        }
        for arm, norm in norms.items()
        for s in (1, 2)
    }
    return {"right": right, "ended": dict.fromkeys(right, 1.0), "curves": curves}


def test_arms_are_paired_by_problem_and_by_seed() -> None:
    header, _, first, second, last = beside(results())
    assert header.startswith("| seed | LeaveOneOut | GroupMean |")
    assert first.startswith("| 1 | 56.2 % [")
    assert "| +6.2 [" in first  # 12 of 192
    assert first.endswith("| 1.200 / 0.900 = 1.3333 | 20 / 0 |")  # the first update; how many of 20 are clipped
    assert "| +0.0 [-1.6, +1.6] |" in second  # nothing differs: 3 / 192
    # mean 3.125, standard deviation 4.419, t of one degree of freedom 12.706: 39.7 on either side
    assert last == "| all | | | +3.1 [-36.6, +42.8] | | |"


def test_long_runs_are_compared_with_themselves_after_20_updates() -> None:
    lines = list(held_out(results()))
    assert sum(line.startswith("| untrained | 0.0 %") for line in lines) == 1
    (long,) = (line for line in lines if line.startswith("| GroupMean, seed 1, 60 updates | 56.2 %"))
    assert "| 100 % | +6.2 [" in long
    rows = list(along(results()))
    assert rows[-1] == "| 51 to 60 | 25, - % | 25, - % | 0.25, - | 0.2, - | 25, - % |"  # seed 2 has 20 updates


def test_every_run_of_20_updates_comes_before_its_continuation() -> None:
    names = [step.name for step in steps()]
    assert len(names) == len(set(names)) == 2 + 2 * 6 + 1 + 2 * 3
    for seed in (1, 2, 3):
        short, long = f"GroupMean-seed{seed}-20-evaluate", f"GroupMean-seed{seed}-60-fit"
        assert names.index(short) < names.index(long)
