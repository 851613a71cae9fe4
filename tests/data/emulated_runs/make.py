"""Writes the emulated runs beside this file: `python tests/data/emulated_runs/make.py`.

Each is what `gpuledger emulate --json` printed; it says the versions of PyTorch and Python.
It needs a CUDA build of PyTorch, no GPU.
"""
from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from gpuledger.cli.main import status_of

RUNS = {
    "pythia-70m": ("pythia-70m", "--gpu", "h100-80gb-sxm", "--gpus", "1", "--micro-batch", "2",
                   "--seq-len", "128", "--set", "global_batch_size=4"),
    "recomputed": ("pythia-70m", "--gpu", "h100-80gb-sxm", "--gpus", "1", "--micro-batch", "1",
                   "--seq-len", "128", "--recompute", "full", "--set", "gradient_clipping=true"),
}


def main() -> None:
    for name, arguments in RUNS.items():
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert status_of(["emulate", *arguments, "--json"]) == 0
        (Path(__file__).parent / f"{name}.json").write_text(printed.getvalue())


if __name__ == "__main__":
    main()
