"""`python -m gpuledger.torch_runs.self_check SEED COUNT`: on a GPU, or under the emulated GPU's environment."""
from __future__ import annotations

import json
import random
import sys
import time

import torch

from gpuledger.memory.run import steady_step
from gpuledger.program.device import Device
from gpuledger.program.model import build
from gpuledger.torch_runs.stream import make_trainer, record_stream_of_step

from .compare import first_difference
from .draw import draw_run


def main(seed: int, count: int, show: int) -> int:
    """Prints mismatches to stderr and a summary as JSON; returns the number of mismatches."""
    rng = random.Random(seed)
    properties = torch.cuda.get_device_properties(0)
    device = Device((properties.major, properties.minor), properties.multi_processor_count)
    mismatches, started = 0, time.time()
    for case in range(count):
        run = draw_run(rng)
        label = (f"{case}: {run.model.model_dump_json(exclude_defaults=True)} "
                 f"{run.training.model_dump_json(exclude_defaults=True)}")
        try:
            truth = record_stream_of_step(make_trainer(run), warmup_steps=2)["events"]
        except Exception as error:
            print(f"PYTORCH {type(error).__name__}: {str(error)[:200]} {label}", file=sys.stderr)
            mismatches += 1
            continue
        try:
            program = build(run.model, run.training, device)
            runner = steady_step(program, run.training, run.num_microbatches)
            difference = first_difference(runner.memory.events, truth)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            print(f"ENGINE {type(error).__name__}: {error} {label}", file=sys.stderr)
            mismatches += 1
            continue
        if difference is not None:
            mismatches += 1
            if mismatches <= show:
                names = [(e, runner.memory.tensors[e[1] + (len(runner.memory.tensors) - sum(
                    x[0] > 0 for x in runner.memory.events))].name) for e in difference.engine if e[1] >= 0]
                print(f"MISS {label}\n  at {difference.position}\n  engine  {names}\n"
                      f"  pytorch {difference.pytorch}", file=sys.stderr)
        torch.cuda.empty_cache()
    print(json.dumps({"seed": seed, "cases": count, "equal": count - mismatches,
                      "seconds": round(time.time() - started, 1)}))
    return mismatches


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 5)
