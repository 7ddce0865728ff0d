"""Settings of other frameworks, of the wrong section, or misspelt: the table is true, one message has them all."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.foreign import Word, foreign, read_words
from gspo_lightning.commands.fit.hints import members, parameters, plain
from gspo_lightning.commands.fit.unknown import LEAVES, TOP, refuse_unknown, settings_of, whole_names
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.strategies import FSDP2Strategy
from gspo_lightning.training.callbacks import LastCheckpoint, PushToHub, TrackioLogger
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.evaluation.evaluation_settings import Evaluation
from gspo_lightning.training.module import GSPOModule
from tests import ROOT
from tools.foreign import PAGES, with_tables
from tools.rooms import PACKAGE

TRL, TRANSFORMERS, VERL = read_words("trl"), read_words("transformers"), read_words("verl")
OPENRLHF, BEGINNINGS = read_words("other")["OpenRLHF"], read_words("other")["verl"]
SECTIONS: dict[str, Any] = {"trainer": Trainer, "model": GSPOModule, "data": PromptDataModule}
KIND = {"model.objective": "objectives", "data.rollouts": "rollouts", "data.advantages": "advantages"}


def words() -> dict[str, Word]:
    found = {f"{table}:{name}": word for table, part in OPENRLHF.items() for name, word in [(table, part)]}
    for title, table in (("transformers", TRANSFORMERS), ("TRL", TRL), ("verl", VERL)):
        for part in table.values():
            found |= {f"{title}:{name}": word for name, word in part.items()}
    return found | {f"verl:{name}.*": word for name, word in BEGINNINGS.items()}


def exists(setting: str) -> bool:
    """Whether a config may hold a setting, asked of the classes themselves."""
    section, *rest = setting.split(".")
    if section not in SECTIONS:
        return not rest and section in TOP
    if not rest:
        return True
    hints = parameters(SECTIONS[section])
    if rest[0] not in hints:
        return False
    if len(rest) == 1:
        return True
    group = next((one for one in members(hints[rest[0]]) if plain(one)), None)
    if group is not None:
        return len(rest) == 2 and rest[1] in parameters(group)
    if rest[1] != "init_args" or len(rest) != 3:
        return False
    if f"{section}.{rest[0]}" == "model.optimizer":
        return rest[2] in inspect.signature(torch.optim.AdamW).parameters
    if f"{section}.{rest[0]}" == "model.critic":
        return rest[2] in inspect.signature(ValueModel).parameters
    kind = registry.components(KIND[f"{section}.{rest[0]}"])
    return any(rest[2] in inspect.signature(cls).parameters for cls in kind.values())


# the table -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_setting_that_the_table_names_exists() -> None:
    missing = {name: ours for name, word in words().items() for ours in word.ours if not exists(ours)}
    assert not missing
    assert not [setting for setting in (*LEAVES.values(), *whole_names().values()) if not exists(setting)]
    assert not exists("data.group_sise")
    assert not exists("model.objective.init_args.clip")
    assert not exists("model.lora.rank")


def component_options() -> set[str]:
    """Parameters of everything that a config can name, and flags of the commands."""
    kinds = ("objectives", "advantages", "rewards", "rollouts", "environments", "old_policies", "prompts", "curricula")
    classes = [*SECTIONS.values(), Evaluation, LoRA, ValueModel, FSDP2Strategy, LastCheckpoint]
    classes += [cls for kind in kinds for cls in registry.components(kind).values()]
    flags = re.findall(r'"--([a-z_]+)"', "".join(f.read_text() for f in (PACKAGE / "commands").rglob("*.py")))
    return {name for cls in classes for name in inspect.signature(cls).parameters} | set(flags)


ANSWERS = {
    "cpu_offload": r"(param|optimizer)_offload$",
    "PushToHub": r"(^|_)hub_(strategy|always_push|model_id|private_repo|revision)$|push_to_hub$",
    "transfer": r"group_port$",
    "enable_sleep_mode": r"sleep_mode$|free_cache_engine$",
    "max_model_len": r"max_model_len(gth)?$",
    "lockstep": r"gather_for_generation$|layered_summon$",
    "Mixture": r":datasets$|(train|val)_files$",
    "columns": r"(image|prompt)_key$",
}
"""What is here -> the words of others that ask for it, which once said that there is nothing."""


def test_table_of_foreign_settings_denies_no_existing_option() -> None:
    options = component_options()
    assert {"cpu_offload", "push_to_hub", "transfer", "columns"} <= options
    for ours, asks in ANSWERS.items():
        asking = {name: word for name, word in words().items() if re.search(asks, name)}
        assert asking, ours
        assert not [name for name, word in asking.items() if ours not in f"{word.ours} {word.note}"], ours
    denied = {name: re.split(r"[.:]", name)[-1] for name, word in words().items() if not word.ours}
    assert not [name for name, last in denied.items() if last in options and last not in words()[name].note]


def test_every_parameter_that_a_note_gives_to_a_class_is_one_of_it() -> None:
    """Where a note says ``LastCheckpoint: keep_best, best_by``."""
    kinds = ("rewards", "rollouts", "prompts")
    classes = {cls.__name__: cls for cls in (LastCheckpoint, PushToHub, TrackioLogger, FSDP2Strategy)}
    classes |= {name: cls for kind in kinds for name, cls in registry.components(kind).items()}
    said = [pair for word in words().values() for pair in re.findall(r"([A-Z]\w+): (\w+)", word.note)]
    given = [(name, word) for name, word in said if name in classes]
    assert {"LastCheckpoint", "FSDP2Strategy", "Mixture"} <= {name for name, _ in given}
    assert not [(name, word) for name, word in given if word not in inspect.signature(classes[name]).parameters]


def test_every_word_has_a_counterpart_or_a_reason() -> None:
    assert not [name for name, word in words().items() if not word.ours and not word.note]
    assert not [name for name, word in words().items() if word.note.endswith(".") or "\n" in word.note]


def test_no_word_is_in_two_places() -> None:
    for tables in ((TRANSFORMERS, TRL), (VERL,)):
        names = [name for table in tables for part in table.values() for name in part]
        assert len(names) == len(set(names))


def test_no_setting_of_ours_is_taken_for_somebody_elses() -> None:
    taken = {name for part in VERL.values() for name in part if exists(name)}
    assert not taken
    assert not [name for part in (*TRANSFORMERS.values(), *TRL.values()) for name in part if name in TOP]


def test_names_are_read_from_the_sources_as_they_are() -> None:
    for section, cls in SECTIONS.items():
        assert settings_of(section) == tuple(inspect.signature(cls).parameters)
    assert settings_of("data.evaluation") == tuple(field.name for field in dataclasses.fields(Evaluation))
    assert settings_of("model.lora") == tuple(field.name for field in dataclasses.fields(LoRA))
    assert settings_of("data.rollouts") == ()


def test_every_field_of_trls_configs_is_handled() -> None:
    if os.environ.get("GSPO_TESTS_EXPECT") != "trl":
        pytest.importorskip("trl")
    from trl import GRPOConfig, ModelConfig, ScriptArguments
    from trl.scripts.grpo import GRPOScriptArguments

    fields = [f.name for cls in (GRPOConfig, ModelConfig, ScriptArguments, GRPOScriptArguments)
              for f in dataclasses.fields(cls)]  # fmt: skip
    assert len(fields) > 200
    assert not [name for name in fields if foreign(name) is None]


def test_the_two_sides_of_the_page_are_the_same_run() -> None:
    if os.environ.get("GSPO_TESTS_EXPECT") != "trl":
        pytest.importorskip("trl")
    text = (ROOT / "docs" / "from_trl.md").read_text()
    (theirs,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    ours = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)[0])
    names: dict[str, Any] = {}
    exec(compile(theirs.replace("loss_type=", "bf16=False, loss_type="), "from_trl.md", "exec"), names)
    config, data = names["config"], ours["data"]
    assert config.generation_batch_size == data["prompts_per_rollout"] * data["group_size"] == 256
    updates = config.steps_per_generation // config.gradient_accumulation_steps
    assert updates == data["minibatches_per_rollout"] == 4
    assert config.eval_steps == ours["trainer"]["check_val_every_n_epoch"] * updates
    last = ours["trainer"]["callbacks"][0]["init_args"]
    assert (config.save_steps, config.save_total_limit) == (last["every_n_iterations"] * updates, last["keep_last"])
    clip = ours["model"]["objective"]["init_args"]
    assert (config.epsilon, config.epsilon_high) == (clip["clip_low"], clip["clip_high"])
    optimizer = ours["model"]["optimizer"]["init_args"]
    assert (config.learning_rate, config.weight_decay) == (optimizer["lr"], optimizer["weight_decay"])
    assert (config.num_generations, config.max_completion_length) == (data["group_size"], data["max_response_tokens"])
    schedule = ours["model"]["lr_scheduler"]["init_args"]
    assert str(config.lr_scheduler_type.value) == "linear"
    assert schedule == {"start_factor": 1.0, "end_factor": 0.0, "total_iters": ours["trainer"]["max_epochs"] * updates}
    assert config.reward_weights == data["reward_weights"]
    assert config.gradient_checkpointing == ours["model"]["gradient_checkpointing"]
    assert config.seed == ours["seed_everything"]


# one message ---------------------------------------------------------------------------------------------------------

TRL_CONFIG = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B", "learning_rate": 1e-6, "num_generations": 8, "loss_type": "grpo",
    "importance_sampling_level": "sequence", "epsilon": 3e-4, "per_device_train_batch_size": 8, "bf16": True,
    "use_vllm": True, "output_dir": "out", "lora_r": 16, "use_liger_kernel": True,
}  # fmt: skip
HYDRA = [
    "algorithm.adv_estimator=grpo", "data.train_batch_size=1024", "actor_rollout_ref.actor.clip_ratio_low=0.0003",
    "+actor_rollout_ref.actor.megatron.use_mbridge=True", "critic.optim.lr=1e-5", "trainer.total_epochs=15",
]  # fmt: skip


def message(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        refuse_unknown(arguments)
    return str(caught.value)


def test_a_whole_config_of_trl_is_answered_at_once(tmp_path: Path) -> None:
    (tmp_path / "trl.yaml").write_text(yaml.safe_dump(TRL_CONFIG))
    said = message("--config", str(tmp_path / "trl.yaml"), "--data.beta=0.04")
    lines = dict(line.strip().split(" -> ") for line in said.splitlines() if " -> " in line)
    answers = {name.strip(): answer.partition(":")[0] for name, answer in lines.items()}
    assert answers == {
        "model_name_or_path": "model.name_or_path",
        "learning_rate": "model.optimizer.init_args.lr",
        "num_generations": "data.group_size",
        "loss_type": "model.objective",
        "importance_sampling_level": "model.objective",
        "epsilon": "model.objective.init_args.clip_low and model.objective.init_args.clip_high",
        "per_device_train_batch_size": "data.prompts_per_rollout and data.max_tokens_per_micro_batch",
        "bf16": "trainer.precision",
        "use_vllm": "data.rollouts",
        "output_dir": "trainer.default_root_dir",
        "lora_r": "model.lora.r",
        "use_liger_kernel": "no equivalent",
        "data.beta": "model.objective.init_args.kl_coef",
    }
    assert said.startswith("config: 13 settings have other names here, or none")
    assert said.endswith("fix: rename them (all settings: docs/from_trl.md)")
    assert "grpo with importance_sampling_level sequence is GSPO" in said


def test_words_of_a_verl_script_are_answered_as_they_are_pasted() -> None:
    said = message(*HYDRA)
    assert said.startswith("config: 6 settings")
    for name, answer in (
        ("algorithm.adv_estimator", "data.advantages"),
        ("data.train_batch_size", "data.prompts_per_rollout"),
        ("actor_rollout_ref.actor.clip_ratio_low", "model.objective.init_args.clip_low"),
        ("+actor_rollout_ref.actor.megatron.use_mbridge", "no equivalent: no pipeline"),
        ("critic.optim.lr", "model.critic.init_args.lr"),
        ("trainer.total_epochs", "trainer.max_epochs: counts iterations"),
    ):
        assert any(line.split(" -> ")[0].strip() == name and answer in line for line in said.splitlines()), name
    assert said.endswith("(all settings: docs/from_verl.md)")


def test_a_nested_config_of_verl_is_answered_word_by_word(tmp_path: Path) -> None:
    config = {"actor_rollout_ref": {"actor": {"clip_ratio_low": 3e-4, "optim": {"lr": 1e-6}}, "rollout": {"n": 8}}}
    (tmp_path / "verl.yaml").write_text(yaml.safe_dump(config | {"data": {"max_prompt_length": 512}}))
    said = message(f"--config={tmp_path / 'verl.yaml'}")
    assert [line.split()[0] for line in said.splitlines() if " -> " in line] == [
        "actor_rollout_ref.actor.clip_ratio_low",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.rollout.n",
        "data.max_prompt_length",
    ]


@pytest.mark.parametrize(
    ("argument", "problem", "fix"),
    [
        ("--trainer.max_epoch=3", "is not a setting; did you mean max_epochs?", "write trainer.max_epochs"),
        ("--trainer.max_step=3", "did you mean max_steps?", "write trainer.max_steps"),
        ("--data.disable_dropout=true", "is a word of TRL that has no equivalent: always on", "leave it out"),
        ("--disable-dropout=true", "is a word of TRL that has no equivalent: always on", "leave it out"),
        ("--model.temperature=0.7", "did you mean data.temperature?", "write data.temperature"),
        ("--trainer.temperature=0.7", "did you mean data.temperature?", "write data.temperature"),
        ("--data.objective=GSPO", "did you mean model.objective?", "write model.objective"),
        ("--data.max_epochs=3", "did you mean trainer.max_epochs?", "write trainer.max_epochs"),
        ("--lr=1e-6", "did you mean model.optimizer.init_args.lr?", "write model.optimizer.init_args.lr"),
        ("--model.clip_low=1", "did you mean model.objective.init_args.clip_low?", "write model.objective.init"),
        ("--data.samples=4", "did you mean data.evaluation.samples?", "write data.evaluation.samples"),
        ("--data.evaluation.smaples=4", "did you mean samples?", "write data.evaluation.samples"),
        ("--trianer.max_epochs=4", "did you mean trainer.max_epochs?", "write trainer.max_epochs"),
        ("--temperature=0.7", "is a word of TRL", "this is called data.temperature here"),
        ("--rollout_batch_size=4", "is a word of OpenRLHF", "this is called data.prompts_per_rollout here"),
        ("--clip_ratio_c=3", "is a word of verl", "this is called model.objective.init_args.dual_clip here"),
        ("--colour=red", "is not a setting; known: allow_changed_config", None),
    ],
)
def test_misplaced_or_misspelt_setting_is_refused_with_its_fix(argument: str, problem: str, fix: str | None) -> None:
    said = message(argument)
    assert said.startswith(f"{argument.lstrip('-').partition('=')[0]}: ")
    assert problem in said
    assert f"\n  fix: {fix}" in said if fix else "fix" not in said


def test_valid_settings_are_not_taken_for_foreign_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in sorted(set((ROOT / "configs").glob("*.yaml")) - {ROOT / "configs" / "reward_model.yaml"}):
        refuse_unknown(["--config", str(file)])
    assert main(["fit", f"--config={ROOT / 'configs' / 'quickstart.yaml'}", "--print_config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    refuse_unknown(["-c", str(tmp_path / "printed.yaml")])
    refuse_unknown(
        [
            "--print_config", "--model.help", "--trainer.callbacks+=RunSummary", "--plugins+", "a.py",
            "--model.lora.r=4", "--data.train.init_args.size=3", "--data.evaluation", '{"samples": 4}',
            "--trainer.logger.class_path", "X",
            "--model.objective.init_args.epsilon=1", "--data.rewards.num_generations", "ExactMatch",
        ]
    )  # fmt: skip
    refuse_unknown(
        ["--data.rewards.judge.init_args.url", "http://host/v1?model.temperature=1", "--ckpt_path", "a/b.n=3"]
    )
    assert "data.evaluation.sample" in message("--data.evaluation", '{"sample": 4}')


def test_a_word_within_a_component_is_translated_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    config = f"--config={ROOT / 'configs' / 'quickstart.yaml'}"
    assert main(["fit", config, "--model.objective.init_args.epsilon=0.2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: model.objective.epsilon: is a word of TRL\n")
    assert "this is called model.objective.init_args.clip_low and" in error


def test_foreign_settings_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "trl.yaml").write_text(yaml.safe_dump(TRL_CONFIG))
    code = (
        "import sys\nfrom gspo_lightning.cli import main\n"
        "assert main(sys.argv[1:]) == 2\nassert not {'torch', 'lightning', 'transformers'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "fit", "--config", str(tmp_path / "trl.yaml"), *HYDRA],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "18 settings" in ran.stderr


# the pages -----------------------------------------------------------------------------------------------------------


def test_the_pages_hold_the_table() -> None:
    for page in PAGES:
        assert with_tables(page) == page.read_text(), f"python -m tools.foreign rewrites {page.name}"


@pytest.mark.thorough("from_trl.md")
@pytest.mark.parametrize("page", ["from_trl.md", "from_verl.md"])
def test_yaml_of_the_pages_parses_as_configs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        (tmp_path / "example.yaml").write_text(block)
        base = [] if "train:" in block else [f"--config={ROOT / 'configs' / 'quickstart.yaml'}"]
        assert main(["fit", *base, "--config=example.yaml", "--print_config"]) == 0
        shown = yaml.safe_load(capsys.readouterr().out)
        written = yaml.safe_load(block)
        assert shown["data"]["rewards"].keys() == written["data"]["rewards"].keys()
        assert shown["data"]["group_size"] == written["data"].get("group_size", 8)
