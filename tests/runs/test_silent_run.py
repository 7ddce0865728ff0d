"""A model whose router draws experts in train mode, through ``gspo fit``."""

from __future__ import annotations

import warnings
from pathlib import Path

from gspo_lightning.policy.tiny import character_tokenizer
from tests.runs import runs
from tests.support.exact_families import exact_model


def test_a_router_that_draws_experts_is_trained_on_ratios_of_1(tmp_path: Path) -> None:
    model = exact_model("phimoe")
    model.save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = runs.fit(
            tmp_path, *runs.UNTAUGHT, f"--model.name_or_path={tmp_path / 'model'}", "--trainer.max_epochs=1",
            "--data.val=null", "--trainer.num_sanity_val_steps=0", "--data.prompts_per_rollout=2",
            "--data.max_response_tokens=6", "--data.train.size=64",
        )  # fmt: skip
    assert not [w for w in said if "eval mode" in str(w.message)]
    assert runs.scalars(run)["ratio/max"][0][1] == 1.0
    assert runs.scalars(run)["noise/sampler_logprob_gap"][0][1] < 1e-5
    before, after = model.state_dict(), runs.weights(run)
    routers = [name for name in before if "router" in name]
    assert len(routers) == 2
    assert all(float((after[f"policy.model.{name}"] - before[name]).abs().max()) > 0 for name in routers)
