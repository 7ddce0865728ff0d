"""``LLMJudge`` and a real vLLM server: verdicts by schema from a model that knows nothing, refusals, no verdicts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import LLMJudge, RewardRunner, Sample
from gspo_lightning.rewards.judge.server import KEY
from tests.real_vllm import served

pytestmark = served.VLLM

SPECIAL = ["<|im_end|>", "<|im_start|>"]
TEMPLATE = "".join(
    (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}",
        "<|im_start|>assistant\n",
    )
)
RUBRIC = {"right": "Is the result right?", "short": "Is it short?"}
SECRET = "a-key-of-the-test"


def save_model(folder: Path) -> None:
    """A tiny untaught model that reads and writes bytes."""
    alphabet = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0],
                                   additional_special_tokens=SPECIAL)  # fmt: skip
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(alphabet), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a key, as a user would start it."""
    folder = tmp_path_factory.mktemp("judge")
    save_model(folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    argv = [  # without the last, a model that knows nothing writes white space for ever
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}", "--served-model-name=judge",
        "--host=127.0.0.1", f"--port={port}", "--enforce-eager", "--dtype=float32", "--max-model-len=8192",
        '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}',
    ]  # fmt: skip
    environment = {**os.environ, "VLLM_API_KEY": SECRET, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not _healthy(port):
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def judged(url: str, **settings: Any) -> list[Any]:
    samples = [Sample(str(i), "What is 6 * 7?", f"It is {40 + i}.", columns={"other": "42"}) for i in range(6)]
    judge = LLMJudge(url, settings.pop("model", "judge"), RUBRIC, reasoning=False, retries=0, **settings)
    with RewardRunner({"judge": judge}, num_workers=1) as runner:
        return runner.score(samples)


def test_verdicts_by_schema_are_read_in_both_modes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    for settings in ({}, {"mode": "pairwise", "reference": "other"}, {"reference": "other", "scale": 3}):
        scores = judged(url, **settings, options={"max_tokens": 300})
        assert [str(s.status) for s in scores] == ["ok"] * 6, scores
        assert all(0 <= s.reward <= 1 for s in scores)
        again = judged(url, **settings, options={"max_tokens": 300})
        assert [s.reward for s in again] == [s.reward for s in scores]


def test_words_without_a_verdict_and_texts_that_are_too_long_are_missing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    for settings, why in (
        ({"response_format": "text", "options": {"max_tokens": 20}}, "no verdict with its code"),
        ({"options": {"max_tokens": 20}}, "cut at the limit of tokens"),
        ({"options": {"max_tokens": 9000}}, "refused (status 400)"),
    ):
        scores = judged(url, **settings)
        assert [s.reward for s in scores] == [None] * 6
        assert all(why in s.detail for s in scores), scores[0].detail


def test_another_key_and_another_model_stop_the_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(UserError, match=r"asks for another key \(status 401\)"):
        judged(url)
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(UserError, match="has no such model"):
        judged(url, model="jugde")
