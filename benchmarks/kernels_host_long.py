"""The long version of tests/torch_cpu/test_kernels_host.py, some minutes on two cores.

    PYTHONPATH=src python benchmarks/kernels_host_long.py [SEEDS]

Every dtype under ThreadSanitizer and AddressSanitizer, SEEDS (default 20) random schedules, and
every planted bug under every schedule and under ThreadSanitizer, with who caught it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "torch_cpu"))
from kernel_programs import (
    ONE_DTYPE,
    PLANTED_BUGS,
    SCHEDULES,
    VARIANTS,
    compile_program,
    compile_units,
    run_program,
)


def every_dtype(variant: str) -> tuple[str, ...]:
    return tuple(flag for flag in VARIANTS[variant] if flag != ONE_DTYPE)


def schedules(folder: Path, seeds: int) -> bool:
    """Whether all schedules give the same bits."""
    program = compile_program(VARIANTS["coverage"], folder)
    printed = {run_program(program, schedule=str(seed)).stdout for seed in range(seeds)}
    print(f"{seeds} schedules: {printed.pop().strip() if len(printed) == 1 else 'THEY DIFFER'}")
    return not printed


def sanitizer(folder: Path, variant: str) -> bool:
    done = run_program(compile_program(every_dtype(variant), folder), "sanitize")
    print(f"{variant} sanitizer, every dtype: {done.stdout.strip()} {done.stderr.strip()[:200]}")
    return done.returncode == 0


def verdict_of_threads(program: Path) -> list[str]:
    """What OS threads and ThreadSanitizer say."""
    try:
        done = run_program(program, "sanitize", timeout=30)
    except subprocess.TimeoutExpired:
        return ["threads: deadlock"]
    return ["ThreadSanitizer"] if "data race" in done.stderr else []


def planted_bugs(folder: Path) -> bool:
    units, all_caught = compile_units(folder), True
    for bug in PLANTED_BUGS:
        program = bug.program(folder, units)
        by = [s for s in SCHEDULES if run_program(program, "sanitize", s).returncode]
        tree = folder / bug.name
        by += verdict_of_threads(compile_program(VARIANTS["thread"], tree, tree))
        print(f"{bug.name:32} {', '.join(by) or 'NOT CAUGHT'}", flush=True)
        all_caught = all_caught and bool(by)
    return all_caught


def main(seeds: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        parts = [Path(name) / part for part in ("schedules", "thread", "address", "bugs")]
        for part in parts:
            part.mkdir()
        passed = [schedules(parts[0], seeds), sanitizer(parts[1], "thread"),
                  sanitizer(parts[2], "address"), planted_bugs(parts[3])]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
