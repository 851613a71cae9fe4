"""200 random small runs on the emulated GPU: `python benchmarks/emulated_meter.py [COUNT]`.

Prints one JSON object: the number of runs, and every claim of the meter that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpuledger.config.load import load_gpu
from gpuledger.torch_runs.child import environment_of, with_this_package

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "emulated" / "programs"


def main(count: str) -> int:
    environment = with_this_package(environment_of(load_gpu("h100-80gb-sxm")))
    environment["PYTHONPATH"] += os.pathsep + str(PROGRAMS)
    program = str(PROGRAMS / "meter_campaign.py")
    return subprocess.run([sys.executable, program, "0", count], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "200"))
