"""What PyTorch makes of `PYTORCH_CUDA_ALLOC_CONF` strings (the argument, a JSON list)."""
from __future__ import annotations

import json
import sys
import warnings

import torch

# What a string does not name keeps its value from the string before; these name it.
RESET = ("large_segment_size_mb:20", "expandable_segments:False", "max_non_split_rounding_mb:20")
COMPARED = (
    "max_split_size", "garbage_collection_threshold", "expandable_segments",
    "roundup_power2_divisions")


def values(text: str) -> dict[str, object] | None:
    """None if PyTorch refuses the string."""
    for reset in RESET:
        torch._C._accelerator_setAllocatorSettings(reset)
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError, IndexError):
        return None
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return {name: settings[name] for name in COMPARED}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.cuda.init()
    print(json.dumps([values(text) for text in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
