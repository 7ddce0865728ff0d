"""One run of the benchmarks: parity first, then what was asked for."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.floor import matmul_rate, product_seconds, step_flops
from benchmarks.memory import CASES, OURS, run_memory
from benchmarks.models import MODELS
from benchmarks.parity import run_parity
from benchmarks.report import Report, line, show, write
from benchmarks.scaling import run_scaling
from benchmarks.step import Comparison, run_step
from benchmarks.train import run_train
from benchmarks.workloads import MINI_BATCHES, WORKLOADS, Workload

__all__ = ["run"]

QUICK = ("parity", "floor", "step", "memory")
SUBJECTS = (*QUICK, "train", "scaling")


def run(given: argparse.Namespace, command: str) -> int:
    """Everything that ``given`` (:func:`benchmarks.__main__.parse`) asks for; 1 if parity does not hold."""
    torch.set_num_threads(1)
    subjects = given.subjects or (QUICK if given.quick else SUBJECTS)
    report, start = Report(command), time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)

    if "parity" in subjects and not given.only_ours:
        for model, name, work in _parity_cases(given):
            report.parity.append(run_parity(model, name, work))
            case = report.parity[-1]
            tell(f"parity {model} {name}: loss {case.loss:.1e}, gradient {case.gradient:.1e}, same: {case.ok}")
        if not all(case.ok for case in report.parity):
            return _finish(report, given, 1)
    if {"floor", "step", "train"} & set(subjects):
        report.matmul = matmul_rate()
        tell(f"matmul {report.matmul.best / 1e9:.1f} GFLOP/s")
    for subject in ("step", "train"):
        if subject in subjects and not (subject == "train" and given.only_ours):
            for model, name, work in _cases(given):
                report.comparisons.append(_compare(subject, model, name, work, given))
                _set_floor(report, work)
                tell(_sentence(report.comparisons[-1]))
    if "memory" in subjects:
        report.memory = run_memory(cases=(OURS,) if given.only_ours else CASES)
        tell("memory, MiB: " + ", ".join(f"{m.case} {m.mebibytes:.0f}" for m in report.memory))
    if "scaling" in subjects:
        report.scaling = run_scaling(with_trl=not given.only_ours, rounds=min(given.rounds, 4))
    return _finish(report, given, 0)


def _cases(given: argparse.Namespace) -> Iterator[tuple[str, str, Workload]]:
    names = given.workloads or (["balanced"] if given.quick else list(WORKLOADS))
    for model in given.models:
        for name in names:
            yield model, name, _size(WORKLOADS[name], given.quick)
    if given.quick and not given.workloads and "1m" in given.models:
        yield "1m", "equal", _size(WORKLOADS["equal"], True)


def _size(work: Workload, quick: bool) -> Workload:
    """A long run has twice the prompts."""
    return work if quick else replace(work, prompts=2 * work.prompts)


def _parity_cases(given: argparse.Namespace) -> Iterator[tuple[str, str, Workload]]:
    """Every workload, with fewer prompts: agreement needs no large batch."""
    for model in given.models:
        for name, work in WORKLOADS.items():
            if not given.quick or model == "1m" or name == "balanced":
                yield model, name, replace(work, prompts=4)


def _compare(subject: str, model: str, name: str, work: Workload, given: argparse.Namespace) -> Comparison:
    tries = 1 if given.quick else 2
    if subject == "train":
        return run_train(model, name, work, rounds=given.rounds, tries=tries)
    return run_step(
        model,
        name,
        work,
        rounds=given.rounds,
        with_trl=not given.only_ours,
        tries=tries,
        layout=given.layout,
        deal=given.deal,
    )


def _set_floor(report: Report, work: Workload) -> None:
    """The floor of the newest comparison; the matmul rate is measured again and the best so far counts, for all."""
    again, newest = matmul_rate(), report.comparisons[-1]
    if report.matmul is None or again.best > report.matmul.best:
        report.matmul = again
    flops = step_flops(MODELS[newest.model], work)
    newest.flops = flops.total if newest.subject == "step" else flops.train
    if newest.subject == "step":
        newest.products = product_seconds(MODELS[newest.model], work, MINI_BATCHES)
    for c in report.comparisons:
        c.floor = c.flops / report.matmul.best
        c.floor_ratio = c.ours.cpu / c.floor


def _sentence(c: Comparison) -> str:
    text = f"{c.subject} {c.model} {c.workload}: ours {c.ours.cpu:.2f} CPU s"
    if c.trl is not None:
        text += f", TRL {c.trl.cpu:.2f} (micro-batch {c.trl_micro_batch}), ratio {c.ratio:.2f}"
    if c.floor_ratio is not None:
        text += f", {c.floor_ratio:.2f} x the floor"
    if c.products:
        text += f", {c.ours.cpu / c.products:.2f} x its products alone"
    return text + "; ours by phase: " + ", ".join(f"{k} {v:.2f}" for k, v in c.ours.phases.items())


def _finish(report: Report, given: argparse.Namespace, code: int) -> int:
    show(report)
    if given.output is not None:
        write(report, given.output, given.name)
    if code:
        print("the two sides do not compute the same loss and gradient: nothing else was measured")
    if given.json:
        print(json.dumps(line(report)))
    return code
