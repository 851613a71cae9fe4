"""`key=a,b,c`: the keys that a sweep varies and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from .config.options import SHORT_OPTIONS, full_key, recompute_value
from .config.problems import shown
from .config.reading import read_yaml
from .errors import InputError

MAX_CELLS = 1_000_000
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:([+*])(\d+))?")


@dataclass(frozen=True)
class Axis:
    """One varied key, dotted as in a run file, and its values in order."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The key without the part it belongs to: micro_batch_size."""
        return self.key.rpartition(".")[2]


def parse_axis(text: str) -> Axis:
    """The axis of `key=a,b,c`; a value may be a range: 1..8, 0..64+16 or 1024..32768*2.

    Raises InputError for anything else, and for a key that no run has.
    """
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name or not values.strip():
        raise InputError(
            f"--over {shown(text)} is not key=a,b,c",
            "for example --over micro_batch_size=1,2,4 or --over seq_len=1024..32768*2",
        )
    key = SHORT_OPTIONS.get(name.replace("-", "_")) or _full_key(name)
    found = [value for item in items(values) for value in expanded(key, item)]
    return Axis(key, tuple(found))


def _full_key(name: str) -> str:
    try:
        return full_key(name)
    except InputError as error:
        problem = error.problems[0]
        raise InputError(problem.message.replace("--set", "--over"), problem.hint) from None


def items(text: str) -> list[str]:
    """Split at commas outside brackets, braces and quotes."""
    parts, depth, quote, current = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part.strip() for part in (*parts, current) if part.strip()]


def expanded(key: str, item: str) -> Iterator[Any]:
    """The numbers of a range, or the one value that YAML reads."""
    found = RANGE.fullmatch(item)
    if found is None:
        value = read_yaml(item, f"--over {key}")
        yield (
            recompute_value(value)
            if key == "training.recompute" and isinstance(value, str)
            else value
        )
        return
    first, last = int(found[1]), int(found[2])
    factor = found[3] == "*"
    step = int(found[4] or 1)
    if first > last or step < 1 or (factor and (step < 2 or first < 1)):
        raise InputError(
            f"--over {key}: {item} is no range that ends",
            "write first..last, first..last+step or first..last*factor, ascending",
        )
    count = 0
    while first <= last:
        yield first
        first = first * step if factor else first + step
        count += 1
        if count > MAX_CELLS:
            raise InputError(
                f"--over {key}: {item} has more than {MAX_CELLS:,} values", "take larger steps"
            )


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """All combinations, the last axis fastest, as dotted keys to values.

    Raises InputError for a key that is given twice and for too many cells.
    """
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"--over {twice} is given twice", "list all its values in one --over")
    cells = 1
    for axis in axes:
        cells *= len(axis.values)
    if cells > MAX_CELLS:
        raise InputError(
            f"the grid has {cells:,} cells, more than {MAX_CELLS:,}", "vary fewer values"
        )
    return [
        dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in axes))
    ]
