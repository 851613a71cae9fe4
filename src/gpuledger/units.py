"""Numbers as people read them: GiB for memory, powers of ten for FLOPs. The only place where units are divided out."""
from __future__ import annotations

GIB = 2**30
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def gib(nbytes: int) -> str:
    """`12.34 GiB`; small amounts as MiB or bytes, so that nothing is printed as 0.00."""
    if abs(nbytes) >= 10 * 2**20:
        return f"{nbytes / GIB:,.2f} GiB"
    if abs(nbytes) >= 2**20:
        return f"{nbytes / 2**20:.1f} MiB"
    return f"{nbytes:,} B"


def gib_cell(nbytes: int) -> str:
    """The number alone, for a column headed GiB."""
    return f"{nbytes / GIB:,.2f}" if nbytes == 0 or abs(nbytes) >= GIB / 200 else f"{nbytes / GIB:.4f}"


def scaled(value: float, unit: str) -> str:
    """`51.5 GFLOP`."""
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:,.2f} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def count(number: int) -> str:
    """`8.03 B` for 8,030,261,248."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= factor:
            return f"{number / factor:.2f} {suffix}"
    return f"{number:,}"
