"""Real vLLM samples for two FSDP2 ranks while they train."""

from __future__ import annotations

from pathlib import Path

from tests.real_vllm import served
from tests.real_vllm.test_training import RECORD, recorded, through
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

pytestmark = served.VLLM


def test_a_server_samples_ahead_for_two_ranks_with_shards(url: str, tmp_path: Path) -> None:
    """Log-probabilities are those of the weights sent before: of the first iteration, the trainer's own."""
    options = [*runs.UNTAUGHT, served.HEADS, through(urls=[url]), RECORD, "--data.max_staleness=1",
               "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=1"]  # fmt: skip
    run = fit_on_ranks(tmp_path / "two", *options, overlay="fsdp2")
    rows = recorded(run)
    assert len(rows) == 3 * 32
    assert {(row["iteration"], row["policy_version"]) for row in rows} == {(0, 0), (1, 0), (2, 2)}
    scalars = runs.scalars(run)
    assert scalars["noise/sampler_logprob_rms"][0][1] < 1e-5
    assert [age for _, age in scalars["staleness/max_age"]] == [0, 0, 2, 2, 2, 2]
