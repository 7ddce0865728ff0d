"""Parts of :mod:`benchmarks.gpu_check` that can end a run on a GPU: start, sampler, IPC, resume, FSDP2, memory."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.reductions import reduce_tensor

from benchmarks.gpu_parts import Bench
from benchmarks.models import Shape, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.workloads import Workload, reward
from gspo_lightning.commands.plan.memory import SAMPLING, STEPPING, TRAINING
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies import FSDP2Strategy
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import SharedDecoder
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.rollouts.vllm.transfer import fixed_segments

__all__ = [
    "check_fit",
    "check_fsdp2",
    "check_ipc",
    "check_start",
    "measure_layers",
    "profile_sampler",
    "warnings_of_the_package",
]

ROWS = (8, 16, 32, 64, 128)
LAYERS = Shape(151_936, 4096, 4, 32, 8, 128, 12_288)
"""Four layers of Qwen3-8B: all 36 of them do not fit on one card with gradients and AdamW."""
LAYERS_WORK, LAYERS_BUDGET = Workload(8, 8, (64, 128), 512, 512, sigma=0.0), 8192
EXPANDABLE = "expandable_segments:True"


class _Said(logging.Handler):
    """Warnings of the package, as they are said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def warnings_of_the_package() -> Iterator[list[str]]:
    """Yield a list that fills with the warnings of the package."""
    said, log = _Said(), logging.getLogger("gspo_lightning")
    log.addHandler(said)
    try:
        yield said.lines
    finally:
        log.removeHandler(said)


def check_start(bench: Bench) -> dict[str, Any]:
    """The checks before a bf16-mixed run: layout, decoding, and log-probabilities with and without gradients.

    Raises:
        UserError: a run would be refused.
    """
    shape, work, said = bench.shape("0.6b"), bench.work("skewed"), _Said()
    policy = Policy(bench.model(shape), word_tokenizer(shape.vocabulary))
    log = logging.getLogger("gspo_lightning")
    log.addHandler(said)
    found: dict[str, Any] = {"said": said.lines}
    longest = int(work.lengths.max()) + work.prompt_tokens[1]
    try:
        with _seconds(found, "layout_s", bench):
            choose_layout(policy, "auto", longest, dtype=torch.bfloat16)
        with _seconds(found, "decoding_s", bench):
            verify_decoding(policy, GroupedSampler(), temperature=1.0, longest=longest, context=bench.autocast)
    finally:
        log.removeHandler(said)
    ours = Ours(policy.model, policy.tokenizer, work, context=bench.autocast)
    groups = ours.generate()
    for rollout in (r for g in groups for r in g):
        rollout.reward = reward(rollout.token_ids.tolist())
    part = ours.pack(groups)[0].micro_batches[0].to(bench.device)
    with bench.autocast():
        trained = ours.policy(part, 1.0)[0]
        with torch.no_grad():
            scored = ours.policy(part, 1.0)[0]
    gap = (trained.detach() - scored).abs()[part.response_mask]
    return found | {
        "packed": policy.packed,
        "decoded_by": policy.decoding.way,
        "gradients_change_nats": float(gap.max()),
    }


def profile_sampler(bench: Bench) -> dict[str, Any]:
    """Milliseconds of a decode step by rows, one by one and as CUDA graphs, and the device's share of the former."""
    shape = bench.shape("0.6b")
    policy = Policy(bench.model(shape), word_tokenizer(shape.vocabulary)).eval()
    choose_layout(policy, "auto", 64 if bench.toy else 2048, dtype=torch.bfloat16)
    if not policy.packed:
        return {"skipped": "attention has no kernel here; see attention"}
    prompt = [3 + i % 50 for i in range(8 if bench.toy else 512)]
    found: dict[str, Any] = {}
    with bench.autocast(), in_compute_dtype(policy) as quick, torch.inference_mode():
        for rows in ROWS[:2] if bench.toy else ROWS:
            found[f"{rows} rows"] = _profile(bench, quick, rows, prompt)
        found["bypasses the modules"] = SharedDecoder(quick).fast_layers is not None
    return found | {"graphs": policy.decoding.graphs}


def _profile(bench: Bench, policy: Policy, rows: int, prompt: list[int]) -> dict[str, Any]:
    """Two decoders get the same tokens; ``graph_largest_difference`` is that of their last logits."""
    tokens = torch.full((rows,), 7, device=bench.device)
    found: dict[str, Any] = {}
    ends = []
    for name in ("eager", "graph"):
        decoder = SharedDecoder(policy)
        if name == "eager":
            decoder.graphs = None
        decoder.add(Prefill([prompt] * (rows // 8), [8] * (rows // 8)))
        positions = (torch.full((rows,), len(prompt) + i, device=bench.device) for i in itertools.count())

        def steps(number: int, decoder: SharedDecoder = decoder, positions: Iterator[Tensor] = positions) -> Tensor:
            for _ in range(number):
                logits = decoder.step(tokens, next(positions))
            return logits

        steps(2)
        with _seconds(found, "s", bench):
            steps(1)  # is recorded
        found[f"{name}_third_step_ms"] = 1000 * found.pop("s")
        with _seconds(found, "s", bench):
            steps(40)
        found[f"{name}_ms"] = 1000 * found.pop("s") / 40
        ends.append(steps(1).clone())
        if name == "eager" and not bench.toy:
            found |= _kernels(bench, steps, found["eager_ms"])
    found["tokens_per_s"] = rows / found["graph_ms"] * 1000
    return found | {"graph_largest_difference": float((ends[0] - ends[1]).abs().max())}


def _kernels(bench: Bench, steps: Callable[[int], Tensor], step_ms: float) -> dict[str, Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps(4)
        bench.sync()
    events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    kernels = sorted(events, key=lambda event: -event.self_device_time_total)
    return {
        "device_busy_share": sum(k.self_device_time_total for k in kernels) / 4000 / step_ms,
        "kernels_per_step": sum(k.count for k in kernels) / 4,
        "longest_kernels_ms": {k.key[:60]: k.self_device_time_total / 4000 for k in kernels[:6]},
    }


def check_ipc(bench: Bench) -> dict[str, Any]:
    """Whether a child can open a tensor of this process, in segments that grow and in fixed ones, as weights are sent.

    Raises:
        RuntimeError: not even a tensor in fixed segments.
    """
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = EXPANDABLE
    if not bench.toy:
        torch._C._accelerator_setAllocatorSettings(EXPANDABLE)
    found = {"expandable": _opened_by_child(bench)}
    if bench.toy:
        return found
    with fixed_segments():
        found["fixed"] = _opened_by_child(bench)
    if found["fixed"] != "ok":
        raise RuntimeError(f"transfer: ipc cannot work here: {found}")
    return found


def _opened_by_child(bench: Bench) -> str:
    tensor = torch.full((1 << 22,), 3.0, device=bench.device)
    bench.sync()
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_open, args=(reduce_tensor(tensor), answers))
    child.start()
    child.join(120)
    if child.is_alive():
        child.kill()
        return "no answer in 120 s"
    if answers.empty():
        return f"the child ended with exit code {child.exitcode}"
    return str(answers.get())


def _open(handle: tuple[Callable[..., Tensor], Sequence[Any]], answers: Any) -> None:
    try:
        rebuild, arguments = handle
        total = float(rebuild(*arguments).sum())
        answers.put("ok" if total == 3.0 * (1 << 22) else f"the child reads {total}")
    except Exception as error:
        answers.put(repr(error))


def check_fit(bench: Bench) -> dict[str, Any]:
    """``gspo fit`` of the quickstart in bf16-mixed, whole, and again with a kill in the middle and a resume.

    Raises:
        RuntimeError: a run fails.
    """
    if missing := [name for name in ("jsonargparse", "tensorboard") if importlib.util.find_spec(name) is None]:
        return {"skipped": f"{' and '.join(missing)} missing: docs/gpu_checks.md says which wheels to bring"}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for name, killed in (("whole", False), ("resumed", True)):
            root = Path(folder, name)
            with _seconds(found, f"{name}_s", bench):
                if killed:
                    _fit(bench, root, kill=True)
                _fit(bench, root, *(["--ckpt_path", "last"] if killed else []))
            newest = max(root.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
            ends.append(torch.load(newest, map_location="cpu", weights_only=True))
    whole, resumed = (end["state_dict"] for end in ends)
    gap = max(float((whole[name].double() - resumed[name].double()).abs().max()) for name in whole)
    return found | {"updates": [end["global_step"] for end in ends], "largest_difference_of_weights": gap}


def _fit(bench: Bench, root: Path, *more: str, kill: bool = False) -> None:
    line = [sys.executable, "-m", "gspo_lightning", "fit", "--config", "quickstart", "--config", "bf16"]
    line += ["--trainer.default_root_dir", str(root), "--trainer.enable_progress_bar", "false", "--data.val", "null"]
    if bench.toy:
        tiny: dict[str, object] = {"trainer.max_epochs": 3, "data.prompts_per_rollout": 4, "model.cold_start.steps": 2}
    else:
        tiny = {"trainer.max_epochs": 6, "trainer.accelerator": "gpu"}
    line += [f"--{name}={value}" for name, value in tiny.items()]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*line, *more], stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None and not (kill and any(root.rglob("last.ckpt"))):
            time.sleep(0.05)
        process.kill()
        code = process.wait()
        log.seek(0)
        if code != (-9 if kill else 0):
            raise RuntimeError(f"gspo fit ended with {code}: {log.read()[-1500:]}")


class _OneRank(FSDP2Strategy):
    """Shards on one device as a run in bf16-mixed does, without a trainer."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.precision_plugin = MixedPrecision("bf16-mixed", device.type)
        self._device, self._mesh = device, init_device_mesh(device.type, (1,), mesh_dim_names=("data_parallel",))

    @property
    def root_device(self) -> torch.device:
        """The device."""
        return self._device

    @property
    def device_mesh(self) -> DeviceMesh:
        """All of one rank."""
        return self._mesh


def check_fsdp2(bench: Bench) -> dict[str, Any]:
    """FSDP2 on one rank over NCCL (gloo on a CPU): gathered weights, and the gradient beside the plain model's.

    Raises:
        RuntimeError: weights differ, or the gradient by more than bf16 explains.
    """
    shape, work, found = bench.shape("0.6b"), bench.work("skewed"), dict[str, Any]()
    device = bench.device if bench.toy else torch.device("cuda", 0)
    model = bench.model(shape).to(device)
    plain = Ours(copy.deepcopy(model), word_tokenizer(shape.vocabulary), work, context=bench.autocast)
    groups = plain.generate()
    for rollout in (r for g in groups for r in g):
        rollout.reward = reward(rollout.token_ids.tolist())
    batch = plain.prepare(plain.pack(groups))[0]
    plain.accumulate(batch, plain.phases(), MetricSums(), on_policy=True)
    wanted = {name: p.grad for name, p in plain.policy.model.named_parameters()}
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group(
            "gloo" if bench.toy else "nccl", init_method=f"file://{store.name}", rank=0, world_size=1
        )
        try:
            ours = Ours(model, word_tokenizer(shape.vocabulary), work, context=bench.autocast)
            with _seconds(found, "shard_s", bench):
                ours.policy = _OneRank(device).shard(ours.policy)
            with _seconds(found, "gather_s", bench), gathered(ours.policy) as whole:
                weights = dict(whole.model.named_parameters())
                for name, value in plain.policy.model.named_parameters():
                    if not torch.equal(weights[name], value.detach().to(weights[name].dtype)):
                        raise RuntimeError(f"gathered weights {name} are not those that were sharded")
            with _seconds(found, "gradient_s", bench):
                ours.accumulate(batch, ours.phases(), MetricSums(), on_policy=True)
            own = {name: p.grad for name, p in ours.policy.model.named_parameters()}
            gaps = [(own[name].full_tensor() - g, g) for name, g in wanted.items()]
        finally:
            dist.destroy_process_group()
    gap = _norm(a for a, _ in gaps) / max(_norm(b for _, b in gaps), 1e-12)
    if not gap <= 0.05:
        raise RuntimeError(f"the gradient of shards is off by {gap:.2g} of its norm")
    return found | {"gradient_off_by": gap}


def _norm(tensors: Iterator[Tensor] | Any) -> float:
    return sum(float(x.double().square().sum()) for x in tensors) ** 0.5


def measure_layers(bench: Bench) -> dict[str, Any]:
    """Peak memory by phase of an update of four layers of an 8B model, MiB; ``--plans`` adds what was planned."""
    shape = bench.shape("0.6b") if bench.toy else LAYERS
    work, tokenizer = bench.work("equal") if bench.toy else LAYERS_WORK, word_tokenizer(shape.vocabulary)
    ours = Ours(bench.model(shape), tokenizer, work, max_tokens=LAYERS_BUDGET, context=bench.autocast)
    ours.step()
    measured: dict[str, Any] = {}
    with bench.peak(measured, SAMPLING, extra=False):
        groups = ours.generate()
    for rollout in (r for g in groups for r in g):
        rollout.reward = reward(rollout.token_ids.tolist())
    batch = ours.prepare(ours.pack(groups))[0]
    with bench.peak(measured, TRAINING, extra=False):
        ours.accumulate(batch, ours.phases(), MetricSums(), on_policy=True)
    with bench.peak(measured, STEPPING, extra=False):
        ours.optimizer.step()
    phases = {phase: {"measured_mib": mib} for phase, mib in measured.items()}
    return {"phases": phases, "packed": ours.policy.packed}


@contextmanager
def _seconds(into: dict[str, Any], name: str, bench: Bench) -> Iterator[None]:
    bench.sync()
    start = time.perf_counter()
    yield
    bench.sync()
    into[name] = time.perf_counter() - start
