"""Charts of made-up data that is hard to draw: long names, tiny shares, far too much memory, sixteen stages."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gpuledger.report.charts.allocator_map import MapBlock, MapSegment, allocator_map
from gpuledger.report.charts.breakdown import Bar, breakdown
from gpuledger.report.charts.chart import Chart
from gpuledger.report.charts.conventions import Conventions, conventions
from gpuledger.report.charts.feasibility import HeatCell, HeatMap, feasibility
from gpuledger.report.charts.levels import Line
from gpuledger.report.charts.pareto import FITS, FITS_NOT, PASSED_OVER, Plan, Plans, pareto
from gpuledger.report.charts.parity import Pair, parity
from gpuledger.report.charts.roofline import Operator, Roof, roofline
from gpuledger.report.charts.time_breakdown import StepTime, time_breakdown
from gpuledger.report.charts.timeline import Timeline, timeline
from gpuledger.units import GIB

LONG = "a-model-of-somebody/with-a-long-name-70b-instruct-v0.3-finetuned, ZeRO stage 3, 128 x a-gpu-80gb-sxm"
FOOTER = f"gpuledger · {LONG} · micro-batch 1 x 131,072 tokens · bf16-mixed · recompute every 2 · {LONG}"


def bar(label: str, total_gib: float, capacity_gib: float, *, tiny: bool = False) -> Bar:
    """Shares in round numbers, or everything in one category and a few bytes in the others."""
    total = int(total_gib * GIB)
    shares = ({"parameters": 100, "optimizer": 200, "gradients": 5, "buffers": 7} if tiny else
              {"parameters": total // 8, "optimizer": total // 4, "gradients": total // 8,
               "buffers": total // 100})
    shares["activations"] = total - sum(shares.values())
    return Bar(label, shares, 0, total, int(capacity_gib * GIB), total_gib <= capacity_gib)


def stages(number: int = 16) -> list[Bar]:
    """Pipeline stages: the earlier, the more micro-batches in flight."""
    return [bar(f"stage {i}" if i else f"stage 0 of {LONG}", 36 + 2.9 * (number - i), 80)
            for i in range(number)]


def heat_map(rows: int, columns: int, *, refused: tuple[int, int] | None = None) -> HeatMap:
    """Memory that grows with row times column, up to many times the capacity."""
    cells = [[HeatCell(int((3 + 2.0 ** (i + j) / 9) * GIB), 40 * GIB, 3 + 2.0 ** (i + j) / 9 < 40,
                       "too much") for j in range(columns)] for i in range(rows)]
    if refused:
        cells[refused[0]][refused[1]] = HeatCell(None, None, False, "not a multiple")
    return HeatMap(LONG, "micro_batch_size", "seq_len", [str(2**i) for i in range(rows)],
                   [f"{1024 << j:,}" for j in range(columns)], cells, chosen=(0, columns // 2))


def pulse(label: str, capacity_gib: float, at: float = 0.5) -> Timeline:
    """Activations up and down, gradients up."""
    events = 4000
    peak = int(at * events)
    up = [int(60 * GIB * (i / peak if i <= peak else (events - i) / (events - peak))) for i in range(events)]
    flat = [4 * GIB] * events
    return Timeline(label, {"parameters": flat, "optimizer": [8 * GIB] * events, "gradients": flat,
                            "buffers": [5] * events, "activations": up},
                    ((0, "forward"), (peak, "backward"), (events - 60, "step")), peak,
                    "backward, block 32 of 32: attention out", int(capacity_gib * GIB),
                    (Line("reserved", (0, 1), (77 * GIB, 78 * GIB)),),
                    (Line("emulated", (0, at, 1), (16 * GIB, 76 * GIB + 5, 16 * GIB)),
                     Line("measured", (0, at / 2, at, 1), (16 * GIB, 20 * GIB, 75 * GIB, 16 * GIB))))


def plans() -> list[Plan]:
    """Fitting, passed over and not; two of the best ones so close that one covers the other."""
    found = []
    for tp, pp, zero in product((1, 2, 4, 8), (1, 2, 4, 8), (0, 1)):
        seconds, gibs = 6 / tp**0.5 + pp * 0.3 + zero, 150 / tp / pp**0.7 + zero * 3 + 8
        kind = FITS_NOT if gibs >= 76 else PASSED_OVER if seconds < 2.8 else FITS
        found.append(Plan(f"tp{tp} pp{pp} dp{64 // tp // pp}", seconds, int(gibs * GIB), kind))
    best = sorted((plan for plan in found if plan.kind == FITS), key=lambda plan: plan.step_seconds)
    ranks = {plan: rank for rank, plan in enumerate(best[:7], 1)}
    return [replace(plan, rank=ranks.get(plan, 0)) for plan in found]


def many_plans(number: int = 3000) -> list[Plan]:
    """A cloud; the five best side by side, with names that are too long for it."""
    found = [Plan(f"tp8 pp16 cp4 dp1024 vpp12 zero1 mb{i} every2", 20 + (i * 37 % number) / 150,
                  int((8 + (i * 53 % number) / 20) * GIB), FITS if i * 53 % number < 1360 else FITS_NOT)
             for i in range(number)]
    best = sorted((p for p in found if p.kind == FITS), key=lambda p: p.step_seconds)[:5]
    return [replace(plan, rank=best.index(plan) + 1 if plan in best else 0) for plan in found]


def drawn_plans(title: str, dots: list[Plan]) -> Plans:
    return Plans(f"{LONG}: {title}", LONG, dots, 79 * GIB, 75 * GIB)


def operators() -> list[Operator]:
    flops = {"qkv": 4e12, "attention out": 1e12, "up": 6e12, "down": 6e12, "gate": 6e12, "head": 5e12,
             "attention norm": 1e9, "mlp norm": 1e9, "silu": 2e9, "residual": 5e8, "flash": 2e12,
             "cross entropy": 4e9}
    return [Operator(name, int(value), int(value / (400 if value > 1e11 else 0.7)) + i * 10**8)
            for i, (name, value) in enumerate(flops.items())]


def pairs(number: int) -> list[Pair]:
    return [Pair(f"{LONG if i % 5 == 0 else 'gpt2'}, counter {i}", (i + 1) * 10**9 + (i % 3) * 10**7,
                 (i + 1) * 10**9) for i in range(number)]


def segments() -> list[MapSegment]:
    kinds = ("parameters", "optimizer", "activations", "free", "gradients", "buffers")
    return [MapSegment(20 * 2**20 * (i % 40 + 1), i % 7 == 0,
                       [MapBlock(kinds[(i + j) % 6], 20 * 2**20 * (i % 40 + 1) // 4, 3) for j in range(4)])
            for i in range(300)]


def samples() -> Iterator[Chart]:
    """Every kind of chart, each with what is hardest for it."""
    yield breakdown(stages(), "a-gpu-80gb-sxm", FOOTER, "stages")
    yield breakdown([bar(LONG, 4800, 22), bar("gpt2", 13.5, 22, tiny=True)], "a10-24gb", FOOTER, "far-over")
    yield breakdown([bar("alone", 0.0001, 80, tiny=True)], LONG, FOOTER, "tiny")
    yield breakdown([bar("A", 40, 48), bar("B", 79.99, 80), bar("C", 81, 80)], "x", FOOTER, "capacities")
    yield timeline(pulse(LONG, 79), FOOTER, "timeline")
    yield timeline(pulse("late peak", 800, 0.97), FOOTER, "timeline-late")
    yield feasibility([heat_map(6, 7, refused=(2, 3))], FOOTER)
    yield feasibility([heat_map(4, 6)] * 4, FOOTER, "panels")
    yield feasibility([heat_map(1, 1)], FOOTER, "one-cell")
    yield feasibility([heat_map(40, 30)], FOOTER, "many-cells")
    counts = {f"convention_{i}": 10**15 + i * 10**13 for i in range(14)} | {"exact": 10**15}
    yield conventions(Conventions(LONG, counts, {}), FOOTER)
    yield conventions(Conventions(LONG, counts, {k: v / 3e15 for k, v in counts.items()}), FOOTER, "mfu")
    yield allocator_map(LONG, segments(), FOOTER)
    yield pareto(drawn_plans("tp 8 is best", plans()), FOOTER)
    yield pareto(drawn_plans("many", many_plans()), FOOTER, "pareto-many")
    yield pareto(drawn_plans("slow", [Plan("tp1", 0.001, GIB, FITS, 1), Plan("b", 1e6, 5, FITS)]), FOOTER,
                 "pareto-far-apart")
    yield pareto(drawn_plans("nothing fits", [replace(plan, kind=FITS_NOT, peak_bytes=plan.peak_bytes * 40)
                                              for plan in plans()]), FOOTER, "pareto-none")
    yield pareto(drawn_plans("one does not", [Plan("tp1", 1.0, 90 * GIB, FITS_NOT)]), FOOTER, "pareto-no-one")
    yield pareto(drawn_plans("one fits", [Plan("mb1", 0.0582, 6 * GIB, FITS, 1)]), FOOTER, "pareto-one")
    parts = {"compute": 3.1, "exposed communication": 0.001, "bubble": 0.3, "optimizer": 0.05}
    yield time_breakdown([StepTime(LONG, parts), StepTime("B", parts | {"bubble": 9.0})], FOOTER)
    yield roofline(LONG, operators(), Roof("h100-80gb-sxm", 989e12, 3.35e12), FOOTER)
    yield parity(pairs(7), FOOTER)
    yield parity(pairs(60), FOOTER, "parity-many")
