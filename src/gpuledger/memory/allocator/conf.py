"""`PYTORCH_CUDA_ALLOC_CONF` strings, read the way PyTorch 2.14 reads them.

PyTorch is lenient: separators are not checked, and a number ends at the first character that does
not belong to it. The same strings are accepted and refused here, with the same values.
Ref: c10/core/AllocatorConfig.h (ConfigTokenizer), AllocatorConfig.cpp, CUDAAllocatorConfig.cpp.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from gpuledger.errors import InputError, NotYetError

from .settings import UNLIMITED_BYTES, AllocatorSettings
from .sizes import LARGE_SEGMENT_BYTES, MIB, NO_DIVISIONS, POWER2_INTERVALS

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")    # the first one set
_EXAMPLE = "write key:value pairs, for example expandable_segments:True,max_split_size_mb:64"
_MAX_REGISTER_THREADS = 128
_DECIMAL = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf(inity)?|nan)"
_HEXADECIMAL = r"[+-]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?\d+)?"


def parse_alloc_conf(text: str) -> AllocatorSettings:
    """The settings that a `PYTORCH_CUDA_ALLOC_CONF` string makes.

    Options of pinned host memory and of locking are checked and have no effect on device memory.
    Raises InputError where PyTorch raises, NotYetError for what is not modelled (the
    cudaMallocAsync backend, throw_on_cudamalloc_oom).
    """
    tokens = _Tokens.of(text)
    values: dict[str, Any] = {}
    position = 0
    while position < len(tokens.all):
        key = tokens.all[position]
        if key not in _PARSERS:
            near = get_close_matches(key, _PARSERS, n=1, cutoff=0.5)
            known = [name for name in _PARSERS if not name.startswith("pinned_")]
            hint = f"did you mean {near[0]}?" if near else "options: " + ", ".join(known)
            raise InputError(f"unrecognized allocator option '{key}' in '{text}'", hint)
        option, value, position = _PARSERS[key](tokens, key, position + 2)
        if option:
            values[option] = value
        position += 2                           # the last token of the value, and a separator
    return AllocatorSettings(**values)


def settings_from_environment(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings of a process with these environment variables.

    PYTORCH_CUDA_ALLOC_CONF wins over PYTORCH_ALLOC_CONF, even when it is empty.
    """
    for name in ENVIRONMENT_VARIABLES:
        if name in environment:
            return parse_alloc_conf(environment[name])
    return AllocatorSettings()


def alloc_conf_text(settings: AllocatorSettings) -> str:
    """A string that `parse_alloc_conf` reads back as these settings; "" for the defaults."""
    options = []
    if settings.expandable_segments:
        options.append("expandable_segments:True")
    for name, value, default in (
        ("large_segment_size_mb", settings.large_segment_size_bytes, LARGE_SEGMENT_BYTES),
        ("max_split_size_mb", settings.max_split_size_bytes, UNLIMITED_BYTES),
        ("max_non_split_rounding_mb", settings.max_non_split_rounding_bytes, None),
    ):
        if value is not None and value != default:
            options.append(f"{name}:{value // MIB}")
    divisions = settings.roundup_power2_divisions
    if any(divisions):
        table = ",".join(f"{2**i}:{steps}" for i, steps in enumerate(divisions))
        options.append(f"roundup_power2_divisions:[{table}]")
    if settings.garbage_collection_threshold:
        options.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold!r}")
    if settings.per_process_memory_fraction != 1.0:
        options.append(f"per_process_memory_fraction:{settings.per_process_memory_fraction!r}")
    return ",".join(options)


@dataclass(frozen=True)
class _Tokens:
    """Keys, values and the characters `,:[]`; white space is dropped everywhere."""

    text: str
    all: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> _Tokens:
        return cls(text, re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s+", "", text)))

    def __getitem__(self, position: int) -> str:
        if position >= len(self.all):
            raise InputError(f"'{self.text}' ends where a value is expected", _EXAMPLE)
        return self.all[position]

    def integer(self, position: int) -> int:
        """C++'s stoull: leading digits, a sign wraps around."""
        return int(self._number(position, r"[+-]?\d+")) % 2**64

    def real(self, position: int) -> float:
        """C++'s stod."""
        hexadecimal = re.match(_HEXADECIMAL, self[position], re.IGNORECASE)
        if hexadecimal:
            return float.fromhex(hexadecimal[0])
        return float(self._number(position, _DECIMAL))

    def boolean(self, position: int) -> bool:
        if self[position] not in ("True", "False"):
            raise InputError(
                f"expected 'True' or 'False' but got '{self[position]}' in '{self.text}'",
                "PyTorch wants the capital letter: True or False",
            )
        return self[position] == "True"

    def _number(self, position: int, pattern: str) -> str:
        match = re.match(pattern, self[position], re.IGNORECASE)
        if match is None or (pattern[-1] == "+" and abs(int(match[0])) >= 2**64):
            raise InputError(f"'{self[position]}' in '{self.text}' is not a number", _EXAMPLE)
        return match[0]


# Each parser reads the value at `position` and returns (field or "", value, position of its last
# token). An option without a field does not change device memory.
_Parsed = tuple[str, Any, int]
_Parser = Callable[[_Tokens, str, int], _Parsed]


def _megabytes(name: str) -> _Parser:
    def parse(tokens: _Tokens, key: str, position: int) -> _Parsed:
        most = UNLIMITED_BYTES // MIB
        return name, min(tokens.integer(position), most) * MIB, position
    return parse


def _boolean(name: str) -> _Parser:
    def parse(tokens: _Tokens, key: str, position: int) -> _Parsed:
        return name, tokens.boolean(position), position
    return parse


def _threshold(tokens: _Tokens, key: str, position: int) -> _Parsed:
    value = tokens.real(position)
    if not 0.0 < value < 1.0:
        raise InputError(f"{key}:{value} is invalid", "set it in (0.0, 1.0)")
    return "garbage_collection_threshold", value, position


def _fraction(tokens: _Tokens, key: str, position: int) -> _Parsed:
    return "per_process_memory_fraction", tokens.real(position), position


def _divisions(tokens: _Tokens, key: str, position: int) -> _Parsed:
    """One number for all sizes, or [256:1,512:2,>:4]: a number from each size in MiB on."""
    if tokens[position] != "[":
        value = _power_of_2(tokens.integer(position), key, "divisions")
        return key, (value,) * POWER2_INTERVALS, position
    table = list(NO_DIVISIONS)
    last, first = 0, True
    position += 1
    while tokens[position] != "]":
        boundary, count = tokens[position], tokens.integer(position + 2)
        if count:
            _power_of_2(count, key, "divisions")
        if boundary == ">":
            table[last + 1:] = [count] * (POWER2_INTERVALS - last - 1)
        else:
            size = _power_of_2(tokens.integer(position), key, "intervals")
            last = min(size.bit_length() - 1, POWER2_INTERVALS - 1)
            if first:
                table[:last] = [count] * last
            table[last], first = count, False
        position += 3
        if tokens[position] != "]":
            position += 1                       # a separator
    return key, tuple(table), position


def _power_of_2(value: int, key: str, what: str) -> int:
    if value < 1 or value & (value - 1):
        raise InputError(f"{key}: the {what} have to be powers of 2, not {value}", "for example 4")
    return value


def _backend(tokens: _Tokens, key: str, position: int) -> _Parsed:
    name = tokens[position]
    if name == "cudaMallocAsync":
        raise NotYetError("backend:cudaMallocAsync is not modelled", "use backend:native")
    if name != "native":
        raise InputError(f"unknown allocator backend '{name}'", "use native or cudaMallocAsync")
    return "", None, position


def _rejecting(tokens: _Tokens, key: str, position: int) -> _Parsed:
    if tokens.boolean(position):
        raise NotYetError(f"{key}:True is not modelled", f"leave {key} out")
    return "", None, position


def _register_threads(tokens: _Tokens, key: str, position: int) -> _Parsed:
    if _power_of_2(tokens.integer(position), key, "threads") > _MAX_REGISTER_THREADS:
        raise InputError(f"{key}:{tokens[position]} is too large", f"<= {_MAX_REGISTER_THREADS}")
    return "", None, position


def _positive(tokens: _Tokens, key: str, position: int) -> _Parsed:
    if not tokens.integer(position):
        raise InputError(f"{key}:{tokens[position]} has to be greater than 0", "for example 1")
    return "", None, position


_PARSERS: dict[str, _Parser] = {
    "expandable_segments": _boolean("expandable_segments"),
    "max_split_size_mb": _megabytes("max_split_size_bytes"),
    "max_non_split_rounding_mb": _megabytes("max_non_split_rounding_bytes"),
    "large_segment_size_mb": _megabytes("large_segment_size_bytes"),
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "per_process_memory_fraction": _fraction,
    "backend": _backend,
    "throw_on_cudamalloc_oom": _rejecting,
    "release_lock_on_cudamalloc": _boolean(""),
    "release_lock_on_hipmalloc": _boolean(""),
    "graph_capture_record_stream_reuse": _boolean(""),
    "pinned_use_cuda_host_register": _boolean(""),
    "pinned_use_hip_host_register": _boolean(""),
    "pinned_use_background_threads": _boolean(""),
    "pinned_free_catch_all": _boolean(""),
    "pinned_num_register_threads": _register_threads,
    "pinned_reserve_segment_size_mb": _positive,
    "pinned_max_round_threshold_mb": _megabytes(""),
    "pinned_max_cached_size_mb": _megabytes(""),
}
