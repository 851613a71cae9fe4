"""`PYTORCH_CUDA_ALLOC_CONF` strings: accepted, refused and understood as PyTorch does."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import PROGRAMS

from gpuledger.errors import InputError
from gpuledger.memory.allocator import (
    AllocatorSettings,
    parse_alloc_conf,
    settings_from_environment,
)

STRINGS = Path(__file__).parents[1] / "data" / "alloc_conf.yaml"


def values(settings: AllocatorSettings) -> dict[str, object]:
    """The same numbers as PyTorch prints them in a snapshot."""
    limit = settings.max_split_size_bytes
    return {
        "max_split_size": limit - 2**64 if limit >= 2**63 else limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(2**i): steps for i, steps in enumerate(settings.roundup_power2_divisions)},
    }


def test_pytorch_reads_the_same(emulated):
    strings = yaml.safe_load(STRINGS.read_text())
    texts = strings["accepted"] + strings["refused"]
    theirs = emulated.run(PROGRAMS / "alloc_conf_values.py", json.dumps(texts))
    assert len(theirs) == len(texts) > 90
    for text, expected in zip(texts, theirs, strict=True):
        if expected is None:
            with pytest.raises(InputError):
                parse_alloc_conf(text)
        else:
            assert values(parse_alloc_conf(text)) == expected, text


@pytest.mark.parametrize("variables", [
    {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32",
     "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
    {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
])
def test_which_variable_wins(emulated, variables):
    limit = emulated.run(
        "import torch; torch.cuda.init(); print(torch.cuda.memory_stats()['max_split_size'])",
        variables=variables)
    assert values(settings_from_environment(variables))["max_split_size"] % 2**64 == limit % 2**64
