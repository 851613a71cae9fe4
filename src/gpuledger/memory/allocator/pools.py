"""The small and the large pool, and in each the free blocks of every stream in best-fit order."""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from .blocks import Block
from .settings import UNLIMITED_BYTES, AllocatorSettings
from .sizes import MIN_BLOCK_BYTES, SMALL_ALLOCATION_BYTES, SMALL_SEGMENT_BYTES
from .statistics import PoolUsage

ADDRESS_BITS = 52       # size << 52 | address orders by size, then address, in one comparison


class Pool:
    """Free blocks of one kind: small (requests up to 1 MiB) or large.

    Streams never share free blocks: PyTorch orders its set by (stream, size, address), which is
    one sorted list per stream.
    """

    def __init__(self, *, small: bool, settings: AllocatorSettings):
        self.small = small
        self.usage = PoolUsage()
        self.page_bytes = SMALL_SEGMENT_BYTES if small else settings.large_segment_size_bytes
        self.free_lists: dict[int, FreeList] = {}
        self.searches = 0                       # the clock of garbage collection
        self.max_split_bytes = settings.max_split_size_bytes
        self.rounding_bytes = settings.non_split_rounding_bytes
        # A free rest becomes a block of its own from 512 bytes in the small pool (and with
        # expandable segments), above 1 MiB in the large pool: else it stays an unsplit tail. [A3]
        if small or settings.expandable_segments:
            self.min_rest_bytes, self.split_below_bytes = MIN_BLOCK_BYTES, UNLIMITED_BYTES
        else:
            self.min_rest_bytes = SMALL_ALLOCATION_BYTES + 1
            self.split_below_bytes = self.max_split_bytes

    def free_list(self, stream: int) -> FreeList:
        """The free blocks of `stream`, an empty list at its first use."""
        if stream not in self.free_lists:
            self.free_lists[stream] = FreeList(self, stream)
        return self.free_lists[stream]

    def free_blocks(self) -> Iterator[Block]:
        """By stream, size and address, as PyTorch walks them; not while the pool changes."""
        for stream in sorted(self.free_lists):
            yield from self.free_lists[stream].blocks


class FreeList:
    """Free blocks of one pool and one stream: sorted keys, and the blocks in the same order."""

    __slots__ = ("blocks", "keys", "pool", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int):
        self.pool = pool
        self.stream = stream
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []         # of expandable segments, by address

    def add(self, block: Block) -> None:
        """File a free block under its present size and address."""
        key = block.key = block.size << ADDRESS_BITS | block.address
        position = bisect_left(self.keys, key)
        self.keys.insert(position, key)
        self.blocks.insert(position, block)
        block.searches_before = self.pool.searches

    def remove(self, block: Block) -> None:
        """Take a block out; its size and address may already have changed."""
        position = bisect_left(self.keys, block.key)
        del self.keys[position]
        del self.blocks[position]

    def first_of_size(self, size: int) -> int:
        """Position of the smallest block of at least `size` bytes, lowest address first."""
        return bisect_left(self.keys, size << ADDRESS_BITS)

    def take(self, size: int) -> Block | None:
        """Best fit: the smallest block that is large enough, out of the list. [A4]"""
        position = bisect_left(self.keys, size << ADDRESS_BITS)
        if position == len(self.keys):
            return None
        block = self.blocks[position]
        if block.segment is not None:
            position = self._least_growth(position)
            block = self.blocks[position]
        pool = self.pool
        if block.size >= pool.max_split_bytes and (
            size < pool.max_split_bytes or block.size >= size + pool.rounding_bytes
        ):
            return None         # an oversize block serves oversize requests of nearly its size only
        del self.keys[position]
        del self.blocks[position]
        return block

    def _least_growth(self, position: int) -> int:
        """With expandable segments, a block counts with the unmapped range it could grow into. [A8]

        Walks on while the next larger block could grow less, as PyTorch does.
        """
        blocks = self.blocks
        while position + 1 < len(blocks) and (
            _expandable_bytes(blocks[position + 1]) < _expandable_bytes(blocks[position])
        ):
            position += 1
        return position

    def add_unmapped(self, block: Block) -> None:
        """File a range without memory, in address order."""
        position = bisect_left(self.unmapped, block.address, key=_address)
        self.unmapped.insert(position, block)

    def remove_unmapped(self, block: Block) -> None:
        """Take a range without memory out."""
        self.unmapped.remove(block)


def _expandable_bytes(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _address(block: Block) -> int:
    return block.address
