"""Precision recipes: which dtype weights, products, gradients and optimizer states have."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """One recipe. Autocast casts the arguments of products to compute_dtype and keeps the rest.

    master_dtype is the dtype of separate master weights, or None where the weights are the masters.
    state_dtype is what the optimizer's states have (PyTorch: the dtype of the parameter it
    updates).
    """

    name: str
    weight_dtype: str
    compute_dtype: str
    autocast: bool = False
    master_dtype: str | None = None
    loss_scaling: bool = False

    @property
    def gradient_dtype(self) -> str:
        return self.weight_dtype

    @property
    def state_dtype(self) -> str:
        return self.master_dtype or self.weight_dtype


PRECISIONS = {
    recipe.name: recipe
    for recipe in (
        Precision("fp32", "float32", "float32"),
        Precision("tf32", "float32", "float32"),
        Precision("fp16-mixed", "float32", "float16", autocast=True, loss_scaling=True),
        Precision("bf16-mixed", "float32", "bfloat16", autocast=True),
        Precision("bf16", "bfloat16", "bfloat16"),
        Precision("bf16-master", "bfloat16", "bfloat16", master_dtype="float32"),
    )
}
