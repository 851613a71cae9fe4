"""Reserved bytes of whole FSDP2 runs, with its side streams, against PyTorch's allocator.

`python -m gpuledger.torch_runs.self_check.reserved FIRST_SEED COUNT [fsdp2 | fsdp2-tp]`

Each case runs in a fork, as rank 0 of N, from an empty allocator.
"""
from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from gpuledger.config.run import Run

from .frameworks import cases_of

STEPS = 3
PEAK = "reserved_bytes.all.peak"
Peaks = tuple[int, int, int]            # PyTorch's, the engine's, the engine's on one stream alone


def main(arguments: list[str]) -> int:
    """A summary as JSON to stdout; 1 where a case failed."""
    first, count = (int(text) for text in arguments[:2])
    framework = arguments[2] if arguments[2:] else "fsdp2"
    import torch.distributed.fsdp
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    seeds = range(first, first + count)
    found = {seed: in_fork(run) for seed, run in cases(framework, seeds)}
    peaks = [p for p in found.values() if p is not None]
    print(json.dumps({
        "cases": len(found), "failed": [seed for seed, p in found.items() if p is None],
        "equal": sum(mine == theirs for theirs, mine, _ in peaks),
        "equal_on_one_stream": sum(alone == theirs for theirs, _, alone in peaks),
        "worst_error": max((abs(mine / theirs - 1) for theirs, mine, _ in peaks), default=0.0)}))
    return int(len(peaks) < len(found))


def cases(framework: str, seeds: range) -> Iterator[tuple[int, Run]]:
    """Those whose parameters stay on the device, and that rank 0 stands for."""
    for seed, run, rank in cases_of(framework, seeds):
        if rank == 0 and not run.parallel.fsdp2.cpu_offload:
            yield seed, run


def in_fork(run: Run) -> Peaks | None:
    """None where the child failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        answer(run, write)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return tuple(json.loads(text)) if text else None


def answer(run: Run, write: int) -> None:
    """Never returns: the fork must not go on with its parent's loop."""
    try:
        result: Any = compare(run)
        with os.fdopen(write, "w") as file:
            json.dump(result, file)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(0)


def compare(run: Run) -> Peaks:
    """Peaks of reserved bytes. Raises what PyTorch or the engine raises."""
    from gpuledger.memory.allocator import replay
    from gpuledger.memory.run import rank_programs, whole_run

    from ..stream import record_stream_of_run
    from .case import current_device

    os.environ["RANK"] = "0"
    gc.disable()
    theirs = record_stream_of_run(run, STEPS)["memory_stats"]
    memory = whole_run(run, rank_programs(run, current_device()), STEPS).memory
    mine, alone = (replay(memory.events, streams=streams).memory_stats()
                   for streams in (memory.streams, {}))
    return int(theirs[PEAK]), int(mine[PEAK]), int(alone[PEAK])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
