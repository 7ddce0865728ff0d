"""The dtype in which a plan attends: that of a device where it is fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.attention import attention_dtype, attention_plan, with_plan
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer

CPU = torch.device("cpu")
NARROW, WIDE = torch.bfloat16, torch.float32


class Seen:
    """A plan that notes the dtypes of what attends, and of its own products."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.longest = plan, plan.longest
        self.dtypes: set[torch.dtype] = set()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Note, and attend."""
        product = torch.bmm(query.transpose(0, 1), query.permute(1, 2, 0))
        self.dtypes |= {query.dtype, key.dtype, value.dtype, product.dtype}
        out: Tensor = self.plan.attend(layer, query, key, value, scaling)
        return out


@pytest.mark.parametrize(("autocast", "wanted"), [(None, {WIDE}), (NARROW, {WIDE}), (torch.float16, {WIDE})])
def test_a_cpu_attends_in_float32_whatever_autocast_says(
    autocast: torch.dtype | None, wanted: set[torch.dtype]
) -> None:
    policy = Policy(build_tiny_model("tiny-qwen3", 0), character_tokenizer())
    plan = Seen(attention_plan([(0, 5)], [], 5, CPU))
    ids = torch.arange(5).unsqueeze(0)
    with torch.autocast("cpu", autocast, enabled=autocast is not None), with_plan(policy.backbone, plan) as options:
        policy.backbone(input_ids=ids, position_ids=ids, **options)
    assert plan.dtypes == wanted


def test_other_devices_attend_in_autocasts_dtype_or_the_wider_one() -> None:
    cuda = torch.device("cuda")
    assert attention_dtype(WIDE, WIDE, NARROW, device=cuda) == WIDE
    assert attention_dtype(NARROW, device=CPU) == NARROW
    with torch.autocast("cpu", NARROW):
        assert attention_dtype(WIDE, WIDE, NARROW, device=CPU) == WIDE
        assert attention_dtype(WIDE, WIDE, NARROW, device=cuda) == WIDE
