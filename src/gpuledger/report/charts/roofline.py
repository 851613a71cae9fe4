"""Operators under the GPU's roof: FLOPs per byte against the FLOP/s that they can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.units import scaled

from .chart import Chart
from .labels import Box, Label, name_dots
from .layout import Body, Frame, Heading
from .style import COLOURS, INK, MUTED, PAPER, SMALL_POINTS, styled

ROOF_POINTS = 160  # points of the roof that names keep clear of


@dataclass(frozen=True)
class Operator:
    """One kind of operator in a step.

    seconds: of all its calls, where known: the dot then lies where it runs, otherwise on the roof.
    """

    label: str
    flops: int
    moved_bytes: int
    seconds: float | None = None

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes


@dataclass(frozen=True)
class Roof:
    """A GPU's dense peak and memory bandwidth."""

    gpu: str
    peak_flops_per_second: float
    bandwidth_bytes_per_second: float

    @property
    def knee(self) -> float:
        """FLOPs per byte from which on the peak, not the bandwidth, is the bound."""
        return self.peak_flops_per_second / self.bandwidth_bytes_per_second

    def reachable(self, intensity: float) -> float:
        """FLOP/s at this intensity, at most."""
        return min(self.peak_flops_per_second, intensity * self.bandwidth_bytes_per_second)


@styled
def roofline(
    label: str, operators: Sequence[Operator], roof: Roof, footer: str, name: str = "roofline"
) -> Chart:
    """Log-log; the knee is named; dots are as large as their share of the FLOPs is."""
    shown = [op for op in operators if op.flops > 0 and op.moved_bytes > 0]
    bound = [op for op in shown if op.intensity < roof.knee]
    total = sum(op.flops for op in shown)
    share = sum(op.flops for op in bound) / total
    title = (
        f"{label}: {100 * share:.1f} % of the products' FLOPs are bound by memory, "
        f"below {roof.knee:.0f} FLOPs per byte of {roof.gpu}"
    )
    frame = Frame(
        Heading(
            title,
            "Reachable FLOP/s by FLOPs per byte that an operator reads or writes",
            footer,
        ),
        Body(3.0, left=0.62, right=0.25, below=0.45),
    )
    axes = frame.axes()
    low = min([op.intensity for op in shown] + [roof.knee / 5]) / 3
    high = max([op.intensity for op in shown] + [roof.knee]) * 3
    reached = [
        op.flops / op.seconds if op.seconds else roof.reachable(op.intensity) for op in shown
    ]
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="FLOPs per byte",
        ylabel="FLOP/s",
        ylim=(min([roof.reachable(low), *reached]) / 2, roof.peak_flops_per_second * 2.5),
    )
    axes.minorticks_off()
    axes.plot(
        [low, roof.knee, high],
        [roof.reachable(low), *[roof.peak_flops_per_second] * 2],
        color=INK,
        linewidth=1.2,
        zorder=1,
    )
    axes.plot(
        [roof.knee] * 2,
        [axes.get_ylim()[0], roof.peak_flops_per_second],
        color=MUTED,
        linewidth=0.7,
        linestyle=(0, (2, 2)),
        zorder=0,
    )
    peak = scaled(roof.peak_flops_per_second, "FLOP/s")
    axes.text(
        0.01,
        roof.peak_flops_per_second * 1.25,
        f"dense peak {peak}, bandwidth {roof.bandwidth_bytes_per_second / 1e9:,.0f} GB/s",
        fontsize=SMALL_POINTS,
        color=MUTED,
        transform=axes.get_yaxis_transform(),
        va="bottom",
        ha="left",
    )
    chart = Chart(name, title, title, frame.figure)
    for op, speed in zip(shown, reached, strict=True):
        size = 3.0 + 9.0 * (op.flops / total) ** 0.5
        [dot] = axes.plot(
            [op.intensity],
            [speed],
            "o",
            markersize=size,
            alpha=0.85,
            color=COLOURS["activations" if op in bound else "parameters"],
            markeredgecolor=PAPER,
            markeredgewidth=0.5,
        )
        chart.mark(
            dot,
            op.label,
            f"{scaled(op.flops, 'FLOP')}, {op.moved_bytes:,} bytes, "
            f"{op.intensity:.3g} FLOPs per byte",
            flops=op.flops,
            bytes=op.moved_bytes,
        )
    order = sorted(zip(shown, reached, strict=True), key=lambda pair: -pair[0].flops)
    top = Box(0, frame.body.height - 0.3, frame.width, frame.body.height)
    roof_points = [
        (x, roof.reachable(x))
        for x in (low * (high / low) ** (i / ROOF_POINTS) for i in range(ROOF_POINTS))
    ]
    labels = [Label(op.intensity, speed, op.label) for op, speed in order]
    name_dots(axes, labels, roof_points, [top])
    return chart
