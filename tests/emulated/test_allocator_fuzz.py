"""Our allocator against PyTorch's compiled one: random operations, every statistic equal.

`benchmarks/allocator/fuzz.py` runs the same comparison at length.
"""
from __future__ import annotations

import pytest
from conftest import PROGRAMS

OPERATIONS = 1000
SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max_split": "max_split_size_mb:64",
    "power2": "roundup_power2_divisions:4",
    "power2_list": "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment": "large_segment_size_mb:32",
    "expandable_max_split": "expandable_segments:True,max_split_size_mb:64",
    "collection": "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_random_operations(emulated, name):
    """Two seeds on an empty card, two with 1 GiB of it left; one of each uses three streams."""
    outcome = emulated.run(
        PROGRAMS / "allocator_pair.py", "--seeds", "0", "1", "--tight-seeds", "2", "3",
        "--operations", str(OPERATIONS), variables={"PYTORCH_CUDA_ALLOC_CONF": SETTINGS[name]})
    assert outcome["mismatches"] == []
    assert outcome["operations"] == 4 * OPERATIONS
    assert outcome["statistics_compared"] > 50_000
    assert outcome["stream_uses"] > 100
    assert outcome["ooms"] > 0


def test_a_broken_rule_is_noticed(emulated):
    """The comparison can fail: the model is given other settings than PyTorch has."""
    outcome = emulated.run(
        PROGRAMS / "allocator_pair.py", "--seeds", "0", "--operations", "200",
        "--model-settings", "max_split_size_mb:64",
        variables={"PYTORCH_CUDA_ALLOC_CONF": ""})
    assert len(outcome["mismatches"]) == 1
