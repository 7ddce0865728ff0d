"""What `gspo plan` prints is what a run will need: by hand, by counting, and beside measured memory."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from benchmarks.plan import CASES, compare
from benchmarks.tracked import CASES as TRACKED
from benchmarks.tracked import TrackedCase, planned, tracked
from gspo_lightning.cli import main
from gspo_lightning.commands.plan import memory
from gspo_lightning.commands.plan.decoding import kv_bytes, kv_itemsize
from gspo_lightning.commands.plan.devices import CARDS, GIB, Device, device_of
from gspo_lightning.commands.plan.job import Job, padded_batch
from gspo_lightning.commands.plan.memory import (
    CRITIC,
    SAMPLING,
    STEPPING,
    TEACHER,
    TRAINING,
    fullest_step,
    memory_of,
    step_memory,
)
from gspo_lightning.commands.plan.models import config_of, counts_of
from gspo_lightning.commands.plan.optimizer_state import optimizer_bytes
from gspo_lightning.commands.plan.step import Step, measure_step
from gspo_lightning.commands.plan.work import equation, work_of
from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests.runs.runs import QUICKSTART

CPU = Device("CPU", 1 << 40, cpu=True)
CARD = Device("card", 1 << 36)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only a config.json: 2 layers, 1.4 million parameters. One for all: what was counted for it is remembered."""
    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=256, vocab_size=4096, max_position_embeddings=2048,
    )  # fmt: skip
    config.save_pretrained(folder)
    return folder


@pytest.fixture
def job(folder: Path) -> Job:
    return Job(
        model=ModelSettings(str(folder)), optimizer="torch.optim.AdamW", precision="32-true", strategy="single",
        shards_weights=True, cpu_offload=False, world=1, nodes=1, old_policy="CachedLogProbs", reference=False,
        prompts=16, group_size=4, minibatches=4, epochs=1, budget=512, max_prompt=20, max_response=100, iterations=10,
        packed=False, source="GroupedSampler", max_rows=32, deal="groups",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-1.7B", 1.72), ("Qwen/Qwen3-30B-A3B", 30.53), ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78)],
)
def test_known_models_have_the_parameters_of_their_cards(name: str, billions: float) -> None:
    assert counts_of(ModelSettings(name)).total / 1e9 == pytest.approx(billions, abs=0.005)


def test_active_parameters_of_a_mixture() -> None:
    active = counts_of(ModelSettings("Qwen/Qwen3-30B-A3B")).active + 2048 * 151936  # cards count the embedding, too
    assert active / 1e9 == pytest.approx(3.35, abs=0.01)


@pytest.mark.thorough
def test_states_by_hand(job: Job) -> None:
    attention = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 2 * 32  # query, key, value, output, norms of heads
    layer = attention + 3 * 128 * 256 + 2 * 128
    total = 2 * layer + 2 * 4096 * 128 + 128
    assert counts_of(job.model).total == total
    items = memory_of(job, CPU).items
    assert items["weights"][SAMPLING] == items["gradients"][STEPPING] == 4 * total
    assert items["optimizer state"][TRAINING] == 8 * total
    assert items["keys and values"][SAMPLING] == 3 * (2 * 2 * 32 * 4) * 32 * 120  # 2 layers, and one that is copied
    assert items["old log-probabilities"][TRAINING] == 64 * 100 * 4


def test_packed_cache_keeps_prompts_once(job: Job) -> None:
    packed = dataclasses.replace(job, packed=True)
    assert kv_bytes(packed, config_of(job.model), 32) == 3 * 512 * (8 * 20 + 32 * 128)  # 100 tokens take 128 places


@pytest.mark.thorough
def test_fewer_rows_than_a_group_are_sampled_where_no_group_fits(
    job: Job, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row takes 3 * 512 * 128 bytes and 4 float32 logits, its prompt 3 * 512 * 20; rows get 70% of 0.8 MB."""
    packed = dataclasses.replace(job, packed=True)
    roomy = memory_of(packed, CPU)
    others = roomy.total(SAMPLING) - sum(
        roomy.items[i][SAMPLING] for i in ("keys and values", "logits and temporaries")
    )
    found = memory_of(packed, Device("CPU", others + 800_000, cpu=True))
    assert (roomy.rows, found.rows) == (32, (560_000 - 30_720) // (196_608 + 65_536))
    assert found.items["keys and values"][SAMPLING] == 3 * 512 * (20 + 2 * 128)
    slow = dataclasses.replace(packed, source="TransformersGenerate")
    assert memory_of(slow, Device("CPU", others + 800_000, cpu=True)).rows == 32  # it does not look
    assert memory_of(packed, Device("CPU", others // 2, cpu=True)).rows == 1
    assert main(["plan", f"--config={QUICKSTART}", "--data.rollouts.max_rows=20"]) == 0
    assert "256 responses of a device are sampled 16 at a time" in capsys.readouterr().out


@pytest.mark.thorough
def test_replicas_shard_among_fewer_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight ranks in two groups hold what four ranks hold; prompts are dealt to all eight."""
    line = [f"--config={QUICKSTART}", "--config=fsdp2", "--trainer.accelerator=cpu", "--device=80GB"]

    def states(*more: str) -> list[str]:
        assert main(["plan", *line, *more]) == 0
        return [row for row in capsys.readouterr().out.splitlines() if re.match(r".*(weights|optimizer state) ", row)]

    eight = states("--trainer.devices=8", "--trainer.strategy.replicas=2")
    assert len(eight) >= 2
    assert eight == states("--trainer.devices=4")
    assert eight != states("--trainer.devices=8")


def test_ranks_that_compute_the_same_rows_keep_their_share_of_activations(job: Job) -> None:
    """Weights are gathered once for each turn, and each turn is a part of the work."""
    card = Device("card", 10 * GIB)
    alone = dataclasses.replace(job, strategy="fsdp", world=4)
    group = dataclasses.replace(alone, context=4)
    one, four = (memory_of(run, card).items for run in (alone, group))
    assert four["activations"][TRAINING] == pytest.approx(one["activations"][TRAINING] / 4, abs=1)
    assert four["gathered weights"] == one["gathered weights"]
    assert group.passes == 4 * alone.passes


def test_vllm_beside_training_is_counted(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """0.4 of 10 GiB are 4 GiB: asleep while the policy is trained, or a server, which is awake at all times."""
    card = Device("card", 10 * GIB)
    engine = dataclasses.replace(job, source="VLLMEngine", served_share=0.4, served_sleeps=True)
    found = memory_of(engine, card)
    assert found.items["vLLM (weights, keys and values)"] == {SAMPLING: round(0.4 * 10 * GIB)}
    assert "keys and values" not in found.items
    awake = memory_of(dataclasses.replace(engine, served_sleeps=False), card)
    assert awake.items["vLLM (weights, keys and values)"] == dict.fromkeys(awake.phases, round(0.4 * 10 * GIB))
    sharded = memory_of(dataclasses.replace(engine, strategy="fsdp", world=4, served_share=1e-9), card).items
    assert SAMPLING not in sharded["gathered weights"] or sharded["gathered weights"][SAMPLING] == 0
    own = 4 * counts_of(job.model).total  # gathered beside the engine's own, before it has its cache
    assert sharded["vLLM (weights, keys and values)"] == {SAMPLING: 2 * own}


@pytest.mark.thorough("VLLMEngine-options0-phases0")
@pytest.mark.parametrize(
    ("source", "options", "phases"),
    [
        ("VLLMEngine", {"gpu_memory_utilization": 0.5}, [0.5, 0, 0]),
        ("VLLMEngine", {"options": {"enable_sleep_mode": False}}, [0.4, 0.4, 0.4]),
        ("VLLMServer", {}, [0.4, 0.4, 0.4]),  # one server, beside the first rank
        ("VLLMServer", {"options": {"gpu_memory_utilization": 0.3}}, [0.3, 0.3, 0.3]),
        ("VLLMServer", {"start": 2, "gpus": ["0", "0"]}, [0.4, 0.4, 0.4]),  # half of it each
        ("VLLMServer", {"gpus": ["1"]}, None),  # a card that no rank uses
        ("VLLMServer", {"start": 2}, None),  # refused where there are no such cards
        ("VLLMServer", {"urls": ["http://127.0.0.1:9"]}, None),
    ],
)
def test_the_share_of_vllm_on_a_training_card(
    source: str, options: dict[str, Any], phases: list[float] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = json.dumps({"class_path": source, "init_args": options})
    card = ["--trainer.accelerator=auto", "--device=100GiB"]
    assert main(["plan", f"--config={QUICKSTART}", *card, f"--data.rollouts={chosen}"]) == 0
    said = capsys.readouterr().out
    lines = [row for row in said.splitlines() if "vLLM" in row and "values" in row]
    assert len(lines) == (phases is not None)
    for line in lines:
        assert [cell.strip() for cell in line.split("│")[2:5]] == [
            f"{98.5 * share:.2f} GiB" if share else "-" for share in phases or []
        ]
    assert ("on the devices that train" in said) == (phases is not None)


@pytest.mark.thorough
def test_the_source_inside_of_a_conversation_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    calculator = QUICKSTART.with_name("calculator.yaml")
    assert main(["plan", f"--config={QUICKSTART}", f"--config={calculator}", "--device=24GiB"]) == 0
    assert "keys and values" in capsys.readouterr().out


@pytest.mark.thorough
def test_shorter_responses_need_less_than_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", f"--config={QUICKSTART}", "--device=24GiB"]
    assert main([*given, "--mean-response=4"]) == 0
    said = capsys.readouterr().out
    (mean,) = re.findall(r"with responses of 4 tokens on average: ([\d.]+) MiB", said)
    (bound,) = re.findall(r"fits: ([\d.]+) MiB", said)
    assert float(mean) < float(bound)
    assert main([*given, "--mean-response=100000"]) == 2
    assert "--mean-response: is 100000" in capsys.readouterr().err


@pytest.mark.thorough
def test_rollouts_ahead_have_weights_of_their_own(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    total = counts_of(job.model).total
    found = memory_of(dataclasses.replace(job, copies=2), CPU).items["weights of rollouts ahead"]
    assert found == dict.fromkeys((SAMPLING, TRAINING, STEPPING), 2 * 4 * total)
    assert "weights of rollouts ahead" not in memory_of(job, CPU).items
    server = '--data.rollouts={"class_path": "VLLMServer", "init_args": {"weights_in_flight": true}}'
    for given, size in (([], " 0.3 MiB"), ([server], " 0.7 MiB")):  # 87,300 weights; in flight the newest ones, too
        assert main(["plan", f"--config={QUICKSTART}", "--device=24GiB", "--data.max_staleness=1", *given]) == 0
        (line,) = (row for row in capsys.readouterr().out.splitlines() if "weights of rollouts ahead" in row)
        assert line.count(size) == 3
    sharded = [f"--config={QUICKSTART.with_name('fsdp2.yaml')}", "--trainer.devices=2", server]
    assert main(["plan", f"--config={QUICKSTART}", "--device=24GiB", "--data.max_staleness=1", *sharded]) == 0
    assert "weights of rollouts ahead" not in capsys.readouterr().out  # they are sent when a job is submitted


def test_a_reference_is_sharded(job: Job) -> None:
    total = counts_of(job.model).total
    for world, strategy in ((1, "single"), (4, "fsdp"), (4, "ddp")):
        found = memory_of(dataclasses.replace(job, reference=True, world=world, strategy=strategy), CPU)
        assert found.items["reference policy"][TRAINING] == 4 * total // (4 if strategy == "fsdp" else 1)


@pytest.mark.thorough
def test_small_models_are_copied_to_decode(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = dataclasses.replace(job, packed=True)
    total = 4 * counts_of(job.model).total
    assert memory_of(packed, CPU).items["weights, decoding copy"] == {SAMPLING: total}
    assert "weights, decoding copy" not in memory_of(job, CPU).items
    assert "weights, decoding copy" not in memory_of(dataclasses.replace(packed, lockstep=True), CPU).items
    mixed = dataclasses.replace(packed, precision="bf16-mixed")
    for multiplies in (False, True):
        monkeypatch.setattr(memory, "multiplies_bfloat16", lambda multiplies=multiplies: multiplies)
        assert ("weights, decoding copy" in memory_of(mixed, CPU).items) == multiplies
    itemsizes = {name: kv_itemsize(job, CPU) for name, job in {"float32": packed, "bf16-mixed": mixed}.items()}
    assert itemsizes == {"float32": 4, "bf16-mixed": 4}  # a CPU attends in float32
    assert kv_itemsize(mixed, CARD) == 2
    assert "weights, decoding copy" in memory_of(packed.with_model(lora=LoRA()), CPU).items
    monkeypatch.setattr(memory, "LARGEST_COPY", total - 1)
    assert "weights, decoding copy" not in memory_of(packed, CPU).items


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("written", "same"), [("bf16", ["--trainer.precision=bf16-mixed"]), ("bf16-true", ["--model.dtype=bfloat16"])]
)
def test_every_name_of_a_precision_is_planned_as_it_trains(
    written: str, same: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    adapters = ["--model.lora={r: 4}", "--model.cold_start=null"]  # bfloat16 weights are not trained
    for options in ([f"--trainer.precision={written}"], same, []):
        assert main(["plan", f"--config={QUICKSTART}", *adapters, *options]) == 0
        tables.append(capsys.readouterr().out.partition("memory of one device")[2].partition("tokens per")[0])
    assert tables[0] == tables[1] != tables[2]


def test_eight_bit_state(job: Job) -> None:
    counts = counts_of(job.model)
    assert counts.small == 2 * (2 * 32 + 2 * 128) + 128  # the norms
    large = counts.total - counts.small
    assert optimizer_bytes("bitsandbytes.optim.AdamW8bit", counts, 4) == round(
        2 * (large * 1.015625 + 4 * counts.small)
    )
    paged = memory_of(dataclasses.replace(job, optimizer="bitsandbytes.optim.PagedAdamW8bit"), CPU)
    assert paged.host["optimizer state"] == optimizer_bytes("bitsandbytes.optim.PagedAdamW8bit", counts, 4)
    assert "optimizer state" not in paged.items


@pytest.mark.thorough
def test_sharding_divides_states_and_gathers_layers(job: Job) -> None:
    whole = memory_of(job, CPU).items
    shards = memory_of(dataclasses.replace(job, strategy="fsdp", world=4), CPU).items
    for item in ("weights", "gradients", "optimizer state"):
        assert shards[item][STEPPING] == pytest.approx(whole[item][STEPPING] / 4, abs=1)
    assert shards["gathered weights"][SAMPLING] == whole["weights"][SAMPLING]
    served = dataclasses.replace(job, strategy="fsdp", world=4, source="VLLMServer")
    assert memory_of(served, CPU).items["gathered weights"][SAMPLING] == whole["weights"][SAMPLING]  # one bucket
    counts = counts_of(ModelSettings("Qwen/Qwen3-1.7B"))
    sent = memory_of(dataclasses.replace(served, model=ModelSettings("Qwen/Qwen3-1.7B")), CPU).items["gathered weights"]
    largest = 4 * counts.outside  # the embedding, in float32, is larger than a bucket
    assert sent[SAMPLING] == max(2 * largest, sent[TRAINING]) < 0.4 * 4 * counts.total
    layers = memory_of(dataclasses.replace(job, strategy="fsdp", world=4, lockstep=True), CPU).items
    assert layers["gathered weights"] == dict.fromkeys((SAMPLING, TRAINING), shards["gathered weights"][TRAINING])


@pytest.mark.thorough
def test_checkpointing_and_smaller_micro_batches_keep_less(job: Job) -> None:
    def activations(changed: Job) -> int:
        return memory_of(changed, CPU).items["activations"][TRAINING]

    assert job.rows_at_once == 4
    assert activations(dataclasses.replace(job, budget=240)) == pytest.approx(activations(job) / 2, rel=0.02)
    assert activations(job.with_model(gradient_checkpointing=True)) < activations(job) / 4


@pytest.mark.thorough
def test_gradients_count_from_when_they_exist(job: Job) -> None:
    """None while responses are sampled; in the first micro-batch of an update they appear as activations go."""
    full = 4 * counts_of(job.model).total
    found = {rows: memory_of(dataclasses.replace(job, budget=120 * rows), CPU).items for rows in (8, 16)}
    assert found[8]["gradients"] == {TRAINING: full, STEPPING: full}  # two micro-batches
    alone = found[16]["gradients"]
    assert (alone.get(SAMPLING), alone[STEPPING]) == (None, full)
    assert alone[TRAINING] <= full / 2


@pytest.mark.thorough
def test_equal_parts_of_two_micro_batches_or_one_that_shorter_responses_fill(job: Job) -> None:
    """16 rows of 4 prompts, 1,680 tokens: a budget of 1,300 takes 12 of them, but cutting balances: 8 and 8.

    A mini-batch of shorter responses can still fill the budget alone, before there is any gradient.
    """
    two = dataclasses.replace(job, packed=True, budget=1300)
    assert (two.rows_at_once, two.micro_batches) == (12, 2)
    full = 4 * counts_of(job.model).total
    halves, alone = step_memory(two, CPU, rows=8), step_memory(two, CPU, accumulates=False)
    assert halves.total() < step_memory(two, CPU).total()
    found = fullest_step(two, CPU)
    assert found.total() == max(halves.total() + full, alone.total())
    three = dataclasses.replace(two, budget=900)
    assert fullest_step(three, CPU).total() == step_memory(three, CPU).total() + full


@pytest.mark.thorough
def test_activations_of_a_layer_by_hand() -> None:
    """Bytes per token that autograd keeps in a layer of Qwen3-1.7B with bf16-mixed, of sizes D, I, Q and K.

    Two norms keep their float32 input and what they normalise (16 D), five products their inputs in bfloat16 (10 D for
    q, k, v, gate and up, 2 I and 2 Q for down and output), the norms of heads float32 inputs and bfloat16 results
    (6 (Q + K)), attention q, k, v and a float32 number per head (2 (Q + 2 K) + 4 H), the gate its input, its result and
    the factor (6 I). The H100 that ran 9,129 tokens of it used 58,242 MiB at its peak, all together.
    """
    config = config_of(ModelSettings("Qwen/Qwen3-1.7B"))
    batch = padded_batch(16, 2, 96, 479)
    tokens = 8 * 96 + 16 * 478  # the last tokens predict nothing
    step = Step(autocast=True, packed=True, accumulates=False, cpu=False)
    hidden, inner, query, key, heads = 2048, 6144, 2048, 1024, 16
    token = 26 * hidden + 8 * inner + 2 * query + 6 * (query + key) + 2 * (query + 2 * key) + 4 * heads
    found = measure_step(config, batch, step)
    assert found.activations / 28 / tokens == pytest.approx(token, rel=0.01)
    counts = counts_of(ModelSettings("Qwen/Qwen3-1.7B"))
    assert found.copies == pytest.approx(2 * counts.total, rel=0.001)  # the embedding is the head
    head = 2 * 1766 * 151_936 + (4 + 2) * 151_936 * hidden  # logits and gradient of a chunk, the whole gradient
    assert head < found.temporaries < 1.3 * head  # hidden states and their gradients beside it
    measured = 16 * counts.total - 4 * counts.total + found.copies + found.temporaries + found.activations * 9129 / 8432
    assert measured / 2**20 == pytest.approx(58_242, rel=0.02)


@pytest.mark.thorough
def test_the_decoder_that_a_gpu_keeps_is_counted_in_every_phase(job: Job) -> None:
    """The copy of the weights stays while training; a row of 100 tokens has 101 places, and not 128."""
    mixed = dataclasses.replace(job, packed=True, precision="bf16-mixed", max_response=100)
    size = 2 * counts_of(job.model).products
    for kind in (mixed, mixed.with_model(lora=LoRA())):
        found = memory_of(kind, CARD)
        copy = found.items["weights, decoding copy"]
        assert copy.keys() == set(found.phases)
        assert copy[TRAINING] == pytest.approx(size, rel=0.1)
        assert SAMPLING not in found.items.get("weights in bfloat16 (autocast)", {})
    assert kv_bytes(mixed, config_of(job.model), 32, "whole") < kv_bytes(mixed, config_of(job.model), 32)
    for other in (dataclasses.replace(mixed, strategy="fsdp", world=4), dataclasses.replace(mixed, packed=False)):
        assert "weights, decoding copy" not in memory_of(other, CARD).items


@pytest.mark.thorough
def test_cast_weights_are_counted_once_while_sampling(folder: Path, job: Job) -> None:
    """A rollout keeps one bfloat16 copy; the gathered weights of FSDP are that copy."""
    mixed = dataclasses.replace(job, packed=True, precision="bf16-mixed", max_prompt=1, max_rows=4)
    counts, logits = counts_of(job.model), 4 * 4 * 4 * 4096
    items = memory_of(mixed, CPU).items
    assert items["logits and temporaries"][SAMPLING] == logits
    assert items["weights in bfloat16 (autocast)"][SAMPLING] == 2 * (counts.total - 4096 * 128)  # not the embedding
    sharded = memory_of(dataclasses.replace(mixed, strategy="fsdp", world=4), CPU).items
    assert "weights in bfloat16 (autocast)" not in sharded
    assert sharded["gathered weights"][SAMPLING] == 2 * counts.total
    assert sharded["logits and temporaries"][SAMPLING] == logits


@pytest.mark.thorough
def test_a_teacher_is_counted_in_the_dtype_of_its_files(job: Job, folder: Path) -> None:
    total = counts_of(job.model).total
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("auto", 2)):  # a config that says nothing: bfloat16 is usual
        taught = dataclasses.replace(job, teacher=ModelSettings(str(folder), dtype))
        items = memory_of(taught, CPU).items
        assert items["teacher"] == dict.fromkeys((SAMPLING, TEACHER, TRAINING, STEPPING), size * total)
        sharded = dataclasses.replace(taught, strategy="fsdp", world=4)
        assert memory_of(sharded, CPU).items["teacher"][TRAINING] == size * total / 4
    assert "teacher" not in memory_of(job, CPU).items


def test_the_pass_of_a_teacher_needs_room_of_its_own(job: Job) -> None:
    """Of a model like the policy: the logits of 4 rows of 100 tokens, which a forward pass has at least."""
    taught = dataclasses.replace(job, teacher=dataclasses.replace(job.model, dtype="float32"))
    own = memory_of(taught, CPU).items["teacher's forward pass"]
    assert list(own) == [TEACHER]
    trained = memory_of(job, CPU)
    assert 4 * 100 * 4096 * 4 <= own[TEACHER] < trained.total(TRAINING) - trained.total(STEPPING)
    exact = memory_of(dataclasses.replace(taught, teacher_exact=True), CPU)
    assert exact.items["teacher's forward pass"] == {TRAINING: own[TEACHER]}
    assert TEACHER not in exact.phases
    sharded = memory_of(dataclasses.replace(taught, strategy="fsdp", world=4), CPU)
    counts = counts_of(job.model)
    assert sharded.items["gathered weights"][TEACHER] == 4 * (2 * counts.largest_layer + counts.outside)


@pytest.mark.thorough
def test_the_teacher_of_a_config_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    distill = QUICKSTART.with_name("distill.yaml")
    assert main(["plan", f"--config={QUICKSTART}", f"--config={distill}", "--device=24GiB"]) == 0
    said = capsys.readouterr().out
    assert "teacher: tiny-qwen3, 87.30k float32" in said
    assert "teacher's" in said  # in the table
    assert re.search(r"training \S+, teacher \d", said)
    served = "--model.teacher=http://127.0.0.1:9"
    assert main(["plan", f"--config={QUICKSTART}", served, "--model.objective.distill_coef=1", "--device=24GiB"]) == 0
    said = capsys.readouterr().out
    assert "teacher: a server, on devices of its own; its size is not known here" in said
    assert "teacher's" not in said
    assert re.search(r"training \S+, teacher \d", said)


def test_plan_equation_counts_rollouts_sequences_and_updates(job: Job) -> None:
    text = equation(dataclasses.replace(job, world=2, epochs=2))
    assert "16 prompts x 4 responses = 64 rollouts = 4 mini-batches x 16 sequences = 2 ranks x 8" in text
    assert "up to 2 micro-batches of 4 rows per rank" in text
    assert "4 mini-batches x 2 passes = 8 updates per iteration x 10 iterations = 80 updates" in text


def test_work_by_hand(job: Job) -> None:
    work = work_of(job)
    assert (work.prompt_tokens, work.response_tokens) == (320, 6400)
    active = counts_of(job.model).total - 4096 * 128
    token = 2 * active + 2 * 2 * 128 * 120
    assert work.sampling_flops == token * 6720
    assert work.training_flops == 3 * token * 64 * 120
    assert work.old_flops == 0  # in float32 a run takes the sampler's
    recomputed = dataclasses.replace(job, old_logprobs="recompute")
    assert work_of(recomputed).old_flops == token * 48 * 120  # all but the first mini-batch
    assert work_of(dataclasses.replace(recomputed, epochs=2)).old_flops == token * 64 * 120
    assert work_of(dataclasses.replace(job, precision="bf16-true")).old_flops > 0


def test_a_deal_repeats_prompts_in_training_only(job: Job) -> None:
    """16 prompts of 20 tokens, 4 responses each, 4 mini-batches: each has one response of every prompt."""
    job = dataclasses.replace(job, packed=True)
    whole, parts = (work_of(dataclasses.replace(job, deal=deal)) for deal in ("groups", "stratified"))
    assert (whole.trained_prompt_tokens, parts.trained_prompt_tokens) == (16 * 20, 4 * 16 * 20)
    assert whole.sampling_flops == parts.sampling_flops
    assert parts.training_flops / whole.training_flops == pytest.approx((1280 + 6400) / (320 + 6400))
    few = dataclasses.replace(job, deal="stratified", group_size=2)
    assert work_of(few).trained_prompt_tokens == 2 * 16 * 20
    shuffled = work_of(dataclasses.replace(job, deal="shuffled")).trained_prompt_tokens
    assert shuffled == round(4 * 16 * (1 - 0.75**4) * 20)
    assert dataclasses.replace(job, deal="groups").rows_at_once == 4  # 512 // (20 + 4 * 100) groups
    assert dataclasses.replace(job, deal="stratified").rows_at_once == 4  # 512 // (20 + 100) rows
    assert "16 sequences of 16 prompts (data.deal: stratified)" in equation(dataclasses.replace(job, deal="stratified"))


def test_plan_device_is_a_card_a_memory_size_or_a_cpu() -> None:
    assert device_of("h100", "gpu") is CARDS["H100"]
    assert 23 * GIB < device_of("24GB", "gpu").memory < 24 * GIB
    assert device_of(None, "cpu").cpu
    assert device_of("CPU", "gpu").cpu


def test_the_speed_of_this_cpu_is_measured_and_its_libraries_count(job: Job) -> None:
    here = device_of("cpu", "cpu")
    left, right = torch.ones(128, 512), torch.ones(512, 512)
    start = time.perf_counter()
    for _ in range(20):
        left @ right
    average = 20 * 2.0 * 128 * 512 * 512 / (time.perf_counter() - start)
    assert average / 4 < here.flops < 40 * average  # the machine may be busy now, or have been
    with_libraries, without = memory_of(job, here), memory_of(job, dataclasses.replace(here, libraries=0))
    assert with_libraries.peak - without.peak == GIB // 2


@pytest.mark.thorough
def test_quickstart_fits(capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--trainer.strategy=ddp", "--trainer.devices=2", f"--config={QUICKSTART.with_name('moe.yaml')}"]
    assert main(["plan", f"--config={QUICKSTART}", *two]) == 0
    printed = capsys.readouterr().out
    assert "gradient buckets (DDP)" in printed
    assert "32 prompts x 8 responses = 256 rollouts = 4 mini-batches x 64 sequences of 32 prompts" in printed
    assert "(data.deal: stratified) = 2 ranks x 32" in printed
    assert "fits:" in printed
    assert "active per token" in printed


@pytest.mark.thorough
def test_an_assumed_device_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    planned = ["plan", f"--config={QUICKSTART}", "--trainer.accelerator=auto"]
    assert main(planned) == 0
    assert "1 x H100 (assumed; --device names another), single" in capsys.readouterr().out
    assert main([*planned, "--device=H100"]) == 0
    assert "1 x H100, single" in capsys.readouterr().out


@pytest.mark.thorough
def test_plan_gives_two_options_where_a_run_does_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", f"--config={QUICKSTART}", f"--model.name_or_path={folder}", "--model.layout=padded"]
    sizes = ["--data.max_response_tokens=480", "--data.max_tokens_per_micro_batch=8192"]
    assert main([*argv, *sizes, "--device=0.3GB"]) == 1
    printed = capsys.readouterr().out
    assert "does not fit:" in printed
    assert "option 1: model.gradient_checkpointing: true" in printed
    assert "option 2: data.max_tokens_per_micro_batch: 4096" in printed


@pytest.mark.parametrize(
    ("arguments", "field", "hint"),
    [
        (["--model.name_or_path=nobody/knows-this-model"], "model.name_or_path", "config.json"),
        (["--data.max_response_tokens=4000", "--device=80GB"], "data.max_response_tokens", "512 positions"),
        (["--device=huge"], "--device", "neither cpu, a size"),
        (["--trainer.devices=3", "--trainer.strategy=ddp"], "data.prompts_per_rollout", "multiple of 12"),
        (["--model.optimizer=torch.optim.LBFGS"], "model.optimizer", "unknown"),
    ],
)
def test_plan_names_the_setting_that_it_refuses(
    arguments: list[str], field: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy = ["--data.max_tokens_per_micro_batch=8192"]
    assert main(["plan", f"--config={QUICKSTART}", *roomy, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {field}")
    assert hint in error


@pytest.mark.thorough
def test_plan_suggests_context_parallelism_for_rows_too_long_for_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Qwen3Config(
        hidden_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
        intermediate_size=2048, vocab_size=4096, max_position_embeddings=1 << 20,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 1 << 20
    argv = ["plan", f"--config={QUICKSTART}", f"--model.name_or_path={tmp_path}", "--model.layout=padded"]
    sizes = ["--data.max_response_tokens=90000", "--data.max_tokens_per_micro_batch=90016", "--device=1GB"]
    assert main([*argv, *sizes]) == 2
    assert "--config cp cuts a sequence" in capsys.readouterr().err


@pytest.mark.long  # forks a process a case; what is counted by hand is above
@pytest.mark.parametrize("case", [c for c in CASES if c.name == "packed, gradient checkpointing"], ids=lambda c: c.name)
def test_planned_memory_is_what_is_measured(case: object) -> None:
    planned, measured = compare(case)  # type: ignore[arg-type]
    assert planned == pytest.approx(measured, rel=0.25)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == TrackedCase("llama", sharded=True) else pytest.mark.long)
        for case in TRACKED
    ],
    ids=str,
)
def test_a_plan_is_what_the_tracker_of_torch_counts(case: TrackedCase) -> None:
    """States and gradients exactly, a backward pass within 10 %: see benchmarks/results/plan_tracked.md."""
    expected, found = planned(case), tracked(case)
    assert expected[STEPPING] == pytest.approx(found[STEPPING], rel=0.001)
    assert expected[TRAINING] == pytest.approx(found[TRAINING], rel=0.1)


@pytest.mark.thorough
def test_a_plan_asks_no_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(field: str, name: str, kind: str) -> None:
        raise UserError(field, f"{name} was asked for")

    monkeypatch.setattr("gspo_lightning.commands.fit.absent.check_reachable", refuse)
    assert main(["plan", f"--config={QUICKSTART.parent / 'models' / 'r1_1.5b_80gb.yaml'}", "--device", "H200"]) == 0
    assert "1.78B parameters" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_critic_is_counted(job: Job) -> None:
    """A copy without the output head of 4096 x 128; its gradients and activations while it is trained."""
    alone, beside = memory_of(job, CPU), memory_of(dataclasses.replace(job, critic=""), CPU)
    trained = counts_of(job.model).total - 4096 * 128
    assert beside.items["critic's weights"] == dict.fromkeys(beside.phases, 4 * trained)
    assert beside.items["critic's optimizer state"][SAMPLING] == 8 * trained
    assert beside.items["critic's gradients"] == {CRITIC: 4 * trained}
    assert beside.items["activations"][CRITIC] == beside.items["activations"][TRAINING]
    for phase in (SAMPLING, TRAINING, STEPPING):
        assert beside.total(phase) == alone.total(phase) + 12 * trained
    adapters = dataclasses.replace(job, model=dataclasses.replace(job.model, lora=LoRA(r=4)), critic="")
    counts = counts_of(adapters.model)
    assert memory_of(adapters, CPU).items["critic's weights"][SAMPLING] == 4 * counts.trainable
    fsdp = dataclasses.replace(adapters, strategy="fsdp", world=4)
    own = 4 * (counts.total - 4096 * 128)  # shards cannot be shared with the policy
    assert memory_of(fsdp, CPU).items["critic's weights"][SAMPLING] == pytest.approx(own / 4, abs=1)


def test_the_work_of_a_critic(job: Job) -> None:
    alone, beside = work_of(job), work_of(dataclasses.replace(job, critic="", critic_epochs=3))
    tokens = 64 * 120
    active = counts_of(job.model).total - 2 * 4096 * 128  # neither the embedding nor an output head
    token = 2 * active + 2 * 2 * 128 * 120
    assert alone.value_flops == alone.critic_flops == 0
    assert beside.value_flops == token * tokens
    assert beside.critic_flops == 3 * 3 * token * tokens
    shared = work_of(dataclasses.replace(job, critic_shared=True, critic_epochs=3))
    assert (shared.value_flops, shared.critic_flops) == (token * tokens, 3 * token * tokens)  # no backward pass


@pytest.mark.thorough
def test_the_plan_of_a_config_with_a_critic(capsys: pytest.CaptureFixture[str]) -> None:
    critic = ["--model.objective=GSPOToken", "--data.advantages=GAE", "--model.critic=ValueModel"]
    assert main(["plan", f"--config={QUICKSTART}", *critic]) == 0
    said = capsys.readouterr().out
    assert "critic: tiny-qwen3 without its output head" in said
    assert "critic's" in said  # in the table
    assert re.search(r"training \d[^,]*, critic \d", said)
    assert main(["plan", f"--config={QUICKSTART}", *critic, "--model.critic.share=true"]) == 0
    said = capsys.readouterr().out
    assert "critic: a head on the policy's model" in said
    assert "critic's" not in said  # in the table
