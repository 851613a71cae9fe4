"""Events per second of the allocator model, in pure Python.

    PYTHONPATH=src python benchmarks/speed/allocator.py

200,000 events drawn with a fixed seed (half of them frees, up to 400 live tensors, 1 byte to
200 MiB), and 50 repetitions of one stream of 4,000 events from which everything is freed, as a
training run repeats its step. Printed for each setting: events per second of processor time,
the median of five runs.
"""
from __future__ import annotations

import random
import statistics
import sys
import time

from gpuledger.memory.allocator import AllocatorSettings, CachingAllocator, Event, replay

MIB = 2**20
SETTINGS = {
    "default": AllocatorSettings(),
    "expandable_segments": AllocatorSettings(expandable_segments=True),
    "max_split_size_mb:64": AllocatorSettings(max_split_size_bytes=64 * MIB),
    "roundup_power2_divisions:4": AllocatorSettings(roundup_power2_divisions=(4,) * 16),
}
RUNS = 5
MOST_LIVE = 400


def stream(length: int, seed: int) -> list[Event]:
    """Random allocations and frees."""
    rng, live, sizes, events = random.Random(seed), [], [], []
    while len(events) < length:
        if live and (rng.random() < 0.49 or len(live) > MOST_LIVE):
            number = live.pop(rng.randrange(len(live)))
            events.append((-1, number, sizes[number]))
        else:
            sizes.append(rng.choice((
                rng.randrange(1, 2000), rng.randrange(1, MIB), rng.randrange(MIB, 10 * MIB),
                rng.randrange(10 * MIB, 200 * MIB), 16 * MIB, 64 * MIB)))
            live.append(len(sizes) - 1)
            events.append((1, live[-1], sizes[-1]))
    return events


def closed(events: list[Event]) -> list[Event]:
    """The same events, then frees of all that still lives."""
    live = {number: nbytes for sign, number, nbytes in events if sign > 0}
    for sign, number, _ in events:
        if sign < 0:
            del live[number]
    return events + [(-1, number, nbytes) for number, nbytes in live.items()]


def events_per_second(events: list[Event], repetitions: int, settings: AllocatorSettings) -> float:
    allocator = CachingAllocator(settings)
    start = time.process_time()
    for _ in range(repetitions):
        replay(events, allocator=allocator)
    return repetitions * len(events) / (time.process_time() - start)


def main() -> None:
    once, step = stream(200_000, seed=0), closed(stream(4_000, seed=1))
    print(f"Python {sys.version.split()[0]}; thousand events per second, median of {RUNS} runs")
    for name, settings in SETTINGS.items():
        figures = [
            statistics.median(events_per_second(events, n, settings) for _ in range(RUNS)) / 1000
            for events, n in ((once, 1), (step, 50))]
        print(f"{name:28} one stream {figures[0]:4.0f}   repeated step {figures[1]:4.0f}")


if __name__ == "__main__":
    main()
