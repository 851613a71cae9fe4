"""Median seconds of a piece of work on a device that was kept busy with it before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Work = Callable[[], object]
REPEATS = 7


class Clock:
    """Measures on "cuda" by events, elsewhere by the wall clock."""

    def __init__(self, device: str):
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Work, warm_seconds: float = 0.0, inner: int = 1) -> float:
        """Median seconds of one `work` over REPEATS, each of `inner` in a row.

        The device is kept busy with it for warm_seconds before: long enough, and its clock is
        the one that the power limit leaves.
        """
        self.warm(work, warm_seconds)
        return statistics.median(self.once(work, inner) / inner for _ in range(REPEATS))

    def warm(self, work: Work, seconds: float) -> None:
        begin = time.perf_counter()
        while True:
            work()
            self.wait()
            if time.perf_counter() - begin >= seconds:
                return

    def once(self, work: Work, inner: int) -> float:
        """Seconds of `inner` times the work."""
        if not self.is_cuda:
            begin = time.perf_counter()
            for _ in range(inner):
                work()
            return time.perf_counter() - begin
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def host_seconds(self, work: Work) -> float:
        """Median CPU seconds until `work` has returned, which is when all of it is enqueued."""
        times = []
        work()
        for _ in range(REPEATS):
            self.wait()
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        self.wait()
        return statistics.median(times)
