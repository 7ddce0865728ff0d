"""The benchmarks at toy size: one mathematics on both sides, the scheduled lengths, the FLOP count, the last line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.clock import TOTAL, Phases, alternate, summarise
from benchmarks.floor import _Products, product_seconds, step_flops
from benchmarks.forced import check_lengths
from benchmarks.gpu_parts import Bench, check_noise, check_parity
from benchmarks.memory import MemoryCase, frozen_groups, peak_memory, plain_loss, reset_peak
from benchmarks.models import EOS, MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.parity import ParityCase, compare_gradients, perturb
from benchmarks.peers.trl import TRL, as_batch, as_groups, trl_version
from benchmarks.report import Report, line, write
from benchmarks.scaling import BASE, points
from benchmarks.step import Comparison, compare, micro_batch_sizes, run_step
from benchmarks.train import run_train
from benchmarks.workloads import MINI_BATCHES, WORKLOADS, Workload

SHAPE = Shape(vocabulary=128, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, intermediate=24)
WORK = Workload(4, 2, (3, 6), 5, 12)
needs_trl = pytest.mark.skipif(trl_version() is None, reason="TRL is not installed: make test-trl")
KEYS = ["step_ratio_10m", "step_ratio_1m", "step_ratio_moe", "memory_ratio_v152k", "floor_ratio_10m", "parity_ok"]


def make_ours(**options: Any) -> Ours:
    return Ours(build_model(SHAPE), word_tokenizer(SHAPE.vocabulary), WORK, **options)


@pytest.fixture(scope="module")
def trl() -> TRL:
    pytest.importorskip("trl", reason="TRL is not installed: make test-trl")
    return TRL(build_model(SHAPE), word_tokenizer(SHAPE.vocabulary), WORK)


@pytest.mark.parametrize("name", WORKLOADS)
def test_response_lengths_are_skewed_and_reach_the_longest(name: str) -> None:
    work = WORKLOADS[name]
    lengths = work.lengths.flatten()
    assert lengths.shape == (work.rows,)
    assert int(lengths.max()) == work.longest
    assert int(lengths.min()) >= 1
    assert abs(int(lengths.median()) - work.median) <= 1
    if work.sigma:
        assert work.longest > 3 * work.median


def test_prompts_are_tokens_of_the_tokenizer_and_spread_over_their_range() -> None:
    prompts = WORK.make_prompts(SHAPE.vocabulary)
    tokenizer = word_tokenizer(SHAPE.vocabulary)
    assert [len(p.token_ids) for p in prompts] == [3, 4, 5, 6]
    assert all(tuple(tokenizer(p.text).input_ids) == p.token_ids for p in prompts)


def test_number_of_parameters_is_what_the_names_say() -> None:
    """With tied embeddings, body and head are all weights but those of the norms."""
    for name, millions in (("1m", 0.9), ("10m", 8.9), ("moe", 2.7)):
        shape, model = MODELS[name], build_model(MODELS[name])
        total = sum(p.numel() for p in model.parameters())
        assert round(total / 1e6, 1) == millions
        if not shape.experts:
            norms = sum(p.numel() for p in model.parameters() if p.ndim == 1)
            assert shape.body + shape.head + norms == total


def test_flops_of_a_step_by_hand() -> None:
    """One prompt of 2 tokens, two responses of 3 (the median: no skew); body and head of 10 and 6 weights."""
    shape = Shape(vocabulary=3, hidden=2, layers=1, heads=1, kv_heads=1, head_dim=1, intermediate=0)
    assert (shape.body, shape.head) == (2 * (2 + 2), 6)
    work = Workload(1, 2, (2, 2), 3, 3, sigma=0.0)
    body = 2 * 8 * (2 + 2 * 2)  # the prompt once, two tokens of each response
    head = 2 * 6 * (1 + 2 * 2)  # the prompt's last state once, two of each response
    pairs = (1 + 2) + 2 * (3 + 4)  # a position attends to itself and all before
    flops = step_flops(shape, work)
    assert flops.generate == body + head + 4 * pairs
    assert flops.train == 3 * flops.generate
    assert flops.total == 4 * flops.generate


@pytest.mark.parametrize("experts", [(0, 0), (4, 2)])
def test_timed_products_are_those_of_a_forward(experts: tuple[int, int]) -> None:
    shape = Shape(12, 8, 2, 2, 1, 4, 16, *experts)
    with FlopCounterMode(display=False) as counter:
        assert _Products(shape).seconds(6, 5, tries=1) > 0
    router = shape.layers * shape.hidden * shape.experts  # too small to be timed
    assert counter.get_total_flops() == 2 * 2 * (6 * (shape.body - router) + 5 * shape.head)  # in both layouts


def test_products_of_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 2 tokens, two responses of 3: two steps of two rows, then three tokens in each mini-batch."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(_Products, "seconds", lambda _, *sizes: asked.append(sizes) or 10.0 ** len(asked))
    shape = Shape(12, 8, 1, 2, 1, 4, 16)
    assert product_seconds(shape, Workload(1, 2, (2, 2), 3, 3, sigma=0.0), 2) == 10 + 2 * 100 + 3 * 2 * 1000
    assert asked == [(2, 1), (2, 2), (3, 3)]


def test_own_sampler_writes_responses_of_the_scheduled_lengths() -> None:
    ours = make_ours()
    groups = ours.generate()
    check_lengths(groups, WORK.lengths)
    for rollout in (r for g in groups for r in g):
        assert (rollout.token_ids[:-1] != EOS).all()
        assert rollout.token_ids[-1] == EOS
    again = [r.token_ids.tolist() for g in ours.generate() for r in g]
    assert again != [r.token_ids.tolist() for g in groups for r in g], "each round draws anew"


def test_wrong_lengths_are_noticed() -> None:
    groups = make_ours().generate()
    wanted = WORK.lengths.clone()
    wanted[2, 1] += 1
    with pytest.raises(RuntimeError, match="response 1 to prompt 2"):
        check_lengths(groups, wanted)


def test_trl_writes_responses_of_the_scheduled_lengths(trl: TRL) -> None:
    batch = trl.rollout()
    assert torch.equal(batch["completion_mask"].sum(1), WORK.lengths.flatten())
    last = batch["completion_ids"].gather(1, WORK.lengths.flatten().unsqueeze(1) - 1)
    assert (last == EOS).all()
    check_lengths(as_groups(batch, trl.prompts, WORK.group_size), WORK.lengths)


def test_loss_and_gradient_are_those_of_trl_on_its_rollouts(trl: TRL) -> None:
    ours = make_ours(max_tokens=64)
    ours.policy.load_state_dict(Ours(trl.trainer.model, ours.policy.tokenizer, WORK).policy.state_dict())
    batch = trl.rollout()
    perturb(batch)
    case = compare_gradients("toy", "toy", ours, trl, batch)
    trl.trainer.optimizer.zero_grad()
    assert case.ok, case
    assert ParityCase("toy", "toy", loss=2e-6, gradient=0.0, clipped=0.5).ok is False
    assert ParityCase("toy", "toy", loss=0.0, gradient=0.0, clipped=0.0).ok is False, "nothing was clipped"


def test_parity_notices_another_objective(trl: TRL) -> None:
    ours = make_ours(max_tokens=64)
    ours.policy.load_state_dict(Ours(trl.trainer.model, ours.policy.tokenizer, WORK).policy.state_dict())
    ours.objective.length_norm = "sum"
    batch = trl.rollout()
    perturb(batch)
    case = compare_gradients("toy", "toy", ours, trl, batch)
    trl.trainer.optimizer.zero_grad()
    assert not case.ok


def test_both_sides_take_four_optimizer_steps_and_move_every_weight(trl: TRL) -> None:
    ours = make_ours()
    for model, side in ((ours.policy.model, ours), (trl.trainer.model, trl)):
        before = copy.deepcopy(model.state_dict())
        phases = side.step()
        counts = {int(s["step"]) for s in side_optimizer(side).state.values()}
        assert len(counts) == 1
        assert counts.pop() % 4 == 0
        assert all(not torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert {"generate", "old", "forward", "backward", "optimizer", TOTAL} == set(phases.cpu)


def side_optimizer(side: Ours | TRL) -> Any:
    return side.optimizer if isinstance(side, Ours) else side.trainer.optimizer


def test_frozen_rollouts_are_trained_on_without_generating(trl: TRL) -> None:
    batch = trl.rollout()
    trl.set_micro_batch(1)
    phases = trl.train(batch)
    trl.set_micro_batch(2)
    assert "generate" not in phases.cpu
    ours = make_ours()
    ours.policy.train()
    assert "generate" not in ours.train(as_groups(batch, trl.prompts, WORK.group_size)).cpu


@needs_trl
def test_rollouts_become_the_batch_that_trl_makes_of_them(trl: TRL) -> None:
    batch = trl.rollout()
    again = as_batch(as_groups(batch, trl.prompts, WORK.group_size))
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"):
        torch.testing.assert_close(again[name].to(batch[name]), batch[name])


def test_micro_batch_sizes_are_a_mini_batch_and_its_fractions() -> None:
    assert micro_batch_sizes(Workload(16, 8, (1, 1), 1, 1)) == [32, 16, 8]
    assert micro_batch_sizes(WORK) == [2, 1]


def clock(seconds: float, *, generate: float) -> Phases:
    phases = Phases()
    phases.cpu = {TOTAL: seconds, "generate": generate}
    phases.wall = {TOTAL: 2 * seconds, "generate": generate}
    return phases


def test_sides_take_turns_and_the_first_round_is_dropped() -> None:
    order: list[str] = []

    def side(name: str) -> Phases:
        order.append(name)
        return clock(float(len(order)), generate=0.5)

    found = alternate({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [p.cpu[TOTAL] for p in found["a"]] == [4.0, 5.0]
    assert [p.cpu[TOTAL] for p in found["b"]] == [3.0, 6.0]


def test_summary_has_medians_extremes_and_what_no_phase_covers() -> None:
    summary = summarise([clock(3.0, generate=1.0), clock(9.0, generate=2.0), clock(4.0, generate=1.5)])
    assert (summary.cpu, summary.cpu_low, summary.cpu_high, summary.wall) == (4.0, 3.0, 9.0, 8.0)
    assert summary.phases == {"generate": 1.5, "rest": 2.5}


def comparison(model: str, ratio: int) -> Comparison:
    sides = {"ours": lambda: clock(1.0, generate=0.5), "trl": lambda: clock(float(ratio), generate=0.5)}
    found = compare("step", model, "balanced", WORK, sides, rounds=3)
    found.floor_ratio = 2.5
    return found


@needs_trl
@pytest.mark.parametrize("subject", ["step", "train"])
def test_a_comparison_has_both_sides_and_the_best_micro_batch_of_trl(subject: str) -> None:
    found = {"step": run_step, "train": run_train}[subject]("toy", "toy", WORK, rounds=2, shape=SHAPE)
    assert found.trl is not None
    assert found.ratio == pytest.approx(found.trl.cpu / found.ours.cpu)
    assert found.trl_tried is not None
    assert set(found.trl_tried) == {1, 2}
    assert found.trl_tried[found.trl_micro_batch or 0] == min(found.trl_tried.values())
    assert found.ours.rounds == found.trl.rounds == 1
    assert ("generate" in found.ours.phases) == ("generate" in found.trl.phases) == (subject == "step")


@pytest.mark.thorough
def test_this_package_is_measured_alone_where_that_is_asked_for() -> None:
    found = run_step("toy", "toy", WORK, rounds=2, shape=SHAPE, with_trl=False)
    assert (found.trl, found.ratio, found.trl_tried) == (None, None, None)
    assert found.packed
    assert not run_step("toy", "toy", WORK, rounds=2, shape=SHAPE, with_trl=False, layout="padded").packed
    assert found.ours_per_token == pytest.approx(found.ours.cpu / WORK.response_tokens)


def test_scaling_changes_one_number_at_a_time() -> None:
    for varied, value, work, shape in points():
        changed = [
            work.group_size != BASE.group_size,
            (work.median, work.longest) != (BASE.median, BASE.longest),
            work.prompt_tokens != BASE.prompt_tokens,
            shape != MODELS["1m"],
            work.prompts != BASE.prompts,
        ]
        assert sum(changed) <= 1, (varied, value)
        assert work.prompts % MINI_BATCHES == 0


def test_last_line_has_the_ratios(tmp_path: Path) -> None:
    report = Report("command")
    assert line(report) == dict.fromkeys(KEYS)
    report.comparisons = [comparison("10m", 4), comparison("1m", 3), comparison("moe", 2)]
    report.memory = [
        MemoryCase("ours", 151_936, 16, 2500, 100.0),
        MemoryCase("TRL, same micro-batch", 151_936, 16, 2500, 1500.0),
    ]
    report.parity = [ParityCase("1m", "balanced", 1e-8, 1e-6, 0.5)]
    assert line(report) == dict(zip(KEYS, (4.0, 3.0, 2.0, 15.0, 2.5, True), strict=True))
    report.parity.append(ParityCase("1m", "equal", 1e-8, 1e-4, 0.5))
    assert line(report)["parity_ok"] is False
    write(report, tmp_path, "out")
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["line"] == line(report)
    assert saved["about"]["command"] == "command"
    text = (tmp_path / "out.md").read_text()
    assert "| step | 10m | balanced |" in text
    assert saved["about"]["torch"] == torch.__version__


@pytest.mark.thorough
def test_command_line_measures_the_floor_and_ends_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["floor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == dict.fromkeys(KEYS)


@pytest.mark.parametrize("argv", [["flor"], ["step", "--rounds", "1"], ["step", "--models", "2m"]])
def test_command_line_refuses_what_it_does_not_know(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert argv[-1] in capsys.readouterr().err or "--rounds" in argv


@pytest.mark.thorough
def test_peak_memory_sees_a_tensor_that_is_gone_again() -> None:
    reset_peak()
    before = peak_memory()
    torch.ones(64 * 2**18)  # 64 MiB
    assert 60 <= peak_memory() - before <= 100
    reset_peak()
    assert peak_memory() - before < 40


def test_plain_loss_is_minus_the_mean_advantage_on_policy() -> None:
    ours = make_ours()
    groups = ours.generate()
    for i, rollout in enumerate(r for g in groups for r in g):
        rollout.advantage = float(i)
    assert float(plain_loss(ours.policy.model, as_batch(groups))) == pytest.approx(-3.5, abs=1e-5)
    assert [len(r.token_ids) for g in frozen_groups(WORK, 128) for r in g] == WORK.lengths.flatten().tolist()


@pytest.mark.thorough
def test_gpu_parity_in_toy_form() -> None:
    parity = check_parity(Bench.on(cuda=False))
    assert parity["ok"]
    assert not parity["plain_bf16"]["ok"], "bf16 is not float32: the check would notice a difference of that size"


def test_gpu_noise_in_toy_form() -> None:
    noise = check_noise(Bench.on(cuda=False))
    assert noise["training_twice"]["largest"] == 0
    assert 0 < noise["float32_and_bf16"]["largest"] < 0.1
