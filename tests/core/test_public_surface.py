"""What configs, plug-ins and notebooks name is where it was: class paths, names to import, the printed config."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from jsonargparse._util import get_import_path

from gspo_lightning.cli import main
from gspo_lightning.core import registry
from tests import ROOT

COMPONENTS = {
    "objectives": [
        "gspo_lightning.objectives.CISPO",
        "gspo_lightning.objectives.DAPO",
        "gspo_lightning.objectives.DPPOTV",
        "gspo_lightning.objectives.DrGRPO",
        "gspo_lightning.objectives.GMPO",
        "gspo_lightning.objectives.GRPO",
        "gspo_lightning.objectives.GSPO",
        "gspo_lightning.objectives.GSPOToken",
        "gspo_lightning.objectives.LUSPO",
        "gspo_lightning.objectives.MultiScale",
        "gspo_lightning.objectives.PPO",
        "gspo_lightning.objectives.REINFORCE",
        "gspo_lightning.objectives.SAPO",
        "gspo_lightning.objectives.Segment",
        "gspo_lightning.objectives.VESPO",
    ],
    "advantages": [
        "gspo_lightning.loop.advantages.BatchNormalised",
        "gspo_lightning.loop.advantages.GAE",
        "gspo_lightning.loop.advantages.GroupMean",
        "gspo_lightning.loop.advantages.GroupNormalised",
        "gspo_lightning.loop.advantages.LeaveOneOut",
        "gspo_lightning.loop.advantages.MaxRL",
        "gspo_lightning.loop.advantages.Raw",
    ],
    "rewards": [
        "gspo_lightning.rewards.CodeExecutor",
        "gspo_lightning.rewards.EnvironmentReward",
        "gspo_lightning.rewards.ExactMatch",
        "gspo_lightning.rewards.FormatReward",
        "gspo_lightning.rewards.FunctionReward",
        "gspo_lightning.rewards.IFVerifier",
        "gspo_lightning.rewards.LLMJudge",
        "gspo_lightning.rewards.LogicPuzzle",
        "gspo_lightning.rewards.MathVerifier",
        "gspo_lightning.rewards.ReasoningGym",
        "gspo_lightning.rewards.SequenceClassificationReward",
    ],
    "agents": [
        "gspo_lightning.rollouts.agents.HttpAgent",
        "gspo_lightning.rollouts.agents.PythonAgent",
    ],
    "rollouts": [
        "gspo_lightning.rollouts.AgentRollouts",
        "gspo_lightning.rollouts.EnvironmentRollouts",
        "gspo_lightning.rollouts.GroupedSampler",
        "gspo_lightning.rollouts.Recorded",
        "gspo_lightning.rollouts.TransformersGenerate",
        "gspo_lightning.rollouts.VLLMEngine",
        "gspo_lightning.rollouts.VLLMServer",
    ],
    "environments": [
        "gspo_lightning.rollouts.environments.GuessNumber",
        "gspo_lightning.rollouts.environments.ToolUse",
    ],
    "tools": [
        "gspo_lightning.rollouts.environments.Calculator",
        "gspo_lightning.rollouts.environments.PythonTool",
    ],
    "old_policies": [
        "gspo_lightning.loop.old_policy.CachedLogProbs",
        "gspo_lightning.loop.old_policy.OffloadedSnapshot",
        "gspo_lightning.loop.old_policy.ResidentSnapshot",
    ],
    "prompts": [
        "gspo_lightning.data.prompts.CalculatorTask",
        "gspo_lightning.data.prompts.ChainTask",
        "gspo_lightning.data.prompts.CodeTask",
        "gspo_lightning.data.prompts.GuessTask",
        "gspo_lightning.data.prompts.HubPrompts",
        "gspo_lightning.data.prompts.LogicTask",
        "gspo_lightning.data.prompts.Mixture",
        "gspo_lightning.data.prompts.PromptFile",
        "gspo_lightning.data.prompts.ReasoningGym",
    ],
    "curricula": [
        "gspo_lightning.data.prompts.curricula.DifficultyPools",
        "gspo_lightning.data.prompts.curricula.Informative",
        "gspo_lightning.data.prompts.curricula.TargetRate",
        "gspo_lightning.data.prompts.curricula.Uniform",
    ],
}
"""Kind -> every class path that a printed or saved config may hold since 724d79e; a path is never taken away."""
OTHERS = [
    "gspo_lightning.training.callbacks.AveragedWeights",
    "gspo_lightning.training.callbacks.Collapse",
    "gspo_lightning.training.callbacks.Dashboard",
    "gspo_lightning.training.callbacks.Interrupts",
    "gspo_lightning.training.callbacks.LastCheckpoint",
    "gspo_lightning.training.callbacks.NewOptimizerSettings",
    "gspo_lightning.training.callbacks.PredictionWriter",
    "gspo_lightning.training.callbacks.RunProgress",
    "gspo_lightning.training.callbacks.RunSummary",
    "gspo_lightning.training.callbacks.SideBySide",
    "gspo_lightning.training.callbacks.AtomicCheckpointIO",
    "gspo_lightning.policy.strategies.FSDP2Strategy",
    "gspo_lightning.policy.strategies.FSDPStrategy",
]
"""The same, of what Lightning's own settings take."""
NAMES = {
    "gspo_lightning": ["GSPOConfig", "GSPOModule", "GSPOTrainer", "PromptDataModule", "__version__"],
    "gspo_lightning.cli": ["entry_point", "main"],
    "gspo_lightning.rollouts.environments": ["Environment", "Messages", "Step", "Tool"],
    "gspo_lightning.objectives": ["Objective"],
    "gspo_lightning.data.prompts": ["PromptSet"],
    "gspo_lightning.rewards": ["Reward", "Sample", "Score"],
    "gspo_lightning.rollouts": ["Environment", "RolloutSource"],
    "gspo_lightning.core.types": ["MicroBatch", "MiniBatch", "ObjectiveOutput", "Prompt", "Rollout"],
}
"""What the README, the docs and plug-ins import beside the components."""
PRINTED = Path(__file__).with_name("printed_config.yaml")
"""``gspo fit --config configs/quickstart.yaml --config configs/lora.yaml --print_config`` at 724d79e; no versions."""


def named(path: str) -> type:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind, paths in COMPONENTS.items() for path in paths])
def test_a_component_has_the_path_under_which_it_was_printed(kind: str, path: str) -> None:
    cls = named(path)
    assert registry.component(kind, path) is cls
    assert registry.components(kind)[cls.__name__] is cls
    assert get_import_path(cls) == path  # how the next config will name it


@pytest.mark.parametrize("path", OTHERS)
def test_a_callback_or_strategy_has_the_path_under_which_it_was_printed(path: str) -> None:
    assert get_import_path(named(path)) == path


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_a_name_is_where_it_was_imported_from(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_a_config_is_printed_as_it_was(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = [f"--config=configs/{name}.yaml" for name in ("quickstart", "lora")]
    assert main(["fit", *files, "--print_config"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert shown == PRINTED.read_text().splitlines()
