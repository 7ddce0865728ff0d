"""The loss by hand and by finite differences, and what must not change a gradient: padding, cuts and ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gspo_lightning.data.prompts import PromptFile
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.training.reward_models.model import head_of, load_reward_model
from gspo_lightning.training.reward_models.module import bradley_terry
from gspo_lightning.training.reward_models.pair_batches import PairLoader, Row, encode_pairs
from tests.training.reward_models.runs import planted, write


def test_the_loss_by_hand() -> None:
    chosen, rejected = torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.5, 0.25, 2.0])
    margins = torch.tensor([0.25, 0.0, 1.0])
    expected = [
        math.log(1 + math.exp(-0.25)) + 0.01 * 1.5**2,
        math.log(1 + math.exp(0.75)) + 0.01 * 0.25**2,
        math.log(1 + math.exp(1.0)) + 0.01 * 4.0**2,
    ]
    assert bradley_terry(chosen, rejected, margins, 0.01).tolist() == pytest.approx(expected, rel=1e-6)
    plain = bradley_terry(chosen + 100, rejected + 100, margins)
    assert plain.tolist() == pytest.approx(bradley_terry(chosen, rejected, margins).tolist(), rel=1e-5)


def test_the_gradient_by_hand_and_by_finite_differences() -> None:
    values = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([0.3, -2.0], [0.1, 1.5])]
    margins = torch.tensor([0.5, 0.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda c, r: bradley_terry(c, r, margins, 0.02), values)
    bradley_terry(*values, margins).sum().backward()
    sure = [1 / (1 + math.exp(-(0.3 - 0.1 - 0.5))), 1 / (1 + math.exp(3.5))]
    assert values[0].grad is not None
    assert values[0].grad.tolist() == pytest.approx([p - 1 for p in sure])


def test_far_apart_rewards_are_finite() -> None:
    chosen = torch.tensor([-1e4], requires_grad=True)
    loss = bradley_terry(chosen, torch.tensor([1e4]), torch.zeros(1))
    loss.backward()
    assert (float(loss), chosen.grad) == (2e4, torch.tensor([-1.0]))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    records = [{**record, "margin": 0.1 * (i % 3)} for i, record in enumerate(planted(23))]
    file = write(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", records)
    pairs = PromptFile(file).preferences()
    return encode_pairs(pairs, character_tokenizer(), "joined", 64, "data.train")[0]


def gradient(rows: list[Row], batch_size: int, micro: int, world: int, extra: int = 0) -> torch.Tensor:
    """Of the first epoch's steps together, as Lightning and a strategy over ``world`` ranks would add it up."""
    model = load_reward_model(ModelSettings(seed=3)).double()
    torch.nn.init.normal_(head_of(model).weight, generator=torch.Generator().manual_seed(1))
    tokenizer = character_tokenizer()
    for rank in range(world):
        loader = PairLoader(rows, lambda _: range(len(rows)), batch_size, micro, rank, world, tokenizer)
        assert len(list(loader)) == len(loader) == loader.steps * loader.micro_batches
        for batch in loader:
            if extra:
                batch.input_ids = torch.nn.functional.pad(batch.input_ids, (0, extra), value=0)
                batch.attention_mask = torch.nn.functional.pad(batch.attention_mask, (0, extra), value=0)
            chosen, rejected = model(batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0].chunk(2)
            ((bradley_terry(chosen, rejected, batch.margins, 0.01) * batch.weights).sum() / batch.total).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    ("micro", "world", "extra"), [(1, 1, 0), (3, 1, 0), (10, 2, 0), (2, 3, 0), (1, 8, 0), (10, 1, 9)]
)
def test_micro_batches_ranks_and_padding_do_not_change_the_gradient(
    rows: list[Row], micro: int, world: int, extra: int
) -> None:
    expected = gradient(rows, batch_size=10, micro=10, world=1)  # 10, 10 and 3 pairs
    found = gradient(rows, batch_size=10, micro=micro, world=world, extra=extra)
    assert float(expected.norm()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_every_pair_is_dealt_once_and_goes_on_where_a_run_stands(rows: list[Row]) -> None:
    tokenizer = character_tokenizer()

    def numbers(begun: int, rank: int) -> list[int]:
        loader = PairLoader(
            rows, lambda epoch: range(len(rows))[:: -1 if epoch else 1], 10, 3, rank, 2, tokenizer, lambda: begun
        )
        return [int(n) for batch in loader for n, w in zip(batch.numbers, batch.weights, strict=True) if w > 0]

    assert sorted(numbers(0, 0) + numbers(0, 1)) == list(range(len(rows)))
    assert sorted(numbers(2, 0) + numbers(2, 1)) == list(range(20, len(rows)))
    assert sorted(numbers(5, 0) + numbers(5, 1)) == list(range(len(rows) - 20))  # the third step of the second epoch


def test_an_untrained_head_gives_zero(tmp_path: Path) -> None:
    model = load_reward_model(ModelSettings(seed=3))
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8]])
    assert model(ids, attention_mask=(ids > 0).long()).logits.tolist() == [[0.0], [0.0]]
