"""A classifier as a reward: the model's own numbers, batched, whatever the batch size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from gspo_lightning import cli
from gspo_lightning.commands.score import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.registry import components
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rewards import ExactMatch, RewardRunner, Sample, SequenceClassificationReward
from tests import ROOT

COMPLETIONS = ["2", "", "1+1=2;2+3=5;#5", "#5", "x" * 40, "#" * 7]
SAMPLES = [Sample(str(i), "1+1+3:", text) for i, text in enumerate(COMPLETIONS)]
LABELS = {0: "bad", 1: "good", 2: "unsure"}


def save(folder: Path, labels: dict[int, str], **settings: Any) -> str:
    torch.manual_seed(len(labels))
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
    config = Qwen3Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=64, vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=0, eos_token_id=1,
        id2label=labels, label2id={name: i for i, name in labels.items()}, initializer_range=0.3, **settings,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def scalar(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("scalar"), {0: "score"})


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("labelled"), LABELS)


def logits(folder: str, text: str) -> torch.Tensor:
    """Of one text, alone and without padding."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model.eval()(**tokenizer(text, return_tensors="pt")).logits[0]


def rewards(reward: SequenceClassificationReward) -> list[float | None]:
    with RewardRunner({"rm": reward}) as runner:
        return [score.reward for score in runner.score(SAMPLES)]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_scalar_head_gives_its_logit_whatever_the_batch_size(scalar: str, batch_size: int) -> None:
    expected = [float(logits(scalar, "1+1+3:" + text)[0]) for text in COMPLETIONS]
    assert len({round(value, 3) for value in expected}) == len(COMPLETIONS)
    found = rewards(SequenceClassificationReward(scalar, batch_size=batch_size))
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("label", "index"), [(1, 1), ("unsure", 2)])
def test_a_label_gives_its_probability(labelled: str, label: int | str, index: int) -> None:
    expected = [float(logits(labelled, "1+1+3:" + text).softmax(0)[index]) for text in COMPLETIONS]
    assert rewards(SequenceClassificationReward(labelled, label=label)) == pytest.approx(expected, abs=1e-5)


def test_independent_labels_have_independent_probabilities(tmp_path: Path) -> None:
    folder = save(tmp_path, LABELS, problem_type="multi_label_classification")
    expected = [float(logits(folder, "1+1+3:" + text)[2].sigmoid()) for text in COMPLETIONS]
    assert rewards(SequenceClassificationReward(folder, label=2)) == pytest.approx(expected, abs=1e-5)


def test_classifier_reads_the_chosen_form_of_text(scalar: str) -> None:
    one = [Sample("0", "1+1:", "#2")]
    for text, read in (("joined", "1+1:#2"), ("completion", "#2"), ("chat", "<1+1:><#2>")):
        (score,) = SequenceClassificationReward(scalar, text=text).score_batch(one)  # type: ignore[arg-type]
        assert score.reward == pytest.approx(float(logits(scalar, read)[0]), abs=1e-5)


def test_pairs_reach_models_with_two_segments(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    samples = [Sample("0", "one", "two three"), Sample("1", "one two", "three"), Sample("2", "", "one")]
    found = SequenceClassificationReward(str(tmp_path), text="pair").score_batch(samples)
    with torch.no_grad():
        expected = [
            float(model(**tokenizer(s.prompt, s.completion, return_tensors="pt")).logits[0, 0]) for s in samples
        ]
    assert [s.reward for s in found] == pytest.approx(expected, abs=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3  # the same tokens, but where the second segment begins


def test_too_long_is_missing_and_nothing_is_the_models_mistake(scalar: str) -> None:
    samples = [Sample("0", "", "1" * 10), Sample("1", "", "1" * 11), Sample("2", "", "")]
    found = SequenceClassificationReward(scalar, text="completion", max_tokens=10).score_batch(samples)
    assert [str(s.status) for s in found] == ["ok", "missing", "model_error"]
    assert found[1].detail == "11 tokens, more than max_tokens = 10"
    built_for = SequenceClassificationReward(scalar).score_batch([Sample("0", "1" * 60, "12345")])
    assert built_for[0].detail == "65 tokens, more than max_tokens = 64"


def test_classifier_reward_adds_to_rewards_of_workers(scalar: str) -> None:
    parts = {"rm": SequenceClassificationReward(scalar), "correct": ExactMatch()}
    samples = [Sample(s.id, s.prompt, s.completion, (), {"answer": "5"}) for s in SAMPLES]
    with RewardRunner(parts, {"rm": 0.5}, num_workers=1) as runner:
        runner.check({"answer": "5"})
        scores = runner.score(samples)
        assert runner.worker_pids()
    for score in scores:
        assert score.reward == pytest.approx(0.5 * score.parts["rm"].reward + score.parts["correct"].reward)  # type: ignore[operator]
    assert [s.parts["correct"].reward for s in scores] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_gspo_score_and_the_registry_know_it(scalar: str, tmp_path: Path) -> None:
    assert components("rewards")["SequenceClassificationReward"] is SequenceClassificationReward
    lines = [{"id": i, "prompt": "1+1+3:", "completion": text} for i, text in enumerate(COMPLETIONS)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reward = f"SequenceClassificationReward:{json.dumps({'name_or_path': scalar})}"
    assert (
        main(["--reward", reward, "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]) == 0
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in found] == pytest.approx(rewards(SequenceClassificationReward(scalar)))


@pytest.mark.thorough
def test_classifier_rewards_of_a_run_are_its_logits(scalar: str, tmp_path: Path) -> None:
    rewards = {"rm": {"class_path": "SequenceClassificationReward", "init_args": {"name_or_path": scalar}}}
    argv = [
        "fit", f"--config={ROOT / 'configs' / 'quickstart.yaml'}", "--model.cold_start=null",
        f"--data.rewards={json.dumps(rewards)}", "--data.prompts_per_rollout=4", "--data.group_size=4",
        "--data.minibatches_per_rollout=1", "--data.max_response_tokens=8", "--trainer.max_epochs=1",
        "--data.val=null", "--data.record_rollouts=true", f"--trainer.default_root_dir={tmp_path}",
    ]  # fmt: skip
    assert cli.main(argv) == 0
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["updates"] == 1
    (file,) = tmp_path.rglob("rollouts/*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 16
    for row in rows:
        expected = float(logits(scalar, row["prompt"] + row["completion"])[0])
        assert row["reward"] == pytest.approx(expected, abs=1e-5)
    assert len({round(row["reward"], 4) for row in rows}) > 1


def untrained_head(folder: Path) -> str:
    build_tiny_model("tiny-qwen3", seed=0).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def without_template(tmp_path: Path, scalar: str) -> str:
    AutoModelForSequenceClassification.from_pretrained(scalar).save_pretrained(tmp_path / "plain")
    character_tokenizer().save_pretrained(tmp_path / "plain")
    return str(tmp_path / "plain")


def test_unusable_classifier_settings_are_refused_at_start_up(
    scalar: str, labelled: str, without_template: str, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name_or_path": str(tmp_path / "nowhere")}, r"name_or_path: .*cannot be loaded"),
        (
            {"name_or_path": untrained_head(tmp_path / "lm")},
            r"name_or_path: .*is not a trained classifier: it has no weights for score",
        ),
        ({"name_or_path": labelled}, r"label: is not set, but the model has 3: 0 \(bad\), 1 \(good\), 2 \(unsure\)"),
        ({"name_or_path": labelled, "label": "god"}, "label: 'god' is not a label of the model; did you mean good"),
        ({"name_or_path": labelled, "label": 3}, "label: 3 is not a label of the model"),
        ({"name_or_path": without_template, "text": "chat"}, "text: 'chat' needs a chat template"),
        ({"name_or_path": scalar, "dtype": "float33"}, "dtype: torch has no 'float33'"),
    ]
    for settings, message in cases:
        with (
            RewardRunner({"rm": SequenceClassificationReward(**settings)}) as runner,
            pytest.raises(UserError, match=rf"^SequenceClassificationReward\.{message}"),
        ):
            runner.check(set())


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"max_tokens": 0}, {"text": "both"}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"SequenceClassificationReward.{next(iter(settings))}"):
        SequenceClassificationReward("x", **settings)


def test_importing_and_building_it_imports_no_torch() -> None:
    program = (
        "import sys; from gspo_lightning.rewards import SequenceClassificationReward\n"
        "SequenceClassificationReward('somewhere')\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
