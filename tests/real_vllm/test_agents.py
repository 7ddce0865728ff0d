"""Agents whose turns real vLLM samples: the token ids that it serves are those that are trained."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.real_vllm import served
from tests.runs import runs
from tests.runs.test_agent_run import AGENT, BRIEF

pytestmark = served.VLLM
NOTING = """
import json
from pathlib import Path

import aiohttp


async def solve(record, address):
    messages, headers = [{"role": "user", "content": record["prompt"]}], {"Authorization": f"Bearer {address.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        for _ in range(3):
            body = {"messages": messages, "return_token_ids": True, "logprobs": True}
            async with http.post(f"{address.base_url}/chat/completions", json=body) as reply:
                answer = await reply.json()
            (choice,) = answer["choices"]
            turn = {"ids": answer["prompt_token_ids"] + choice["token_ids"], "rollout": record["rollout"]}
            turn |= {"logprobs": [one["logprob"] for one in choice["logprobs"]["content"]]}
            with Path(__file__).with_name("noted.jsonl").open("a") as file:
                file.write(json.dumps(turn | {"version": answer["policy_version"]}) + "\\n")
            messages += [choice["message"], {"role": "tool", "content": "=12;"}]
    return float(len(choice["message"]["content"]))
"""


def test_an_agent_is_trained_on_the_tokens_that_vllm_served(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    source = {"class_path": "VLLMServer", "init_args": {"urls": [url]}}
    options = [served.HEADS, f"--plugins+={tmp_path / 'noting.py'}", "--data.rollouts.agent.function=noting.solve"]
    options += [f"--data.rollouts.source={json.dumps(source)}", "--trainer.limit_val_batches=0"]
    batches = runs.handed_out(monkeypatch)
    run = runs.fit(tmp_path, *BRIEF, *options, "--data.record_rollouts=true", config=AGENT)
    assert max(gap for _, gap in runs.scalars(run)["noise/sampler_logprob_gap"]) < 1e-5
    assert {value for _, value in runs.scalars(run)["agents/rows"]} == {1.0}
    noted: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in (tmp_path / "noted.jsonl").read_text().splitlines():
        turn = json.loads(line)
        noted[turn["rollout"], turn["version"]].append(turn)
    recorded = [json.loads(line) for file in sorted((run / "rollouts").iterdir()) for line in file.open()]
    assert len(recorded) == len(noted) == 64
    for row in recorded:
        turns = noted[row["id"], row["policy_version"]]
        whole, begin = [*row["prompt_ids"], *row["completion_ids"]], len(row["prompt_ids"])
        assert [turn["ids"] for turn in turns] == [whole[: begin + end] for end in row["turn_ends"]]
        own = [x for x, mask in zip(row["logprobs"], row["response_mask"], strict=True) if mask]
        assert own == pytest.approx([x for turn in turns for x in turn["logprobs"]], abs=1e-6)
    trained = [
        tuple(ids[:length])
        for part in (micro for batch in batches for micro in batch.micro_batches)
        for ids, length in zip(part.input_ids.tolist(), part.lengths.tolist(), strict=True)
    ]
    assert sorted(trained) == sorted((*row["prompt_ids"], *row["completion_ids"]) for row in recorded)
