"""Rollouts of several rows through ``gspo fit``: from a plug-in, recorded, replayed, interrupted, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.test_invariance import SGD

HERE = Path(__file__).parent
OPTIONS = [
    "--model.cold_start=null", f'--plugins=["{HERE / "graded.py"}", "{HERE / "compacting.py"}"]',
    '--data.rewards={"graded": "Graded"}', "--data.rollouts=Compacting", "--data.kl_in_reward=0.1",
    "--data.max_tokens_per_micro_batch=60", "--data.minibatches_per_rollout=2",
]  # fmt: skip
CRITIC = ["--model.objective=GSPOToken", "--data.advantages=GAE", "--model.critic=ValueModel", "--model.critic.lr=1e-3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("whole"), *OPTIONS, "--data.record_rollouts=true")


@pytest.mark.thorough
def test_half_of_the_rollouts_have_two_rows_and_every_row_its_own_context(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 prompts of 4 responses, 2 with two rows each: 24 rows a mini-batch; the sampler's log-probabilities fit."""
    seen = runs.handed_out(monkeypatch)
    again = runs.fit(tmp_path, *OPTIONS)
    assert [batch.num_rows for batch in seen] == [24] * 4
    assert runs.largest_difference(runs.weights(again), runs.weights(whole)) == 0.0
    gaps = [value for _, value in runs.scalars(whole)["noise/sampler_logprob_gap"]]
    assert max(gaps) < 1e-4  # of a row after another context it would be a nat
    rows = [json.loads(line) for line in (whole / "rollouts" / "000000.jsonl").read_text().splitlines()]
    assert len(rows) == 32
    assert sum("row_ends" in row for row in rows) == 16
    sizes = [sum(row["response_mask"]) for row in rows]
    assert runs.scalars(whole)["response/length"][0][1] == pytest.approx(sum(sizes) / 32)


@pytest.mark.thorough
def test_a_recording_replays_the_rows_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    source = ["--data.rollouts=Recorded", f"--data.rollouts.path={whole / 'rollouts'}"]
    again = runs.fit(tmp_path, *OPTIONS, *source, "--trainer.limit_val_batches=0")
    assert runs.largest_difference(runs.weights(again), runs.weights(whole)) == 0.0
    lost = tmp_path / "lost"
    lost.mkdir()
    for file in (whole / "rollouts").iterdir():
        rows = [json.loads(line) | {"logprobs": None} for line in file.read_text().splitlines()]
        (lost / file.name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = ["--data.rollouts=Recorded", f"--data.rollouts.path={lost}", "--data.rollouts.missing_logprobs=recompute"]
    again = runs.fit(tmp_path / "recomputed", *OPTIONS, *source, "--trainer.limit_val_batches=0")
    assert runs.largest_difference(runs.weights(again), runs.weights(whole)) < 1e-4


@pytest.mark.thorough
def test_rows_of_weight_one_train_otherwise_and_a_single_row_does_not_care(tmp_path: Path, whole: Path) -> None:
    rows = runs.fit(tmp_path / "rows", *OPTIONS, "--data.rows=row")
    assert runs.largest_difference(runs.weights(rows), runs.weights(whole)) > 1e-5
    single = [*OPTIONS, "--data.rollouts.also=false"]
    one, two = (runs.fit(tmp_path / name, *single, f"--data.rows={name}") for name in ("row", "rollout"))
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], CRITIC], ids=["group", "critic"])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, options: list[str]) -> None:
    """After the first of two mini-batches: rows of the other are in the checkpoint."""
    undisturbed = runs.fit(tmp_path / "undisturbed", *OPTIONS, *options)
    with runs.interrupted(lambda loader: loader.iteration == 1 and loader.trained == 1):
        runs.fit(tmp_path / "cut", *OPTIONS, *options, code=130)
    resumed = runs.fit(tmp_path / "cut", *OPTIONS, *options, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(undisturbed)) == 0.0
    assert runs.scalars(resumed) == runs.scalars(undisturbed)


@pytest.mark.thorough
def test_micro_batches_and_ranks_do_not_change_the_training(tmp_path: Path) -> None:
    options = [*OPTIONS, *SGD]
    wanted = runs.weights(runs.fit(tmp_path / "one", *options))
    larger = runs.weights(runs.fit(tmp_path / "larger", *options, "--data.max_tokens_per_micro_batch=4096"))
    assert runs.largest_difference(wanted, larger) < 1e-5
    two, log = tmp_path / "two", tmp_path / "two.log"
    ranks = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"]
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={two}", *options, *ranks]
    assert set(Command(argv, 2, log=log).start().wait(240)) == {0}, log.read_text()
    (run,) = (two / "quickstart").iterdir()
    assert runs.largest_difference(wanted, runs.weights(run)) < 1e-5
