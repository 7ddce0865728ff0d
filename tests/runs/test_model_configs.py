"""Configs of real models and data: they plan as they are, run at toy size, and pay the data's own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.plan.models import config_of
from gspo_lightning.core.registry import component
from gspo_lightning.data.prompts.prompt_set import map_columns
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.rewards import Reward
from tests.data.prompts.pictures.test_pictures import TEMPLATE
from tests.runs import runs
from tests.runs.test_configs import real_model  # noqa: F401 (a fixture)
from tests.support.pictures import png

CONFIGS = runs.ROOT / "configs"
SEEING = "qwen3_vl_4b"
MODELS = sorted(p.stem for p in (CONFIGS / "models").glob("*.yaml"))
DEVICES = {name: "24GB" if name.endswith("24gb") else "80GB" for name in MODELS}
SHARDED = ["--trainer.strategy=fsdp"]
TOY = [
    "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.precision=32-true", "--data.prompts_per_rollout=4",
    "--data.max_response_tokens=8", "--data.reward_workers=1", "--trainer.max_epochs=1", "--data.val=null",
]  # fmt: skip
BOX = r"so \boxed{%s}"
PROGRAM = "```python\nprint(int(input()) + 1)\n```"
RECORDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "gsm8k": ({"question": "6*7?", "answer": "6*7=42\n#### 42"}, BOX % 42, BOX % 41),
    "geometry3k": (
        {"problem": "<image>Find $x$.", "answer": r"2 \sqrt { 221 }"}, BOX % r"2\sqrt{221}", BOX % r"2\sqrt{22}",
    ),
    "math": ({"problem": "6*7?", "solution": r"It is $\boxed{42}$.", "level": "1"}, BOX % 42, "42"),
    "dapo17k": (
        {"prompt": [{"role": "user", "content": "6*7?"}], "reward_model": {"ground_truth": "42", "style": "rule"}},
        BOX % 42, BOX % 41,
    ),
    "taco": (
        {"question": "Add one.", "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})},
        PROGRAM, "```python\nprint(1)\n```",
    ),
    "codecontests": (
        {
            "description": "Add one.", "time_limit": {"seconds": 2, "nanos": 0},
            "public_tests": {"input": ["1\n"], "output": ["2\n"]}, "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["5\n"], "output": ["6\n"]},
        },
        PROGRAM, "```python\nprint(2)\n```",
    ),
    "livecodebench": (
        {
            "question_content": "Add one.", "metadata": "{}",
            "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
        },
        PROGRAM, "```python\nprint(1)\n```",
    ),
    "puzzles": (
        {"question": "Reach 22 with 3, 5, 7.", "answer": "3 5 7 = 22", "family": "countdown"},
        "<answer>3*5+7</answer>", "<answer>22</answer>",
    ),
    "reasoning_gym": (
        {
            "prompt": "3 + 4 =", "answer": "7", "family": "chain_sum",
            "entry": "{'question': '3 + 4 =', 'answer': '7', 'metadata': {}}",
        },
        "<answer>7</answer>", "<answer>7 or 8</answer>",
    ),
    "ifeval": (
        {
            "key": 1, "prompt": "Say yes without a comma.", "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{"num_words": None, "relation": None}],
        },
        "Yes.", "Yes, yes.",
    ),
}  # fmt: skip
"""Overlay -> a record as the data set has it, a completion that is right, one that is not."""


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def test_every_data_overlay_has_a_record_here() -> None:
    assert {p.stem for p in (CONFIGS / "data").glob("*.yaml")} == set(RECORDS)


@pytest.mark.thorough("gsm8k")
@pytest.mark.parametrize("name", RECORDS)
def test_the_reward_of_a_data_set_pays_its_own_answers(name: str) -> None:
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    data = read(CONFIGS / "data" / f"{name}.yaml")["data"]
    record, right, wrong = RECORDS[name]
    columns = map_columns(record, data.get("columns", {}))
    (chosen,) = data["rewards"].values()
    kind, options = (chosen, {}) if isinstance(chosen, str) else (chosen["class_path"], chosen["init_args"])
    reward: Reward = component("rewards", kind)(**options)
    reward.prepare()
    needed = {column: columns[column] for column in reward.required_columns()}
    assert columns["prompt"]
    assert reward.score(right, **needed).reward == 1.0
    assert reward.score(wrong, **needed).reward == 0.0


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_model_config_fits_where_it_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = SHARDED if name in ("qwen3_4b", "qwen3_8b", SEEING) else []
    assert main(["plan", f"--config={CONFIGS / 'models' / name}.yaml", *more, f"--device={DEVICES[name]}"]) == 0
    assert "fits:" in capsys.readouterr().out


@pytest.mark.thorough("qwen3_30b_a3b", "qwen3_vl_4b")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_config_parses_with_every_data_overlay(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for overlay in RECORDS if name == MODELS[0] else ["gsm8k", *(["geometry3k"] if name == SEEING else [])]:
        files = [f"--config={CONFIGS / 'models' / name}.yaml", f"--config={CONFIGS / 'data' / overlay}.yaml"]
        assert main(["fit", *files, "--print_config"]) == 0
        printed = yaml.safe_load(capsys.readouterr().out)
        asked = read(CONFIGS / "data" / f"{overlay}.yaml")["data"]["train"]
        found = printed["data"]["train"]
        if isinstance(asked, dict):
            asked, found = asked["init_args"].items(), found["init_args"].items()
            assert [pair for pair in asked if pair not in found] == []
        else:
            assert found == asked
    if name.startswith("r1"):
        assert printed["model"]["objective"]["init_args"]["clip_low"] == 0.002
        assert printed["model"]["optimizer"]["init_args"]["lr"] == 1e-7


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n != MODELS[-1] else ()) for n in MODELS if n != SEEING]
)
def test_a_model_config_runs_at_toy_size(name: str, tmp_path: Path, real_model: Path) -> None:  # noqa: F811
    rows = [{"question": f"{i}+{i}", "answer": f"#### {2 * i}"} for i in range(1, 9)]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    content = read(CONFIGS / "models" / f"{name}.yaml")
    content["trainer"].pop("strategy", None)  # of several nodes, with servers beside them
    content["trainer"].pop("num_nodes", None)
    if content["data"].get("rollouts", {}).get("class_path") in ("VLLMServer", "VLLMEngine"):
        del content["data"]["rollouts"]
    config = tmp_path / f"{name}.yaml"
    config.write_text(yaml.safe_dump(content))
    options = [*TOY, f"--model.name_or_path={real_model}", f"--data.train={data}"]
    run = runs.fit(tmp_path, *options, config=config, small=False)
    assert runs.summary(run)["updates"] == 4


@pytest.mark.thorough
def test_the_model_that_reads_pictures_runs_on_geometry3k(tmp_path: Path) -> None:
    """A tiny model of the same family, and problems in the set's own layout: pictures are cells of ``datasets``."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    policy = load_policy(ModelSettings("tiny-qwen3-vl"))
    policy.tokenizer.chat_template = TEMPLATE
    policy.save_pretrained(tmp_path / "model")
    picture = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema(
        [("images", pyarrow.list_(picture)), ("problem", pyarrow.string()), ("answer", pyarrow.string())]
    )
    rows = [
        {"images": [{"bytes": png(i, 40 + i, 30), "path": None}], "problem": f"<image>x+{i}=?", "answer": str(i)}
        for i in range(8)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "train.parquet")
    files = [f"--config={CONFIGS / part}.yaml" for part in ("models/qwen3_vl_4b", "data/geometry3k")]
    options = [*TOY, f"--model.name_or_path={tmp_path / 'model'}", f"--data.train={tmp_path / 'train.parquet'}"]
    short = ["--data.max_prompt_tokens=200", "--data.system_prompt=ABC ", f"--trainer.default_root_dir={tmp_path}"]
    assert main(["fit", *files, *options, *short]) == 0
    (run,) = (tmp_path / "qwen3_vl_4b").iterdir()
    assert runs.summary(run)["updates"] == 4
    config = read(run / "config.yaml")
    assert (config["data"]["pictures"]["max_pixels"], config["model"]["freeze"]) == (1048576, None)
    assert runs.events(run).Images("sample_pictures")
    fields = json.loads((tmp_path / "model" / "config.json").read_text())
    known = config_of(ModelSettings(read(CONFIGS / "models" / "qwen3_vl_4b.yaml")["model"]["name_or_path"]))
    assert fields["model_type"] == known.model_type  # the family is the same
