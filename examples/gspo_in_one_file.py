"""GSPO in one file: group sequence policy optimization (arXiv 2507.18071) with torch and transformers, nothing else.

    python examples/gspo_in_one_file.py                    # a tiny model from scratch: half a minute on one CPU core
    python examples/gspo_in_one_file.py --model FOLDER     # a model in transformers format, without the cold start

The task is left-to-right arithmetic modulo 10: "7+5*3-4:" is to be answered "#2". A supervised cold start teaches the
format: mostly to answer at once, which is right one time in four, sometimes to write the steps down first
("7+5=2;2*3=6;6-4=2;#2"). Reinforcement learning then discovers that writing the steps down pays.

One iteration: sample G responses to each of P prompts, reward them, compare each with its group, make a few updates.
Shapes: N = P * G sequences, S tokens of the longest one (prompt, response, padding).

Where it departs from the paper:
* The paper cuts a rollout batch into 4 mini-batches and does not say how; here each has equal parts of every group.
* The standard deviation of Eq. 6 is the unbiased one (divisor G - 1), plus 1e-6; the paper does not say which.
* The old policy is kept as log-probabilities, computed once per iteration, not as a second copy of the weights.
* AdamW, learning rate and gradient clipping are this example's choice; the paper does not print its own.
* A toy: a small model, short answers, one process; no micro-batches, evaluation or checkpoints. gspo_lightning has
  those, and on the same rollouts gives the same losses.
"""

from __future__ import annotations

import argparse
import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, Qwen3Config, Qwen3ForCausalLM

# The task: prompts, and what a response is worth ---------------------------------------------------------------------


def make_problem(rng: random.Random) -> tuple[str, str, str]:
    """Prompt, steps and answer of a random expression: ("7+5*3-4:", "7+5=2;2*3=6;6-4=2;", "2")."""
    value = rng.randrange(10)
    prompt, steps = str(value), ""
    for _ in range(3):
        operator, digit = rng.choice("+-*"), rng.randrange(10)
        result = {"+": value + digit, "-": value - digit, "*": value * digit}[operator] % 10
        prompt, steps, value = f"{prompt}{operator}{digit}", f"{steps}{value}{operator}{digit}={result};", result
    return f"{prompt}:", steps, str(value)


def reward(response: str, answer: str) -> float:
    """1 if exactly the answer follows the only "#"; a second one would be a second guess."""
    return float(response.count("#") == 1 and response.split("#")[1] == answer)


# Log-probabilities and the loss --------------------------------------------------------------------------------------


@dataclass
class Batch:
    """A mini-batch: ``tokens`` [N, S], ``chosen`` [N, S] True on what the policy chose (responses), ``advantages`` [N].

    ``old_logprobs`` [N, S - 1] come from the policy that sampled the responses.
    """

    tokens: Tensor
    chosen: Tensor
    advantages: Tensor
    old_logprobs: Tensor


def make_batch(rows: Sequence[tuple[list[int], list[int]]], advantages: Sequence[float], device: Any = None) -> Batch:
    """Pad (prompt ids, response ids) on the right. The mask comes from lengths: padding may look like any token."""
    width = max(len(prompt) + len(response) for prompt, response in rows)
    tokens, chosen = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (prompt, response) in enumerate(rows):
        tokens[i, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        chosen[i, len(prompt) : len(prompt) + len(response)] = True
    return Batch(tokens.to(device), chosen.to(device), torch.tensor(advantages, device=device), torch.empty(0))


def token_logprobs(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probability of every token after those before it, and the mask that selects responses: both [N, S - 1].

    Padding stands on the right, where causal attention never looks, so no attention mask is needed.
    """
    logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits.float()
    logprobs = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logprobs, batch.chosen[:, 1:]


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, Eq. 5 with the ratio of Eq. 7, and which sequences are clipped [N].

    A ratio belongs to a whole sequence: it is the geometric mean of the ratios of its tokens. That is why the paper's
    clip range is so much smaller than the 0.2 of PPO and GRPO.
    """
    log_ratios = torch.where(mask, logprobs - old_logprobs, 0.0).sum(-1) / mask.sum(-1)
    ratios = log_ratios.exp()  # Eq. 7: [N]
    free, bounded = ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(free, bounded).mean(), bounded < free  # Eq. 5: the mean over sequences, whatever their length


# One iteration: respond, reward, compare, update ---------------------------------------------------------------------


@torch.no_grad()
def sample(model: Any, prompts: Sequence[list[int]], eos: int, limit: int) -> list[list[int]]:
    """One response to each prompt at temperature 1, with its end token if it has one within ``limit`` tokens.

    A loop of our own: ``generate`` would apply the top-k, penalties ... of a model's generation config, but samples
    have to follow the policy itself. Prompts are padded on the left, so that all of them end at the same place.
    """
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    responses, cache = tokens[:, :0], DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # before 5.24
    while responses.shape[1] < limit and not (responses == eos).any(-1).all():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        out = model(tokens, attention_mask=mask, position_ids=positions, use_cache=True, **{name: cache})
        tokens = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1)
        responses, mask = torch.cat([responses, tokens], 1), torch.cat([mask, torch.ones_like(tokens)], 1)
    return [row[: row.index(eos) + 1] if eos in row else row for row in responses.tolist()]


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better each response is than its group, in standard deviations of the group (Eq. 6): [P, G].

    A group of equal rewards has nothing to teach: its advantages are 0.
    """
    return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)


def roll_out(
    model: Any, tokenizer: Any, rng: random.Random, args: argparse.Namespace
) -> tuple[list[Batch], float, str]:
    """Mini-batches of equal parts of every group, the mean reward, and one response to look at."""
    problems = [make_problem(rng) for _ in range(args.prompts)]
    problems = [problem for problem in problems for _ in range(args.group_size)]  # a group stands together
    prompts = [tokenizer.encode(prompt) for prompt, _, _ in problems]
    responses = sample(model, prompts, tokenizer.eos_token_id, args.response_tokens)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
    rewards = [
        reward(text, answer) if ids[-1] == tokenizer.eos_token_id else 0.0  # a response that was cut has no answer
        for text, ids, (_, _, answer) in zip(texts, responses, problems, strict=True)
    ]
    advantages = group_advantages(torch.tensor(rewards).view(-1, args.group_size)).flatten().tolist()
    rows = list(zip(prompts, responses, strict=True))
    block = len(rows) // args.minibatches  # rows are dealt like cards, those of the next block of groups one place on
    dealt: list[list[int]] = [[] for _ in range(args.minibatches)]
    for i in range(len(rows)):
        dealt[(i // block + i % args.group_size) % args.minibatches].append(i)
    batches = [make_batch([rows[i] for i in part], [advantages[i] for i in part], model.device) for part in dealt]
    with torch.no_grad():
        for batch in batches:  # the same code on the same shapes as in training: the first ratios are exactly 1
            batch.old_logprobs, _ = token_logprobs(model, batch)
    return batches, sum(rewards) / len(rewards), problems[0][0] + texts[0]


def update(model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> tuple[float, float]:
    """One optimizer step; returns the loss and the fraction of clipped sequences before it.

    In the first update of an iteration all ratios are 1, and the loss is the mean advantage, about 0. Its gradient is
    not 0.
    """
    logprobs, mask = token_logprobs(model, batch)
    loss, clipped = gspo_loss(logprobs, batch.old_logprobs, batch.advantages, mask)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), clipped.float().mean().item()


# A model to start from -----------------------------------------------------------------------------------------------


class CharacterTokenizer:
    """One token per character; as much of a transformers tokenizer as is used here."""

    characters = "0123456789+-*=;:#"
    eos_token_id = 0

    def encode(self, text: str) -> list[int]:
        """Token ids from 1 on; 0 ends a response."""
        return [1 + self.characters.index(c) for c in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text, without the end token."""
        return "".join(self.characters[i - 1] for i in ids if i > 0)


def tiny_model(tokenizer: CharacterTokenizer) -> Any:
    """A Qwen3 of 84 thousand parameters with random weights."""
    config = Qwen3Config(
        vocab_size=1 + len(tokenizer.characters), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, head_dim=16, max_position_embeddings=128, initializer_range=0.05,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def cold_start(model: Any, tokenizer: CharacterTokenizer, rng: random.Random, steps: int) -> None:
    """Supervised learning on demonstrations, three in ten with their steps: the start that RL needs."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        rows = []
        for prompt, shown, answer in (make_problem(rng) for _ in range(64)):
            response = f"{shown if rng.random() < 0.3 else ''}#{answer}"
            rows.append((tokenizer.encode(prompt), [*tokenizer.encode(response), tokenizer.eos_token_id]))
        logprobs, mask = token_logprobs(model, make_batch(rows, [0.0] * len(rows)))
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.zero_grad()
        (-logprobs[mask].mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train and print; returns the mean reward of each iteration."""
    parser = argparse.ArgumentParser(description="GSPO in one file.")
    parser.add_argument("--model", help="folder in transformers format (default: a tiny model from scratch)")
    for name, value, meaning in (
        ("cold_start_steps", 600, "supervised steps of the tiny model"),
        ("iterations", 20, "rollout batches"),
        ("prompts", 32, "prompts per rollout batch"),
        ("group_size", 8, "responses per prompt"),
        ("minibatches", 4, "updates per rollout batch; divides the prompts"),
        ("response_tokens", 32, "longer responses are cut, and have no answer"),
        ("lr", 2e-4, "learning rate of reinforcement learning; 1e-6 is usual for large models"),
        ("seed", 1, "of weights, problems and samples"),
    ):
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{meaning} (default: {value})")
    args = parser.parse_args(argv)
    if args.prompts % args.minibatches:
        parser.error(f"{args.prompts} prompts cannot be cut into {args.minibatches} equal mini-batches")

    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    if args.model:
        model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(args.model)
    else:
        tokenizer = CharacterTokenizer()
        model = tiny_model(tokenizer)
        cold_start(model, tokenizer, rng, args.cold_start_steps)
    model.eval()  # no dropout, ever: it would move the ratios by more than the clip range

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    rewards = []
    for iteration in range(args.iterations):
        batches, mean_reward, example = roll_out(model, tokenizer, rng, args)
        clipped = [update(model, optimizer, batch)[1] for batch in batches]
        rewards.append(mean_reward)
        clip_fraction = sum(clipped) / len(clipped)
        print(f"iteration {iteration:2d}  reward {mean_reward:.3f}  clipped {clip_fraction:.2f}  {example}", flush=True)
    return rewards


if __name__ == "__main__":
    main()
