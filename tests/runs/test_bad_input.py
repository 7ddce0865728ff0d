"""A user's mistake gets one clear message and exit code 2, before the first rollout, with nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs

MISTAKES = {
    "typo in an objective": (["--model.objective=GPSO"], ["model.objective", "GPSO", "did you mean GSPO"]),
    "typo in a reward": (['--data.rewards={"correct": "ExactMach"}'], ["rewards", "ExactMach", "did you mean ExactMatch"]),
    "typo in a prompt set": (["--data.train=ChanTask"], ["ChanTask"]),
    "typo in a rollout source": (["--data.rollouts=GroupSampler"], ["GroupSampler", "did you mean GroupedSampler"]),
    "typo in a setting": (["--data.group_sise=4"], ["data.group_sise", "is not a setting", "did you mean group_size"]),
    "typo beside a critic": (["--config=critic", "--data.train.sise=8"], ["data.train.sise", "did you mean size"]),
    "typo in a critic": (["--model.critic=ValueMdel"], ["model.critic", "did you mean ValueModel"]),
    "typo in a model setting": (["--model.objectiv=GSPO"], ["did you mean objective"]),
    "unknown section": (["--dat.group_size=4"], ["did you mean data"]),
    "word of another framework": (["--data.num_generations=4"], ["this is called data.group_size here"]),
    "another word": (["--model.objective=GSPO", "--model.objective.epsilon=0.2"], ["clip_low"]),
    "wrong type": (["--data.group_size=many"], ["data.group_size", "many"]),
    "wrong type in an objective": (["--model.objective=GSPO", "--model.objective.clip_low=wide"], ["clip_low", "wide"]),
    "group of one": (["--data.group_size=1"], ["data.group_size", "at least 2"]),
    "indivisible": (["--data.prompts_per_rollout=9"], ["data.prompts_per_rollout", "8 or 10"]),
    "zero": (["--data.prompts_per_rollout=0"], ["data.prompts_per_rollout", "at least 1"]),
    "too few prompts": (["--data.train=ChainTask", "--data.train.size=7"], ["data.train", "7 usable prompts"]),
    "clip range of the wrong level": (["--model.objective=GSPO", "--model.objective.clip_low=0.2"], ["3e-4", "allow_unusual_clip"]),
    "and the other way round": (["--model.objective=GRPO", "--model.objective.clip_low=3e-4"], ["allow_unusual_clip"]),
    "impossible clip range": (["--model.objective=GSPO", "--model.objective.clip_low=-1"], ["clip_low"]),
    "greedy training": (["--data.temperature=0"], ["data.temperature", "above 0"]),
    "budget too small": (["--data.max_tokens_per_micro_batch=10"], ["max_tokens_per_micro_batch", "at least 28"]),
    "longer than the model": (["--data.max_response_tokens=600"], ["512"]),
    "accumulation": (["--trainer.accumulate_grad_batches=2"], ["max_tokens_per_micro_batch"]),
    "half precision": (["--trainer.precision=16-mixed"], ["bf16-mixed"]),
    "Lightning's own sharding": (["--trainer.strategy=fsdp"], ["trainer.strategy", "--config fsdp2"]),
    "missing prompt file": (["--data.train=missing.jsonl"], ["missing.jsonl", "does not exist"]),
    "missing model folder": (["--model.name_or_path=/no/such/model"], ["model.name_or_path", "/no/such/model"]),
    "typo in a tiny model": (["--model.name_or_path=tiny-qwen"], ["tiny-qwen3"]),
    "missing checkpoint": (["--ckpt_path=nowhere.ckpt"], ["ckpt_path", "nowhere.ckpt"]),
    "missing plug-in": (["--plugins=plugins/nowhere.py"], ["plugins", "nowhere.py", "does not exist"]),
    "missing column": (["--data.rewards={\"m\": {\"class_path\": \"ExactMatch\"}}", "--data.columns={\"gold\": \"answer\"}", "--data.train=PROMPTS"], ["answer"]),
    "segments without delimiters": (["--model.objective=Segment", "--model.objective.by=given"], ["segment_delimiters"]),
    "delimiters without segments": (['--model.segment_delimiters=[";"]'], ["segment_delimiters", "neither"]),
    "negative KL in the reward": (["--data.kl_in_reward=-1"], ["data.kl_in_reward"]),
    "greedy with several samples": (["--data.evaluation.samples=4"], ["data.evaluation.samples"]),
    "impossible pass@k": (["--data.evaluation.pass_at=[3]"], ["pass@3"]),
    "weight of an unknown reward": (['--data.reward_weights={"corect": 1.0}'], ["corect", "did you mean correct"]),
    "snapshot that cannot last": (["--model.old_policy=CachedLogProbs", "--model.old_policy.refresh_every=2"], ["ResidentSnapshot"]),
    "random seed": (["--seed_everything=true"], ["seed_everything"]),
    "aggregation of another framework": (["--data.loss_agg_mode=token-mean"], ["each brings its own aggregation"]),
    "truncated sampling in training": (["--data.top_p=0.9"], ["data.evaluation.top_p"]),
    "system prompt without a chat template": (["--data.system_prompt=Think."], ["data.system_prompt", "chat template"]),
    "evaluations inside an iteration": (["--trainer.val_check_interval=2"], ["check_val_every_n_epoch"]),
    "special token as a stop string": (['--data.stop_strings=["<eos>"]'], ["data.stop_strings", "'<eos>'", "data.stop_token_ids: [1]"]),
    "special token in a stop string": (['--data.stop_strings=["7<pad>"]'], ["data.stop_strings", "'<pad>'", "data.stop_token_ids: [0]"]),
    "stop string that cannot be written": (['--data.stop_strings=["Ω"]'], ["data.stop_strings", "'Ω'", "cannot write"]),
    "empty stop string": (['--data.stop_strings=[""]'], ["data.stop_strings", "empty"]),
    "learning rate below 0": (["--model.optimizer.lr=-1"], ["model.optimizer.lr: is -1.0, which AdamW refuses: Invalid learning rate: -1.0", "fix"]),
    "learning rate below 0, long form": (["--model.optimizer.init_args.lr", "-1"], ["model.optimizer.lr:", "-1.0"]),
    "a beta above 1": (["--model.optimizer.betas=[0.9,1.5]"], ["model.optimizer.betas:", "AdamW", "1.5"]),
    "another optimizer's setting": (["--model.optimizer=torch.optim.SGD", "--model.optimizer.momentum=-2"], ["model.optimizer.momentum:", "SGD", "-2"]),
    "no devices": (["--trainer.devices=0"], ["trainer", "devices='0'"]),
    "negative skips": (["--model.max_skips=-1"], ["model.max_skips"]),
    "checkpoints that keep nothing": (['--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"keep_last": 0}}]'], ["keep_last", "at least 1"]),
    "plug-in with a broken import": (["--plugins=PLUGIN:import no_such_package"], ["plugins", "No module named 'no_such_package'"]),
    "reward that raises": (["--plugins=PLUGIN:" + "return 1 / 0", '--data.rewards={"bad": "Bad"}'], ["bad", "ZeroDivisionError"]),
    "reward that returns a text": (["--plugins=PLUGIN:" + "return 'good'", '--data.rewards={"bad": "Bad"}'], ["bad", "'good'"]),
    "reward that returns a NaN": (["--plugins=PLUGIN:" + "return float('nan')", '--data.rewards={"bad": "Bad"}'], ["bad", "finite"]),
    "reward with an unknown argument": (["--plugins=PLUGIN:" + "return float(len(gold))", '--data.rewards={"bad": "Bad"}'], ["bad", "gold"]),
    "folder that cannot be written": (["--trainer.default_root_dir=PLAINFILE/below"], ["trainer.default_root_dir"]),
}  # fmt: skip


def plugin(folder: Path, body: str) -> Path:
    """A plug-in file with an import, or with a reward of that body."""
    file = folder / f"bad_{abs(hash(body))}.py"
    columns = ", gold" if "gold" in body else ""
    reward = f"class Bad{len(body)}(Reward):\n    def score(self, completion: str{columns}) -> float:\n        {body}\n"
    code = body if body.startswith("import") else f"from gspo_lightning.rewards import Reward\n{reward}"
    file.write_text(code + "\n")
    return file


@pytest.mark.thorough("reward that raises", "reward that returns a NaN", "reward that returns a text")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named_before_anything_is_written(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, words = MISTAKES[mistake]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i}:", "answer": "1"}) + "\n" for i in range(10)))
    root = tmp_path / "root"
    given = [a.replace("PROMPTS", str(prompts)).replace("PLAINFILE", str(prompts)) for a in arguments]
    body = next((a.partition("PLUGIN:")[2] for a in given if "PLUGIN:" in a), "")
    given = [f"--plugins={plugin(tmp_path, body)}" if "PLUGIN:" in a else a for a in given]
    given = [a.replace('"Bad"', f'"Bad{len(body)}"') for a in given]  # two rewards of one name would be refused
    argv = [
        "fit",
        f"--config={runs.QUICKSTART}",
        *runs.SMALL,
        "--model.cold_start=null",
        f"--trainer.default_root_dir={root}",
    ]
    assert main([*argv, *given]) == 2
    error = capsys.readouterr().err
    message = error[error.index("error: ") :]
    for word in words:
        assert word in message, message
    assert "Traceback" not in error
    assert "usage:" not in error
    assert len(message.strip().splitlines()) <= 5, message
    assert len(message) < 1200, message
    assert not root.exists() or not list(root.rglob("*"))


@pytest.mark.thorough
def test_an_optimizer_that_refuses_the_weights_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, "--model.optimizer=Muon", code=2)
    said = capsys.readouterr().err
    assert "model.optimizer: Muon refuses the model's weights or a setting: Muon only supports 2D parameters" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("fp16", "16-mixed"),
        ("float16", "16-mixed"),
        ("bfloat16", "bf16-mixed"),
        ("fp32", "32-true"),
        ("bf16-mixd", "bf16-mixed"),
        ("fp8", "bf16-mixed"),
    ],
)
def test_a_precision_of_another_library_is_told_what_works_here(
    written: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config=quickstart", f"--trainer.precision={written}"]) == 2
    said = capsys.readouterr().err
    assert f"trainer.precision: is '{written}'; it must be 32-true, bf16-mixed or 16-mixed, on a GPU\n" in said
    assert f"fix: write {near}\n" in said
    assert "64" not in said


@pytest.mark.parametrize(("written", "near"), [("fp16", "bf16-mixed"), ("fp32", "32-true")])
def test_a_reward_model_is_told_a_precision_that_it_takes(
    written: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-reward", "--config=reward_model", f"--trainer.precision={written}"]) == 2
    said = capsys.readouterr().err
    assert f"trainer.precision: is '{written}'; it must be 32-true or bf16-mixed\n  fix: write {near}\n" in said


def test_only_a_file_of_a_near_name_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scores.jsonl").touch()
    config = tmp_path / "scores.yaml"
    config.touch()
    argv = ["fit", "--config=quickstart", f"--data.train={tmp_path / 'nothere.jsonl'}"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "'nothere.jsonl' does not exist" in said
    assert "did you mean" not in said
    (tmp_path / "notthere.jsonl").touch()
    assert main(argv) == 2
    assert "'nothere.jsonl' does not exist; did you mean notthere.jsonl?" in capsys.readouterr().err
    assert main(["fit", f"--config={config.with_name('nothere.yaml')}"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"prompt": "1:", "answer": "1"}\n{"prompt": ', ["prompts.jsonl:2", "not JSON"]),
        ('["1:"]\n', ["prompts.jsonl:1", "not an object"]),
        ("", ["holds no records"]),
        ('{"question": "1:", "answer": "1"}\n', ["no column 'prompt'", "question", "data.columns"]),
        ('{"prompt": "é", "answer": "1"}\n', ["prompts.jsonl:1", "does not know every character"]),
        ('{"prompt": "1111111111111111111:", "answer": "1"}\n', ["no prompt is left", "max_prompt_tokens"]),
    ],
)
def test_bad_prompt_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: list[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    runs.fit(tmp_path / "root", "--model.cold_start=null", f"--data.train={file}", code=2)
    error = capsys.readouterr().err
    for word in words:
        assert word in error
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("data: {group_size: 4", ["config.yaml", "not YAML"]),
        ("- 1\n", ["config.yaml", "mapping"]),
        ("data:\n  group_sise: 4\n", ["data.group_sise", "did you mean group_size"]),
        ("model:\n  objective: {class_path: GPSO}\n", ["GPSO", "did you mean GSPO"]),
    ],
)
def test_bad_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: list[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    assert main(["fit", f"--config={runs.QUICKSTART}", f"--config={file}"]) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error, error


def test_missing_config_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", str(runs.ROOT / "configs" / "quikstart.yaml")]) == 2
    assert "did you mean quickstart.yaml" in capsys.readouterr().err


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fitt"]) == 2
    assert "did you mean fit" in capsys.readouterr().err


def test_traceback_on_request(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        main(["fit", f"--config={runs.QUICKSTART}", "--data.group_size=1", "--traceback"])


@pytest.mark.thorough
def test_allow_unusual_clip_means_it(tmp_path: Path) -> None:
    unusual = ["--model.objective=GSPO", "--model.objective.clip_low=0.2", "--model.allow_unusual_clip=true"]
    run = runs.fit(tmp_path, *runs.UNTAUGHT, *unusual, "--trainer.max_epochs=1")
    assert "clip_low=0.2" in runs.summary(run)["objective_settings"]


@pytest.mark.thorough
def test_one_update_per_rollout_is_said_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ["--data.minibatches_per_rollout=1", "--trainer.max_epochs=1", "--data.val=null"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *one, "--trainer.num_sanity_val_steps=0")
    assert "clipping cannot bind" in capsys.readouterr().err
