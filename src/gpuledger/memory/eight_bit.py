"""AdamW with 8-bit states in PyTorch's own operators: slices of one parameter are unpacked to fp32
and packed.

Where bitsandbytes is installed one kernel does it all, without temporaries.
"""
from __future__ import annotations

from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import Tensor

from .optimizer_states import QUANTIZATION_BLOCK, SMALLEST_QUANTIZED, optimizer_states
from .update_rules import Moves, Update, Variables

SLICE = 4096 * QUANTIZATION_BLOCK       # elements updated at a time
CODES = 256


def adamw_8bit(update: Update) -> Moves:
    """Ref: torch_runs/eight_bit_adam.py. Code tables come with the first quantized parameter. [O13]
    """
    tables = update.first
    weights = list({w.shape: w for w in update.weights}.values()) if update.brief else update.weights
    for weight in weights:
        n = weight.numel
        quantized = n >= SMALLEST_QUANTIZED
        states = optimizer_states(weight, update.training) if update.first else ()
        yield from (+state for state in states[:2])
        if quantized and tables:
            yield from (+vector(f"codes {i}", CODES) for i in (1, 2))
            tables = False
        yield from (+state for state in states[2:])
        if quantized:
            yield from sliced(weight, brief=update.brief)
        else:
            yield from arithmetic(weight, n)


def vector(name: str, n: Size, dtype: str = "float32") -> Tensor:
    return Tensor(name, (n,), dtype)


def sliced(weight: Tensor, *, brief: bool) -> Moves:
    """Slice by slice of whole blocks; both moments in fp32 live until the next slice's are there.

    brief: from the second slice on all are alike but the last.
    """
    variables = Variables()
    begins = range(0, weight.numel, SLICE)
    for begin in dict.fromkeys((*begins[:3], begins[-1])) if brief else begins:
        n = min(SLICE, weight.numel - begin)
        moments = [vector(f"moment {i}", n) for i in (1, 2)]
        for moment in moments:
            yield from unpacked(moment, n)
        for moment in moments:
            yield from variables.bind(moment.name, moment)
        yield from arithmetic(weight, n)
        for _ in moments:
            yield from packed(n)
    yield from variables.end()


def unpacked(moment: Tensor, n: Size) -> Moves:
    """Codes as indices into the table, times the scale of their block."""
    indices = vector("indices", n, "int64")
    scales = vector("scale per element", ceil_div(n, QUANTIZATION_BLOCK) * QUANTIZATION_BLOCK)
    yield from (+indices, +moment, -indices, +scales, -scales)


def packed(n: Size) -> Moves:
    """Padded to whole blocks; the blocks' largest magnitudes; the nearest codes."""
    blocks = ceil_div(n, QUANTIZATION_BLOCK)
    padded, magnitudes, normed = (vector(name, blocks * QUANTIZATION_BLOCK)
                                  for name in ("padded", "magnitudes", "normed"))
    largest, clamped = vector("largest", blocks), vector("clamped", blocks)
    sums, between = vector("sums of codes", CODES - 1), vector("between codes", CODES - 1)
    codes = vector("codes", blocks * QUANTIZATION_BLOCK, "int64")
    narrow = vector("narrow codes", n, "uint8")
    yield from (
        +padded,
        +magnitudes,
        +largest,
        -magnitudes,
        -largest,
        +clamped,
        +normed,
        -clamped,
        +sums,
        +between,
        -sums,
        +codes,
        +narrow,
        -narrow,
        -padded,
        -normed,
        -between,
        -codes,
    )


def arithmetic(weight: Tensor, n: Size) -> Moves:
    """fp32 copies of 16-bit gradients, the denominator, the quotient and its cast."""
    wide, denominator, quotient = (
        vector(name, n) for name in ("gradient", "denominator", "quotient")
    )
    narrow = vector("step", n, weight.dtype)
    if weight.dtype == "float32":
        yield from (+denominator, +quotient, -quotient, -denominator)
    else:
        yield from (
            +wide,
            +denominator,
            +quotient,
            +narrow,
            -quotient,
            -narrow,
            -wide,
            -denominator,
        )
