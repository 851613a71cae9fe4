"""Reading the allocator's history: the peak, what outlives its step, source lines."""
from __future__ import annotations

import os

from gpuledger.torch_runs.emulated_gpu.growth import Mark, growth
from gpuledger.torch_runs.emulated_gpu.memory_history import BACKWARD, Holding, peak, source_line


def frame(line, name="step", filename=None):
    filename = filename or os.path.join(os.getcwd(), "train.py")
    return {"filename": filename, "line": line, "name": name}


def alloc(address, size, time_us, line):
    return {"action": "alloc", "addr": address, "size": size, "time_us": time_us,
            "frames": [frame(line)]}


def free(address, time_us):
    return {"action": "free_completed", "addr": address, "size": 0, "time_us": time_us,
            "frames": []}


def test_the_peak_and_what_is_alive_then():
    events = [alloc(1, 100, 1, 10), alloc(2, 50, 2, 11), free(1, 3), alloc(3, 110, 4, 10),
              free(2, 5), alloc(4, 20, 6, 12)]
    seen = peak(events)
    assert (seen.requested_bytes, seen.time_us, seen.line) == (160, 4, "train.py:10 step")
    assert seen.holdings == (Holding("train.py:10 step", 110, 1),
                             Holding("train.py:11 step", 50, 1))


def test_a_history_without_allocations_has_no_peak():
    assert peak([free(1, 1)]) is None


def test_the_source_line_is_the_users():
    library = frame(1, "forward", os.__file__)
    torch = frame(2, "linear", "/x/site-packages/torch/nn/functional.py")
    assert source_line([torch, library, frame(7), frame(8)]) == "train.py:7 step"
    assert source_line([torch]) == "/x/site-packages/torch/nn/functional.py:2 linear"
    assert source_line([]) == BACKWARD


def run_of(steps, leak_bytes, until=None):
    """Marks and events of steps that each make a gradient (freed by the next) and leak bytes."""
    events, marks, live = [alloc(1, 1000, 0, 5)], [], 1000
    for step in range(1, steps + 1):
        time_us = 100 * step
        if step > 1:
            events.append(free(10_000 + step - 1, time_us - 99))
            live -= 300
        events.append(alloc(10_000 + step, 300, time_us - 50, 20))
        live += 300
        if leak_bytes and step <= (until or steps):
            events.append(alloc(20_000 + step, leak_bytes, time_us - 40, 21))
            live += leak_bytes
        marks.append(Mark(time_us, live, 512 * -(-live // 512)))
    return marks, events


def test_a_leak_is_found_with_its_line():
    seen = growth(*run_of(steps=8, leak_bytes=4))
    assert (seen.requested_bytes_per_step, seen.first_step, seen.last_step) == (4, 3, 8)
    assert seen.lines == (Holding("train.py:21 step", 4, 1),)


def test_a_steady_run_does_not_grow():
    assert growth(*run_of(steps=8, leak_bytes=0)) is None


def test_growth_that_stops_is_no_leak():
    assert growth(*run_of(steps=20, leak_bytes=4, until=4)) is None


def test_five_steps_are_too_few_to_tell():
    assert growth(*run_of(steps=5, leak_bytes=4)) is None
    assert growth(*run_of(steps=6, leak_bytes=4)) is not None
