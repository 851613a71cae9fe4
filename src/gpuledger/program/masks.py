"""What scaled_dot_product_attention adds to the scores: causal, windowed and ALiBi biases, as it
makes them."""
from __future__ import annotations

from .program import Op, Tape
from .sizes import Size, round_up
from .tensor import Tensor

# the memory-efficient kernel reads rows of a bias aligned to so many elements
EFFICIENT_COLUMNS = 8


def bias_of_mask(tape: Tape, s: Size, dtype: str) -> Tensor:
    """A bool mask (s, s) as a bias of 0 and -inf. [S15]

    Two scalars and `where`. Ref: convert_boolean_attn_mask
    (ATen/native/transformers/attention.cpp).
    """
    bias = Tensor("attention bias", (s, s), dtype, "constant")
    hidden, seen = (Tensor(name, (), dtype, "scratch") for name in ("-inf", "0"))
    return tape.append(Op("mask to bias", (), (bias,), equation="S15",
                          forward=(+hidden, +seen, +bias, -hidden, -seen)))


def causal_bias(tape: Tape, s: Size, dtype: str) -> Tensor:
    """The math kernel's own mask: ones (s, s), their lower triangle, and the bias made from it.
    [S15]"""
    bias = Tensor("attention bias", (s, s), dtype, "constant")
    ones, triangle = (Tensor(name, (s, s), "bool", "scratch") for name in ("ones", "triangle"))
    hidden, seen = (Tensor(name, (), dtype, "scratch") for name in ("-inf", "0"))
    return tape.append(Op("causal mask to bias", (), (bias,), equation="S15",
                          forward=(+ones, +triangle, -ones, +hidden, +seen, +bias,
                                   -triangle, -hidden, -seen)))


def padded_bias(tape: Tape, bias: Tensor) -> Tensor:
    """(..., s) padded to a multiple of 8 columns, where it is none, and sliced back: a view. [S15]

    Ref: pad_bias and preprocess_mask (ATen/native/transformers/attention.cpp).
    """
    *rows, s = bias.shape
    padded = round_up(s, EFFICIENT_COLUMNS)
    if padded is s or padded == s:
        return bias
    wide = Tensor("padded bias", (*rows, padded), bias.dtype, "constant")
    return tape.append(Op("pad bias", (bias,), (wide,), equation="S15"))
