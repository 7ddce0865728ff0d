"""Tensors that hold others, such as the 8-bit states of torchao, are checked by what they hold before a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import NonFiniteError
from gspo_lightning.resume import check_finite


class Quantised(Tensor):
    """Codes and a scale behind the shape of a float tensor, with no operation of its own, as of torchao 0.18."""

    @staticmethod
    def __new__(cls: type[Quantised], codes: Tensor, scale: Tensor) -> Quantised:
        wrapped: Any = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        return wrapped  # type: ignore[no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return the names of the tensors inside."""
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *_: Any) -> Quantised:
        return cls(**inner)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        """Refuse any operation."""
        raise NotImplementedError(f"unimplemented operator: {func}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("infinite", [[math.inf, 0.0], [math.inf, -math.inf], [math.nan, 1.0]])
def test_infinities_that_cancel_are_found_and_finite_sums_may_overflow(
    dtype: torch.dtype, infinite: list[float]
) -> None:
    largest = torch.finfo(dtype).max
    check_finite({"state_dict": {"w": torch.full((64,), largest, dtype=dtype), "none": torch.zeros(0, dtype=dtype)}})
    with pytest.raises(NonFiniteError, match=r"state_dict\.w is not finite"):
        check_finite({"state_dict": {"w": torch.tensor(infinite, dtype=dtype)}})


@pytest.mark.parametrize(("scale", "finite"), [(0.5, True), (float("nan"), False)])
def test_tensors_of_other_packages_are_checked_by_what_they_hold(scale: float, finite: bool) -> None:
    state = Quantised(torch.zeros(4, dtype=torch.uint8), torch.tensor([1.0, scale]))
    checkpoint = {"optimizer_states": [{"state": {0: {"exp_avg": state}}}]}
    if finite:
        check_finite(checkpoint)
        return
    with pytest.raises(NonFiniteError, match=r"optimizer_states\.0\.state\.0\.exp_avg\.scale is not finite"):
        check_finite(checkpoint)
