"""``gspo data report``: counts by hand, answers by the reward's own reader, lengths, languages, the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.rewards.sandbox import choose
from gspo_lightning.rewards.sandbox.cpp import missing
from tests import ROOT
from tests.commands.data.files import data, write

LONG = "A farmer has seventeen sheep, and all but nine of them run away. How many sheep does the farmer have left?"


@pytest.mark.thorough
def test_mathematics_is_read_by_the_verifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [LONG, LONG, LONG.upper(), LONG.replace("nine", "five"), "What is 6*7?"]
    answers = ["9", r"\frac{1}{", "9", "5", "#### 42"]
    records = [{"prompt": p, "answer": a} for p, a in zip(prompts, answers, strict=True)]
    source = write(tmp_path / "a.jsonl", records)
    data("report", source)
    out = capsys.readouterr().out
    for row in ("prompts │ 5", "the same prompt as an earlier one │ 1", "case and white space │ 1", "earlier one │ 1"):
        assert "".join(row.split()) in "".join(out.split())
    assert f"length: 12 to {len(LONG)} characters, median {len(LONG)}" in out
    assert "answers: 5, all read by MathVerifier; 1 unreadable" in out
    assert "the first is a.jsonl:2" in out
    assert "a.jsonl:1: A farmer" in out
    assert (tmp_path / "a.jsonl.report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_answers_that_nothing_can_be_compared_with_are_counted_by_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prose = "we see that both of the sums are the same, because each pair of terms is counted once in either sum; " * 3
    answers = ["7", r"\frac{1}{", r"\sqrt{2", "![graph](plot.png)", prose]
    source = write(tmp_path / "a.jsonl", [{"prompt": f"Task {i}", "answer": a} for i, a in enumerate(answers)])
    data("report", source)
    out = " ".join(capsys.readouterr().out.split())
    assert "answers: 5, all read by MathVerifier; 4 unreadable" in out
    said = "the record's answer cannot be read as mathematics or words"
    assert f"2 x {said} (brackets that do not match), 1 x {said} (a picture), 1 x {said} (a text of more than 40" in out
    assert "the first is a.jsonl:2" in out


@pytest.mark.thorough
def test_tests_of_programs_are_counted_by_kind_and_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = {"type": "stdin", "tests": [{"input": "1", "output": "1"}]}
    answers = [stdin, stdin, {**stdin, "language": "cpp"}, {"type": "sometimes", "tests": [1]}]
    source = write(tmp_path / "a.jsonl", [{"prompt": f"Task {i}", "answer": a} for i, a in enumerate(answers)])
    data("report", source, "--output", tmp_path / "x.png")
    out = capsys.readouterr().out
    compiler = not missing(choose())  # without one a C++ task cannot be judged
    assert f"answers: 4, all read by CodeExecutor; {1 if compiler else 2} unreadable" in out
    assert "tests: 2 stdin in python" + ", 1 stdin in cpp" * compiler in out
    assert (tmp_path / "x.png").exists()
    data("report", source, "--output", tmp_path / "no" / "x.png", code=2)


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    """A tiny model of characters whose template writes tools, each message in brackets, "!!!" if told so, and "="."""
    from gspo_lightning.policy.policy import Policy
    from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer

    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{{ t.name }}{% endfor %}{% for m in messages %}({{ m.content }}){% endfor %}"
        "{% if loud %}!!!{% endif %}{% if add_generation_prompt %}={% endif %}"
    )
    Policy(build_tiny_model("tiny-qwen3", seed=0), tokenizer).save_pretrained(tmp_path / "chatty")
    return tmp_path / "chatty"


@pytest.mark.thorough
def test_lengths_are_those_that_training_sees(chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "1+2:"}, {"role": "assistant", "content": "3"}]
    parts = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "1+2+3+4:"}]}]
    prompts = [
        {"prompt": "1+2:"},
        {"prompt": messages},
        {"prompt": parts},
        {"prompt": "7:", "tools": [{"name": "123"}]},
    ]
    source = write(tmp_path / "a.jsonl", [{**one, "answer": "3"} for one in prompts])
    data("report", source, f"--model={chatty}")  # (1+2:)=, (1+2:)(3)=, (1+2+3+4:)=, 123(7:)=
    assert "length: 7 to 11 tokens, median 9" in capsys.readouterr().out
    config = ROOT / "configs" / "quickstart.yaml"
    words = [f"--model.name_or_path={chatty}", "--data.system_prompt=12", "--data.reward_workers=1"]
    words += ['--data.chat_template_kwargs={"loud": true}', "--data.max_prompt_tokens=15"]
    data("report", source, f"--config={config}", *words)  # (12) in front and !!! behind: 7 more
    out = capsys.readouterr().out
    assert "length: 14 to 18 tokens" in out
    assert "longerthan15tokens:nevertrainedon│2" in "".join(out.split())
    data("report", source, f"--config={config}", f"--model={chatty}", "--data.reward_workers=1")
    assert "length: 7 to 11 tokens" in capsys.readouterr().out  # not in the tokens of the config's own model


def test_a_template_that_refuses_a_prompt_names_its_line(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = chatty / "chat_template.jinja"
    file.write_text("{% if '9' in messages[0].content %}{{ raise_exception('no nines') }}{% endif %}=")
    source = write(tmp_path / "a.jsonl", [{"prompt": f"{i}+1:", "answer": "1"} for i in range(10)])
    data("report", source, f"--model={chatty}", code=2)
    assert "a.jsonl:10: the chat template refuses the prompt: no nines" in capsys.readouterr().err


def test_a_config_gives_tokens_limits_columns_and_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.parquet", [{"q": "1+2:", "answer": "3"}, {"q": "1+2+3:", "answer": "6"}])
    config = ROOT / "configs" / "quickstart.yaml"
    words = ("--data.max_prompt_tokens=4", '--data.columns={"prompt": "q"}', "--data.reward_workers=1")
    data("report", source, f"--config={config}", *words)
    out = capsys.readouterr().out
    assert "length: 4 to 6 tokens" in out
    assert "".join(["longer", "than", "4", "tokens:", "never", "trained", "on", "│", "1"]) in "".join(out.split())
    assert "read by ExactMatch; 0 unreadable" in out
