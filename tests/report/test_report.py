from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.commands.report import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.report.figure import draw
from gspo_lightning.report.page import write_report
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run, Series, labels
from gspo_lightning.report.style import lines_of, smooth, window
from gspo_lightning.report.verdicts import BOUNDS, verdicts
from gspo_lightning.report.words import headline, table
from tests.support.recorded_run import curves, write_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "quickstart" / "version_0")


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "grpo" / "version_0", objective="GRPO")


def texts(figure: Figure) -> str:
    """Everything written on a figure, without drawing it."""
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *(t.get_text() for t in axes.texts)]
    return "\n".join(found)


def judged(run: Run) -> dict[str, str]:
    return {v.topic: f"{v.word}: {v.sentence}" for v in verdicts(run)}


def run_of(**scalars: list[float]) -> Run:
    """A run of 4 updates per iteration; a tag's slash is written as two underscores."""
    length = max(map(len, scalars.values()))
    run = Run(Path("run"))
    run.scalars["data/iteration"] = series(list(np.arange(length) // 4))
    run.scalars |= {tag.replace("__", "/"): series(values) for tag, values in scalars.items()}
    return run


def series(values: list[float], first: int = 1) -> Series:
    return Series(np.arange(first, first + len(values)), np.array(values, dtype=float))


# the two files ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_one_run_is_reported_into_its_own_folder(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run_folder)]) == 0
    out = capsys.readouterr().out
    assert "0.24 → 0.97" in out
    assert str(run_folder / "report.png") in out
    picture = imread(run_folder / "report.png")
    assert picture.shape[:2] == (1128, 1800)
    assert (picture[..., :3].std(axis=2) > 0.1).mean() > 0.002, "curves are in colour"
    page = (run_folder / "report.md").read_text()
    assert "# GSPO, seed 1" in page
    assert "| held-out accuracy | 0.24 → 0.97 |" in page
    assert "**Learning: learned.**" in page
    assert "![curves](report.png)" in page
    assert "`7+5=2;2*3=6;6-4=2;#2`" in page
    assert "`1*9\\|2+3:`" in page, "a bar in model text must not end a cell"
    assert not list(run_folder.glob(".*unfinished"))


@pytest.mark.thorough
def test_several_runs_go_side_by_side_into_the_parent_of_the_first(
    run_folder: Path, other_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_folder), str(other_folder)]) == 0
    page = (run_folder.parent / "report.md").read_text()
    assert "| | GSPO | GRPO |" in page
    assert page.count("**Stability:") == 2
    assert "GRPO" in capsys.readouterr().out


@pytest.mark.thorough
def test_output_names_another_folder_and_a_run_given_twice_is_one(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    assert main([str(run_folder), f"{run_folder}/../version_0", "--output", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["report.md", "report.png"]
    assert "before → after" in (out / "report.md").read_text()


@pytest.mark.thorough
def test_library_call_returns_the_picture_and_leaves_matplotlib_alone(run_folder: Path, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams), matplotlib.get_backend(auto_select=False)
    assert write_report([run_folder], tmp_path) == tmp_path / "report.png"
    assert (dict(matplotlib.rcParams), matplotlib.get_backend(auto_select=False)) == before


# the picture -----------------------------------------------------------------------------------------------------


def test_picture_says_what_run_it_is_and_labels_every_axis(run_folder: Path) -> None:
    figure = draw([read_run(run_folder)])
    said = texts(figure)
    for words in (
        "GSPO  ·  seed 1  ·  tiny-qwen3  ·  20",
        "before 0.24",
        "after 0.97",
        "median",
        "clipping to 1 (dashed)",
    ):
        assert words in said
    assert "not logged" not in said
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert len(figure.axes) == 9


def test_axes_start_at_zero_and_whole_fractions_end_at_one(run_folder: Path) -> None:
    for axes in draw([read_run(run_folder)]).axes:
        assert axes.get_ylim()[0] == 0, axes.get_title(loc="left")
        if "Dead groups" in axes.get_title(loc="left"):
            assert axes.get_ylim()[1] == pytest.approx(1.03)


def test_runs_keep_one_colour_each_in_every_panel(run_folder: Path, other_folder: Path) -> None:
    figure = draw([read_run(run_folder), read_run(other_folder)])
    for axes in figure.axes:
        colours = {line.get_color() for line in axes.lines if len(line.get_xdata()) > 2}
        assert {"#0072B2", "#D55E00"} <= colours, axes.get_title(loc="left")


def test_clip_fractions_two_orders_apart_share_a_logarithmic_axis(run_folder: Path, other_folder: Path) -> None:
    figure = draw([read_run(run_folder), read_run(other_folder)])
    (clipped,) = (a for a in figure.axes if a.get_title(loc="left") == "Clipped tokens")
    assert clipped.get_yscale() == "log"
    assert "log (no 0)" in clipped.get_ylabel()


def test_missing_scalars_are_said_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", without=("policy/entropy", "optim/gradient_norm", "val/accuracy"))
    said = texts(draw([read_run(folder)]))
    assert said.count("not logged") == 2  # the third shares its panel; its legend says it


def test_values_that_are_not_finite_are_left_out_and_said(tmp_path: Path) -> None:
    broken = curves("GSPO", 1, 20)["optim/gradient_norm"].copy()
    broken[49:] = np.nan
    run = read_run(write_run(tmp_path / "run", changed={"optim/gradient_norm": broken}))
    assert "not finite from update 50 on" in texts(draw([run]))
    assert judged(run)["numbers"] == "not finite: optim/gradient_norm not finite from update 50 on"


def test_rewards_outside_0_to_1_get_a_panel_of_their_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", changed={"reward/mean": curves("GSPO", 1, 20)["reward/mean"] * 3 - 2})
    figure = draw([read_run(folder)])
    assert len(figure.axes) == 10
    assert figure.axes[0].get_ylim()[0] < -1


def test_many_runs_are_drawn(run_folder: Path, other_folder: Path) -> None:
    runs = [read_run(run_folder), read_run(other_folder)] * 5
    figure = draw(runs)
    assert len(figure.legends[0].get_texts()) == 10
    assert max(a.get_position().y1 for a in figure.axes) < 0.86, "the legend has room"


@pytest.mark.thorough
def test_many_runs_that_differ_in_their_seed_alone_have_one_colour_and_a_dash_each(tmp_path: Path) -> None:
    kinds = [("GSPO", 1), ("GSPO", 2), ("GRPO", 1), ("GRPO", 2), ("GRPO", 3)]
    runs = [read_run(write_run(tmp_path / f"{name}{seed}", objective=name, seed=seed)) for name, seed in kinds]
    blue, red = lines_of(runs[:2])[0].colour, lines_of(runs[:2])[1].colour
    assert [line.colour for line in lines_of(runs)] == [blue, blue, red, red, red]
    assert [line.dash for line in lines_of(runs)] == ["-", "--", "-", "--", ":"]
    assert "right edge" not in texts(draw(runs))  # where no values are
    for run in runs:
        run.config = {}  # nobody knows what they are
    assert len({line.colour for line in lines_of(runs)}) == len(runs)


def test_running_mean_is_blind_to_the_saw_tooth_and_ends_at_the_last_iteration() -> None:
    saw = np.tile([0.0, 1.0, 2.0, 3.0], 5)
    assert smooth(saw, 4).tolist() == pytest.approx([1.5] * 20)
    rising = np.repeat([0.0, 1.0, 5.0], 4)
    means = smooth(rising, 4)
    assert (means[0], means[-1]) == (0.0, 5.0)
    assert smooth(np.array([7.0]), 1).tolist() == [7.0]


def test_window_is_whole_iterations_and_about_a_twentieth() -> None:
    assert window(run_of(loss=[0.0] * 80), 80) == 4
    assert window(run_of(loss=[0.0] * 800), 800) == 40
    assert window(run_of(loss=[0.0] * 2), 2) == 2
    assert window(Run(Path("x")), 100) == 5


# the words -------------------------------------------------------------------------------------------------------


def test_before_and_after_are_means_of_the_first_and_last_iteration() -> None:
    run = run_of(response__length=[1, 2, 3, 2, 9, 9, 9, 9, 20, 22, 22, 20])
    assert run.first_and_last("response/length") == (2.0, 21.0)
    assert {name: cells[0] for name, cells in table([run])}["response length (tokens)"] == "2 → 21"


@pytest.mark.parametrize(
    ("accuracies", "word"),
    [
        ([0.24, 0.9, 0.98], "learned:"),
        ([0.24, 0.29], "no change shown:"),  # 1.8 standard errors of the difference
        ([0.24, 0.30], "learned:"),  # 2.1
        ([0.5, 0.3], "unlearned:"),
        ([0.24, 0.9, 0.5], "learned, then fell back:"),
    ],
)
def test_learning_verdict(accuracies: list[float], word: str) -> None:
    run = run_of(loss=[0.0] * 60)
    steps = np.arange(len(accuracies)) * 20
    run.scalars["val/accuracy"] = Series(steps, np.array(accuracies))
    run.scalars["val/accuracy_standard_error"] = Series(steps, np.full(len(accuracies), 0.02))
    sentence = judged(run)["learning"]
    assert sentence.startswith(word)
    assert f"{accuracies[0]:.2f} → {accuracies[-1]:.2f} in 60 updates" in sentence


def test_a_fall_from_the_best_names_it() -> None:
    run = run_of(loss=[0.0] * 60)
    run.scalars["val/accuracy"] = Series(np.array([0, 20, 40]), np.array([0.24, 0.9, 0.5]))
    run.scalars["val/accuracy_standard_error"] = Series(np.array([0, 20, 40]), np.full(3, 0.02))
    assert judged(run)["learning"].endswith("its best was 0.90 after 20")


@pytest.mark.parametrize(
    ("norms", "word"),
    [
        ([0.01, 0.5, 0.4, 0.6, 0.5, 0.5, 0.4, 0.5], "steady"),  # the first groups were dead
        ([1.0] * 7 + [15.0], "steady"),  # seven norms are too few to say what is usual
        ([1.0] * 8 + [15.0], "restless"),
        ([0.0, 1.0] * 4 + [0.0] * 20 + [1.0] * 8 + [15.0], "restless"),
        ([1.0] * 8 + [0.0] * 40 + [1.2] * 8, "steady"),  # the median is that of norms above 0
    ],
)
def test_spikes_of_an_older_run_are_over_enough_norms_above_0(norms: list[float], word: str) -> None:
    run = run_of(**{"optim/gradient_norm": norms})
    assert judged(run)["stability"].startswith(f"{word}:")


@pytest.mark.parametrize(
    ("largest", "times", "word"),
    [(9.0, 1, "steady"), (15.0, 1, "restless"), (40.0, 2, "restless"), (15.0, 3, "spikes"), (150.0, 1, "spikes")],
)
def test_stability_verdict_has_the_rule_of_the_alarm(largest: float, times: int, word: str) -> None:
    """Three of eight updates above 10 medians, or one above 100; a single spike occurs in runs that learn."""
    run = run_of(optim__gradient_norm=[1.0] * 10 + [largest] * times + [1.0] * 9)
    assert judged(run)["stability"].startswith(
        f"{word}: largest gradient norm {largest:g} = {largest:.1f} x the median"
    )
    assert "at update 11" in judged(run)["stability"]


def test_clip_verdict_knows_the_level_of_the_objective() -> None:
    many, few = [0.0, 0.4, 0.4, 0.4] * 2, [0.0, 0.001, 0.001, 0.001] * 2
    assert judged(run_of(clip__tokens=many, clip__sequences=many))["clipping"].startswith("usual: 40%")
    assert judged(run_of(clip__tokens=many))["clipping"].startswith("heavy: 40%")
    assert judged(run_of(clip__tokens=few))["clipping"].startswith("usual: 0.1%")
    never = [0.0] * 8
    assert judged(run_of(clip__tokens=never, clip__low=never, clip__high=never))["clipping"].startswith("never: 0%")
    assert judged(run_of(clip__tokens=never))["clipping"].startswith("nothing to judge: no bound of the objective")


def test_bounds_of_the_clip_verdict_are_the_metrics_that_the_objectives_log() -> None:
    """A dual clip counts as a bound; its metric has the objective's own name."""
    sums = {f"clip_fraction_{side}": (1.0, 4.0) for side in ("low", "high", "dual")}
    assert set(update_scalars(sums)) == set(BOUNDS)


def test_dead_groups_are_success_when_the_reward_is_high_and_a_problem_when_it_is_low() -> None:
    dead = [0.1] * 4 + [0.9] * 4
    solved = judged(run_of(reward__dead_groups=dead, reward__mean=[0.2] * 4 + [0.95] * 4))["dead groups"]
    hard = judged(run_of(reward__dead_groups=dead, reward__mean=[0.2] * 4 + [0.05] * 4))["dead groups"]
    assert "most prompts are solved" in solved
    assert "teach nothing" in hard


def test_verdicts_on_a_single_iteration_have_one_number() -> None:
    numbers = {"policy__entropy": [1.05] * 4, "reward__dead_groups": [0.25] * 4}
    one = judged(run_of(**numbers))
    assert one["entropy"] == "of one iteration: 1.05 nats per token"
    assert one["dead groups"].split(": ")[1] == "25% of groups have all rewards equal"
    two = judged(run_of(**{name: values * 2 for name, values in numbers.items()}))
    assert two["entropy"] == "as before: 1.05 → 1.05 (last fifth) nats per token"
    assert two["dead groups"].split(": ")[1] == "25% → 25% (last fifth) of groups have all rewards equal"


def test_entropy_that_rises_without_reward_is_called_dissolving() -> None:
    run = run_of(policy__entropy=[0.2] * 4 + [2.0] * 4, reward__mean=[0.5] * 4 + [0.1] * 4)
    assert "dissolving" in judged(run)["entropy"]


def test_truncation_is_advised_on() -> None:
    run = run_of(response__length=[8.0] * 4 + [30.0] * 4, response__truncated=[0.0] * 4 + [0.4] * 4)
    assert judged(run)["length"].startswith("longer, often cut: 8.0 → 30.0 tokens")
    assert "max_response_tokens" in judged(run)["length"]


def test_noise_is_mentioned_only_when_it_is_large_against_the_clip_range() -> None:
    clips = [0.0, 0.4, 0.4, 0.4]
    run = run_of(noise__sampler_sequence_gap=[1e-3] * 4, clip__sequences=clips)
    run.config = {"model": {"objective": {"init_args": {"clip_low": 3e-4, "clip_high": 4e-4}}}}
    assert judged(run)["sampler"].startswith("recomputed: its log-probabilities differ by 0.001 nats per token over")
    quiet = run_of(noise__sampler_sequence_gap=[1e-7] * 4, clip__sequences=clips)
    quiet.config = run.config
    assert judged(quiet)["sampler"].startswith("the policy:")


def test_labels_are_the_shortest_that_tell_runs_apart(run_folder: Path, other_folder: Path, tmp_path: Path) -> None:
    gspo, grpo = read_run(run_folder), read_run(other_folder)
    second = read_run(write_run(tmp_path / "s" / "version_0", seed=2, iterations=1))
    assert labels([gspo]) == ["GSPO"]
    assert labels([gspo, grpo]) == ["GSPO", "GRPO"]
    assert labels([gspo, grpo, second]) == ["GSPO, seed 1", "GRPO, seed 1", "GSPO, seed 2"]
    again = read_run(write_run(tmp_path / "s" / "version_1", seed=2, iterations=1))
    assert labels([second, again]) == ["GSPO, version_0", "GSPO, version_1"]


def write_alarms(folder: Path, *names: str, since: int = 30) -> None:
    found = [
        {"signature": name, "since": since, "update": since + 6, "what": "seen", "action": "warned", "dump": ""}
        for name in names
    ]
    (folder / "alarms.json").write_text(json.dumps(found))


def test_alarms_are_in_the_verdict_the_table_and_on_every_panel(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_alarms(folder, "entropy_collapse", "length_collapse")
    run = read_run(folder)
    assert judged(run)["collapse"] == (
        "recognised: entropy collapse since update 30 (seen; warned at 36); "
        "length collapse since update 30 (seen; warned at 36)"
    )
    assert {name: cells[0] for name, cells in table([run])}["alarms of collapse"] == "2"
    figure = draw([run])
    for axes in figure.axes:
        assert [30, 30] in [list(line.get_xdata()) for line in axes.lines]
    assert texts(figure).count("entropy collapse, length collapse") == 1


def test_a_watched_run_without_alarms_says_so_and_an_unwatched_one_says_nothing(tmp_path: Path) -> None:
    assert judged(run_of(collapse__alarms=[0.0] * 8))["collapse"].startswith("none:")
    assert "collapse" not in judged(run_of(loss=[0.0] * 8))
    folder = write_run(tmp_path / "run", iterations=1)
    (folder / "alarms.json").write_text("[{}]")
    assert "alarms.json is damaged" in " ".join(read_run(folder).problems)


def test_a_fourth_row_shows_what_only_some_runs_log(tmp_path: Path, run_folder: Path) -> None:
    more = {"moe/changed_choices": np.full(80, 0.1), "ratio/effective_sample_size": np.full(80, 0.99)}
    more["staleness/max_age"] = np.full(80, 3.0)
    run = read_run(write_run(tmp_path / "run", changed=more))
    figure = draw([read_run(run_folder), run])
    said = texts(figure)
    assert "Expert choices changed per update" in said
    assert "Effective sample size" in said
    assert max(a.get_position().y1 for a in figure.axes) < 0.91
    assert dict(table([run]))["staleness/max_age"] == ["3 → 3"]


# damaged and foreign folders ----------------------------------------------------------------------------------------


def damage() -> Iterator[tuple[str, str]]:
    yield "events cut in the middle of a record", "cut"
    yield "bytes after the last record", "garbage"
    yield "one flipped byte", "flip"
    yield "nothing in the event file", "empty"
    yield "summary cut", "summary"
    yield "config cut", "config"


@pytest.mark.thorough("events cut in the middle of a record")
@pytest.mark.parametrize("kind", [kind for _, kind in damage()], ids=[name for name, _ in damage()])
def test_a_damaged_run_is_reported_as_far_as_it_goes(kind: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", iterations=3, finished=kind in ("summary", "config"))
    (events,) = folder.glob("events.*")
    content = events.read_bytes()
    if kind in ("summary", "config"):
        target = folder / {"summary": "summary.json", "config": "config.yaml"}[kind]
        target.write_text({"summary": '{"accuracy_before": 0.2', "config": "model: [unclosed"}[kind])
    else:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 255
        events.write_bytes({"cut": content[:-7], "garbage": content + b"x" * 99, "flip": flipped, "empty": b""}[kind])
    assert write_report([folder], folder).is_file()
    assert "\n> " in (folder / "report.md").read_text()


@pytest.mark.thorough("alarms.json", "config.yaml")
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "alarms.json"])
def test_a_file_that_is_nested_too_deeply_is_damaged(name: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", iterations=1)
    (folder / name).write_text("[" * 100_000 + "]" * 100_000)
    (folder / "held_out_answers.jsonl").write_text("[" * 100_000 + "]" * 100_000 + "\n")
    assert f"{name} is damaged" in " ".join(read_run(folder).problems)
    assert write_report([folder], folder).is_file()


def event_file(folder: Path) -> Path:
    (folder / "summary.json").unlink()
    return next(folder.glob("events.out.tfevents.*"))


def notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of a run, in one line."""
    capsys.readouterr()
    assert main([str(folder), "--output", str(folder / "out")]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.thorough
def test_a_truncated_event_file_is_named_with_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reader takes the place for the end of the file; so does whoever reads its curves."""
    folder = write_run(tmp_path / "run")
    file = event_file(folder)
    assert "ends within a record" not in notes(folder, capsys)
    whole = file.read_bytes()
    (first,) = struct.unpack("<Q", whole[:8])
    file.write_bytes(whole[: len(whole) - 5])
    size, name = len(whole) - 5, file.name
    assert f"note: {name} ends within a record, or is damaged, after " in notes(folder, capsys)
    assert f" of {size:,} bytes: what stood behind that is missing" in notes(folder, capsys)
    file.write_bytes(whole[: 8 + 4 + first + 4 + 3])  # the first record, and three bytes of the second
    told = notes(folder, capsys)
    assert f"after {8 + 4 + first + 4:,} of {8 + 4 + first + 4 + 3:,} bytes" in told
    assert "before its first update" not in told
    file.write_bytes(b"")
    assert f"note: {name} is empty" in notes(folder, capsys)


@pytest.mark.thorough
def test_a_damaged_event_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    file = event_file(folder)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    told = notes(folder, capsys)
    assert "is damaged" in told


@pytest.mark.thorough
@pytest.mark.parametrize("content", [b"PK" * 500, b"x", struct.pack("<Q", 2) + b"\0" * 40])
def test_a_foreign_event_file_is_no_run(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    file = event_file(folder)
    other = file.with_name(f"{file.name}.other")
    other.write_bytes(content)
    said = "ends within a record" if len(content) == 1 else "is not an event file of TensorBoard"
    assert f"note: {other.name} {said}" in notes(folder, capsys)
    file.unlink()
    if len(content) == 1:
        assert said in notes(folder, capsys)
        return
    with pytest.raises(UserError, match=rf"run: {other.name} is not an event file of TensorBoard"):
        read_run(folder)


def test_a_killed_run_is_judged_by_its_events(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False, evaluations={0: 0.25, 40: 0.75})
    run = read_run(folder)
    assert (run.objective, run.seed, run.model) == ("GSPO", "1", "tiny-qwen3")
    assert headline(run).startswith("held-out accuracy 0.25 → 0.75: +0.50 [+0.44, +0.56], from standard errors")
    assert table([run])[:2] == [
        ("held-out accuracy", ["0.25 → 0.75"]),
        ("change of held-out accuracy, 95 % interval", ["+0.50 [+0.44, +0.56], from standard errors"]),
    ]
    assert "not finished, or stopped" in texts(draw([run]))


def test_a_single_iteration_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", iterations=1, finished=False, evaluations={}))
    (run.folder / "config.yaml").unlink()
    reward = f"{run.scalars['reward/mean'].values[0]:.2f}"
    assert headline(run).startswith(f"training reward {reward} in the only iteration (4 updates, 1 iteration")
    rows = dict(table([run]))
    assert "→" not in rows["training reward"] + rows["response length (tokens)"]
    assert rows["change of training reward, 95 % interval"] == ["-"]
    assert judged(run)["length"].startswith("of one iteration")
    run.config = {"data": {"prompts_per_rollout": 25}}
    run.scalars["reward/mean"] = series([0.5] * 4)
    run.scalars["reward/std"] = series([0.5] * 4)  # 1.96 * 0.5 / sqrt(25)
    assert headline(run).startswith("training reward 0.50 [0.30, 0.70], n = 25 prompts, in the only iteration (")


def test_every_row_of_the_table_has_a_label_of_its_own() -> None:
    """Of two runs side by side, one is shown by its accuracy and one by its mean reward."""
    ends = {"reward__mean": [0.5] * 8, "val__accuracy": [0.25, 0.75], "val__reward": [-1.0, 0.5]}
    runs = [run_of(**ends), run_of(**ends, val__lowest_score=[-1.0])]
    assert [run.shown_by for run in runs] == ["accuracy", "mean reward"]
    rows = table(runs)
    labels_of_rows = [label for label, _ in rows]
    assert len(set(labels_of_rows)) == len(rows)
    changes = [(label, cells) for label, cells in rows if label.endswith(", 95 % interval")]
    assert changes == [
        ("change of held-out accuracy, 95 % interval", ["+0.50, no interval recorded", "-"]),
        ("change of held-out mean reward, 95 % interval", ["-", "+1.50, no interval recorded"]),
        ("change of training reward, 95 % interval", ["+0.00, no interval recorded"] * 2),
    ]


@pytest.mark.parametrize("first", [1, 100])
def test_a_cold_start_has_an_arrow_of_its_own_in_a_run_of_one_iteration(first: int) -> None:
    run = run_of(reward__mean=[0.5] * 4)
    run.scalars["cold_start/loss"] = series([3.0, 1.0, 0.5], first)
    assert run.iterations == 1
    assert dict(table([run]))["loss of the cold start (nats per token)"] == ["3 → 0.5"]


def test_one_evaluation_is_not_taken_for_an_after(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", iterations=1, finished=False, evaluations={0: 0.25}))
    assert headline(run).startswith("held-out accuracy 0.25 [0.21, 0.29] before, not evaluated after (4 upd")
    assert judged(run)["learning"].startswith("not evaluated")


def test_a_resumed_run_shows_each_step_once_and_the_later_value(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for first, last, value in ((1, 30, 0.1), (20, 40, 0.9)):
        writer = SummaryWriter(str(folder), filename_suffix=f".{first}")
        for step in range(first, last + 1):
            writer.add_scalar("reward/mean", value, step)
        writer.close()
        for path in folder.glob(f"*.{first}"):  # names are read in order of their time stamp
            os.rename(path, path.with_name(f"events.out.tfevents.{1000 + first}.host"))
    reward = read_run(folder).scalars["reward/mean"]
    assert reward.steps.tolist() == list(range(1, 41))
    assert reward.values.tolist() == pytest.approx([0.1] * 19 + [0.9] * 21)


@pytest.mark.parametrize("before", [0, 1000], ids=["whole", "resumed into a new folder"])
def test_updates_are_missed_in_a_run_of_which_most_events_are_thinned_out(before: int, tmp_path: Path) -> None:
    """One update an iteration: 20 in full and then every tenth, 48 up to update 500; the run went on to 509."""
    writer = SummaryWriter(str(tmp_path))
    for step in [*range(1, 21), *range(30, 501, 10)]:
        writer.add_scalar("reward/mean", 0.5, before + step)
    writer.close()
    (tmp_path / "summary.json").write_text(json.dumps({"updates": before + 509}))
    said = f"the event files lack 432 of the 500 updates up to {before + 500:,}, and scalars.jsonl has none"
    assert said in " ".join(read_run(tmp_path).problems)


def test_a_summary_older_than_the_events_is_not_believed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"updates": 40, "accuracy_after": 0.5}))
    run = read_run(folder)
    assert run.accuracy()[1] == pytest.approx(0.97, abs=0.01)
    assert "written at update 40" in run.problems[0]


def test_a_run_without_events_but_with_a_summary_is_reported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    next(folder.glob("events.*")).unlink()
    write_report([folder], folder)
    page = (folder / "report.md").read_text()
    change = "| change of held-out accuracy, 95 % interval | +0.73, no interval recorded |"
    assert f"| held-out accuracy | 0.24 → 0.97 |\n{change}" in page
    assert (
        "\n\nAn arrow, or a change, goes from the first to the last iteration, or evaluation; of a run of one" in page
    )


def test_a_folder_that_is_no_run_names_what_is_missing_and_the_runs_below(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "quickstart" / "version_3", iterations=1)
    with pytest.raises(UserError, match=r"no events\.out\.tfevents\.\* file and no summary\.json") as caught:
        main([str(tmp_path / "runs")])
    assert str(folder) in str(caught.value)
    assert not list((tmp_path / "runs").glob("report.*"))


def test_a_folder_that_does_not_exist_names_the_runs_nearby(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "version_0", iterations=1)
    with pytest.raises(UserError, match="does not exist") as caught:
        main([str(tmp_path / "version_1")])
    assert str(folder) in str(caught.value)


def test_a_file_is_answered_with_its_folder(run_folder: Path) -> None:
    with pytest.raises(UserError, match="is a file") as caught:
        main([str(run_folder / "config.yaml")])
    assert caught.value.fix is not None
    assert str(run_folder) in caught.value.fix


def test_an_output_that_cannot_be_written_is_a_mistake_of_the_user(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report([run_folder], tmp_path / "file")


def test_no_run_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder given"):
        write_report([], tmp_path)
