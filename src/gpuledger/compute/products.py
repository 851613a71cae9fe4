"""The datatype of a precision's matrix products: its dense peak is the denominator of MFU."""
from __future__ import annotations

from ..config.training import Precision

DTYPE_OF_PRODUCTS: dict[Precision, str] = {
    "fp32": "fp32", "tf32": "tf32", "fp16-mixed": "fp16",
    "bf16-mixed": "bf16", "bf16": "bf16", "bf16-master": "bf16",
}
