"""``gspo fit-reward`` through the front door: what it learns, writes, resumes and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.report.scalars import Scalars
from gspo_lightning.report.statistics.intervals import of_new_problems
from gspo_lightning.rewards import Sample, SequenceClassificationReward
from gspo_lightning.training.reward_models.model import load_reward_model
from tests.training.reward_models import runs

SGD = [
    "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.2", "--model.optimizer.momentum=0.9",
    "--trainer.gradient_clip_val=null",
]  # fmt: skip
SHORT = [*SGD, "--data.batch_size=10", "--trainer.max_epochs=2"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 pairs to train on, and as many that are held out."""
    folder = tmp_path_factory.mktemp("pairs")
    runs.write(folder / "train.jsonl", runs.planted(23))
    runs.write(folder / "val.jsonl", runs.planted(23, seed=1))
    return folder


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 1,200 pairs of a planted utility, judged on 400 others."""
    folder = tmp_path_factory.mktemp("learnt")
    train, val = (
        runs.write(folder / "t.jsonl", runs.planted(1200)),
        runs.write(folder / "v.jsonl", runs.planted(400, 1)),
    )
    more = ["--model.optimizer.lr=2e-3", "--data.micro_batch_size=64", "--trainer.max_epochs=2"]
    return runs.fit_reward(folder, train, f"--data.val={val}", "--model.center_rewards_coefficient=0.01", *more)


@pytest.mark.thorough
def test_a_planted_utility_is_recovered(learnt: Path) -> None:
    records = runs.planted(400, 1)
    differences = np.array([runs.worth(r["chosen"]) - runs.worth(r["rejected"]) for r in records])
    best = float(np.mean(differences > 0))  # what the utility itself is right about in these pairs
    bayes = float(np.mean(1 / (1 + np.exp(-np.abs(differences)))))
    found = runs.results(learnt)["held_out"]
    assert 0.7 < bayes < 0.9
    assert found["accuracy"]["value"] > best - 0.05
    assert found["accuracy"]["low"] < bayes < found["accuracy"]["high"] + 0.03
    assert found["ece"] < 0.08
    reward = SequenceClassificationReward(str(learnt / "model"), batch_size=64)
    answers = [Sample("0", r["prompt"], r["chosen"]) for r in runs.planted(300, 2)]
    scores = [score.reward for score in reward.score_batch(answers)]
    assert spearmanr(scores, [runs.worth(sample.completion) for sample in answers]).statistic > 0.85


@pytest.mark.thorough
def test_results_picture_card_and_metrics_agree_with_the_exported_model(learnt: Path) -> None:
    """Every number of ``results.json`` that can be counted again is."""
    found, records = runs.results(learnt), runs.planted(400, 1)
    reward = SequenceClassificationReward(str(learnt / "model"), batch_size=64)
    chosen, rejected = (
        np.array([s.reward for s in reward.score_batch([Sample("0", r["prompt"], r[side]) for r in records])])
        for side in ("chosen", "rejected")
    )
    held_out, right = found["held_out"], chosen > rejected
    assert held_out["pairs"] == len(records)
    assert held_out["accuracy"]["value"] == pytest.approx(right.mean())
    assert held_out["loss"] == pytest.approx(np.log1p(np.exp(rejected - chosen)).mean(), rel=1e-4)
    assert held_out["margin"] == pytest.approx((chosen - rejected).mean(), rel=1e-4)
    by_prompt: dict[str, list[float]] = {}
    for record, value in zip(records, right, strict=True):
        by_prompt.setdefault(record["prompt"], []).append(float(value))
    sizes = [float(len(values)) for values in by_prompt.values()]
    interval = of_new_problems([float(np.mean(values)) for values in by_prompt.values()], sizes)
    assert (held_out["accuracy"]["low"], held_out["accuracy"]["high"]) == pytest.approx((interval.low, interval.high))
    assert held_out["prompts"] == len(by_prompt) == 100
    scalars = Scalars.read(learnt).series()
    assert scalars["reward_model/val_accuracy"].values[-1] == pytest.approx(right.mean(), abs=1e-6)
    assert scalars["reward_model/loss"].values[0] == pytest.approx(np.log(2), abs=1e-6)  # every reward is 0
    assert len(scalars["reward_model/loss"].steps) == found["updates"]
    card = (learnt / "model" / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    assert (header["pipeline_tag"], header["tags"]) == ("text-classification", ["reward-model", "gspo_lightning"])
    assert f"| accuracy | {right.mean():.3f} |" in card
    assert str(learnt.parent) not in card
    assert (learnt / "model" / "report.png").read_bytes() == (learnt / "report.png").read_bytes()
    assert (learnt / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_exported_model_is_scored_and_trained_with_unchanged(learnt: Path, tmp_path: Path) -> None:
    lines = [{"id": i, "prompt": "1+1:", "completion": text} for i, text in enumerate(("AAA", "BBB"))]
    source = runs.write(tmp_path / "in.jsonl", lines)
    folder = str(learnt / "model")
    reward = f"SequenceClassificationReward:{json.dumps({'name_or_path': folder})}"
    assert main(["score", "--reward", reward, "--input", source, "--output", str(tmp_path / "out.jsonl")]) == 0
    first, second = (json.loads(line)["reward"] for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert first > second + 1  # worth 4.2 and -3.3
    rewards = {"liked": {"class_path": "SequenceClassificationReward", "init_args": {"name_or_path": folder}}}
    argv = [
        "fit", "--config=quickstart", "--model.cold_start=null", f"--data.rewards={json.dumps(rewards)}",
        "--data.prompts_per_rollout=4", "--data.group_size=4", "--data.minibatches_per_rollout=1",
        "--data.max_response_tokens=8", "--trainer.max_epochs=1", "--data.val=null", "--data.train.size=64",
        f"--trainer.default_root_dir={tmp_path}",
    ]  # fmt: skip
    assert main(argv) == 0
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["updates"] == 1


@pytest.mark.thorough
def test_the_cut_into_micro_batches_does_not_change_a_run(pairs: Path, tmp_path: Path) -> None:
    train, val = str(pairs / "train.jsonl"), f"--data.val={pairs / 'val.jsonl'}"
    whole, cut = (
        runs.fit_reward(tmp_path / str(size), train, val, *SHORT, f"--data.micro_batch_size={size}") for size in (10, 3)
    )
    one, other = runs.weights(whole), runs.weights(cut)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5
    assert runs.results(whole)["updates"] == runs.results(cut)["updates"] == 6
    assert runs.results(whole)["held_out"]["loss"] == pytest.approx(runs.results(cut)["held_out"]["loss"], rel=1e-4)
    assert float(one["model.score.weight"].abs().max()) > 1e-3  # something was learnt at all


@pytest.mark.thorough
@pytest.mark.parametrize("step", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4))])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(pairs: Path, tmp_path: Path, step: int) -> None:
    """From the middle of an epoch, from its end, and from the middle of the next one."""
    train, val = str(pairs / "train.jsonl"), f"--data.val={pairs / 'val.jsonl'}"
    options = [val, *SHORT, "--data.micro_batch_size=4"]
    whole = runs.fit_reward(tmp_path / "whole", train, *options)
    first = runs.fit_reward(tmp_path / "cut", train, *options, f"--trainer.max_steps={step}")
    assert (first / "checkpoints" / "last.ckpt").resolve().name == f"step-{step:08d}.ckpt"
    again = runs.fit_reward(tmp_path / "cut", train, *options, "--ckpt_path=last")
    assert again == first
    one, other = runs.weights(whole), runs.weights(again)
    assert all(torch.equal(one[name], other[name]) for name in one)
    before, after = Scalars.read(whole).series(), Scalars.read(again).series()
    for tag in ("reward_model/loss", "optim/gradient_norm"):
        assert before[tag].steps.tolist() == after[tag].steps.tolist() == [1, 2, 3, 4, 5, 6]
        assert before[tag].values.tolist() == after[tag].values.tolist()
    assert runs.results(whole)["held_out"] == runs.results(again)["held_out"]


@pytest.mark.long
def test_another_cut_may_resume_in_the_middle_of_an_epoch(pairs: Path, tmp_path: Path) -> None:
    train, options = str(pairs / "train.jsonl"), [f"--data.val={pairs / 'val.jsonl'}", *SHORT]
    whole = runs.fit_reward(tmp_path / "whole", train, *options, "--data.micro_batch_size=10")
    runs.fit_reward(tmp_path / "cut", train, *options, "--data.micro_batch_size=2", "--trainer.max_steps=4")
    again = runs.fit_reward(tmp_path / "cut", train, *options, "--data.micro_batch_size=10", "--ckpt_path=last")
    one, other = runs.weights(whole), runs.weights(again)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5
    assert runs.results(again)["updates"] == 6


@pytest.mark.long
def test_a_checkpoint_from_between_two_steps_resumes_bit_for_bit(pairs: Path, tmp_path: Path) -> None:
    """As a run that was killed leaves it."""
    train, options = (
        str(pairs / "train.jsonl"),
        [f"--data.val={pairs / 'val.jsonl'}", *SHORT, "--data.micro_batch_size=4"],
    )
    each = '--trainer.callbacks=[{"class_path": "RunCheckpoint", "init_args": {"every_n_steps": 1}}]'
    run = runs.fit_reward(tmp_path, train, *options, each)
    whole, path = runs.weights(run), run / "checkpoints" / "step-00000005.ckpt"
    runs.fit_reward(tmp_path, train, *options, f"--ckpt_path={path}")
    again = runs.weights(run)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert runs.newest(tmp_path) == run


@pytest.mark.thorough
def test_long_and_identical_pairs_are_dropped_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    long, same = {"prompt": "1+1:", "chosen": "A" * 40, "rejected": "B"}, {"chosen": "A", "rejected": "A"}
    records = [*runs.planted(40), long, same]
    train = runs.write(tmp_path / "t.jsonl", records)
    run = runs.fit_reward(tmp_path, train, "--data.max_tokens=30", *SGD)
    said = capfd.readouterr().err
    assert "dropped 1 of 42 pairs: an answer with its prompt has more than data.max_tokens = 30" in said
    assert "dropped 1 of 42 pairs: both answers are the same" in said
    found = runs.results(run)
    assert found["dropped"]["train"] == {"too_long": 1, "identical": 1}
    assert found["pairs"] == {"train": 36, "val": 4}  # one prompt in ten is held out
    assert "| train | `t.jsonl` | 42 | 1 | 1 |" in (run / "model" / "README.md").read_text()


@pytest.mark.thorough
def test_adapters_train_and_are_merged(pairs: Path, tmp_path: Path) -> None:
    train, val = str(pairs / "train.jsonl"), f"--data.val={pairs / 'val.jsonl'}"
    options = [val, *SHORT, "--model.lora.r=4"]
    run = runs.fit_reward(tmp_path / "a", train, *options)
    state = runs.weights(run)
    assert {name.rpartition(".lora_")[1] or name for name in state} == {".lora_", "model.score.weight"}
    assert not any("score" in name and "lora" in name for name in state)
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    base = load_reward_model(ModelSettings(seed=1))
    name = "layers.0.self_attn.q_proj.weight"
    difference = model.model.get_parameter(name) - base.model.get_parameter(name)
    assert 0 < int(torch.linalg.matrix_rank(difference.detach(), atol=1e-4)) <= 4
    runs.fit_reward(tmp_path / "b", train, *options, "--trainer.max_steps=4")
    again = runs.weights(runs.fit_reward(tmp_path / "b", train, *options, "--ckpt_path=last"))
    assert all(torch.equal(state[key], again[key]) for key in state)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with a chat template, as the hub would have it."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = character_tokenizer()
    mark = "{{ {'user': '<', 'system': '!', 'assistant': '>'}[m['role']] }}"
    tokenizer.chat_template = f"{{% for m in messages %}}{mark}{{{{ m['content'] }}}}{{% endfor %}}"
    config = Qwen3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=32, vocab_size=len(tokenizer), max_position_embeddings=64, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def as_messages(record: dict[str, Any]) -> dict[str, Any]:
    prompt = [{"role": "system", "content": "ABC"}, {"role": "user", "content": record["prompt"]}]
    return {
        "prompt": prompt,
        **{side: [{"role": "assistant", "content": record[side]}] for side in ("chosen", "rejected")},
    }


@pytest.mark.thorough
def test_messages_go_through_the_chat_template_in_training_and_as_a_reward(
    chat_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = runs.planted(30)
    train = runs.write(tmp_path / "t.jsonl", [as_messages(record) for record in records])
    run = runs.fit_reward(tmp_path, train, f"--data.val={train}", f"--model.name_or_path={chat_model}", *SHORT)
    folder = str(run / "model")
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def alone(answer: str, prompt: str) -> float:
        with torch.no_grad():
            return float(model(**tokenizer(f"!ABC<{prompt}>{answer}", return_tensors="pt")).logits[0, 0])

    expected = [alone(r["chosen"], r["prompt"]) - alone(r["rejected"], r["prompt"]) for r in records]
    assert runs.results(run)["held_out"]["margin"] == pytest.approx(float(np.mean(expected)), abs=1e-5)
    reward = SequenceClassificationReward(folder, text="chat")
    sample = Sample("0", "the rendered prompt", "AA7", prompt_messages=tuple(as_messages(records[0])["prompt"]))
    assert reward.score_batch([sample])[0].reward == pytest.approx(alone("AA7", records[0]["prompt"]), abs=1e-5)
    source = runs.write(tmp_path / "in.jsonl", [{"prompt": "1", "completion": "2"}])
    asked = f"SequenceClassificationReward:{json.dumps({'name_or_path': folder})}"
    capfd.readouterr()
    assert main(["score", "--reward", asked, "--input", source, "--output", str(tmp_path / "o.jsonl")]) == 2
    said = capfd.readouterr().err
    assert "SequenceClassificationReward.text: is 'joined', but this reward model was trained to read 'chat'" in said


@pytest.mark.long
def test_bf16_mixed_trains_and_keeps_float32_rewards(pairs: Path, tmp_path: Path) -> None:
    train, val = str(pairs / "train.jsonl"), f"--data.val={pairs / 'val.jsonl'}"
    run = runs.fit_reward(tmp_path, train, val, *SHORT, "--trainer.precision=bf16-mixed")
    plain = runs.fit_reward(tmp_path / "plain", train, val, *SHORT)
    one, other = (runs.results(r)["held_out"]["loss"] for r in (run, plain))
    assert one != other
    assert one == pytest.approx(other, rel=0.05)
    assert runs.weights(run)["model.score.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trainer.accumulate_grad_batches=2"], "trainer.accumulate_grad_batches: is 2, but it follows from"),
        (["--trainer.precision=16-mixed"], "trainer.precision: is '16-mixed'; it must be one of 32,"),
        (["--trainer.limit_train_batches=3"], "trainer.limit_train_batches: is 3, but counts micro-batches and would"),
        (["--trainer.strategy=fsdp"], "trainer.strategy: is fsdp, but reward models are sharded by FSDP2 only"),
        (["--config=cp"], "trainer.strategy.context: is 2, but reward models are only sharded, over all ranks"),
        (["--config=hsdp"], "trainer.strategy.replicas: is 2, but reward models are only sharded, over all ranks"),
        (["--config=ep"], "trainer.strategy.expert_parallel: is True, but reward models are only sharded"),
        (["--data.batch_size=0"], "data.batch_size: is 0; it must be at least 1"),
        (["--data.max_tokens=2"], "data.train: no pair is left: 23 of 23 are longer than data.max_tokens = 2"),
        (["--data.max_tokens=4096"], "data.max_tokens: is 4096, but the model was built for 512 tokens"),
        (["--data.text=chat"], "data.train: data.text: chat: the tokenizer has no chat template"),
        (["--data.val=null", "--data.columns={prompt: chosen}"], "train.jsonl:1: has no column 'chosen'"),
        (["--data.columns={chosen: choosen}"], "data.columns.chosen: is 'choosen', which is not a column"),
        (["--data.batchsize=4"], "data.batchsize: is not a setting; did you mean batch_size?"),
        (["--model.center_rewards_coefficient=-1"], "model.center_rewards_coefficient: is -1.0, but must be a finite"),
        (["--model.name_or_path=tiny-quen3"], "model.name_or_path: 'tiny-quen3' is not a built-in model; did you mean"),
        (["--ckpt_path=nowhere.ckpt"], "ckpt_path: 'nowhere.ckpt' does not exist"),
        (["--model.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau", "--model.lr_scheduler.monitor=x"],
         "model.lr_scheduler: watches a metric"),
    ],
)  # fmt: skip
def test_mistakes_name_field_rule_and_fix(
    pairs: Path, tmp_path: Path, more: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = runs.command(tmp_path, str(pairs / "train.jsonl"), f"--data.val={pairs / 'val.jsonl'}", *more)
    assert main(argv) == 2
    said = capfd.readouterr().err
    assert f"error: {message}" in said
    assert "Traceback" not in said


def test_few_prompts_need_held_out_pairs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train = runs.write(tmp_path / "t.jsonl", runs.planted(5))
    assert main(runs.command(tmp_path, train)) == 2
    assert "data.val: is not set, and 5 prompts are too few to hold out one in 10" in capfd.readouterr().err


@pytest.mark.thorough
def test_other_pairs_cannot_be_resumed_with(pairs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train = Path(shutil.copy(pairs / "train.jsonl", tmp_path))
    options = [f"--data.val={pairs / 'val.jsonl'}", *SHORT]
    runs.fit_reward(tmp_path, str(train), *options, "--trainer.max_steps=2")
    runs.write(train, runs.planted(23, seed=5))
    assert main(runs.command(tmp_path, str(train), *options, "--ckpt_path=last")) == 2
    assert "was written by a run that meant something else: data.train" in capfd.readouterr().err


@pytest.mark.long
def test_the_config_that_ships_trains_to_what_its_page_says(tmp_path: Path) -> None:
    assert main(["fit-reward", "--config=reward_model", f"--trainer.default_root_dir={tmp_path}"]) == 0
    (file,) = tmp_path.rglob("results.json")
    found = json.loads(file.read_text())["held_out"]
    assert (found["pairs"], found["prompts"]) == (512, 512)
    assert 0.7 < found["accuracy"]["value"] < 0.81  # the utility itself is right about 0.80
    assert found["ece"] < 0.1


def test_help_names_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit-reward", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--data.batch_size" in said
    assert "--model.center_rewards_coefficient" in said


def test_a_launcher_decides_the_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with ``gspo fit``: torchrun's ranks count, and restarts that cannot work are refused."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    for name, value in {"GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert main(runs.command(tmp_path, runs.write(tmp_path / "train.jsonl", runs.planted(8)))) == 2
    assert "torchrun --max-restarts: is 3" in capsys.readouterr().err


def test_a_strategy_for_several_devices_on_one_has_a_word(
    pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = [f"--data.val={pairs / 'val.jsonl'}", "--trainer.strategy=ddp", "--trainer.max_steps=1"]
    runs.fit_reward(tmp_path, str(pairs / "train.jsonl"), *more)
    assert "is that of several devices, but there is one (trainer.devices: 1)" in caplog.text
