"""How many layouts a second: GPT-3 175B on every number of GPUs up to 8 and multiple of 8 to 4,096.

`python benchmarks/plan/speed.py`: prints and writes speed.json. One process; CPU seconds, so that
other work on the machine counts little. Walks of the step, and looking through the schedules of the
pipelines, cost the same however many layouts share them: they are timed apart from the arithmetic on
layouts.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.config import RunOptions
from gpuledger.planner import memory
from gpuledger.planner.ask import Wishes, question_of
from gpuledger.planner.enumerate import layouts
from gpuledger.planner.frameworks import neutral_space
from gpuledger.planner.times import StepSeconds

HERE = Path(__file__).parent
ALL_CHUNKS = "vpp=1,2,3,4,6,8,12,16,24,32,48"
SPACES = {
    "as the command has it": (1536, ()),
    "all model chunks": (1536, (ALL_CHUNKS,)),
    "a batch with many divisors": (27_720, (ALL_CHUNKS,)),
    "context parallelism too": (1536, (ALL_CHUNKS, "cp=1,2,4,8,16")),
}


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and CPU seconds."""
    started = time.process_time()
    return function(), time.process_time() - started


def measure(batch: int, over: tuple[str, ...]) -> dict[str, Any]:
    """One space: layouts, and where the seconds go."""
    options = RunOptions(gpu="a100-80gb-sxm", global_batch=batch, seq_len=2048)
    question, _ = question_of("gpt3-175b", options, Wishes(gpus="min", over=over))
    space = neutral_space(question)
    (table, _), enumerating = timed(lambda: layouts(space))
    seconds, timing = timed(lambda: StepSeconds(space).seconds(table))
    walks: list[float] = []

    class Tables(memory._Tables):
        def __init__(self, *arguments: Any) -> None:
            started = time.process_time()
            super().__init__(*arguments)
            walks.append(time.process_time() - started)

    _, looking = timed(lambda: list(memory.PeakMemory(space)._groups(table)))  # remembers them
    own, memory._Tables = memory._Tables, Tables
    peaks, remembering = timed(lambda: memory.PeakMemory(space).peaks(table))
    memory._Tables = own
    once = sum(walks) + looking
    total = enumerating + timing + looking + remembering
    return {
        "layouts": len(table), "seconds": round(total, 2), "of_these_walks_and_schedules": round(once, 2),
        "layouts_per_second": round(len(table) / total),
        "layouts_per_second_beside_them": round(len(table) / (total - once)),
        "fit_in_80_gib": int((peaks.requested <= 80 * 2**30).sum()),
        "shortest_step_seconds": float(seconds.min()),
    }  # fmt: skip


def main() -> None:
    result: dict[str, Any] = {"how": "python benchmarks/plan/speed.py, one process, CPU seconds"}
    result["spaces"] = {name: measure(*space) for name, space in SPACES.items()}
    result["peak_resident_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (HERE / "speed.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
