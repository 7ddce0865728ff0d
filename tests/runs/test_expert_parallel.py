"""Expert parallelism in whole runs: ranks that keep their experts make the updates of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.processes import run_module
from tests.runs.test_context_parallel import mesh
from tests.runs.test_strategies import MOE, OFFLOADED, Case, assert_resumes, assert_same_run

CASES = {
    "GSPO": MOE,
    "GRPO with R3": [*MOE, "--model.objective=GRPO", "--model.routing_replay=R3"],
    "snapshot of old weights": [*MOE, *OFFLOADED],
    "critic": [
        *MOE, "--model.objective=PPO", "--data.advantages=GAE", "--model.critic=ValueModel", "--model.critic.lr=1e-3",
    ],
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one_process_and_go_on_with_or_without(name: str, tmp_path: Path) -> None:
    case = Case("ep", CASES[name])
    two = case.run(tmp_path / "two")
    assert mesh(two) == {"parallel/cp": 1.0, "parallel/ep": 2.0, "parallel/replicate": 1.0, "parallel/shard": 2.0}
    assert_same_run(case, two, tmp_path / "one")
    assert assert_resumes(case, two, tmp_path / "resumed") == 0.0
    assert assert_resumes(Case("fsdp2", case.options), two, tmp_path / "fsdp2") < 1e-6


@pytest.mark.thorough
def test_four_ranks_with_four_experts_each_are_one_process(tmp_path: Path) -> None:
    case = Case("ep", [*MOE, "--data.prompts_per_rollout=8"])
    assert_same_run(case, case.run(tmp_path / "four", ranks=4), tmp_path / "one")


@pytest.mark.thorough
def test_a_dense_model_is_refused_before_its_cold_start(tmp_path: Path) -> None:
    argv = ["fit", f"--config={runs.QUICKSTART}", f"--config={runs.ROOT / 'configs' / 'ep.yaml'}", *runs.SMALL]
    argv += ["--trainer.accelerator=cpu", "--trainer.devices=2", f"--trainer.default_root_dir={tmp_path}"]
    ended = run_module("gspo_lightning", *argv)
    assert ended.returncode == 2
    assert "trainer.strategy.expert_parallel: is true, but Qwen3ForCausalLM has no experts" in ended.stderr
    assert not (tmp_path / "cold_start").exists()
