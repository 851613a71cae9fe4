"""The peak of a Megatron stage from its whole stream, where micro-batches do not repeat. [M19]"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from gpuledger.config.run import Run
from gpuledger.program.device import Device

from ...ledger import Memory
from ...peak import Live, Peak
from ...pipeline.runner import stage_programs
from ...states import State
from .runner import MegatronRunner, megatron_run

STEPS = 2  # the second is steady


def peak_of_stream(run: Run, device: Device, stage: int, states: tuple[State, ...]) -> Peak:
    """The highest level of a steady step; what is not one of the `states` then, by name."""
    runner = megatron_run(run, stage_programs(run, device, stage), STEPS, stage)
    memory = runner.memory
    begin = runner.marks[len(runner.marks) // STEPS][0]
    position, level = highest(memory, begin)
    live = [*_live(memory, memory.live(position), states)]
    return Peak(level, _instant(runner, position), tuple(live), states)


def highest(memory: Memory, begin: int) -> tuple[int, int]:
    """(number of events up to it, requested bytes) of the highest level from event `begin` on."""
    live = best = position = 0
    for i, (sign, _, nbytes) in enumerate(memory.events):
        live += sign * int(nbytes)
        if i >= begin and live > best:
            best, position = live, i + 1
    return position, best


def _live(memory: Memory, numbers: list[int], states: tuple[State, ...]) -> list[Live]:
    """Activations by name, and by category what exceeds the states."""
    counts: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    kept: Counter[str] = Counter()
    equations: dict[tuple[str, str], str] = {}
    for number in numbers:
        category = memory.categories[number]
        kept[category] += int(memory.sizes[number])
        if category == "activations":
            key = category, memory.tensors[number].name
            counts[key] += 1
            nbytes[key] += int(memory.sizes[number])
            equations[key] = memory.equations[number] or "M15"
    entries = [Live(*key, counts[key], nbytes[key], equations[key], f"{counts[key]} tensors")
               for key in counts]
    for category in kept:
        known = sum(int(s.nbytes) for s in states if s.category == category)
        rest = kept[category] - known
        if rest and category != "activations":
            entries.append(Live(category, "of this moment", 1, rest, "M19", f"{rest:,} bytes"))
    return entries


def _instant(runner: MegatronRunner, position: int) -> str:
    """Phase and operator."""
    starts = [start for start, _ in runner.marks]
    phase = runner.marks[bisect_right(starts, position - 1) - 1][1]
    at = bisect_right([start for start, _ in runner.positions], position - 1) - 1
    step = runner.positions[at][1] if at >= 0 else None
    if step is None or phase not in ("forward", "backward"):
        return phase
    return f"{phase}, {step.group.name if step.group else 'step'}: {step.op.name}"
