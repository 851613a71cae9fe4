"""What a user can set of PyTorch's caching allocator, in bytes and Python values."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.errors import InputError, NotYetError

from .sizes import (
    DEVICE_PAGE_BYTES,
    LARGE_SEGMENT_BYTES,
    MIB,
    MIN_OWN_SEGMENT_BYTES,
    NO_DIVISIONS,
    POWER2_INTERVALS,
)

UNLIMITED_BYTES = 2**64 - 1             # max_split_size_mb not set: every block may be split


@dataclass(frozen=True)
class AllocatorSettings:
    """One value per option of `PYTORCH_CUDA_ALLOC_CONF` that changes device memory.

    max_non_split_rounding_bytes: None means large_segment_size_bytes.
    roundup_power2_divisions: one number for each of the 16 intervals from 1 MiB to 32 GiB.
    per_process_memory_fraction: also `torch.cuda.set_per_process_memory_fraction`; 1.0: no limit.
    Raises InputError where PyTorch refuses the value.
    Ref: https://docs.pytorch.org/docs/stable/notes/cuda.html (PYTORCH_CUDA_ALLOC_CONF).
    """

    expandable_segments: bool = False
    max_split_size_bytes: int = UNLIMITED_BYTES
    max_non_split_rounding_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    garbage_collection_threshold: float = 0.0
    large_segment_size_bytes: int = LARGE_SEGMENT_BYTES
    per_process_memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        self._check_segments()
        self._check_fractions()
        divisions = self.roundup_power2_divisions
        if len(divisions) != POWER2_INTERVALS or any(d & (d - 1) or d < 0 for d in divisions):
            raise InputError(
                f"roundup_power2_divisions = {list(divisions)} are not {POWER2_INTERVALS} "
                "powers of 2 (or 0)",
                "give one power of 2 for each interval from 1 MiB to 32 GiB, 0 for no rounding",
            )

    @property
    def non_split_rounding_bytes(self) -> int:
        """How much larger than an oversize request an oversize block may be."""
        given = self.max_non_split_rounding_bytes
        return self.large_segment_size_bytes if given is None else given

    def _check_segments(self) -> None:
        large = self.large_segment_size_bytes
        if large <= MIN_OWN_SEGMENT_BYTES:
            raise InputError(
                f"large_segment_size_mb = {large // MIB} must be > {MIN_OWN_SEGMENT_BYTES // MIB}",
                f"leave it out for {LARGE_SEGMENT_BYTES // MIB}, or use a larger value",
            )
        if self.expandable_segments and large % DEVICE_PAGE_BYTES:
            raise NotYetError(
                f"large_segment_size_mb = {large // MIB} with expandable segments: the device "
                "maps memory in pages of 2 MiB",
                "use an even large_segment_size_mb",
            )
        for name, value in (
            ("max_split_size_mb", self.max_split_size_bytes),
            ("max_non_split_rounding_mb", self.non_split_rounding_bytes),
        ):
            if value < large:
                raise InputError(
                    f"{name} = {value // MIB} too small, must be >= {large // MIB}",
                    f"the smallest value is the size of a large segment, {large // MIB} MiB",
                )

    def _check_fractions(self) -> None:
        threshold = self.garbage_collection_threshold
        if not 0.0 <= threshold < 1.0:
            raise InputError(
                f"garbage_collection_threshold = {threshold} is invalid",
                "set it in (0.0, 1.0), or leave it out for no garbage collection",
            )
        fraction = self.per_process_memory_fraction
        if not 0.0 <= fraction <= 1.0:
            raise InputError(
                f"per_process_memory_fraction = {fraction} is invalid", "set it in [0.0, 1.0]"
            )
