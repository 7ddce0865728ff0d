"""``gspo evaluate --server`` with a real vLLM: greedy answers are those of the sampler, up to rounding."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from gspo_lightning.cli import main
from gspo_lightning.core.neutral_sampling import NEUTRAL
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMServer
from tests.real_vllm import served

pytestmark = served.VLLM

SUITE = """\
about: held-out sums
data: {class_path: ChainTask, init_args: {split: held_out, size: 32}}
reward: {class_path: ExactMatch}
sampling: {temperature: 0.0, top_p: 1.0, max_response_tokens: 12}
metrics: [avg]
"""


def test_a_server_answers_as_the_sampler_does(url: str, policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(SUITE)
    policy.save_pretrained(tmp_path / "model")
    with closing(VLLMServer([url])) as source:
        source.open(64)
        source.sync_weights(policy, 1)
        answers, told = {}, {}
        for name, words in {"server": ["--server", url], "here": ["--model", str(tmp_path / "model")]}.items():
            output = tmp_path / name
            suite = f"--suite={tmp_path / 'sums.yaml'}"
            assert main(["evaluate", suite, f"--output={output}", "--workers=1", *words]) == 0
            lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
            told[name] = json.loads((output / "results.json").read_text())["run"]["answers"]
            answers[name] = {line["id"]: (line["completion"], line["tokens"], line["truncated"]) for line in lines}
    same = sum(answers["server"][i] == answers["here"][i] for i in answers["here"])
    assert len(answers["server"]) == len(answers["here"]) == 32
    assert same >= 30  # an untaught model has near ties
    assert told["server"]["engine"] == "vllm"
    assert told["server"]["neutral"] == NEUTRAL  # it refuses none of them
    assert told["server"]["server_may_ignore"] == []
