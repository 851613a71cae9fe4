"""How many layouts a second: GPT-3 175B on every number of GPUs up to 8 and multiple of 8 to 4,096.

`python benchmarks/plan/speed.py`: prints and writes speed.json. One process; CPU seconds, so that
other work on the machine counts little; peak memory of the process.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.config import RunOptions
from gpuledger.planner.ask import Wishes, question_of
from gpuledger.planner.enumerate import layouts
from gpuledger.planner.frameworks import neutral_space
from gpuledger.planner.memory import PeakMemory
from gpuledger.planner.times import StepSeconds

HERE = Path(__file__).parent
OVER = (
    "vpp=1,2,3,4,6,8,12,16,24,32,48",
    "cp=1,2,4,8,16",
    "recompute=none,every:2,full",
)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and CPU seconds."""
    started = time.process_time()
    return function(), time.process_time() - started


def main() -> None:
    options = RunOptions(gpu="a100-80gb-sxm", global_batch=1536, seq_len=2048)
    question, _ = question_of("gpt3-175b", options, Wishes(gpus="min", over=OVER))
    space = neutral_space(question)
    (table, _), enumerating = timed(lambda: layouts(space))
    seconds, timing = timed(lambda: StepSeconds(space).seconds(table))
    peaks, memory = timed(lambda: PeakMemory(space).peaks(table))
    total = enumerating + timing + memory
    result = {
        "how": "python benchmarks/plan/speed.py, one process, CPU seconds",
        "layouts": len(table), "enumerate_seconds": round(enumerating, 2),
        "time_seconds": round(timing, 2), "memory_seconds": round(memory, 2),
        "total_seconds": round(total, 2), "layouts_per_second": round(len(table) / total),
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "fit_in_80_gib": int((peaks.requested <= 80 * 2**30).sum()),
        "fastest_seconds": float(seconds.min()),
    }  # fmt: skip
    (HERE / "speed.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
