"""The key-value store through which ranks find each other, for a rank that is alone."""
from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

Store: Any = vars(dist)["Store"]  # a C++ class without type information

# What rank 0 publishes for the others is the id of a new NCCL communicator (128 bytes). The
# emulated NCCL does not look at it.
PUBLISHED = b"e" * 128


class LonelyStore(Store):  # type: ignore[misc]
    """Answers at once: a key that this rank did not set counts as set by an absent peer."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._values.get(key, PUBLISHED)

    def add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def append(self, key: str, value: str | bytes) -> None:
        more = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = self._values.get(key, b"") + more

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        before = expected.encode() if isinstance(expected, str) else bytes(expected)
        if self._values.get(key, b"") == before:
            self.set(key, desired)
        return self._values.get(key, before)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        return None

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def clone(self) -> LonelyStore:
        return self

    def has_extended_api(self) -> bool:
        return True
