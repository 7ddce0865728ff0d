"""What a person finds in TensorBoard without setting anything up, read back from the event file of a real run."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from gspo_lightning.commands.fit import cli
from gspo_lightning.core.metric_table import table
from gspo_lightning.training.callbacks import dashboard
from tests.runs import runs


@pytest.fixture(scope="module")
def reader(quickstart: Path) -> EventAccumulator:
    return runs.events(quickstart)


def layout(reader: EventAccumulator) -> dict[str, dict[str, list[str]]]:
    """category -> chart -> regular expressions of its tags."""
    (event,) = reader.Tensors("custom_scalars__config__")
    found = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts: dict[str, dict[str, list[str]]] = {}
    for category in found.category:
        charts[category.title] = {}
        for chart in category.chart:
            bands = [f"^{tag}$" for s in chart.margin.series for tag in (s.value, s.lower, s.upper)]
            charts[category.title][chart.title] = list(chart.multiline.tag) + bands
    return charts


def test_layout_asks_questions_and_no_chart_is_empty(reader: EventAccumulator) -> None:
    written = reader.Tags()["scalars"]
    found = layout(reader)
    assert next(iter(found)) == "1 Does it learn?"
    empty = [
        chart
        for charts in found.values()
        for chart, patterns in charts.items()
        if not any(re.search(p, tag) for p in patterns for tag in written)
    ]
    assert not empty
    assert "6 Mixture of experts" not in found


def test_charts_of_what_only_some_runs_log_are_there_when_it_is() -> None:
    found = dashboard.layout(routers=True, reference=True, staleness=True)
    assert found == dashboard.LAYOUT
    sometimes = [found["2 Is it stable?"]["KL to the reference"], found["5 Is the sampler the policy?"]["staleness"]]
    for _, patterns in [*sometimes, *found["6 Mixture of experts"].values()]:
        assert all(any(re.search(p, spec.tag) for spec in table.METRICS) for p in patterns)


def test_a_chart_shows_its_tags_and_no_others(reader: EventAccumulator) -> None:
    written = reader.Tags()["scalars"]
    (pattern,) = layout(reader)["2 Is it stable?"]["gradient norm before clipping"]
    assert [tag for tag in written if re.search(pattern, tag)] == ["optim/gradient_norm"]
    for charts in layout(reader).values():
        for patterns in charts.values():
            for tag in (t for t in written if any(re.search(p, t) for p in patterns)):
                assert table.lookup(tag) is not None


def test_histograms_are_those_of_the_first_update_and_of_every_twentieth(reader: EventAccumulator) -> None:
    for tag in ("ratio/histogram", "ratio/token_histogram"):
        assert [e.step for e in reader.Histograms(tag)] == [1, 20, 40, 60, 80]
    for tag in ("reward/histogram", "response/length_histogram"):  # of the iterations that hold them, at their start
        assert [e.step for e in reader.Histograms(tag)] == [1, 17, 37, 57, 77]


def test_histograms_hold_every_sequence_and_token(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *runs.UNTAUGHT, "--model.histogram_every=1", "--data.minibatches_per_rollout=4")
    reader = runs.events(run)
    sequences = reader.Histograms("ratio/histogram")
    assert [e.step for e in sequences] == list(range(1, 9))
    assert {e.histogram_value.num for e in sequences} == {8}
    tokens = {e.step: e.histogram_value.num for e in reader.Histograms("ratio/token_histogram")}
    signed = dict.fromkeys(tokens, 0.0)
    for sign in ("positive", "negative"):
        for e in reader.Histograms(f"ratio/token_histogram_{sign}"):
            signed[e.step] += e.histogram_value.num
    lengths = {e.step: e.histogram_value for e in reader.Histograms("response/length_histogram")}
    assert sum(tokens[step] for step in (1, 2, 3, 4)) == lengths[1].sum  # the four mini-batches of an iteration
    assert all(signed[step] <= tokens[step] for step in tokens)
    assert {h.num for h in lengths.values()} == {32}
    assert sorted(lengths) == [1, 5]


def test_samples_are_shown_at_evaluations_and_of_the_first_iteration(reader: EventAccumulator) -> None:
    assert [e.step for e in reader.Tensors("samples/text_summary")] == [1, 17, 37, 57, 77]  # of iterations 1, 5, 10 ...


def test_advantages_of_a_rollout_batch_add_up_to_nothing(reader: EventAccumulator) -> None:
    for event in reader.Histograms("reward/advantage_histogram"):
        assert event.histogram_value.sum == pytest.approx(0, abs=1e-3)


def test_text_says_how_to_read_and_shows_the_extremes(reader: EventAccumulator) -> None:
    def text(tag: str, at: int) -> str:
        found: bytes = reader.Tensors(f"{tag}/text_summary")[at].tensor_proto.string_val[0]
        return found.decode()

    assert "Custom Scalars" in text("how_to_read", 0)
    samples = text("samples", -1)
    for shown_as in ("sample", "largest advantage", "smallest advantage", "longest", "most repetitive"):
        assert f"| {shown_as} |" in samples
    assert samples.count("| 1 |") > 6, "nearly all answers are right at the end"


def test_the_picture_of_the_run_is_there_at_the_end(quickstart: Path, reader: EventAccumulator) -> None:
    (picture,) = reader.Images("report")
    assert picture.step == 80
    header = (quickstart / "report.png").read_bytes()[16:24]  # IHDR: width and height
    assert (picture.width, picture.height) == (int.from_bytes(header[:4]), int.from_bytes(header[4:]))


@pytest.mark.thorough
def test_a_logger_that_knows_numbers_only_gets_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_csv(*_: Any) -> CSVLogger:
        return CSVLogger(tmp_path, name="quickstart")

    monkeypatch.setattr(cli, "loggers_of", only_csv)
    run = runs.fit(tmp_path, *runs.UNTAUGHT)
    assert not list(run.glob("events.*"))
    with open(run / "metrics.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    updates = [row for row in rows if row["reward/mean"]]
    assert [int(row["step"]) for row in updates] == [1, 2, 3, 4]
    for tag in ("loss", "ratio/log_sequence_p95", "response/length_p50", "collapse/alarms"):
        assert all(row[tag] for row in updates), tag
    assert any(row["val/accuracy"] for row in rows)
    assert runs.summary(run)["updates"] == 4
