"""Pictures through ``VLLMServer``: what is sent, and what is refused because the server has seen something else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.loop.old_policy.served_teacher import ServedTeacher
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix, VLLMServer
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.weights import WeightFolders
from gspo_lightning.rollouts.vllm import local
from gspo_lightning.rollouts.vllm.local import LocalVLLM, command
from gspo_lightning.rollouts.vllm.weight_sync import WeightSync
from tests.rollouts.toy_server import Reply, ToyServer
from tests.runs import runs
from tests.support.pictures import png, seeing_prompt

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
SAMPLING = SamplingParams(8, stop_token_ids=(1,))
FAST: dict[str, Any] = {"backoff_s": 0.01, "timeout_s": 20.0, "retries": 1}
GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings("tiny-qwen3-vl", seed=3)).eval()


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as server:
        yield server


def ask(source: VLLMServer, policy: Policy, prompts: list[Prompt], version: int = 0) -> list[list[Rollout]]:
    return source.generate(policy, prompts, group_size=2, sampling=SAMPLING, draws=DRAWS, version=version)


def recorded(toy: ToyServer) -> list[tuple[str, dict[str, Any]]]:
    """Everything that is asked from now on."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def note(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        asked.append((route, body))
        return reply

    toy.fault = note
    return asked


def test_a_request_has_one_placeholder_a_picture_and_the_pixels_that_the_trainer_reads(
    toy: ToyServer, policy: Policy
) -> None:
    """20 x 70 pixels become 1 x 4 tokens of 16 x 16 pixels: what is sent has nothing left to scale."""
    image_processor = policy.image_processor
    assert image_processor is not None
    prompt = seeing_prompt(policy, 0, ["1+", png(1, 32, 32), "A", png(2, 70, 20)])
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        asked = recorded(toy)
        ask(source, policy, [prompt, seeing_prompt(policy, 1, ["7+5*3:"])])
    bodies = {len(body["token_ids"]): body for route, body in asked if route == GENERATE}
    assert {route for route, _ in asked} == {GENERATE, "/weight_info"}
    one, plus, letter = policy.tokenizer("1+A")["input_ids"]
    start, image, end = image_processor.start, image_processor.image, image_processor.end
    body = bodies[9]
    assert body["token_ids"] == [one, plus, start, image, end, letter, start, image, end]
    assert body["sampling_params"]["logit_bias"] == {
        str(image_processor.image): -10_000,
        str(image_processor.video): -10_000,
    }
    for part, original, size in zip(body["content_parts"], [png(1), png(2, 70, 20)], [(32, 32), (64, 16)], strict=True):
        with Image.open(io.BytesIO(base64.b64decode(part["url"].removeprefix("data:image/png;base64,")))) as found:
            assert (found.format, found.mode, found.size) == ("PNG", "RGB", size)
            with Image.open(io.BytesIO(original)) as wanted:
                scaled = wanted if wanted.size == size else wanted.resize(size, Image.Resampling.BICUBIC)
                assert found.tobytes() == scaled.tobytes()
    text = bodies[6]  # a prompt without a picture is masked, too
    assert "content_parts" not in text
    assert text["sampling_params"]["logit_bias"] == body["sampling_params"]["logit_bias"]


def test_features_of_pictures_are_forgotten_with_the_weights_that_made_them(toy: ToyServer, policy: Policy) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        source.sync_weights(policy, 1)
    assert toy.forgotten == toy.loads == 2
    with ToyServer() as other, closing(VLLMServer([other.url], **FAST)) as source:
        source.sync_weights(load_policy(ModelSettings()).eval(), 0)
        assert other.forgotten == 0  # a server of texts need not have that route


def test_a_server_whose_processor_has_other_limits_is_named_with_the_way_out(toy: ToyServer, policy: Policy) -> None:
    """64 x 64 pixels are 16 tokens; a server that reads 32 x 32 at most makes 4 of them."""
    prompt = seeing_prompt(policy, 0, [png(0, 64, 64), "=?"])
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        toy.max_pixels = 32 * 32
        with pytest.raises(UserError) as refused:
            ask(source, policy, [prompt])
    assert f"{toy.url} made 4 tokens of the pictures of a prompt, the trainer 16" in str(refused.value)
    assert '--mm-processor-kwargs \'{"min_pixels": 256, "max_pixels": 16384}\'' in str(refused.value)


def changed(change: Any) -> Any:
    """Every answer is another one."""

    def fault(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == GENERATE and reply[0] == 200:
            change(reply[1])
        return reply

    return fault


def placeholder(reply: dict[str, Any]) -> None:
    choice = reply["choices"][0]
    choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = reply["prompt_token_ids"][1]


def other_text(reply: dict[str, Any]) -> None:
    reply["prompt_token_ids"][-1] ^= 1


def moved(reply: dict[str, Any]) -> None:
    reply["mm_placeholders"]["image"][0]["offset"] += 1


def other_logprobs(reply: dict[str, Any]) -> None:
    reply["choices"][0]["logprobs"]["content"][0]["token_id"] ^= 1


def no_logprobs(reply: dict[str, Any]) -> None:
    reply["choices"][0]["logprobs"] = None


FAULTS = {
    "a placeholder in the answer": (placeholder, "stands for a picture: no response may hold it"),
    "no prompt": (lambda reply: reply.update(prompt_token_ids=None), "does not say which tokens it read"),
    "another text": (other_text, "it read another prompt than it was sent"),
    "pictures elsewhere": (moved, "it has pictures elsewhere than the trainer"),
    "other log-probabilities": (other_logprobs, "its log-probabilities are those of other tokens"),
    "no log-probabilities": (no_logprobs, "it does not return a log-probability for each token"),
    "no choices": (lambda reply: reply.pop("choices"), "it sent no choices"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_to_something_else_is_refused(toy: ToyServer, policy: Policy, name: str) -> None:
    change, complaint = FAULTS[name]
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        toy.fault = changed(change)
        with pytest.raises(InfrastructureError, match=complaint):
            ask(source, policy, [seeing_prompt(policy, 0, [png(0), "=?"])])


def test_a_server_without_the_route_for_pictures_is_refused_at_once(toy: ToyServer, policy: Policy) -> None:
    toy.scale_out = False
    with (
        closing(VLLMServer([toy.url], **FAST)) as source,
        pytest.raises(UserError, match=f"{GENERATE} switched off: start it with --enable-scale-out"),
    ):
        source.sync_weights(policy, 0)


def test_a_server_that_shows_another_picture_is_found_out_at_once(toy: ToyServer, policy: Policy) -> None:
    """The probe has a picture: other features of it are other log-probabilities."""
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)

        def darker(folder: str) -> None:
            ToyServer.load(toy, folder)
            assert toy._policy is not None
            assert toy._policy.image_processor is not None
            toy._policy.image_processor.processor.image_mean = [0.9] * 3

        toy.load = darker  # type: ignore[method-assign]
        with pytest.raises(InfrastructureError, match="an image processor with other settings"):
            source.sync_weights(policy, 1)


@pytest.mark.thorough
def test_a_response_goes_on_after_its_picture_and_one_that_is_cut_keeps_its_tokens(
    toy: ToyServer, policy: Policy
) -> None:
    prompts = [seeing_prompt(policy, i, [png(i), "=?"]) for i in range(3)]
    greedy = SamplingParams(60, temperature=0.0)
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        rows = [ResponsePrefix(p, 0, p.token_ids, 0, 30 if i == 0 else 60) for i, p in enumerate(prompts)]
        whole = GroupedSampler().extend(policy, rows, sampling=greedy, draws=DRAWS)
        begun = tuple(whole[1].token_ids[:9].tolist())
        row = ResponsePrefix(prompts[1], 0, (*prompts[1].token_ids, *begun), 9, 51, begun)
        (rest,) = source.extend(policy, [row], sampling=greedy, draws=DRAWS)
        assert torch.equal(rest.token_ids, whole[1].token_ids[9:])
        toy.pace_s = 0.05
        pieces = source.extend(policy, rows, sampling=greedy, draws=DRAWS, enough=lambda ended: len(ended) > 0)
    assert [p.finish_reason for p in pieces] == [FinishReason.LENGTH, FinishReason.CUT, FinishReason.CUT]
    for piece, response in zip(pieces, whole, strict=True):
        assert piece.length < 60
        assert piece.token_ids.tolist() == response.token_ids.tolist()[: piece.length]
    assert sum(piece.length for piece in pieces[1:]) > 0  # a request that came late may have none


def test_options_of_a_processor_are_json_on_a_command_line() -> None:
    line = command("python", "folder", "http://127.0.0.1:1", {"mm_processor_kwargs": {"max_pixels": 20480}})
    assert line[line.index("--mm-processor-kwargs") + 1] == '{"max_pixels": 20480}'


@pytest.mark.thorough
def test_a_run_learns_from_pictures_through_a_server(toy: ToyServer, tmp_path: Path) -> None:
    """A whole run: the noise that it measures is that of the same model."""
    run = runs.fit(
        tmp_path, "--data.train.size=32", "--data.val=null", *runs.UNTAUGHT, "--trainer.max_epochs=1",
        "--data.prompts_per_rollout=4", "--data.rollouts=VLLMServer", f"--data.rollouts.urls=[{toy.url}]",
        config=runs.ROOT / "configs" / "vision.yaml",
    )  # fmt: skip
    assert max(gap for _, gap in runs.scalars(run)["noise/sampler_logprob_gap"]) < 1e-5
    assert toy.loads == 1


def test_a_server_of_our_own_has_the_route_for_pictures(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []
    monkeypatch.setattr(local, "LocalServer", lambda line, environment, remove: lines.append(line))
    ours = LocalVLLM("python", None, None, {}, {})
    weight_sync = WeightSync(WeightFolders(str(tmp_path), in_memory=False), "run", 10.0)
    for one in (load_policy(ModelSettings("tiny-qwen3")), policy):
        ours.start(
            tmp_path, Endpoint("unix:/nowhere", "key"), tmp_path, number=0, device="cpu", dtype="float32",
            also=weight_sync.options(one, {}),
        )  # fmt: skip
    assert [line.count("--enable-scale-out") for line in lines] == [0, 1]


def test_a_served_teacher_is_refused_by_name(policy: Policy) -> None:
    teacher = ServedTeacher(Endpoint("http://127.0.0.1:9"))
    with pytest.raises(UserError, match=r"model\.teacher: is a server, which is not shown the pictures"):
        teacher.meet(policy.tokenizer)
