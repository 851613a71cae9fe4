"""Traces recorded on real GPUs: the model hands out every address that PyTorch handed out."""
from __future__ import annotations

from pathlib import Path

import pytest

from recorded_traces import RecordedDevice, Trace, allocator_before, read_trace

TRACES = Path(__file__).resolve().parents[2] / "shared" / "ground-truth" / "allocator-traces"
# name: (events, allocations, segment allocations, segment frees)
RECORDED = {
    "gpt_large_ctx128_fullstep": (13876, 6770, 782, 430),
    "gpt_large_ctx256_forward_mixed": (5173, 2702, 598, 459),
    "gpt_large_ctx512_fullstep": (14042, 6769, 589, 790),
    "gpt_medium_ctx1024_inference": (2560, 1280, 0, 0),
    "gpt_medium_ctx1024_training": (14961, 7591, 0, 0),
    "gpt_medium_ctx128_inference": (2560, 1280, 0, 0),
    "gpt_medium_ctx128_training": (12831, 6526, 0, 0),
    "gpt_medium_ctx256_inference": (2560, 1280, 0, 0),
    "gpt_medium_ctx256_training": (13027, 6624, 0, 0),
    "gpt_medium_ctx512_inference": (3332, 1666, 0, 0),
    "gpt_medium_ctx512_training": (14962, 7591, 1, 0),
}


@pytest.mark.parametrize("name", RECORDED)
def test_every_address_and_segment(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no recording {path}: the traces of real GPUs are not part of the repository")
    trace = read_trace(path)
    assert replay_and_compare(trace) == RECORDED[name]


def replay_and_compare(trace: Trace) -> tuple[int, int, int, int]:
    """What was compared: events, allocations, segment allocations and segment frees."""
    allocator, blocks = allocator_before(trace)
    device = allocator.heap.device
    assert isinstance(device, RecordedDevice)
    history = allocator.record_history()
    actions = [action for action, _, _ in trace.events]
    released: set[tuple[int, int]] = set()
    for i, (action, address, size) in enumerate(trace.events):
        if action == "segment_alloc":
            device.next_segment = (address, size)
        elif action == "alloc":
            block = allocator.allocate(size)
            assert block.address == address, f"event {i}: {size} bytes"
            assert device.next_segment is None, f"event {i}: served without the recorded segment"
            blocks[address] = block
        elif action == "free_completed":
            allocator.free(blocks.pop(address))
        elif action == "segment_free":
            if actions[i - 1] != "segment_free" or i == 0:
                assert not released, "segments that were released here, but not by PyTorch"
                before = len(history)
                allocator.empty_cache()
                released = {(e.address, e.size) for e in history[before:]}
            released.remove((address, size))
    assert not released
    stats = allocator.memory_stats()
    assert stats["reserved_bytes.all.current"] == trace.reserved_bytes_at_end
    assert stats["allocated_bytes.all.current"] == trace.allocated_bytes_at_end
    assert trace.blocks_at_end == [
        (block.address, block.size, block.requested_bytes * (block.state != "inactive"))
        for segment in allocator.segments() for block in segment.blocks]
    return (len(actions), actions.count("alloc"), actions.count("segment_alloc"),
            actions.count("segment_free"))
