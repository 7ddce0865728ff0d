"""One judge of a run: alarms, report, page, bands and documentation say the same of constructed runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.cli import main
from gspo_lightning.core.metric_table.health import Band
from gspo_lightning.core.metric_table.spec import METRICS, RULES
from gspo_lightning.report.ending import value_of
from gspo_lightning.report.read import read_run
from gspo_lightning.report.replay import replayed
from gspo_lightning.report.run import Series
from gspo_lightning.report.verdicts import verdicts
from tests import ROOT

TABLES = ("docs/troubleshooting.md", "docs/first_real_run.md")
PER_ITERATION, ITERATIONS = 4, 12
CLIP = {"GSPO": (3e-4, 4e-4), "GRPO": (0.2, 0.2), "CISPO": (1.0, 4.0)}
MARKS = {"bad": "✖", "look": "!", "note": "i", "fine": "✓"}


def saw(later: float) -> list[float]:
    """A clip fraction: 0 in the first mini-batch of an iteration, as it always is, and this in the others."""
    return ([0.0] + [later] * (PER_ITERATION - 1)) * ITERATIONS


def flat(value: float) -> list[float]:
    return [value] * (PER_ITERATION * ITERATIONS)


@dataclass(frozen=True)
class Case:
    """A run, and what every way must say of it; ``tag`` is the metric that the verdict is about."""

    scalars: Mapping[str, Sequence[float]]
    tag: str
    topic: str
    level: str
    word: str
    alarms: tuple[str, ...] = ()
    objective: str = "GSPO"


ONE_SPIKE = [1.0] * 20 + [15.0] + [1.0] * 27
CASES = {
    "dead groups 0.55": Case(
        {"reward/dead_groups": flat(0.55), "reward/mean": flat(0.3), "reward/max": flat(1.0)},
        "reward/dead_groups", "dead groups", "look", "many",
    ),
    "GRPO clips 0.07": Case({"clip/tokens": saw(0.07)}, "clip/tokens", "clipping", "look", "heavy", (), "GRPO"),
    "truncated 0.2": Case(
        {"response/truncated": flat(0.2), "response/length": flat(40.0)},
        "response/truncated", "length", "look", "as before, often cut",
    ),
    "sampler gap 0.005, of sequences 1e-5": Case(
        {"noise/sampler_logprob_gap": flat(0.005), "noise/sampler_sequence_gap": flat(1e-5)},
        "noise/sampler_logprob_gap", "sampler", "look", "not the policy",
    ),
    "sampler gap 0.001, of sequences 1e-4": Case(
        {"noise/sampler_logprob_gap": flat(0.001), "noise/sampler_sequence_gap": flat(1e-4)},
        "noise/sampler_sequence_gap", "sampler", "note", "recomputed",
    ),
    "one gradient of 15 medians": Case(
        {"optim/gradient_norm": ONE_SPIKE, "optim/gradient_spike": ONE_SPIKE},
        "optim/gradient_spike", "stability", "note", "restless",
    ),
    "GSPO clips 0.78": Case({"clip/tokens": saw(0.78)}, "clip/tokens", "clipping", "fine", "usual"),
    # beyond the seven: what both rules that were mended had merged, and what an alarm must confirm
    "GSPO clips 0.8, 0.6 over all": Case({"clip/tokens": saw(0.8)}, "clip/tokens", "clipping", "fine", "usual"),
    "GRPO clips 0.998": Case({"clip/tokens": saw(0.998)}, "clip/tokens", "clipping", "look", "heavy", (), "GRPO"),
    "GSPO never clips": Case(
        {"clip/tokens": flat(0.0), "clip/high": flat(0.0)}, "clip/tokens", "clipping", "look", "never",
    ),
    "dead groups 0.95": Case(
        {"reward/dead_groups": flat(0.95), "reward/mean": flat(0.3), "reward/max": flat(1.0)},
        "reward/dead_groups", "collapse", "bad", "recognised", ("dead_group_flood",),
    ),
    "solved": Case(
        {"reward/dead_groups": flat(0.95), "reward/mean": flat(0.97), "reward/max": flat(1.0)},
        "reward/dead_groups", "dead groups", "note", "solved",
    ),
    "gradients of 15 medians": Case(
        {"optim/gradient_norm": [*ONE_SPIKE[:20], *[15.0] * 3, *ONE_SPIKE[23:]],
         "optim/gradient_spike": [*ONE_SPIKE[:20], *[15.0] * 3, *ONE_SPIKE[23:]]},
        "optim/gradient_spike", "stability", "bad", "spikes", ("gradient_spikes",),
    ),
}  # fmt: skip


def run_folder(folder: Path, case: Case, per_iteration: int = PER_ITERATION) -> Path:
    """Write the event file and the config of a run."""
    folder.mkdir(parents=True)
    count = PER_ITERATION * ITERATIONS
    low, high = CLIP[case.objective]
    tags: dict[str, Sequence[float]] = {
        "data/iteration": [i // per_iteration for i in range(count)],
        "data/mini_batch": [i % per_iteration for i in range(count)],
        "reward/mean": flat(0.5), "reward/min": flat(0.0), "reward/max": flat(1.0), **case.scalars,
    }  # fmt: skip
    if case.objective == "GSPO":
        tags["clip/sequences"] = tags.get("clip/tokens", saw(0.5))
    writer = SummaryWriter(str(folder))
    for tag, values in tags.items():
        for step, value in enumerate(values, start=1):
            writer.add_scalar(tag, value, step)
    writer.close()
    objective = {
        "class_path": f"gspo_lightning.objectives.{case.objective}",
        "init_args": {"clip_low": low, "clip_high": high},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"objective": objective}}))
    return folder


def page_of(folder: Path, out: Path) -> dict[str, Any]:
    """What the page of ``gspo view`` holds of a run."""
    assert main(["view", str(folder), f"--output={out}"]) == 0
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', out.read_text())
    (held,) = json.loads(data)
    return dict(held)


SHORT = {"dead groups 0.55", "GRPO clips 0.07", "dead groups 0.95"}
"""Cases of the default suite: every case draws a report."""


@pytest.mark.thorough(*sorted(CASES.keys() - SHORT))
@pytest.mark.parametrize("name", CASES)
def test_five_ways_say_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    folder = run_folder(tmp_path / "run", case)
    # the alarms of training, over the same numbers
    assert {alarm.signature for alarm in replayed(read_run(folder))} == set(case.alarms)
    # the report
    assert main(["report", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(f"{MARKS[case.level]} {case.topic}: {case.word} (")]
    title = f"- {MARKS[case.level]} **{case.topic[:1].upper()}{case.topic[1:]}: {case.word}.**"
    assert title in (folder / "report.md").read_text()
    # the page: the same list, in the same order, and no second one
    page = page_of(folder, tmp_path / "page.html")
    listed = [(v["topic"], v["level"], v["word"]) for v in page["overview"]["verdicts"]]
    assert (case.topic, case.level, case.word) in listed
    assert "hints" not in page["overview"]
    marked = [line for line in lines if re.match(r"[✖!i✓] [a-z ]+: ", line)]
    assert [f"{MARKS[level]} {topic}: {word}" for topic, level, word in listed if topic != "recorded tokens"] == [
        line[: line.index(" (")] for line in marked
    ]
    # the band behind the curve: left by some value if, and only if, the verdict is not that all is fine
    low, high = page["overview"]["tags"][case.tag]["band"]
    drawn = [
        value
        for value in page["series"][case.tag][1]
        if case.topic != "clipping" or name == "GSPO never clips" or value
    ]
    assert all(Band(low, high).holds(value) for value in drawn) == (case.level == "fine")
    # the documentation: its numbers are the band's
    spec = next(spec for spec in METRICS if spec.tag == case.tag)
    for words in (band.words for band in spec.health.bands.values()):
        assert any(words in row for file in TABLES for row in rows_of(file, case.tag)), (case.tag, words)


def test_with_one_mini_batch_per_iteration_nothing_is_said_of_clipping(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", Case({"clip/tokens": flat(0.0)}, "", "", "", ""), per_iteration=1)
    listed = {v["topic"]: (v["level"], v["word"]) for v in page_of(folder, tmp_path / "p.html")["overview"]["verdicts"]}
    assert listed["clipping"] == ("fine", "nothing to judge")


def test_an_objective_that_bounds_weights_is_not_told_that_its_range_never_acts(tmp_path: Path) -> None:
    """CISPO logs ``clip/tokens`` as 0, and neither bound."""
    case = Case({"clip/tokens": flat(0.0)}, "", "", "", "", (), "CISPO")
    listed = {v.topic: (v.level, v.word) for v in verdicts(read_run(run_folder(tmp_path / "run", case)))}
    assert listed["clipping"] == ("fine", "nothing to judge")


def test_a_run_with_a_teacher_is_exempt_from_what_the_alarms_exempt_it_from(tmp_path: Path) -> None:
    """Its rewards need not carry a signal, and its entropy is the teacher's."""
    scalars = {"reward/dead_groups": flat(1.0), "reward/mean": flat(0.0), "kl/old_new_k3": flat(0.06)}
    for name, entropy in (("low", flat(0.005)), ("rising", [0.1 + 0.1 * i for i in range(48)])):
        for taught in (False, True):
            teacher = {"distill/kl": flat(0.1)} if taught else {}
            folder = run_folder(
                tmp_path / f"{name} {taught}", Case({**scalars, "policy/entropy": entropy, **teacher}, "", "", "", "")
            )
            levels = {v.topic: v.level for v in verdicts(read_run(folder))}
            worst = {levels.get(topic, "fine") for topic in ("dead groups", "entropy", "collapse", "other numbers")}
            assert worst.isdisjoint({"bad", "look"}) == taught, levels


@pytest.mark.parametrize("watched", [True, False])
def test_a_signature_that_the_config_ignores_is_not_bad(watched: bool, tmp_path: Path) -> None:
    """Gradients of 15 medians, and held-out answers that fell from 0.9 to 0.5."""
    scalars = {**CASES["gradients of 15 medians"].scalars, **({"collapse/alarms": flat(0.0)} if watched else {})}
    folder = run_folder(tmp_path / "run", Case(scalars, "", "", "", ""))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for ignore, expected in (([], "bad"), (["gradient_spikes", "held_out_fall"], "note")):
        collapse = {"class_path": "gspo_lightning.training.callbacks.Collapse", "init_args": {"ignore": ignore}}
        config["trainer"] = {"callbacks": [{"class_path": "lightning.pytorch.callbacks.Timer"}, collapse]}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        run = read_run(folder)
        run.scalars["val/accuracy"] = Series(np.array([0, 20, 40]), np.array([0.24, 0.9, 0.5]))
        run.scalars["val/accuracy_standard_error"] = Series(np.array([0, 20, 40]), np.full(3, 0.02))
        levels = {v.topic: v.level for v in verdicts(run)}
        assert (levels["stability"], levels["learning"]) == (expected, expected)
        assert levels.get("collapse", "fine") == ("fine" if watched or ignore else "bad")


def test_clipping_is_counted_after_the_first_mini_batch_whatever_is_logged(tmp_path: Path) -> None:
    """With every second update logged, places 0 and 2 are left: 0.6 is the fraction of the later ones, not 0.3."""
    folder = run_folder(tmp_path / "run", Case({"clip/tokens": saw(0.6)}, "", "", "", ""))
    run = read_run(folder)
    for tag, series in run.scalars.items():
        run.scalars[tag] = type(series)(series.steps[::2], series.values[::2])
    assert value_of(run, "clip/tokens") == pytest.approx(0.6)
    del run.scalars["data/mini_batch"]  # an older run: the first logged update of an iteration may be its first
    assert value_of(run, "clip/tokens") == pytest.approx(0.6)


def rows_of(file: str, tag: str) -> list[str]:
    """Rows of a page's tables whose first cell names a metric."""
    lines = (ROOT / file).read_text().splitlines()
    return [line for line in lines if line.startswith("|") and f"`{tag}`" in line.split("|")[1]]


def test_tables_of_the_documentation_hold_the_bands_of_the_definitions() -> None:
    bands = {spec.tag: [band.words for band in spec.health.bands.values()] for spec in METRICS if spec.health.bands}
    checked = 0
    for file in TABLES:
        for tag, words in bands.items():
            for row in rows_of(file, tag):
                checked += 1
                assert all(part in row for part in words), f"{file}: {row}\nthe definition says {words}"
    assert checked >= 10


def test_the_table_of_signatures_holds_the_thresholds_of_the_definitions() -> None:
    table = {line.split("`")[1]: line for line in (ROOT / "docs" / "collapse.md").read_text().splitlines()
             if re.match(r"\| `\w+` \|.*\|.*\| (updates|iterations|evaluations) \|$", line)}  # fmt: skip
    assert set(table) == set(RULES)
    for name, rule in RULES.items():
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", table[name])}
        words = {"half": 0.5, "nearly": 0.0}
        numbers |= {value for word, value in words.items() if word in table[name]}
        missing = [key for key, value in rule.thresholds.items() if not numbers & {value, round(100 * value, 9)}]
        assert not missing, f"{name}: {missing} not in {table[name]}"
        looks = {f"| {rule.hits} |", f"| {rule.hits} of {rule.window}", f"| {rule.hits} in a row |"}
        assert any(text in table[name] for text in looks), (name, looks)


def test_no_page_or_module_has_a_threshold_of_its_own() -> None:
    """Whoever judges reads the definitions: the modules of the report name no fraction but by their words."""
    for name in ("verdicts.py", "learning.py", "ending.py", "held_out.py"):
        text = (ROOT / "gspo_lightning" / "report" / name).read_text()
        assert not re.findall(r"(?:<|>|<=|>=) 0\.\d+", text), name


def test_every_mean_of_a_band_is_over_the_last_fifth(tmp_path: Path) -> None:
    values = [0.9] * 40 + [0.1] * 8  # 12 iterations of 4: the last two are 0.1
    folder = run_folder(tmp_path / "run", Case({"reward/dead_groups": values}, "", "", "", ""))
    listed = {v["topic"]: v["level"] for v in page_of(folder, tmp_path / "p.html")["overview"]["verdicts"]}
    assert listed["dead groups"] == "fine"
    assert np.isclose(np.mean(values[-8:]), 0.1)
