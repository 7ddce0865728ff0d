"""Records of other frameworks in their own layouts: converted, read by ``data.columns``, with the tools of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.data.convert import KNOWN_SETS
from gspo_lightning.data.prompts import PromptFile
from gspo_lightning.data.prompts.encode import encode_prompts
from tests.data.prompts.test_tools import said, tokenizer_with_tools
from tests.runs import runs

ASKED = [{"role": "user", "content": "2+3"}]
NESTED = [
    {
        "type": "function",
        "function": {"name": "A", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
]
FLAT = [
    {
        "type": "function",
        "name": "A",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        "strict": True,
    }
]

LAYOUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "TRL, standard": ("ours", {"prompt": "2+3", "answer": "5"}, "#2+3="),
    "TRL, conversational with tools": (
        "ours", {"prompt": ASKED, "answer": "5", "tools": json.dumps(NESTED)}, "A;#2+3="
    ),
    "verl": (
        "verl",
        {
            "data_source": "openai/gsm8k", "prompt": ASKED, "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"split": "train", "index": 0, "answer": "2+3=5", "question": "2+3"},
        },
        "#2+3=",
    ),
    "verifiers": (
        "verifiers", {"example_id": 0, "question": "2+3", "answer": "5", "task": "default", "info": {"k": 1}}, "#2+3="
    ),
    "verifiers, tools as JSON text in info as JSON text": (
        "verifiers_messages",
        {"prompt": ASKED, "answer": "5", "task": "t", "info": json.dumps({"oai_tools": json.dumps(NESTED)})},
        "A;#2+3=",
    ),
    "OpenRLHF": ("openrlhf", {"input": "2+3", "label": "5"}, "#2+3="),
    "OpenRLHF, messages": (
        "openrlhf_messages", {"context_messages": ASKED, "datasource": "d", "label": "5"}, "#2+3="
    ),
    "NeMo-Gym": (
        "nemo_gym",
        {
            "id": 1, "responses_create_params": {"input": ASKED, "tools": FLAT, "parallel_tool_calls": False},
            "expected_answer": "5", "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
        },
        "A;#2+3=",
    ),
    "NeMo-Gym, parts of a message": (
        "nemo_gym",
        {
            "responses_create_params": {
                "input": [
                    {"role": "developer", "content": [{"type": "input_text", "text": "0"}]},
                    {"role": "user", "content": [{"type": "input_text", "text": "2+3"}]},
                ]
            },
            "expected_answer": "5",
        },
        "+0#2+3=",
    ),
    "NeMo-Gym, a text and no answer": (
        "nemo_gym",
        {"responses_create_params": {"input": "2+3"}, "verifier_metadata": {"unit_tests": ["5"]}},
        "#2+3=",
    ),
}  # fmt: skip


def prompts_of(path: Path, columns: Any) -> list[str]:
    """What a policy reads, by a template that writes the names of tools before the messages."""
    tokenizer = tokenizer_with_tools()
    records = PromptFile(str(path), columns).records()
    return [said(tokenizer, p.token_ids) for p in encode_prompts(records, tokenizer, max_prompt_tokens=64)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_recognised_converted_and_read(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, record, read = LAYOUTS[name]
    source = tmp_path / f"theirs.{kind}"
    if kind == "jsonl":
        source.write_text(f"{json.dumps(record)}\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), source)
    assert main(["data", "convert", "--input", str(source), "--output", str(tmp_path / "ours.jsonl")]) == 0
    assert f"the columns of {known}" in capsys.readouterr().out
    (ours,) = map(json.loads, (tmp_path / "ours.jsonl").read_text().splitlines())
    assert ours.get("answer") == (None if "no answer" in name else "5")
    assert prompts_of(tmp_path / "ours.jsonl", None) == [read]
    there = {w: c for w, c in KNOWN_SETS[known].items() if w == "prompt" or w in ours}
    assert prompts_of(source, there) == [read]
    kept = set(record) - {"prompt", "question", "input", "label", "context_messages", "answer", "expected_answer"}
    assert kept <= set(ours)  # rewards ask for them by name


DEMONSTRATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "TRL, prompt and completion": ("ours", {"prompt": "2+3", "completion": "5"}),
    "TRL, verl and prime-rl, messages": ("messages", {"messages": [*ASKED, {"role": "assistant", "content": "5"}]}),
    "OpenRLHF": ("openrlhf_sft", {"question": "2+3", "response": "5"}),
}


@pytest.mark.parametrize("name", DEMONSTRATIONS)
def test_a_demonstration_is_recognised_converted_and_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, record = DEMONSTRATIONS[name]
    (tmp_path / "theirs.jsonl").write_text(f"{json.dumps(record)}\n")
    argv = ["data", "convert", "--input", str(tmp_path / "theirs.jsonl"), "--output", str(tmp_path / "ours.jsonl")]
    assert main(argv) == 0
    assert f"the columns of {known}" in capsys.readouterr().out
    ((prompt, completion),) = PromptFile(str(tmp_path / "ours.jsonl")).demonstrations()
    assert (prompt, completion) in (("2+3", "5"), (ASKED, [{"role": "assistant", "content": "5"}]))


def test_a_conversation_that_is_none_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.jsonl").write_text(f"{json.dumps({'messages': ASKED})}\n")
    argv = ["data", "convert", "--input", str(tmp_path / "theirs.jsonl"), "--output", str(tmp_path / "ours.jsonl")]
    assert main(argv) == 2
    assert "theirs.jsonl:1" in capsys.readouterr().err


def test_a_run_trains_on_another_frameworks_file(tmp_path: Path) -> None:
    """The quickstart on OpenRLHF's layout: the reward reads ``label``."""
    file = tmp_path / "theirs.jsonl"
    rows = [{"input": f"{i}+{j}:", "label": str((i + j) % 10)} for i in range(4) for j in range(4)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = "--data.columns={prompt: input, answer: label}"
    data = [f"--data.train={file}", f"--data.val={file}", columns, "--trainer.max_epochs=1", "--model.cold_start=null"]
    config = tmp_path / "quickstart.yaml"
    config.write_text(runs.QUICKSTART.read_text())
    run = runs.fit(tmp_path, *data, config=config)
    assert runs.summary(run)["updates"] == 2
    samples = runs.events(run).Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert any(row["input"] in samples for row in rows)
