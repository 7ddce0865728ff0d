"""Pictures through real vLLM: the trainer's tokens and log-probabilities, and the newest weights of the tower."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, GenerationConfig

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer, tiny_config
from gspo_lightning.policy.vision.families import tiny_image_processor
from gspo_lightning.rollouts import ResponsePrefix, RolloutSource, VLLMEngine, VLLMServer
from tests.real_vllm import served
from tests.support.pictures import png, seeing_prompt

pytestmark = [
    *served.VLLM,
    pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None,
        reason="vLLM imports torchvision for models that read pictures, and this environment has none",
    ),
]
MODELS = ("tiny-qwen3-vl", "tiny-qwen2.5-vl")
VERSION = served.VERSION


def policy_of(name: str, folder: Path) -> Policy:
    """With heads of 32 numbers, the smallest that vLLM takes on a CPU."""
    config = tiny_config(name, {"num_attention_heads": 2, "num_key_value_heads": 1})
    config.text_config.head_dim = 32
    config.text_config.rope_parameters["mrope_section"] = [8, 4, 4]
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():  # answers that depend on the picture
        model.lm_head.weight.mul_(4)
    model.save_pretrained(folder)
    tokenizer = character_tokenizer(name)
    tokenizer.save_pretrained(folder)
    tiny_image_processor(config, tokenizer).save(folder)
    return load_policy(ModelSettings(str(folder))).eval()


def prompts_of(policy: Policy) -> list[Prompt]:
    """The first and the last have the same tokens and other pictures; one of the second is scaled; one has none."""
    return [
        seeing_prompt(policy, 0, ["1+", png(0), "=?"]),
        seeing_prompt(policy, 1, [png(1, 48, 32), "ABC", png(2, 20, 70)]),
        seeing_prompt(policy, 2, ["7+5*3:"]),
        seeing_prompt(policy, 3, ["1+", png(4), "=?"]),
    ]


def check(source: RolloutSource, policy: Policy) -> None:
    """What every source does with pictures."""
    prompts = prompts_of(policy)
    source.sync_weights(policy, VERSION)
    for _ in range(2):  # the second time from vLLM's caches
        groups = served.sample(source, policy, prompts, served.GROUP)
        assert served.largest_gap(policy, groups) < 1e-5
    check_greedy(source, policy, prompts)
    check_that_weights_arrive(source, policy, prompts)
    check_pieces(source, policy, prompts[:2])
    check_placeholders(source, policy, prompts)


def check_greedy(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> None:
    """As transformers' own generate, which reads the files by its own processor."""
    image_processor = policy.image_processor
    assert image_processor is not None
    found = served.tokens(served.sample(source, policy, prompts, 1, SamplingParams(8, 0.0, stop_token_ids=(1,))))
    config = GenerationConfig(
        max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=0, suppress_tokens=list(image_processor.unsaid)
    )
    for prompt, ids in zip(prompts, found, strict=True):
        images = [Image.open(io.BytesIO(picture.data)).convert("RGB") for picture in prompt.media]
        seen = dict(image_processor.processor(images=images, return_tensors="pt")) if images else {}
        row = torch.tensor([prompt.token_ids])
        kinds = (row == image_processor.image).int()
        theirs = policy.model.generate(row, mm_token_type_ids=kinds, generation_config=config, **seen)
        policy.model.base_model.rope_deltas = None
        assert ids == theirs[0, row.shape[1] :].tolist()
    assert found[0] != found[3]  # another picture, another answer


def check_that_weights_arrive(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> None:
    """Those of the tower, too: vLLM keeps the features of a picture, which belong to the weights before."""
    with torch.no_grad():
        for weight in policy.model.base_model.visual.parameters():
            weight.mul_(1.3)
    seeing = [p for p in prompts if p.media]
    assert served.largest_gap(policy, served.sample(source, policy, seeing, served.GROUP)) > 1e-3
    source.sync_weights(policy, VERSION + 1)
    groups = served.sample(source, policy, prompts, served.GROUP, version=VERSION + 1)
    assert served.largest_gap(policy, groups) < 1e-5
    source.sync_weights(policy, VERSION)


def check_pieces(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> None:
    """A response that goes on after a cut is the whole one, with its log-probabilities."""
    greedy = SamplingParams(12, 0.0)
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, 12) for p in prompts]
    whole = extended(source, policy, rows, greedy)
    begun = [tuple(r.token_ids[:5].tolist()) for r in whole]
    later = [
        ResponsePrefix(row.prompt, 0, (*row.context, *ids), len(ids), 12 - len(ids), ids)
        for row, ids in zip(rows, begun, strict=True)
    ]
    for rest, response in zip(extended(source, policy, later, greedy), whole, strict=True):
        assert rest.token_ids.tolist() == response.token_ids[5:].tolist()
        assert rest.logprobs is not None
        assert response.logprobs is not None
        torch.testing.assert_close(rest.logprobs, response.logprobs[5:], rtol=0, atol=1e-5)
    rows = [dataclasses.replace(row, token_budget=3 if i == 0 else 400) for i, row in enumerate(rows)]
    pieces = extended(source, policy, rows, SamplingParams(400, 0.0), lambda ended: len(ended) > 0)
    assert [r.finish_reason for r in pieces] == [FinishReason.LENGTH, FinishReason.CUT]
    assert pieces[1].length < 400
    assert pieces[1].token_ids.tolist()[:12] == whole[1].token_ids.tolist()[: pieces[1].length]


def extended(
    source: RolloutSource, policy: Policy, rows: Sequence[ResponsePrefix], sampling: SamplingParams, enough: Any = None
) -> list[Rollout]:
    return source.extend(policy, rows, sampling=sampling, draws=served.DRAWS, version=VERSION, enough=enough)


def check_placeholders(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> None:
    """They are never sampled, though the model wants nothing else."""
    assert policy.image_processor is not None
    before = policy.model.lm_head.weight.detach().clone()
    with torch.no_grad():
        norm = policy.model.model.language_model.norm.weight
        policy.model.lm_head.weight[list(policy.image_processor.unsaid)] = 50 * norm.sign() / norm.abs().clamp(min=1e-3)
    source.sync_weights(policy, VERSION + 2)
    groups = served.sample(source, policy, prompts, 16, version=VERSION + 2)
    assert not {i for ids in served.tokens(groups) for i in ids} & set(policy.image_processor.unsaid)
    assert served.largest_gap(policy, groups) < 1e-5
    with torch.no_grad():
        policy.model.lm_head.weight.copy_(before)
    source.sync_weights(policy, VERSION)


def check_limits(source: RolloutSource, policy: Policy) -> None:
    """A picture that the trainer reads larger than vLLM does is a clear stop."""
    with pytest.raises(UserError) as refused:
        served.sample(source, policy, [large(policy)], 1)
    assert "made 56 tokens of the pictures of a prompt, the trainer 80" in str(refused.value)
    assert '{"min_pixels": 256, "max_pixels": 20480}' in str(refused.value)


def large(policy: Policy) -> Prompt:
    """160 x 128 pixels, 10 x 8 tokens; the processor's own limit of 128 x 128 pixels leaves 8 x 7."""
    image_processor = policy.image_processor
    assert image_processor is not None
    policy.image_processor = image_processor.limited(160 * 160)
    try:
        return seeing_prompt(policy, 5, [png(5, 160, 128), "=?"])
    finally:
        policy.image_processor = image_processor


def test_a_server_reads_pictures_as_the_trainer_does(tmp_path: Path) -> None:
    policy = policy_of("tiny-qwen3-vl", tmp_path)
    with closing(VLLMServer(**served.QUICK_START)) as source:
        source.open(512)
        check(source, policy)
        check_limits(source, policy)


def test_pictures_are_read_again_by_weights_that_arrive_in_flight(tmp_path: Path) -> None:
    """By the tower, too; the engine is in a process of its own, as in a run."""
    policy = policy_of("tiny-qwen3-vl", tmp_path)
    newer = copy.deepcopy(policy)
    with torch.no_grad():
        for weight in newer.model.base_model.visual.parameters():
            weight.mul_(1.3)
    prompts, sampling = prompts_of(policy), SamplingParams(440)
    with closing(VLLMServer(weights_in_flight=True)) as source:
        source.open(512)
        source.sync_weights(policy, 3)
        (server,) = source.servers.pool.servers
        with ThreadPoolExecutor(1) as pool:
            before = source.servers.loop.run(server.client.progress()) or 0.0
            rollout = pool.submit(served.sample, source, policy, prompts, 24, sampling, 3)
            while (source.servers.loop.run(server.client.progress()) or 0.0) < before + 400:
                assert not rollout.done()
            source.update_weights_in_flight(newer, 7)
            groups = rollout.result(120)
    seen = 0
    for weights, version in ((policy, 3), (newer, 7)):
        gaps = served.gaps(weights, groups, sampling.temperature)
        for gap, r in zip(gaps, (r for group in groups for r in group), strict=True):
            mask = torch.full_like(r.token_ids, r.policy_version) if r.versions is None else r.versions
            own = gap[mask == version]
            seen += len(own) > 0
            assert len(own) == 0 or float(own.max()) < 1e-4, version
    assert seen > len(prompts) * 24  # some have tokens of both


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_reads_pictures_as_the_trainer_does(name: str, tmp_path: Path) -> None:
    """With the option that a refusal names, a larger picture is read, too."""
    policy = policy_of(name, tmp_path)
    limits = {"min_pixels": 256, "max_pixels": 20480}
    with closing(VLLMEngine(options={"block_size": served.BLOCK, "mm_processor_kwargs": limits})) as source:
        source.open(512)
        check(source, policy)
        assert served.largest_gap(policy, served.sample(source, policy, [large(policy)], served.GROUP)) < 1e-5
