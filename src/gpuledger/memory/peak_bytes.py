"""The account of a peak as integers alone: by category, with what rounding adds."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.program.sizes import Size

from .allocator.sizes import MIN_BLOCK_BYTES
from .ledger import CATEGORIES
from .peak import Live, Peak
from .states import State


@dataclass(frozen=True)
class PeakBytes:
    """Requested bytes of each category at the peak; rounding_bytes is what 512-byte blocks add."""

    requested_bytes: int
    rounding_bytes: int
    instant: str
    category_bytes: dict[str, int]


def peak_bytes(peak: Peak) -> PeakBytes:
    """The sums of a peak's entries."""
    entries: tuple[State | Live, ...] = (*peak.states, *peak.live)
    rounding = sum(rounding_bytes(entry) for entry in entries)
    categories = {name: int(peak.category_bytes(name)) for name in CATEGORIES}
    return PeakBytes(int(peak.requested_bytes), int(rounding), peak.instant, categories)


def rounding_bytes(entry: State | Live) -> Size:
    """What rounding each tensor up to 512 bytes adds; of one size where nothing else is said. [A1]"""
    if entry.rounding_bytes is not None:
        return entry.rounding_bytes
    assert isinstance(entry, Live)
    each = entry.nbytes // entry.count
    return entry.count * (-each % MIN_BLOCK_BYTES)
