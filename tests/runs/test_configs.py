"""Every YAML that ships is parsed and run for one step; what is printed can be fed back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments.lab.grid import GRIDS, Grid
from gspo_lightning.cli import main
from gspo_lightning.policy.tiny import character_tokenizer
from tests.data.prompts.families import FAMILIES
from tests.runs import runs

CONFIGS = runs.ROOT / "configs"
SELF_CONTAINED = (
    "quickstart", "math", "logic", "code", "guess", "calculator", "agent", "reward_model", "vision", "smollm2",
)  # fmt: skip
OVERLAYS = sorted(
    p.stem for p in CONFIGS.glob("*.yaml") if p.stem not in (*SELF_CONTAINED, "smollm2_gym", "hsdp", "cp", "ep")
)
ONE_STEP = ["--trainer.max_epochs=1", "--data.minibatches_per_rollout=1", "--trainer.num_sanity_val_steps=0"]


@pytest.fixture
def real_model(tmp_path: Path) -> Path:
    """A folder in transformers format with a chat template, as a hub model would come."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<' if m['role'] == 'system' else '>' }}{{ m['content'] }}{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}:"
    )
    config = Qwen3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=32, vocab_size=len(tokenizer), max_position_embeddings=4096, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def resolved(config: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["fit", *config, "--print_config"]) == 0
    return capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_runs_one_step(overlay: str, taught: Path) -> None:
    one_cpu = ["--trainer.accelerator=cpu", "--trainer.devices=1"]
    epochs = [] if overlay == "coldstart" else ["--trainer.max_epochs=1"]
    own = {"moe": "--model.cold_start", "distill": "--model.teacher.cold_start"}.get(overlay)
    cold = [f"{own}.steps=2", f"{own}.demonstrations.size=64"] if own else []
    experts = [f"--config={CONFIGS / 'moe.yaml'}", "--model.cold_start=null"] if overlay == "stable_moe" else []
    run = runs.fit(taught, *experts, f"--config={CONFIGS / overlay}.yaml", *one_cpu, *cold, *epochs)
    assert runs.summary(run)["updates"] == {"coldstart": 0, "stable": 1}.get(overlay, 2)


def test_the_stable_recipes_differ_by_what_staleness_needs() -> None:
    plain, mixture = (yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in ("stable", "stable_moe"))
    assert plain["data"].pop("minibatches_per_rollout") == 1
    assert mixture["data"].pop("minibatches_per_rollout") == 2
    assert mixture["model"].pop("routing_replay") == "R2"
    assert plain == mixture
    grid = Grid.read(GRIDS / "recipe.yaml")
    options = mixture["model"]["objective"]["init_args"]
    given = dict(
        a.removeprefix("--").split("=") for a in (*grid.arguments, *grid.variants["all three"]) if "model." in a
    )
    assert (
        measured := {
            k.removeprefix("model.objective."): float(v)
            for k, v in given.items()
            if "objective.c" in k and v[0].isdigit()
        }
    )
    assert measured == {k: options[k] for k in measured}


@pytest.mark.thorough
def test_math_config_runs_one_step_on_a_local_model(tmp_path: Path, real_model: Path) -> None:
    rows = [{"problem": f"{i}+{i}", "solution": str(2 * i), "level": 1} for i in range(1, 9)]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    run = runs.fit(
        tmp_path, f"--model.name_or_path={real_model}", f"--data.train={data}", f"--data.val={data}",
        "--trainer.accelerator=cpu", "--data.prompts_per_rollout=4", "--data.max_response_tokens=8",
        "--data.reward_workers=1", "--trainer.max_epochs=1", "--data.system_prompt=ABC ", config=CONFIGS / "math.yaml",
        small=False,
    )  # fmt: skip
    summary = runs.summary(run)
    assert summary["updates"] == 4
    samples = runs.events(run).Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert any(f"`{i}+{i}`" in samples for i in range(1, 9))  # people read the prompt, not the template
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["trainer"]["precision"] == "bf16-mixed"
    assert {"val/pass@4", "val/accuracy"} <= runs.scalars(run).keys()


@pytest.mark.thorough
def test_reasoning_gym_on_a_model_with_a_chat_template_runs_one_step(tmp_path: Path, real_model: Path) -> None:
    pytest.importorskip("reasoning_gym")
    tokenizer = FAMILIES["qwen"].tokenizer()
    config = json.loads((real_model / "config.json").read_text())
    config |= {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    tokenizer.save_pretrained(tmp_path / "chat")
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(tmp_path / "chat")
    run = runs.fit(
        tmp_path, f"--config={CONFIGS / 'smollm2_gym.yaml'}", f"--model.name_or_path={tmp_path / 'chat'}", *ONE_STEP,
        "--data.train.init_args.size=64", "--data.val.init_args.size=8", "--data.prompts_per_rollout=4",
        "--data.max_prompt_tokens=2000", "--data.max_response_tokens=4", "--data.reward_workers=1",
        config=CONFIGS / "smollm2.yaml", small=False,
    )  # fmt: skip
    assert runs.summary(run)["updates"] == 1
    shown = runs.events(run).Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert any(words in shown for words in ("Who ", "final answer", "Yes or No"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["guess", "calculator"])
def test_environment_configs_run_one_step(name: str, tmp_path: Path) -> None:
    few = ["--data.train.size=64", "--data.val.size=16", "--model.cold_start.demonstrations.size=64"]
    few = few if name == "calculator" else ["--model.cold_start.demonstrations.step=10"]
    run = runs.fit(
        tmp_path, *few, "--model.cold_start.steps=2", "--trainer.max_epochs=1",
        config=CONFIGS / f"{name}.yaml",
    )  # fmt: skip
    assert runs.summary(run)["updates"] == 2
    assert all(turns >= 1 for _, turns in runs.scalars(run)["response/turns"])


@pytest.mark.thorough
def test_vision_config_runs_one_step(tmp_path: Path) -> None:
    few = ["--data.train.size=64", "--data.val.size=16", "--model.cold_start.demonstrations.size=64"]
    run = runs.fit(
        tmp_path, *few, "--model.cold_start.steps=2", "--trainer.max_epochs=1", config=CONFIGS / "vision.yaml"
    )
    assert runs.summary(run)["updates"] == 2


@pytest.mark.thorough
def test_logic_config_runs_one_step(tmp_path: Path) -> None:
    few = ["--data.train.size=64", "--data.val.size=16", "--model.cold_start.demonstrations.size=64"]
    run = runs.fit(
        tmp_path, *few, "--model.cold_start.steps=2", "--trainer.max_epochs=1", config=CONFIGS / "logic.yaml"
    )
    assert runs.summary(run)["updates"] == 2
    rewards = {v for _, v in runs.scalars(run)["reward/mean"]}
    assert rewards <= {i / 32 for i in range(33)}


@pytest.mark.thorough
def test_code_config_runs_one_step(tmp_path: Path) -> None:
    few = ["--data.train.size=64", "--data.val.size=16", "--model.cold_start.demonstrations.size=64"]
    run = runs.fit(tmp_path, *few, "--model.cold_start.steps=2", "--trainer.max_epochs=1", config=CONFIGS / "code.yaml")
    assert runs.summary(run)["updates"] == 2
    assert {v for _, v in runs.scalars(run)["reward/missing"]} == {0.0}
    assert max(v for _, v in runs.scalars(run)["reward/model_errors"]) > 0  # an untaught model writes no programs


@pytest.mark.long
def test_logic_config_learns(tmp_path: Path) -> None:
    summary = runs.summary(runs.fit(tmp_path, config=CONFIGS / "logic.yaml", small=False))
    assert summary["accuracy_before"] <= 0.8
    assert summary["accuracy_after"] >= 0.88
    assert all(example["after"].count(">") > 0 for example in summary["examples"])  # it tries the cases


@pytest.mark.thorough
def test_parquet_and_hub_folder_train_like_jsonl(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"q": f"{i}:", "a": str(i)} for i in range(10)]
    table = datasets.Dataset.from_list(rows)
    table.to_json(str(tmp_path / "p.jsonl"))
    table.to_parquet(str(tmp_path / "p.parquet"))
    (tmp_path / "hub").mkdir()
    table.to_parquet(str(tmp_path / "hub" / "train.parquet"))
    options = [*runs.UNTAUGHT, *ONE_STEP, "--data.val=null", '--data.columns={"prompt": "q", "answer": "a"}']
    trained = [
        runs.weights(runs.fit(tmp_path / str(i), *options, f"--data.train={tmp_path / source}"))
        for i, source in enumerate(["p.jsonl", "p.parquet", "hub"])
    ]
    assert runs.largest_difference(trained[0], trained[1]) == 0.0
    assert runs.largest_difference(trained[0], trained[2]) == 0.0


@pytest.mark.thorough("code", "logic", "math", "smollm2", "smollm2_gym")
@pytest.mark.parametrize("name", ["quickstart", "math", "logic", "code", "smollm2", "smollm2_gym"])
def test_printed_config_fed_back_is_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = resolved([f"--config={CONFIGS / name}.yaml"], capsys)
    (tmp_path / "printed.yaml").write_text(first)
    assert resolved([f"--config={tmp_path / 'printed.yaml'}"], capsys) == first


@pytest.mark.thorough
def test_saved_config_of_a_run_repeats_it(tmp_path: Path) -> None:
    first = runs.fit(tmp_path / "a", *runs.UNTAUGHT)
    again = tmp_path / "b"
    assert main(["fit", f"--config={first / 'config.yaml'}", f"--trainer.default_root_dir={again}"]) == 0
    (run,) = (again / "config").iterdir()
    assert runs.largest_difference(runs.weights(first), runs.weights(run)) == 0.0
    assert runs.scalars(first) == runs.scalars(run)


def test_objective_is_swapped_by_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart = f"--config={runs.QUICKSTART}"
    out = resolved([quickstart, "--model.objective=GRPO", "--model.objective.clip_low=0.1"], capsys)
    init = yaml.safe_load(out)["model"]["objective"]["init_args"]
    assert (init["clip_low"], init["clip_high"]) == (0.1, 0.27)


@pytest.mark.thorough
def test_another_logger_gets_the_scalars_and_the_settings_too(tmp_path: Path) -> None:
    logger = json.dumps({"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path / "csv")}})
    run = runs.fit(tmp_path / "run", *runs.UNTAUGHT, f"--trainer.logger={logger}")
    (file,) = (tmp_path / "csv").rglob("metrics.csv")
    header = file.read_text().splitlines()[0].split(",")
    assert set(runs.scalars(run)) <= set(header)
    (file,) = (tmp_path / "csv").rglob("hparams.yaml")
    settings = yaml.safe_load(file.read_text())
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert settings == {name: saved[name] for name in ("seed_everything", "trainer", "model", "data", "plugins")}


@pytest.mark.thorough
def test_generate_source_trains_like_the_sampler(tmp_path: Path) -> None:
    options = [*runs.UNTAUGHT, *ONE_STEP, "--data.val=null"]
    sampler = runs.fit(tmp_path / "sampler", *options, "--data.rollouts=GroupedSampler")
    generate = runs.fit(tmp_path / "generate", *options, "--data.rollouts=TransformersGenerate")
    assert runs.largest_difference(runs.weights(sampler), runs.weights(generate)) < 1e-6


@pytest.mark.thorough
def test_several_epochs_over_a_rollout_batch(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *runs.UNTAUGHT, "--data.epochs_per_rollout=3", "--trainer.max_epochs=2")
    scalars = runs.scalars(run)
    assert [v for _, v in scalars["data/iteration"]] == [0.0] * 6 + [1.0] * 6
    assert scalars["ratio/log_sequence_std"][2][1] > 0  # the second pass is off-policy from its first update on
