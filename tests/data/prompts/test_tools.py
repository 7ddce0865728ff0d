"""A record's own ``tools`` reach the chat template wherever one is rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.cli import main
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.data.prompts import PromptFile
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.data.prompts.taught import PromptFormat, teach
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import EnvironmentRollouts, GroupedSampler
from gspo_lightning.rollouts.environments import Environment
from tests.rollouts.conversations.test_environment import DRAWS
from tests.training.reward_models import runs

TEMPLATE = (
    "{% for t in tools or [] %}{{ t['function']['name'] }};{% endfor %}"
    "{% for m in messages %}{{ {'user': '#', 'assistant': '=', 'system': '+'}[m['role']] }}{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}={% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": name, "parameters": None}} for name in ("A", "B")]
ASKED = [{"role": "user", "content": "1+1"}]


def tokenizer_with_tools() -> PreTrainedTokenizerBase:
    """Names every tool before the messages."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def said(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(list(ids)))


@pytest.mark.parametrize("prompt", ["1+1", ASKED], ids=["text", "messages"])
@pytest.mark.parametrize(
    ("tools", "named"),
    [
        (TOOLS, "A;B;"), (json.dumps(TOOLS), "A;B;"), (None, ""), ([], ""), ("", ""), ("saw", ""), (["A"], ""),
    ],
)  # fmt: skip
def test_prompts_are_rendered_with_the_tools_of_their_record(prompt: Any, tools: Any, named: str) -> None:
    tokenizer = tokenizer_with_tools()
    records = [{"prompt": prompt, "tools": tools}, {"prompt": prompt}]
    found = encode_prompts(records, tokenizer, max_prompt_tokens=64)
    assert [said(tokenizer, p.token_ids) for p in found] == [f"{named}#1+1=", "#1+1="]
    own = encode_prompts(records, tokenizer, max_prompt_tokens=64, chat_template_kwargs={"tools": TOOLS[1:]})
    assert [said(tokenizer, p.token_ids) for p in own] == [f"{named or 'B;'}#1+1=", "B;#1+1="]


def test_tools_that_the_template_leaves_out_are_said_to_be_unknown_to_the_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaf = tokenizer_with_tools()
    deaf.chat_template = TEMPLATE.partition("{% endfor %}")[2]
    records = [{"prompt": "1+1", "tools": TOOLS}, {"prompt": "1+1"}]
    encode_prompts(records, deaf, max_prompt_tokens=64)
    assert "1 prompts have tools, but the chat template does not write tools" in caplog.text
    encode_prompts(records[1:], deaf, max_prompt_tokens=64, chat_template_kwargs={"tools": TOOLS})
    assert caplog.text.count("does not write tools") == 2
    encode_prompts(records, tokenizer_with_tools(), max_prompt_tokens=64)
    encode_prompts(records[1:], deaf, max_prompt_tokens=64)
    assert caplog.text.count("does not write tools") == 2


def test_a_run_asks_with_the_tools_of_its_records() -> None:
    model, config = build_tiny_model("tiny-qwen3", seed=0), GSPOConfig(max_response_tokens=4)
    trainer = GSPOTrainer(model, tokenizer_with_tools(), config)
    trainer.train_step([{"prompt": ASKED, "tools": TOOLS}], lambda query, response: float(len(response)))
    assert {example["prompt"] for example in trainer.examples} == {"A;B;#1+1="}


class Opens(Environment):
    """Has a system message of its own."""

    async def reset(self, prompt: Prompt) -> Any:
        return [{"role": "system", "content": "2"}, *ASKED]

    async def step(self, completion: str) -> Any:
        return [], 0.0, True


def test_conversations_open_with_the_tools_of_their_record() -> None:
    policy = Policy(build_tiny_model("tiny-qwen3", seed=0), tokenizer_with_tools())
    prompts = encode_prompts([{"prompt": ASKED, "tools": TOOLS}], policy.tokenizer, max_prompt_tokens=64)
    source = EnvironmentRollouts(Opens(), source=GroupedSampler())
    sampling = SamplingParams(temperature=1.0, max_response_tokens=4, stop_token_ids=(1,))
    try:
        ((rollout,),) = source.generate(policy, prompts, group_size=1, sampling=sampling, draws=DRAWS, version=0)
    finally:
        source.close()
    assert said(policy.tokenizer, rollout.prompt.token_ids) == "A;B;+2#1+1="


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": ASKED, "completion": "2"},
        {"prompt": "1+1", "completion": "2"},
        {"prompt": ASKED, "completion": [{"role": "assistant", "content": "2"}]},
        {"messages": [*ASKED, {"role": "assistant", "content": "2"}]},
    ],
    ids=["text", "texts", "messages", "conversation"],
)
def test_demonstrations_are_rendered_with_the_tools_of_their_record(record: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = tokenizer_with_tools()
    tokenizer.chat_template = TEMPLATE.replace(
        "{% endfor %}{% if", "{{ '<eos>' if m['role'] == 'assistant' }}{% endfor %}{% if"
    )
    file = runs.write(tmp_path / "taught.jsonl", [{**record, "tools": TOOLS}, record])
    pairs = PromptFile(file).demonstrations()
    rows = teach(pairs, tokenizer, (1,), PromptFormat(), str, "demonstrations")
    assert [said(tokenizer, row.prompt) for row in rows] == ["A;B;#1+1=", "#1+1="]
    assert [said(tokenizer, row.response) for row in rows] == ["2<eos>"] * 2


def test_reward_models_are_trained_and_asked_with_the_tools_of_a_record(tmp_path: Path) -> None:
    """The same pairs with other tools are other rows; a reward reads the tools of the record that is judged."""
    tokenizer_with_tools().save_pretrained(tmp_path / "start")
    build_tiny_model("tiny-qwen3", seed=0).save_pretrained(tmp_path / "start")
    records = [
        {"prompt": ASKED, "chosen": [{"role": "assistant", "content": f"{n}"}],
         "rejected": [{"role": "assistant", "content": f"{n}0"}]} for n in range(9)
    ]  # fmt: skip
    losses = []
    for name, tools in (("with", {"tools": TOOLS}), ("without", {})):
        train = runs.write(tmp_path / f"{name}.jsonl", [{**record, **tools} for record in records])
        more = [f"--data.val={train}", f"--model.name_or_path={tmp_path / 'start'}", "--model.optimizer.lr=1e-2"]
        run = runs.fit_reward(tmp_path / name, train, *more, "--data.batch_size=3")
        losses.append(runs.results(run)["held_out"]["loss"])
    assert losses[0] != losses[1]
    folder = str(run / "model")
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), tokenizer_with_tools()
    with torch.no_grad():
        expected = [
            float(model(**tokenizer(text, return_tensors="pt")).logits[0, 0]) for text in ("A;B;#1+1=2", "#1+1=2")
        ]
    assert abs(expected[0] - expected[1]) > 1e-3
    lines = [{"prompt": "1+1", "completion": "2", "tools": TOOLS}, {"prompt": "1+1", "completion": "2"}]
    source, target = runs.write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    asked = f"SequenceClassificationReward:{json.dumps({'name_or_path': folder, 'text': 'chat'})}"
    assert main(["score", "--reward", asked, "--input", source, "--output", str(target)]) == 0
    scored = [json.loads(line)["reward"] for line in target.read_text().splitlines()]
    assert scored == pytest.approx(expected, abs=1e-5)
