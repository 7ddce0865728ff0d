"""Time of an iteration: phases by hand, published throughputs of vLLM, and what ``gspo plan --time`` prints."""

from __future__ import annotations

import dataclasses

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.plan.devices import CARDS, Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import SAMPLING, TRAINING, memory_of
from gspo_lightning.commands.plan.models import counts_of
from gspo_lightning.commands.plan.time import (
    ASSUMPTIONS,
    HOPED,
    MEASURED,
    Phase,
    _exchanged,
    _gathered,
    cache_read,
    decoding_seconds,
    faster_with_experts,
    phases_of,
)
from gspo_lightning.commands.plan.work import work_of
from gspo_lightning.policy.attention.kv_cache_size import KVCacheSize
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests import ROOT

CARD = Device("a card", 80 << 30, flops=1e14, bandwidth=1e12, link=1e11)
LLAMA = "meta-llama/Llama-3.1-8B"


def job(**changes: object) -> Job:
    settings = ModelSettings(name_or_path=LLAMA, dtype="bfloat16")
    made = Job(
        model=settings, optimizer="torch.optim.AdamW", precision="bf16-true", strategy="single", shards_weights=True,
        cpu_offload=False, world=1, nodes=1, old_policy="CachedLogProbs", reference=False, prompts=16, group_size=4,
        minibatches=4, epochs=1, budget=4096, max_prompt=100, max_response=100, iterations=10, packed=True,
        source="VLLMServer", max_rows=1 << 30,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("card", "rows", "prompt", "response", "published"),
    [
        # vLLM 0.23.0, vllm bench serve --random-input-len 1024 --random-output-len 128 --max-concurrency 1 and 8:
        # johnmusgrave.com/p/vllm-throughput-latency-sweep-on
        ("A100", 1, 1024, 128, 75.0),
        ("A100", 8, 1024, 128, 75.0 * 6.6),
        # vLLM 0.21.0, llm.inference.chatbot-short: yobitelcomm.github.io/bench/recipes/concurrency-sweep
        ("H100", 1, 128, 128, 122.2),
        ("H100", 4, 128, 128, 580.3),
    ],
)
def test_published_throughputs_of_vllm_with_1_to_8_rows_are_met_within_30_percent(
    card: str, rows: int, prompt: int, response: int, published: float
) -> None:
    seconds, bound = decoding_seconds(job(max_prompt=prompt, max_response=response), CARDS[card], rows, response)
    assert bound == "bandwidth"
    assert rows * response / seconds == pytest.approx(published, rel=0.3)


@pytest.mark.parametrize(("rows", "published", "times"), [(16, 1384.2, 1.41), (64, 1312.3, 5.55)])
def test_with_more_rows_a_plan_is_faster_than_the_published_sweep_of_the_h100(
    rows: int, published: float, times: float
) -> None:
    """The sweep stops rising at 16 requests at a time; docs/memory.md says by how much a plan differs."""
    seconds, _ = decoding_seconds(job(max_prompt=128, max_response=128), CARDS["H100"], rows, 128)
    assert rows * 128 / seconds == pytest.approx(times * published, rel=0.01)
    said = " ".join((ROOT / "docs" / "memory.md").read_text().split())
    assert "a factor of 1.4 at 16 responses and 5.5 at 64" in said


def test_phases_by_hand() -> None:
    found = {phase.name: phase for phase in phases_of(job(), CARD)}
    weights, active = counts_of(job().model).total, counts_of(job().model).active
    token = 2.0 * active + 2.0 * 32 * 32 * 128 * 200  # products with weights, and attention over half of 200 tokens
    speed, decoded = 0.19e14, 0.35e14
    assert found["weights to the sampler"].seconds == pytest.approx(2 * weights / 0.7e11)
    assert found["prompts (prefill)"].seconds == pytest.approx(16 * 100 * token / decoded)
    cache = 64 * (2 * 8 * 128 * 2 * 32) * 150
    assert found["decoding"] == Phase(
        "decoding", pytest.approx(100 * (2 * weights + cache) / 0.6e12), 6400, "bandwidth"
    )
    read = 4 * 1600  # each of the 4 mini-batches has one response to every prompt
    later = (read + 6400) * 3 // 4  # the first mini-batch needs none
    assert found["old log-probabilities"].seconds == pytest.approx(later * token / speed)
    assert found["old log-probabilities"].tokens == later
    assert found["forward and backward"].seconds == pytest.approx(3 * (read + 6400) * token / speed)
    groups = {phase.name: phase for phase in phases_of(job(deal="groups"), CARD)}
    assert groups["forward and backward"].seconds == pytest.approx(3 * (1600 + 6400) * token / speed)
    assert found["forward and backward"].bound == "compute"
    # two moments are read and written, weights read and written, gradients read: bfloat16
    assert found["optimizer"].seconds == pytest.approx(4 * (2 * (2 + 1) + 1) * weights * 2 / 0.6e12)
    assert found["decoding"].rate(2) == pytest.approx(6400 / found["decoding"].seconds / 2)


@pytest.mark.thorough
def test_experts_that_stay_are_not_gathered() -> None:
    """Qwen3-30B-A3B on eight devices, by hand: 48 layers of 128 experts, three matrices of 768 x 2,048 each."""
    mixture = ModelSettings("Qwen/Qwen3-30B-A3B", "float32")
    batch = {"world": 8, "minibatches": 1, "group_size": 8, "prompts": 64}
    gathered = job(model=mixture, strategy="fsdp", precision="bf16-mixed", **batch)
    kept = dataclasses.replace(gathered, expert_parallel=True)
    counts = counts_of(gathered.model)
    experts = 48 * 128 * 3 * 768 * 2048
    assert (counts.experts, counts.experts_of_layer, counts.expert_layers) == (experts, experts // 48, 48)
    tokens, passes = next(p.tokens for p in phases_of(kept, CARD) if p.name == "forward and backward"), kept.passes
    assert _exchanged(kept, counts, tokens) == pytest.approx(tokens / 8 * 8 * 2048 * 2 * 48 * 7 / 8)
    assert _gathered(kept, counts) * passes < _gathered(gathered, counts) * passes / 15
    found = [{p.name: p.seconds for p in phases_of(one, CARD, HOPED)} for one in (gathered, kept)]
    assert found[1]["forward and backward"] < found[0]["forward and backward"]
    assert faster_with_experts(gathered, CARD, HOPED) == pytest.approx(sum(found[1].values()))
    assert faster_with_experts(kept, CARD) is None
    memory = [memory_of(one, CARD).items["gathered weights"][TRAINING] for one in (gathered, kept)]
    assert memory[0] - memory[1] == 2 * experts // 48 * 2


SMALL = "meta-llama/Llama-3.2-1B"


def test_the_phase_of_a_teacher_by_hand() -> None:
    """A teacher of 1B in bfloat16 reads what training reads, once; a server counts as a model like the policy."""
    small = ModelSettings(SMALL, "bfloat16")
    token = 2.0 * counts_of(small).active + 2.0 * 16 * 32 * 64 * 200
    tokens = 4 * 1600 + 6400
    found = {phase.name: phase for phase in phases_of(job(teacher=small), CARD)}
    assert found["teacher"] == Phase("teacher", pytest.approx(tokens * token / 0.19e14), tokens, "compute")
    twice = {phase.name: phase for phase in phases_of(job(teacher=small, teacher_exact=True, epochs=2), CARD)}
    assert twice["teacher"].seconds == pytest.approx(2 * found["teacher"].seconds)  # asked in both passes
    wide = ModelSettings(SMALL, "float32")
    slow = {phase.name: phase for phase in phases_of(job(teacher=wide, precision="32-true"), CARD)}
    assert slow["teacher"].seconds == pytest.approx(4 * found["teacher"].seconds)  # a quarter of the speed
    served = {phase.name: phase for phase in phases_of(job(teacher_served=True), CARD)}
    policy = 2.0 * counts_of(job().model).active + 2.0 * 32 * 32 * 128 * 200
    assert served["teacher (server)"].seconds == pytest.approx(64 * 200 * policy / 0.19e14)
    alone = {phase.name: phase for phase in phases_of(job(), CARD)}
    assert alone == {name: phase for name, phase in found.items() if name != "teacher"}
    assert alone == {name: phase for name, phase in served.items() if name != "teacher (server)"}


def test_the_phases_of_a_critic_by_hand() -> None:
    """Values once, two passes of training and AdamW on a copy of the policy without its output head."""
    counts, tokens = counts_of(job().model), 4 * 1600 + 6400
    head = 128256 * 4096
    token = 2.0 * (counts.active - head) + 2.0 * 32 * 32 * 128 * 200
    found = {phase.name: phase for phase in phases_of(job(critic="", critic_epochs=2), CARD)}
    assert found["critic's values"].seconds == pytest.approx(tokens * token / 0.19e14)
    assert found["critic's updates"].seconds == pytest.approx(2 * 3 * tokens * token / 0.19e14)
    assert found["critic's updates"].tokens == 2 * tokens
    adam = 2 * 4 * (2 * (2 + 1) + 1) * (counts.total - head) * 2 / 0.6e12
    assert found["critic's optimizer"].seconds == pytest.approx(adam)
    shared = {phase.name: phase for phase in phases_of(job(critic_shared=True, critic_epochs=2), CARD)}
    assert shared["critic's updates"].seconds == pytest.approx(2 * tokens * token / 0.19e14)
    assert "critic's optimizer" not in shared


def test_a_reference_costs_a_forward_pass() -> None:
    found = {phase.name: phase for phase in phases_of(job(reference=True), CARD)}
    assert found["reference"].seconds == pytest.approx(found["old log-probabilities"].seconds / 0.75)


@pytest.mark.thorough
def test_the_step_that_was_measured_on_an_h100() -> None:
    """64 rows of at most 1,024 tokens: 23.5 s of decoding, and 1.74 s for 31,400 tokens forward and backward."""
    step = job(
        model=ModelSettings("Qwen/Qwen3-1.7B", "float32"), precision="bf16-mixed", source="GroupedSampler",
        prompts=8, group_size=8, max_prompt=128, max_response=1024, budget=16384, max_rows=512,
    )  # fmt: skip
    measured, hoped = ({p.name: p for p in phases_of(step, CARDS["H100"], pace)} for pace in (MEASURED, HOPED))
    assert measured["decoding"].seconds == pytest.approx(23.5, rel=0.01)
    trained = measured["forward and backward"]
    assert trained.seconds * 31_400 / trained.tokens == pytest.approx(1.74, rel=0.15)  # less attention than at 1,024
    assert hoped["decoding"].seconds < 5 < 1.65 * 4
    assert sum(p.seconds for p in hoped.values()) < sum(p.seconds for p in measured.values()) / 3


@pytest.mark.thorough
def test_plan_names_the_bottleneck_of_a_phase() -> None:
    small = dataclasses.replace(CARD, bandwidth=1e15, flops=1e18)
    assert decoding_seconds(job(), small, 64, 100)[1] == "launches"
    assert decoding_seconds(job(source="GroupedSampler"), small, 64, 100)[0] == pytest.approx(100 * 32 * 0.82e-3)
    assert decoding_seconds(job(), dataclasses.replace(small, flops=1e12), 64, 100)[1] == "compute"
    shards = {"strategy": "fsdp", "world": 4}
    slow = {phase.name: phase for phase in phases_of(job(**shards), dataclasses.replace(CARD, link=1e9))}
    assert slow["forward and backward"].bound == "communication"
    counts = counts_of(job().model)
    sent = counts.total * (2 * 2 + 4) * 0.75 * 4 * job(**shards).micro_batches
    assert slow["forward and backward"].seconds == pytest.approx(sent / 0.7e9)


@pytest.mark.thorough
def test_in_lockstep_every_token_waits_for_all_weights() -> None:
    shards = {"strategy": "fsdp", "world": 4, "source": "GroupedSampler"}
    slow = dataclasses.replace(CARD, link=10e9, memory=1 << 50)
    step = counts_of(job().model).total * 2 * 0.75 / 7e9
    assert decoding_seconds(job(**shards, lockstep=True), slow, 16, 100) == (pytest.approx(100 * step), "communication")
    names = {phase.name for phase in phases_of(job(**shards), slow)}
    assert names - {phase.name for phase in phases_of(job(**shards, lockstep=True), slow)} == {"weights to the sampler"}


@pytest.mark.thorough
def test_responses_that_do_not_fit_wait_for_their_turn() -> None:
    one = decoding_seconds(job(source="GroupedSampler", max_rows=64), CARD, 64, 100)[0]
    two = decoding_seconds(job(source="GroupedSampler", max_rows=32), CARD, 64, 100)[0]
    assert one < two < 2 * one + 1e-9
    tiny = dataclasses.replace(CARD, memory=round(1.13 * 2 * counts_of(job().model).total))
    assert decoding_seconds(job(), tiny, 4096, 100)[0] > decoding_seconds(job(), CARD, 4096, 100)[0]


def test_vllm_beside_training_has_room_in_its_share_only() -> None:
    """Little more than the weights: a quarter of a card of four times as much, or 0.9 of one of 1.13 times."""
    weights = 2 * counts_of(job().model).total
    four, fewer = (dataclasses.replace(CARD, memory=round(times * weights)) for times in (4, 1.13))
    beside = decoding_seconds(job(served_share=0.9 * 1.13 / 4), four, 4096, 100)
    assert beside[0] == pytest.approx(decoding_seconds(job(), fewer, 4096, 100)[0], rel=1e-3)
    assert beside[0] > decoding_seconds(job(), four, 4096, 100)[0]


@pytest.mark.thorough
def test_waves_are_as_large_as_memory_has_room_for_and_follow_each_other() -> None:
    """Llama in bfloat16, 16 groups of 4: room for 5 groups and a half, so waves of 20, 20, 20 and 4 rows."""
    sampled = job(source="GroupedSampler")
    token = 2 * 8 * 128 * 2
    row = 33 * token * 128 + 16 * 128256  # 32 layers and the copy of one that grows, in pages of 32; 4 float32 logits
    group = 33 * token * 100 + 4 * row
    roomy = memory_of(sampled, dataclasses.replace(CARD, memory=1 << 50, cpu=True))
    own = sum(roomy.items[item][SAMPLING] for item in ("keys and values", "logits and temporaries"))
    free = round(5.5 * group / 0.7)  # of a CPU's free memory rows get 70%
    card = dataclasses.replace(CARD, memory=roomy.total(SAMPLING) - own + free, cpu=True)
    found = memory_of(sampled, card)
    assert (roomy.rows, found.rows) == (64, 20)
    assert found.items["keys and values"] == {SAMPLING: 33 * token * (5 * 100 + 20 * 128)}
    assert found.total(SAMPLING) <= card.memory
    weights = 2 * counts_of(sampled.model).total

    def step(rows: int) -> float:
        """A group reads its prompt once, a row half of its own tokens."""
        return (weights + 32 * token * (rows // 4 * 100 + rows * 50)) / 0.6e12

    assert decoding_seconds(sampled, card, 64, 100) == (pytest.approx(100 * (3 * step(20) + step(4))), "bandwidth")
    assert memory_of(job(), card).rows == 0  # servers decode


def test_layers_with_a_window_or_a_state_read_what_they_keep() -> None:
    assert cache_read(KVCacheSize(((10, None), (10, 64)), state=7), 100, 100) == 10 * 150 + 10 * 64 + 2 * 7
    assert cache_read(KVCacheSize(((10, 150),)), 100, 100) == 10 * (50 * 125 + 50 * 150) / 100  # full after 50 tokens
    assert cache_read(KVCacheSize(((10, 200),)), 100, 100) == cache_read(KVCacheSize(((10, None),)), 100, 100)
    window = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    settings = ModelSettings("Qwen/Qwen2.5-0.5B", "bfloat16", config_overrides=window)
    counts, layer = counts_of(settings), 2 * 2 * 64 * 2
    seconds, bound = decoding_seconds(job(model=settings), dataclasses.replace(CARD, flops=1e16), 64, 100)
    assert (seconds, bound) == (pytest.approx(100 * (2 * counts.total + 64 * 24 * layer * 64) / 0.6e12), "bandwidth")
    token = 2.0 * counts.active + 4 * 24 * 14 * 64 * (64 * 32 + 136 * 64) / 200  # the first 64 tokens see half of it
    assert work_of(job(model=settings)).token_flops == pytest.approx(token)


def test_forward_passes_of_shards_wait_for_their_weights() -> None:
    """Gathered once for each of the micro-batches, in bfloat16: three quarters come from the other three ranks."""
    critic = {"critic": "", "teacher": ModelSettings(SMALL, "bfloat16")}
    sharded = job(strategy="fsdp", world=4, reference=True, **critic)
    slow = {phase.name: phase for phase in phases_of(sharded, dataclasses.replace(CARD, link=1e9))}
    gathers = 0.75 * 4 * sharded.micro_batches
    whole = counts_of(sharded.model).total
    sizes = {
        "old log-probabilities": whole, "reference": whole, "critic's values": whole - 128256 * 4096,
        "teacher": counts_of(ModelSettings(SMALL, "bfloat16")).total,
    }  # fmt: skip
    for name, size in sizes.items():
        assert (slow[name].seconds, slow[name].bound) == (pytest.approx(2 * size * gathers / 0.7e9), "communication")
    fast = {phase.name: phase for phase in phases_of(sharded, dataclasses.replace(CARD, link=1e15))}
    assert {fast[name].bound for name in sizes} == {"compute"}
    whole_copies = dataclasses.replace(sharded, strategy="ddp")
    found = {phase.name: phase for phase in phases_of(whole_copies, dataclasses.replace(CARD, link=1e9))}
    assert {found[name].bound for name in sizes} == {"compute"}


@pytest.mark.thorough
def test_the_command_prints_phases_and_assumptions_where_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs" / "quickstart.yaml"
    assert main(["plan", f"--config={config}", "--time"]) == 0
    shown = capsys.readouterr().out
    assert "decoding" in shown
    assert all(sentence in shown for sentence in ASSUMPTIONS)
    assert main(["plan", f"--config={config}"]) == 0
    shown = capsys.readouterr().out
    assert "time, at full lengths:" in shown
    assert " for 20;" in shown
    assert ASSUMPTIONS[0] not in shown
