"""Repetitions are played until the allocator's state repeats: all statistics are those of all events."""
from __future__ import annotations

import random

import pytest

from gpuledger.memory.allocator import AllocatorSettings, OutOfMemory, replay
from gpuledger.memory.allocator.repetition import Part, Repeat, _Player, expanded, replay_parts

MIB = 2**20
SETTINGS = (
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(max_split_size_bytes=64 * MIB),
    AllocatorSettings(garbage_collection_threshold=0.6, per_process_memory_fraction=0.95),
    AllocatorSettings(roundup_power2_divisions=(4,) * 16),
)
SIZES = (100, 512, 70_000, 700_000, 3 * MIB, 9 * MIB, 30 * MIB, 75 * MIB)


class Stream:
    """Draws events; `living` are the numbers, with their bytes, that no part frees."""

    def __init__(self, seed: int):
        self.rng, self.number = random.Random(seed), 0
        self.streams: dict[int, int] = {}

    def pass_of(self, keeps: int) -> list[tuple[int, int, int]]:
        """A run of allocations and frees, out of which so many stay."""
        events, living = [], []
        for _ in range(self.rng.randrange(10, 60)):
            if living and self.rng.random() < 0.45:
                number, nbytes = living.pop(self.rng.randrange(len(living)))
                events.append((-1, number, nbytes))
            else:
                nbytes = self.rng.choice(SIZES) * self.rng.randrange(1, 5)
                events.append((1, self.number, nbytes))
                living.append((self.number, nbytes))
                if self.rng.random() < 0.1:
                    self.streams[self.number] = self.rng.randrange(1, 3)
                self.number += 1
        self.rng.shuffle(living)
        return events + [(-1, *freed) for freed in living[keeps:]]

    def parts(self) -> list[Part]:
        micro_batches = [self.pass_of(0), Repeat([self.pass_of(0)], self.rng.randrange(1, 9)),
                         self.pass_of(0)]
        return [self.pass_of(4), Repeat([self.pass_of(0)], self.rng.randrange(2, 9)),
                self.pass_of(3), Repeat(micro_batches, self.rng.randrange(2, 6)), self.pass_of(1)]


def outcome(play, *arguments, **options) -> object:
    try:
        return play(*arguments, **options).memory_stats()
    except OutOfMemory as error:
        return error.figures


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_statistics_are_those_of_every_event(settings):
    retries = failures = 0
    for seed in range(40):
        stream = Stream(seed)
        parts, streams = stream.parts(), stream.streams
        need = replay(expanded(parts), streams=streams).memory_stats()["reserved_bytes.all.peak"]
        for total in (None, need * 9 // 10, need * 7 // 10):
            played = outcome(replay, expanded(parts), settings, total, streams=streams)
            assert outcome(replay_parts, parts, settings, total, streams=streams) == played
            failures += not isinstance(played, dict)
            retries += isinstance(played, dict) and played["num_alloc_retries"]
    assert retries
    assert failures


def test_what_repeats_is_skipped(monkeypatch):
    played = []
    monkeypatch.setattr(_Player, "play", lambda self, parts, play=_Player.play: (
        played.append(1), play(self, parts))[1])
    event = (1, 0, MIB), (-1, 0, MIB)
    stats = replay_parts([Repeat([event], 1000)]).memory_stats()
    assert len(played) == 3             # all parts, the first repetition, and one that changes nothing
    assert stats["allocation.all.allocated"] == 1000
    assert stats["requested_bytes.all.freed"] == 1000 * MIB
    assert stats["num_device_alloc"] == 1


def test_retries_of_skipped_repetitions_are_counted():
    """Of each repetition: 80 MiB may not be split for 60, and 60 are too few for 80."""
    events = [(1, 0, 60 * MIB), (-1, 0, 60 * MIB), (1, 1, 80 * MIB), (-1, 1, 80 * MIB)]
    settings = SETTINGS[2]
    stats = replay_parts([Repeat([events], 50)], settings, 100 * MIB).memory_stats()
    assert stats == replay(events * 50, settings, 100 * MIB).memory_stats()
    assert stats["num_alloc_retries"] == 50
