"""Python's collector of cyclic garbage, which looks at all objects again and again while many are made."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Inside, nothing is collected; afterwards the collector works as before, if it did."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
