"""The planner's arrays against `estimate` and `step_time`, layout by layout, on random spaces.

`python benchmarks/plan/exactness.py [PLANS] [SEED]`: writes exactness.json beside itself. Each space
is a random model, precision, optimizer, attention and loss on a random number of GPUs; of each,
some layouts are evaluated one by one. Bytes must be equal integers, seconds equal to 1e-12.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import RunOptions, resolve_run
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError
from gpuledger.estimate import estimate, refuse_unmodelled
from gpuledger.planner.enumerate import layouts
from gpuledger.planner.frameworks import neutral_space
from gpuledger.planner.memory import PeakMemory
from gpuledger.planner.question import Question
from gpuledger.planner.times import StepSeconds

HERE = Path(__file__).parent
PER_SPACE = 40
MODELS = ("gpt2", "gpt2-medium", "llama-2-7b", "llama-3-8b", "gpt3-175b", "mistral-7b", "gemma-2-2b",
          "qwen2.5-0.5b", "opt-1.3b", "llama-3.2-1b", "phi-2", "falcon-7b")  # fmt: skip


def draw_question(rng: random.Random) -> Question:
    """A random question; models that are not presets here are skipped by the caller."""
    precision = rng.choice(("bf16-master", "bf16-mixed", "bf16", "fp16-mixed", "fp32"))
    attention = "efficient" if precision == "fp32" else rng.choice(("flash", "flash", "efficient", "eager"))
    settings = [f"training.attention={attention}",
                f"training.loss={rng.choice(('cross_entropy', 'fp32_logits'))}",
                f"training.gradient_clipping={rng.choice(('true', 'false'))}",
                f"training.set_to_none={rng.choice(('true', 'true', 'false'))}"]
    optimizer = rng.choice(("adamw", "adamw", "sgd", "lion", "adam"))
    settings.append(f"training.optimizer={optimizer}")
    if optimizer in ("adamw", "adam"):
        implementation = rng.choice(("foreach", "fused", "for-loop"))
        settings.append(f"training.optimizer_implementation={implementation}")
    gpus = rng.choice((1, 2, 4, 8, 16, 32, 64, 96))
    options = RunOptions(
        gpu=rng.choice(("a100-80gb-sxm", "h100-80gb-sxm", "l40s")), gpus=1, micro_batch=1,
        seq_len=rng.choice((512, 1000, 1024)), global_batch=gpus * rng.choice((1, 2, 4, 6, 12)),
        precision=precision, set=tuple(settings))  # fmt: skip
    run, _ = resolve_run(rng.choice(MODELS), options)
    policies = [("none", "full")]
    if attention in ("eager", "math"):
        policies.append(("none", "selective", "full"))
    over = {"recompute": rng.choice(policies)}
    if rng.random() < 0.3:
        over["cp"] = (1, 2, 4)
    return Question(run, (gpus,), over=over, precision_given=True)


def check(question: Question, rng: random.Random) -> tuple[int, int, list[str]]:
    """(layouts of the space, plans compared, descriptions of the different ones)."""
    space = neutral_space(question)
    table, _ = layouts(space)
    modelled = [i for i in range(len(table)) if is_modelled(space.run_of(table.row(i)))]
    if not modelled:
        return 0, 0, []
    table = table[modelled]
    peaks, seconds = PeakMemory(space).peaks(table), StepSeconds(space).seconds(table)
    chosen = rng.sample(range(len(table)), min(PER_SPACE, len(table)))
    different = []
    for i in chosen:
        run = space.run_of(table.row(i))
        memory, alone = estimate(run).memory, step_time(run).step_seconds
        if (memory.peak_requested_bytes, memory.rounding_bytes) != (
            peaks.requested[i], peaks.rounding[i]) or abs(seconds[i] / alone - 1) > 1e-12:  # fmt: skip
            different.append(f"{run.name} {table.row(i)} {run.training.model_dump_json()}: "
                             f"{memory.peak_requested_bytes - peaks.requested[i]} bytes, "
                             f"{memory.rounding_bytes - peaks.rounding[i]} of rounding, "
                             f"{seconds[i] / alone - 1:.1e} in time, {memory.peak_instant}")
    return len(table), len(chosen), different


def is_modelled(run: Run) -> bool:
    try:
        refuse_unmodelled(run)
    except GpuledgerError:
        return False
    return True


def main(plans: int, seed: int) -> int:
    """Returns 1 if a plan differed."""
    rng, started = random.Random(seed), time.time()
    compared = spaces = in_spaces = 0
    different: list[str] = []
    while compared < plans:
        try:
            question = draw_question(rng)
            size, number, wrong = check(question, rng)
        except GpuledgerError as refused:
            print(f"drawn again: {refused}", file=sys.stderr)
            continue
        spaces, in_spaces, compared = spaces + 1, in_spaces + size, compared + number
        different += wrong
        for text in wrong[:3]:
            print(f"DIFFERENT {text}", file=sys.stderr)
    result = {
        "how": f"python benchmarks/plan/exactness.py {plans} {seed}", "spaces": spaces,
        "layouts_in_spaces": in_spaces, "compared": compared, "different": len(different),
        "seconds": round(time.time() - started, 1),
    }  # fmt: skip
    (HERE / "exactness.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*(int(value) for value in [*sys.argv[1:], "2000", "1"][:2])))
