"""Rows of a padded vocabulary are never sampled, and all log-probabilities are those of the vocabulary without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy import logprobs as of_head
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler, Recorded, RolloutSource, TransformersGenerate
from tests.rollouts.replayed import Replayed
from tests.rollouts.through_http import ThroughHTTP
from tests.runs import runs
from tests.support import model_families

TOKENS = len(character_tokenizer())
ROWS = 64
"""Rows of the head: two fifths of them have no token."""
OPTIONS = [*runs.UNTAUGHT, "--data.record_rollouts=true", "--model.old_logprobs=recompute"]


def padded(policy: Policy) -> Policy:
    """Return a policy whose vocabulary was rounded up, with rows as likely as those of tokens."""
    torch.manual_seed(5)
    policy.model.resize_token_embeddings(ROWS, mean_resizing=False)
    policy.model.config.pad_token_id = 0
    for weight in (policy.model.get_input_embeddings().weight, policy.model.get_output_embeddings().weight):
        with torch.no_grad():
            weight[TOKENS:] = weight[: ROWS - TOKENS] * 1.1
    return Policy(policy.model, policy.tokenizer).eval()


def model_folder(folder: Path) -> Path:
    padded(model_families.build_policy("llama", sharpen=1.0)).save_pretrained(folder)
    return folder


def recorded(run: Path) -> list[dict[str, Any]]:
    files = sorted((run / "rollouts").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_run_never_samples_them_and_leaves_their_weights_alone(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    run = runs.fit(tmp_path / "runs", f"--model.name_or_path={folder}", *OPTIONS, "--model.objective.kl_coef=0.01")
    rows = recorded(run)
    assert len(rows) == 64
    assert all(token < TOKENS for row in rows for token in row["completion_ids"])
    seen = runs.scalars(run)
    assert max(value for _, value in seen["noise/sampler_logprob_gap"]) < 2e-5  # nats
    assert [value for step, value in seen["ratio/mean"] if step in (1, 3)] == [1.0, 1.0]  # before any update
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]) == 0
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert after[name].shape == (ROWS, 32)
        assert torch.equal(after[name][TOKENS:], before[name][TOKENS:])
        assert not torch.equal(after[name][:TOKENS], before[name][:TOKENS])


@pytest.mark.thorough
def test_a_stop_token_that_is_never_sampled_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "model")
    options = [f"--model.name_or_path={folder}", *runs.UNTAUGHT, f"--data.stop_token_ids=[3,{TOKENS}]"]
    runs.fit(tmp_path / "runs", *options, code=2)
    assert f"data.stop_token_ids: holds {TOKENS}, which never stops a response" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_that_began_without_the_mask_goes_on_without_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    options = [f"--model.name_or_path={folder}", *OPTIONS]
    run = runs.fit(tmp_path / "runs", *options, "--trainer.max_epochs=1")
    content = runs.checkpoint(run)
    assert content["gspo_lightning"]["model"].pop("mask_padding") is True  # no older version wrote it
    older = tmp_path / "older.ckpt"
    torch.save(content, older)
    later = runs.fit(tmp_path / "later", *options, f"--ckpt_path={older}", "--trainer.max_epochs=3")
    assert any(token >= TOKENS for row in recorded(later) for token in row["completion_ids"])
    assert runs.checkpoint(later)["gspo_lightning"]["model"]["mask_padding"] is False
    gaps = runs.scalars(later)["noise/sampler_logprob_gap"]
    assert max(value for _, value in gaps) < 2e-5


def test_settings_of_an_older_file_have_no_mask() -> None:
    assert ModelSettings().mask_padding
    assert not ModelSettings.of_file({"name_or_path": "tiny-qwen3"}, False).mask_padding


def expected(policy: Policy, row: Tensor, prompt: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition: softmax over the rows that have tokens."""
    logits = policy.model(row.unsqueeze(0), use_cache=False).logits[0, prompt - 1 : -1, :TOKENS].double() / temperature
    scores = logits.log_softmax(-1)
    return scores.gather(-1, row[prompt:].unsqueeze(-1))[:, 0], -(scores.exp() * scores).sum(-1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3-moe"])
@pytest.mark.parametrize("chunks", ["whole", "pieces"])
def test_values_and_gradients_are_those_of_a_vocabulary_without_them(
    family: str, chunks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunks == "pieces":  # the head's own path in training
        monkeypatch.setattr(of_head, "KEPT_LOGITS", 0)
        monkeypatch.setattr(of_head, "CHUNK_LOGITS", {True: 0, False: 0})
    policy = padded(model_families.build_policy(family, sharpen=1.0))
    policy.packed = family != "gemma2"
    prompts = [Prompt(0, "", (5, 9, 11)), Prompt(1, "", (4, 7))]
    sampling = SamplingParams(14, temperature=0.7)
    groups = GroupedSampler().generate(
        policy, prompts, group_size=4, sampling=sampling, draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 1)
    )
    rows = [rollout for group in groups for rollout in group]
    for rollout in rows:
        rollout.reward = 0.0
    batch = make_micro_batch(rows)
    found, entropy = policy(batch, 0.7)
    losses, wanted = [], []
    for i, rollout in enumerate(rows):
        ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
        logprobs, entropies = expected(policy, ids, len(rollout.prompt.token_ids), 0.7)
        torch.testing.assert_close(found[i, : len(logprobs)].double(), logprobs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(entropy[i, : len(logprobs)].double(), entropies, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rollout.logprobs.double(), logprobs.detach(), rtol=1e-5, atol=1e-5)
        wanted.append((logprobs + 0.1 * entropies).sum())
        losses.append((found[i, : len(logprobs)] + 0.1 * entropy[i, : len(logprobs)]).sum())
    head = policy.model.get_output_embeddings().weight
    mine, theirs = (torch.autograd.grad(torch.stack(sums).sum(), head)[0] for sums in (losses, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert not mine[TOKENS:].any()


@pytest.mark.parametrize(
    "source",
    [GroupedSampler(decode="model"), TransformersGenerate(), Replayed(".jsonl"), ThroughHTTP()],
    ids=["own modules", "generate", "recorded", "server"],
)
def test_every_source_draws_the_same_tokens(source: RolloutSource) -> None:
    policy = padded(model_families.build_policy("llama"))
    policy.packed = True
    prompts, draws = [Prompt(0, "", (5, 9, 11)), Prompt(1, "", (4, 7))], Draws.of(0, Purpose.TRAIN_SAMPLING, 1)
    options: dict[str, Any] = {"group_size": 4, "sampling": SamplingParams(14, stop_token_ids=(1,)), "draws": draws}
    mine, theirs = (
        [rollout.token_ids.tolist() for group in kind.generate(policy, prompts, **options) for rollout in group]
        for kind in (GroupedSampler(), source)
    )
    assert mine == theirs
    assert all(token < TOKENS for ids in mine for token in ids)


@pytest.mark.thorough
def test_a_recorded_response_with_such_a_token_is_refused_by_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    options = [f"--model.name_or_path={folder}", *runs.UNTAUGHT]
    run = runs.fit(tmp_path / "runs", *options, "--data.record_rollouts=true", "--trainer.max_epochs=1")
    file = run / "rollouts" / "000000.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["completion_ids"][0] = TOKENS + 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = padded(model_families.build_policy("llama", sharpen=1.0))
    prompt = Prompt(int(rows[3]["id"].split("/")[0]), rows[3]["prompt"], tuple(rows[3]["prompt_ids"]))
    with pytest.raises(UserError, match=f"holds the token {TOKENS + 1}, which a policy never says"):
        Recorded(str(file)).generate(
            policy, [prompt], group_size=4, sampling=SamplingParams(12), draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
        )
