"""The page: every seed of every task, the verdicts, and what a deal costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from experiments.dealing.numbers import GOAL, MEASURES, Numbers
from experiments.dealing.run import TASKS
from gspo_lightning.commands.compare.stats import SEEDS_FOR_A_CLAIM, paired_difference
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL, Deal
from gspo_lightning.resume.changes import versions

__all__ = ["page", "read_price"]

Results = Mapping[str, Mapping[str, Mapping[int, Numbers]]]
"""Task -> deal -> seed -> numbers."""

BEGIN = f"""\
# Dealing rows to mini-batches

A rollout batch of P groups of G responses is split into m mini-batches (`data.minibatches_per_rollout`), one optimizer
step each. `data.deal` decides which rows each of them has:

| `data.deal` | rows of a mini-batch |
|---|---|
| `stratified` | G / m rows of every group; if G / m is not a whole number, the remaining rows go to each in turn |
| `shuffled` | a random permutation of all rows, cut into m equal parts, as in TRL |
| `groups` | all G rows of P / m groups |

The default is `{DEFAULT_DEAL}`. Every deal needs `prompts_per_rollout` to be a multiple of `minibatches_per_rollout`,
keeps a group on one rank, and gives the same mini-batches on any number of ranks. A run that resumes from a checkpoint
older than this option continues with `groups`. In every case advantages are computed over the whole group, and the
denominator of the loss belongs to the whole mini-batch.

## Reasons

A few whole groups are a small sample of prompts, which makes the gradient of a mini-batch noisier.
[`update/gradient_noise`](../../docs/metrics.md) measures this from the gradients of the micro-batches. On the
quickstart, with `--data.max_tokens_per_micro_batch 300` (four or five micro-batches), the noise of the last 64 updates
is 6.2 times the signal with `groups` and 3.6 times with `stratified`.

## Learning

`python -m experiments.dealing` makes these runs with `gspo compare` and writes this page. It keeps finished runs, so
you can stop it at any time and repeat the command; with `--minutes 30` it begins no further seed after half an hour.
All runs of a task begin with one cold start. Accuracy is greedy, after every iteration. Differences are paired by seed:
mean [95% interval of a bootstrap over seeds], as `gspo compare` computes them. Fewer than {SEEDS_FOR_A_CLAIM} seeds
support no claim. A run that does not reach {GOAL:.0%} has a dash and no part in the mean and difference of that row.

![gspo compare on the quickstart: reward, accuracy and more of each deal](results.png)
"""

PRICE = """\
## Cost

Packed rows share the computation of their prompt inside a mini-batch. With `groups` a prompt is computed once per pass,
with `stratified` in min(m, G) mini-batches. 4 prompts x 8 responses, 4 updates, forward and backward pass and optimizer
step on a model of 0.9 million parameters; CPU seconds are medians of {rounds} rounds, one thread
(`python -m benchmarks.dealing`):

| prompt tokens | response tokens | deal | tokens | of `groups` | CPU s | of `groups` |
|---|---|---|---|---|---|---|
"""

AFTER = """
The factor in tokens is (min(m, G) x prompt + G x response) / (prompt + G x response). It applies to training only:
sampling computes a prompt once for all its responses, whatever the deal. `gspo plan` counts these tokens.

One forward pass of a prompt cannot serve several mini-batches, because an optimizer step comes between them. To lower
the cost:

* Keep `model.old_logprobs: auto`. If the sampler's log-probabilities are accurate enough, no second forward pass over
  the same prompts is needed.
* Keep `data.max_tokens_per_micro_batch` large. A prompt whose rows do not fit into one micro-batch is computed again in
  the next.
* Use fewer mini-batches or larger groups.
* Use `data.deal: groups` if prompts are much longer than all responses of a group together.
"""


def page(results: Results, price: Sequence[Mapping[str, Any]] | None) -> str:
    """Markdown.

    Args:
        results: of the tasks that have finished seeds.
        price: what ``benchmarks.dealing`` measured; None where it was not.
    """
    lines = [BEGIN]
    for name, by_deal in results.items():
        lines += _task(name, by_deal)
    few = [
        f"{TASKS[name].title} ({seeds})"
        for name, by_deal in results.items()
        if (seeds := len(by_deal[TASKS[name].deals[0]])) < SEEDS_FOR_A_CLAIM
    ]
    if few:
        lines += [f"Too few seeds so far: {', '.join(few)}. Nothing is claimed about them.", ""]
    missing = [task.title for name, task in TASKS.items() if name not in results]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    if price is not None:
        lines += [PRICE.format(rounds=price[0]["rounds"]) + _price(price) + "\n" + AFTER]
    found = ", ".join(f"{k} {v}" for k, v in versions().items())
    lines += [f"Versions: {found}. One CPU thread.", ""]
    return "\n".join(lines)


def read_price(path: Path) -> list[dict[str, Any]] | None:
    """What ``benchmarks.dealing --output`` wrote, if it is there."""
    if not path.is_file():
        return None
    content: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _task(name: str, by_deal: Mapping[str, Mapping[int, Numbers]]) -> list[str]:
    task, first = TASKS[name], TASKS[name].deals[0]
    seeds = list(by_deal[first])
    configs = " ".join(f"--config configs/{config}" for config in task.configs)
    lines = [f"### {task.title}", "", f"`gspo fit {configs}`, {task.iterations} iterations.", ""]
    for title, (form, of) in MEASURES.items():
        lines += [f"| {title} | " + " | ".join(f"seed {s}" for s in seeds) + f" | mean | minus `{first}` |"]
        lines += ["|---" * (len(seeds) + 3) + "|"]
        base = [of(numbers) for numbers in by_deal[first].values()]
        for deal, by_seed in by_deal.items():
            row = [of(numbers) for numbers in by_seed.values()]
            known = [value for value in row if value is not None]
            cells = ["-" if value is None else form.format(value) for value in row]
            average = form.format(mean(known)) if known else "-"
            verdict = "" if deal == first else _verdict(base, row)
            lines.append(f"| `{deal}` | {' | '.join(cells)} | {average} | {verdict} |")
        lines.append("")
    return lines


def _verdict(base: Sequence[float | None], row: Sequence[float | None]) -> str:
    pairs = [(a, b) for a, b in zip(base, row, strict=True) if a is not None and b is not None]
    if not pairs:
        return "-"
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return f"{found.mean:+.3g} [{found.low:+.3g}, {found.high:+.3g}]: {found.words}"


def _price(price: Sequence[Mapping[str, Any]]) -> str:
    order: list[Deal] = sorted(get_args(Deal), key=lambda deal: deal != "groups")
    return "\n".join(
        f"| {case['prompt_tokens']} | {case['response_tokens']} | `{deal}` | {case['tokens'][deal]:,} "
        f"| {case['tokens_ratio'][deal]:.2f} | {case['cpu_s'][deal]:.2f} | {case['cpu_ratio'][deal]:.2f} |"
        for case in price
        for deal in order
    )
