"""Arithmetic that reads the same for one layout and for a million.

Every function takes Python numbers or NumPy arrays, in any mixture. NumPy is imported only where an
array comes in, so that one estimate never pays for it.
"""

from __future__ import annotations

import math
from typing import Any

Number = Any  # an int, a float, or a NumPy array of them; an alias, so that signatures say so


def is_array(*values: Number) -> bool:
    """Whether NumPy has to do it."""
    return any(hasattr(value, "ndim") for value in values)


def ceil(value: Number) -> Number:
    """The smallest whole number that is not below the value, as a float."""
    if not is_array(value):
        return float(math.ceil(value))
    import numpy as np

    return np.ceil(value)


def sqrt(value: Number) -> Number:
    """Square root."""
    return value**0.5


def log2_floor(value: Number) -> Number:
    """floor(log2(value)) of a value of at least 1."""
    if not is_array(value):
        return float(math.floor(math.log2(value)))
    import numpy as np

    return np.floor(np.log2(value))


def maximum(first: Number, second: Number) -> Number:
    """The larger of the two, entry by entry."""
    if not is_array(first, second):
        return max(first, second)
    import numpy as np

    return np.maximum(first, second)


def minimum(first: Number, second: Number) -> Number:
    """The smaller of the two, entry by entry."""
    if not is_array(first, second):
        return min(first, second)
    import numpy as np

    return np.minimum(first, second)


def where(condition: Number, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds. Both are computed, so neither may divide by zero."""
    if not is_array(condition, then, otherwise):
        return then if condition else otherwise
    import numpy as np

    return np.where(condition, then, otherwise)


def both(first: Number, second: Number) -> Number:
    """first and second, entry by entry."""
    return first & second if is_array(first, second) else bool(first) and bool(second)
