"""A model of PyTorch's CUDA caching allocator that agrees with the compiled one to the byte."""
from .allocator import DEFAULT_SETTINGS, CachingAllocator
from .blocks import Block
from .conf import alloc_conf_text, parse_alloc_conf, settings_from_environment
from .history import TraceEntry
from .oom import OutOfMemory, OutOfMemoryFigures
from .replay import Event, replay
from .segments import BlockRecord, SegmentRecord
from .settings import AllocatorSettings

__all__ = [
    "DEFAULT_SETTINGS",
    "AllocatorSettings",
    "Block",
    "BlockRecord",
    "CachingAllocator",
    "Event",
    "OutOfMemory",
    "OutOfMemoryFigures",
    "SegmentRecord",
    "TraceEntry",
    "alloc_conf_text",
    "parse_alloc_conf",
    "replay",
    "settings_from_environment",
]
