"""One side of ``python -m benchmarks.real``: a training step of a real model, alone in its process.

The process prints one JSON object: CPU seconds by phase and the peak of its resident set.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.clock import TOTAL
from benchmarks.floor import bandwidth, matmul_rate, step_flops
from benchmarks.memory import peak_memory, reset_peak
from benchmarks.models import EOS, Shape
from benchmarks.ours import Ours
from benchmarks.peers.trl import TRL
from benchmarks.workloads import Workload
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.data.prompts.tasks.word_problems import WordProblems
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings

METHODS = ("adamw", "lora", "adamw8bit")
PRECISIONS = ("32-true", "bf16-mixed")
RANK, ALPHA = 16, 32
"""Of the adapters, as in configs/smollm2_lora.yaml."""
LEARNING_RATE = 1e-6
MAX_TOKENS = 512
"""Of a micro-batch of this package: as fast here as the 4,096 of configs/smollm2.yaml, and smaller."""


@dataclasses.dataclass(frozen=True)
class WordProblemWork(Workload):
    """Word problems as prompts, in the model's chat template; ids are indices."""

    problems: tuple[Prompt, ...] = ()

    @property
    def prompt_lengths(self) -> list[int]:
        """Tokens of the P prompts."""
        return [len(p.token_ids) for p in self.problems]

    def make_prompts(self, vocabulary: int) -> list[Prompt]:
        """Return the prompts."""
        return list(self.problems)


def make_work(given: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> WordProblemWork:
    """The work that the command line asks for."""
    records = WordProblems(size=given.prompts).records()
    problems = tuple(encode_prompts(records, tokenizer, max_prompt_tokens=512))
    widths = [len(p.token_ids) for p in problems]
    median, longest = given.tokens
    return WordProblemWork(
        given.prompts, given.group, (min(widths), max(widths)), median, longest,
        sigma=0.12, mini_batches=given.updates, dead_groups=given.dead, problems=problems,
    )  # fmt: skip


def load(given: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, WordProblemWork]:
    """Model, tokenizer and work. The token with id 0 ends a response, so that lengths can be forced.

    TRL gets transformers' own modules: a policy would have put this package's products and norms into them.
    """
    lora = LoRA(r=RANK, alpha=ALPHA) if (given.side, given.method) == ("ours", "lora") else None
    settings = ModelSettings(given.model, lora=lora)
    if given.side == "trl":
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(loadable_name(given.model), dtype=torch.float32)
        tokenizer = load_tokenizer(settings)
    else:
        policy = load_policy(settings)
        model, tokenizer = policy.model, policy.tokenizer
    work = make_work(given, tokenizer)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(EOS)
    model.config.eos_token_id = EOS
    if model.generation_config is not None:
        model.generation_config.eos_token_id = EOS
    return model, tokenizer, work


def build_ours(given: argparse.Namespace) -> tuple[Ours, WordProblemWork]:
    """This package."""
    model, tokenizer, work = load(given)
    context = functools.partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)  # as Lightning enters it
    ours = Ours(
        model, tokenizer, work, max_tokens=MAX_TOKENS, optimizer=_eight_bit(given.method),
        context=context if _is_mixed(given) else contextlib.nullcontext,
    )  # fmt: skip
    return ours, work


def _is_mixed(given: argparse.Namespace) -> bool:
    return bool(given.precision == "bf16-mixed")


def _eight_bit(method: str) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None:
    if method != "adamw8bit":
        return None
    import bitsandbytes

    return lambda weights: bitsandbytes.optim.AdamW8bit(weights, lr=LEARNING_RATE, weight_decay=0.0)


def build_trl(given: argparse.Namespace) -> tuple[TRL, WordProblemWork]:
    """TRL, with adapters of PEFT or the 8-bit AdamW of transformers' Trainer."""
    model, tokenizer, work = load(given)
    settings: dict[str, Any] = {"gradient_checkpointing": given.checkpointing, "bf16": _is_mixed(given)}
    if given.method == "adamw8bit":
        settings["optim"] = "adamw_bnb_8bit"
    peft_config = None
    if given.method == "lora":
        from peft import LoraConfig

        peft_config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    return TRL(model, tokenizer, work, micro_batch=given.micro, peft_config=peft_config, **settings), work


def prime(model: nn.Module, optimizer: Any) -> None:
    """Let the optimizer make its state, by a step without a gradient: the measured step is not the first of a run."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def warm_up(ours: Ours, work: WordProblemWork) -> None:
    """Take a step with two responses: the first of a run measures the sampler's noise, which later ones rely on."""
    ours.workload = dataclasses.replace(
        work, prompts=1, group_size=2, median=4, longest=4, sigma=0.0, mini_batches=1, problems=work.problems[:1]
    )
    ours.prompts = ours.prompts[:1]
    ours.step()
    ours.workload, ours.prompts = work, list(work.problems)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """One step in this process."""
    torch.set_num_threads(1)
    imported = peak_memory()
    if given.side == "ours":
        ours, work = build_ours(given)
        step, model, optimizer = ours.step, ours.policy.model, ours.optimizer
    else:
        trl, work = build_trl(given)
        step, model, optimizer = trl.step, trl.trainer.model, trl.trainer.optimizer
    prime(model, optimizer)
    if given.side == "ours":
        warm_up(ours, work)
    reset_peak()
    before, phases = peak_memory(), step()
    return {
        "side": given.side,
        "method": given.method,
        "cpu": phases.cpu.pop(TOTAL),
        "wall": phases.wall[TOTAL],
        "phases": phases.cpu,
        "peak_mib": peak_memory(),
        "before_mib": before,
        "imported_mib": imported,
        "response_tokens": work.response_tokens,
        "prompt_tokens": sum(work.prompt_lengths),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def measure_bounds(given: argparse.Namespace) -> dict[str, Any]:
    """What memory bandwidth and arithmetic allow on this machine now, without a model."""
    torch.set_num_threads(1)
    model, _, work = load(given)
    dtype = torch.bfloat16 if _is_mixed(given) else torch.float32
    shape, weights = shape_of(model), sum(p.numel() * dtype.itemsize for p in model.parameters())
    del model
    flops, rate = step_flops(shape, work), matmul_rate(dtype=dtype)
    return {
        "flops_generate": flops.generate,
        "flops_train": flops.train,
        "matmul_gflops": rate.best / 1e9,
        "read_gb_per_s": (read := bandwidth()) / 1e9,
        "weights_bytes": weights,
        "decode_steps": int(work.lengths.max()) - 1,
        "generate_by_flops_s": flops.generate / rate.best,
        "generate_by_bandwidth_s": (int(work.lengths.max()) - 1) * weights / read,
        "train_by_flops_s": flops.train / rate.best,
    }


def shape_of(model: PreTrainedModel) -> Shape:
    """Sizes of a dense decoder from its config."""
    c = model.config
    size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return Shape(
        c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads, size,
        c.intermediate_size,
    )  # fmt: skip


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options of the work, the same for all processes of a comparison."""
    parser.add_argument("--model", help="GGUF file, folder or name; default: what make real-model has fetched")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=4, help="responses to a prompt")
    parser.add_argument("--dead", type=int, default=0, help="groups whose rewards are equal")
    parser.add_argument("--updates", type=int, default=2, help="optimizer steps on a rollout batch")
    parser.add_argument("--tokens", type=int, nargs=2, default=(72, 96), metavar=("MEDIAN", "LONGEST"))
    parser.add_argument("--micro", type=int, default=4, help="rows of a forward of TRL in training")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="of both sides")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure one side, or the bounds, and print the result."""
    parser = argparse.ArgumentParser("python -m benchmarks.real_side", description=__doc__)
    parser.add_argument("side", choices=("ours", "trl", "bounds"))
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--checkpointing", action="store_true", help="TRL recomputes activations, its default")
    add_work(parser)
    given = parser.parse_args(argv)
    found = measure_bounds(given) if given.side == "bounds" else measure(given)
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
    sys.stdout.flush()
