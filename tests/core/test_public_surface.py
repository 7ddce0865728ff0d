"""What configs, plug-ins and notebooks name is found: class paths, names to import, the printed config, old names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from jsonargparse._util import get_import_path

from gspo_lightning.cli import main
from gspo_lightning.core import errors, moved_names, registry
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
"""Kind -> every class path that a printed or saved config may hold; a path is never taken away."""
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
MOVED = {
    "gspo_lightning.advantages.GAE": "advantages",
    "gspo_lightning.advantages.within_groups.GroupNormalised": "advantages",
    "gspo_lightning.callbacks.collapse.callback.Collapse": None,
    "gspo_lightning.callbacks.LastCheckpoint": None,
    "gspo_lightning.critic.ValueModel": None,
    "gspo_lightning.environments.Environment": None,
    "gspo_lightning.environments.ToolUse": "environments",
    "gspo_lightning.environments.Calculator": "tools",
    "gspo_lightning.errors.UserError": None,
    "gspo_lightning.old_policy.CachedLogProbs": "old_policies",
    "gspo_lightning.old_policy.snapshots.ResidentSnapshot": "old_policies",
    "gspo_lightning.prompts.PromptFile": "prompts",
    "gspo_lightning.prompts.tasks.chain.ChainTask": "prompts",
    "gspo_lightning.prompts.curricula.TargetRate": "curricula",
    "gspo_lightning.sandbox.Sandbox": None,
    "gspo_lightning.strategies.FSDP2Strategy": None,
    "gspo_lightning.types.Rollout": None,
}
"""Class paths of before the wings, of every module that moved with them -> kind, if it is a component."""
PRINTED = Path(__file__).with_name("printed_config.yaml")
"""``gspo fit --config configs/quickstart.yaml --config configs/lora.yaml --print_config``; no versions."""


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


@pytest.mark.parametrize(("path", "kind"), MOVED.items())
def test_an_old_name_is_the_same_class_and_is_printed_under_the_new_one(path: str, kind: str | None) -> None:
    cls = named(path)
    assert cls is named(moved_names.current(path))
    assert cls.__module__ == moved_names.current(cls.__module__)
    assert moved_names.current(get_import_path(cls) or "") == get_import_path(cls)
    if kind is not None:
        assert registry.component(kind, path) is cls


def test_the_tests_of_old_names_leave_none_out() -> None:
    listed = {path.split(".")[1] for path in MOVED} | {"inspect", "registry", "statistics"}  # modules of functions
    assert listed == moved_names.MOVED.keys()
    for old in moved_names.MOVED:
        new = importlib.import_module(moved_names.current(f"gspo_lightning.{old}"))
        assert importlib.import_module(f"gspo_lightning.{old}") is new
        assert new.__spec__ is not None
        assert new.__spec__.name == new.__name__  # the module is what it was before it was asked for by its old name


def test_an_old_name_says_the_new_one_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    errors.say_renamed.cache_clear()  # once a process otherwise
    for name in [name for name in sys.modules if name.startswith("gspo_lightning.prompts")]:
        monkeypatch.delitem(sys.modules, name)
    assert named("gspo_lightning.prompts.tasks.chain.ChainTask") is named("gspo_lightning.prompts.ChainTask")
    (message,) = [m for m in caplog.messages if "is called" in m]
    assert message.startswith("gspo_lightning.prompts is called gspo_lightning.data.prompts now")


def test_a_module_that_never_was_is_none() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"gspo_lightning\.data\.prompts\.never"):
        importlib.import_module("gspo_lightning.prompts.never")
    with pytest.raises(ModuleNotFoundError, match=r"gspo_lightning\.promptz"):
        importlib.import_module("gspo_lightning.promptz")


def test_a_config_of_before_the_wings_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    text = PRINTED.read_text()
    for old, new in moved_names.MOVED.items():
        text = text.replace(f"gspo_lightning.{new}.", f"gspo_lightning.{old}.")
    assert "class_path: gspo_lightning.prompts.ChainTask" in text
    (tmp_path / "old.yaml").write_text(text)
    assert main(["fit", f"--config={tmp_path / 'old.yaml'}", "--print_config"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert shown == text.splitlines()


def test_a_config_is_printed_as_it_was(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = [f"--config=configs/{name}.yaml" for name in ("quickstart", "lora")]
    assert main(["fit", *files, "--print_config"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert shown == PRINTED.read_text().splitlines()
