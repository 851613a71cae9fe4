"""The frameworks' accounts against the frameworks, as one rank of N, on random configurations.

`python -m gpuledger.torch_runs.self_check.frameworks FRAMEWORK FIRST_SEED COUNT [--show N]`

Each case runs in a fork: a framework leaves things behind. Compared are the ordered stream of a
steady step, and the peak of requested bytes where the rank is the one that `estimate` looks at.
What DeepSpeed does with scalars is left out of its account, so there only allocations from 4 KiB
on are compared, and peaks within 4 KiB. DTensor's tensor parallelism alone (tensor-parallel) has no
framework, and its optimizer's redistribution of gradients no account: forward and backward count.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gpuledger.config.run import Run
from gpuledger.memory.step import StepRunner

from .context_draw import draw_context_run
from .framework_draw import DRAWS, draw_framework_run
from .tensor_draw import draw_context_tensor_run, draw_tensor_run

TENSOR_PARALLEL = {"tensor-parallel": None, "fsdp2-tp": "fsdp2"}     # and whose data parallelism
SMALL_BYTES = {"deepspeed": 4096, "dataparallel": 4096}
WARMUP_STEPS = 3                    # DDP with static_graph makes its buckets anew in the third
LOSS_SCALER_BYTES = 8               # scale and growth tracker, which live outside of the step


@dataclass(frozen=True)
class Outcome:
    """One case. peak_error_bytes: estimated minus measured, None where another rank is estimated."""

    seed: int
    equal: bool
    peak_error_bytes: int | None
    text: str = ""


def main(arguments: list[str]) -> int:
    """Mismatches go to stderr, a summary as JSON to stdout. Returns 1 if there was a mismatch."""
    parser = argparse.ArgumentParser(prog="gpuledger.torch_runs.self_check.frameworks")
    parser.add_argument("framework", choices=[*DRAWS, *TENSOR_PARALLEL, "context", "context-tp"])
    parser.add_argument("first_seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--show", type=int, default=3, help="mismatches to describe")
    given = parser.parse_args(arguments)
    started = time.time()
    preload(given.framework)
    seeds = range(given.first_seed, given.first_seed + given.count)
    outcomes = [in_fork(*case) for case in cases_of(given.framework, seeds)]
    small = SMALL_BYTES.get(given.framework, 0)
    peaks = [abs(o.peak_error_bytes) for o in outcomes if o.peak_error_bytes is not None]
    wrong = [o for o in outcomes if not o.equal or abs(o.peak_error_bytes or 0) > small]
    for outcome in wrong[:given.show]:
        print(f"MISS {outcome.seed}: {outcome.text}", file=sys.stderr)
    print(json.dumps({
        "framework": given.framework, "first_seed": given.first_seed, "cases": len(outcomes),
        "equal_streams": sum(o.equal for o in outcomes), "peaks": len(peaks),
        "equal_peaks": sum(p <= small for p in peaks), "worst_peak_error_bytes": max(peaks, default=0),
        "mismatches": [o.seed for o in wrong], "seconds": round(time.time() - started, 1)}))
    return 1 if wrong else 0


def cases_of(framework: str, seeds: range) -> Iterator[tuple[int, Run, int]]:
    """(seed, run, rank), one for each seed."""
    for seed in seeds:
        rng = random.Random(f"{framework} {seed}")
        if framework == "context":
            yield seed, *draw_context_run(rng)
        elif framework == "context-tp":
            yield seed, *draw_context_tensor_run(rng)
        elif framework in TENSOR_PARALLEL:
            yield seed, *draw_tensor_run(rng, TENSOR_PARALLEL[framework])
        else:
            yield seed, *draw_framework_run(rng, framework)


def preload(framework: str) -> None:
    """What every fork would import; nothing here touches the device."""
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.tensor.experimental
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    if framework == "deepspeed":
        from ..deepspeed_engine import imported

        imported()


def in_fork(seed: int, run: Run, rank: int) -> Outcome:
    """The outcome of one case in a process of its own; one that fails is a mismatch too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        answer(seed, run, rank, write)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return Outcome(**json.loads(text)) if text else Outcome(seed, False, None, "the process died")


def answer(seed: int, run: Run, rank: int, write: int) -> None:
    """Never returns: the fork must not go on with its parent's loop."""
    try:
        outcome = compare(seed, run, rank)
    except BaseException as error:
        outcome = Outcome(seed, False, None, f"{label(run, rank)}\n{type(error).__name__}: {error}")
    with os.fdopen(write, "w") as file:
        json.dump(asdict(outcome), file)
    os._exit(0)


def compare(seed: int, run: Run, rank: int) -> Outcome:
    """Stream and peak of this rank. Raises what PyTorch or the engine raises."""
    from gpuledger.memory.context import at_rank
    from gpuledger.memory.frameworks import policy_of
    from gpuledger.memory.peak import StepPeak
    from gpuledger.memory.run import steady_step
    from gpuledger.program.model import Stage

    from .case import Mismatch, current_device, named
    from .compare import first_difference

    truth = measured(run, rank)
    if run.parallel.cp > 1:
        run = at_rank(run, rank // run.parallel.tp % run.parallel.cp)
    device, policy = current_device(), policy_of(run.parallel, rank)
    training = policy.computed(run.training)
    program = policy.build(run, device, Stage(0, run.model.num_layers))
    runner = steady_step(program, training, run.num_microbatches, policy)
    small = SMALL_BYTES.get(run.parallel.framework or "", 0)
    mine, theirs = ([e for e in events if e[2] >= small]
                    for events in (runner.memory.events, truth["events"]))
    difference = first_difference(mine, theirs)
    alone = run.parallel.tp > 1 and run.parallel.framework is None
    if difference is not None and alone and difference.position >= update_begins(runner):
        difference = None
    text = ""
    if difference is not None:
        names = () if small else tuple(named(runner, difference))
        text = f"{label(run, rank)}\n{Mismatch(difference, names)}"
    error = None
    if not alone and is_estimated(run, rank, runner.program.weights):
        scaler = LOSS_SCALER_BYTES * (training.precision == "fp16-mixed")
        error = StepPeak(run, device).find().requested_bytes + scaler - truth["peak_bytes"]
    return Outcome(seed, difference is None, error, text or label(run, rank))


def update_begins(runner: StepRunner) -> int:
    """How many events come before the optimizer's, but for the frees that they end with."""
    events = runner.memory.events
    at = next(at for at, name in reversed(runner.timeline.marks) if name == "optimizer step")
    return max(i for i in range(at) if events[i][0] > 0) + 1


def measured(run: Run, rank: int) -> dict[str, Any]:
    """A steady step of PyTorch as this rank."""
    from ..stream import make_trainer, record_stream_of_step

    os.environ["RANK"] = str(rank)
    gc.disable()                       # cycles of the first steps must not end inside the record
    # FSDP1 frees on one stream what another uses: the memory is there again a little later.
    free = "free_requested" if run.parallel.framework == "fsdp1" else "free_completed"
    return record_stream_of_step(make_trainer(run), WARMUP_STEPS, free)


def is_estimated(run: Run, rank: int, weights: Any) -> bool:
    """This rank keeps what the rank keeps that `estimate` looks at."""
    from gpuledger.memory.frameworks import policy_of

    mine, its = (policy_of(run.parallel, chosen).fingerprint(weights) for chosen in (rank, None))
    return mine == its


def label(run: Run, rank: int) -> str:
    """The records as JSON, without defaults: enough to make the case again by hand."""
    return (f"rank {rank} {run.parallel.model_dump_json(exclude_defaults=True)} "
            f"{run.model.model_dump_json(exclude_defaults=True)} "
            f"{run.training.model_dump_json(exclude_defaults=True)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
