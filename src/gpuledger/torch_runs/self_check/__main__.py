"""The engine against PyTorch on random configurations, on a GPU or under the emulated GPU.

`python -m gpuledger.torch_runs.self_check SEED COUNT [--show N] [--whole] [--kernels fused]`
"""
from __future__ import annotations

import argparse
import json
import random
import sys
import time

from gpuledger.config.run import Run

from .draw import draw_run


def main(arguments: list[str]) -> int:
    """Mismatches go to stderr, a summary as JSON to stdout. Returns 1 if there was a mismatch."""
    parser = argparse.ArgumentParser(prog="gpuledger.torch_runs.self_check")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--show", type=int, default=5, help="mismatches to describe")
    parser.add_argument("--whole", action="store_true",
                        help="whole runs from an empty allocator, each in a process of its own")
    parser.add_argument("--kernels", choices=("torch", "fused"), default="torch",
                        help="PyTorch's kernels, or gpuledger's where they exist")
    given = parser.parse_args(arguments)
    rng, started = random.Random(given.seed), time.time()
    runs = [draw_run(rng, given.kernels) for _ in range(given.count)]
    failures = (whole_runs if given.whole else steady_steps)(runs)
    for case, text in failures[:given.show]:
        print(f"MISS {case}: {text}", file=sys.stderr)
    print(json.dumps({"seed": given.seed, "cases": len(runs), "equal": len(runs) - len(failures),
                      "mismatches": [case for case, _ in failures],
                      "seconds": round(time.time() - started, 1)}))
    return 1 if failures else 0


def steady_steps(runs: list[Run]) -> list[tuple[int, str]]:
    """(case, description) of the runs whose streams differ, or in which either side raises."""
    from .case import check_case, current_device, label

    device, failures = current_device(), []
    for case, run in enumerate(runs):
        try:
            mismatch = check_case(run, device)
        except Exception as error:                         # a case that fails is a mismatch too
            failures.append((case, f"{label(run)}\n  {type(error).__name__}: {error}"))
            continue
        if mismatch is not None:
            failures.append((case, f"{label(run)}\n{mismatch}"))
    return failures


def whole_runs(runs: list[Run]) -> list[tuple[int, str]]:
    """The same for whole runs: streams, statistics, reserved bytes within one segment."""
    from .whole import in_child

    outcomes = [in_child(run) for run in runs]
    return [(case, str(outcome)) for case, outcome in enumerate(outcomes) if not outcome.equal]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
