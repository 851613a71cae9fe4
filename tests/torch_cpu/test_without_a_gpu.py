"""`validate` where PyTorch sees no GPU: one error, one hint."""

from __future__ import annotations

import pytest
import torch

from gpuledger.cli.validate import bench_of
from gpuledger.errors import InputError


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_validate_says_what_is_missing() -> None:
    with pytest.raises(InputError, match="no CUDA device") as error:
        bench_of(None)
    assert error.value.problems[0].hint.startswith("gpuledger emulate")
