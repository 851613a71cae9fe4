"""An estimate and a measurement of one run side by side: by owner, instant by instant.

Imports no torch: a measurement is the report that the measuring process wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuledger.config.run import Run
from gpuledger.memory.instants import Bridge, Instant, StepAccount, account_of_run
from gpuledger.memory.ledger import CATEGORIES
from gpuledger.program.device import Device

BRIDGE = ("requested", "rounding", "unsplit tails", "allocated", "cached blocks", "reserved",
          "outside PyTorch", "device used")


@dataclass(frozen=True)
class Row:
    """One quantity at one instant, in bytes; None where a side does not know it."""

    instant: str
    item: str
    estimated_bytes: int | None
    measured_bytes: int | None

    @property
    def difference_bytes(self) -> int | None:
        """Measured minus estimated."""
        if self.estimated_bytes is None or self.measured_bytes is None:
            return None
        return self.measured_bytes - self.estimated_bytes

    @property
    def difference_percent(self) -> float | None:
        """Of the measured bytes; None where nothing was measured."""
        difference = self.difference_bytes
        if difference is None or not self.measured_bytes:
            return 0.0 if difference == 0 else None
        return 100 * difference / self.measured_bytes


@dataclass(frozen=True)
class Reconciliation:
    """The boundaries of a steady step, its peak, and the bridge from requested to device."""

    estimated: StepAccount
    measured: StepAccount
    rows: tuple[Row, ...]

    @property
    def unexplained_bytes(self) -> int:
        """Device memory in use that the estimate has no row for."""
        return self.measured.bridge.device_used_bytes - self.estimated.bridge.device_used_bytes

    @property
    def exact(self) -> bool:
        """Every row that both sides know agrees to the byte."""
        return not any(row.difference_bytes for row in self.rows)


def reconcile(run: Run, report: dict[str, Any]) -> Reconciliation:
    """The estimate of `run` against the report of a measurement that did not run out of memory.

    The estimate takes the SMs and capability of the device that was measured.
    """
    estimated = with_outside(account_of_run(run, measured_device(report)), run)
    measured = measured_account(report)
    return Reconciliation(estimated, measured, tuple(rows_of(estimated, measured)))


def measured_device(report: dict[str, Any]) -> Device:
    """What kernels need to know of the device that was measured."""
    major, minor = report["device"]["capability"].split(".")
    return Device((int(major), int(minor)), report["device"]["num_sms"])


def with_outside(account: StepAccount, run: Run) -> StepAccount:
    """The CUDA context of the GPU's record, if known, lies outside of PyTorch's allocator."""
    bridge = Bridge(account.bridge.requested_bytes, account.bridge.rounding_bytes,
                    account.bridge.tails_bytes, account.bridge.cached_bytes,
                    run.cluster.gpu.context_bytes)
    return StepAccount(account.boundaries, account.peak, bridge)


def measured_account(report: dict[str, Any]) -> StepAccount:
    """The report's owners and counters as an account: the last counted step."""
    account = report["account"]
    boundaries = tuple(instant_of(entry) for entry in account["boundaries"])
    peak = instant_of(account["peak"])
    last = max(entry["step"] for entry in report["counters"])
    steady = [entry["peak"] for entry in report["counters"] if entry["step"] == last]
    requested = max(peak_["requested_bytes"] for peak_ in steady)
    allocated = max(peak_["allocated_bytes"] for peak_ in steady)
    reserved = max(entry["peak"]["reserved_bytes"] for entry in report["counters"])
    rounding = account["peak"]["rounding_bytes"]
    bridge = Bridge(requested, rounding, allocated - requested - rounding, reserved - allocated,
                    report["device"]["outside_bytes"])
    return StepAccount(boundaries, peak, bridge)


def instant_of(entry: dict[str, Any]) -> Instant:
    """The meter's owners in the categories of an estimate (see gpuledger.memory.instants)."""
    owned, phase = entry["owned_bytes"], entry["instant"]
    categories = {name: owned.get(name, 0) for name in CATEGORIES}
    categories["buffers"] = owned["constants"] + owned["workspaces"]
    categories["optimizer" if phase == "optimizer" else "activations"] += owned["temporaries"]
    return Instant(phase, categories)


def rows_of(estimated: StepAccount, measured: StepAccount) -> Iterator[Row]:
    """Boundaries, with micro-batches numbered from 1; then the peak; then the bridge."""
    passes = 0
    pairs = list(zip(estimated.boundaries, measured.boundaries, strict=True))
    several = sum(mine.phase == "forward" for mine, _ in pairs) > 1
    for mine, theirs in pairs:
        passes += mine.phase == "forward"
        within = several and mine.phase in ("forward", "backward")
        name = f"end of {mine.phase} {passes}" if within else f"end of {mine.phase}"
        yield from category_rows(name, mine, theirs)
    yield from category_rows(f"peak, in {measured.peak.phase}", estimated.peak, measured.peak)
    yield from bridge_rows(estimated.bridge, measured.bridge)


def category_rows(name: str, mine: Instant, theirs: Instant) -> Iterator[Row]:
    for category in CATEGORIES:
        yield Row(name, category, mine.category_bytes[category], theirs.category_bytes[category])
    yield Row(name, "requested", mine.requested_bytes, theirs.requested_bytes)


def bridge_rows(mine: Bridge, theirs: Bridge) -> Iterator[Row]:
    pairs = zip(BRIDGE, bridge_values(mine), bridge_values(theirs), strict=True)
    yield from (Row("peaks", item, estimated, measured) for item, estimated, measured in pairs)


def bridge_values(bridge: Bridge) -> tuple[int | None, ...]:
    """In the order of BRIDGE."""
    return (
        bridge.requested_bytes, bridge.rounding_bytes, bridge.tails_bytes,
        bridge.allocated_bytes, bridge.cached_bytes, bridge.reserved_bytes,
        bridge.outside_bytes, bridge.device_used_bytes)
