"""`PYTORCH_CUDA_ALLOC_CONF` strings. tests/emulated compares the same strings with PyTorch."""
from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError, NotYetError
from gpuledger.memory.allocator import (
    AllocatorSettings,
    alloc_conf_text,
    parse_alloc_conf,
    settings_from_environment,
)
from gpuledger.memory.allocator.settings import UNLIMITED_BYTES
from gpuledger.memory.allocator.sizes import MIB

STRINGS = yaml.safe_load((Path(__file__).parent / "data" / "alloc_conf.yaml").read_text())


def test_values() -> None:
    assert parse_alloc_conf("") == AllocatorSettings()
    assert parse_alloc_conf("max_split_size_mb:128,expandable_segments:True") == AllocatorSettings(
        expandable_segments=True, max_split_size_bytes=128 * MIB)
    settings = parse_alloc_conf(
        "large_segment_size_mb:40,max_non_split_rounding_mb:50,garbage_collection_threshold:0.8,"
        "per_process_memory_fraction:0.25")
    assert settings.large_segment_size_bytes == 40 * MIB
    assert settings.non_split_rounding_bytes == 50 * MIB
    assert settings.garbage_collection_threshold == 0.8
    assert settings.per_process_memory_fraction == 0.25


def test_defaults() -> None:
    settings = AllocatorSettings()
    assert settings.max_split_size_bytes == UNLIMITED_BYTES
    assert settings.non_split_rounding_bytes == settings.large_segment_size_bytes == 20 * MIB


@pytest.mark.parametrize(("text", "divisions"), [
    ("4", [4] * 16),
    ("[256:1,512:2,1024:4,>:8]", [1] * 9 + [2, 4] + [8] * 5),
    ("[64:8,256:4]", [8] * 7 + [0, 4] + [0] * 7),
    ("[>:8]", [0] + [8] * 15),
    ("[131072:8]", [8] * 16),
])
def test_divisions(text: str, divisions: list[int]) -> None:
    settings = parse_alloc_conf(f"roundup_power2_divisions:{text}")
    assert list(settings.roundup_power2_divisions) == divisions


@pytest.mark.parametrize("text", STRINGS["accepted"])
def test_accepted(text: str) -> None:
    settings = parse_alloc_conf(text)
    assert parse_alloc_conf(alloc_conf_text(settings)) == settings


@pytest.mark.parametrize("text", STRINGS["refused"])
def test_refused_with_one_line_and_one_hint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_alloc_conf(text)
    assert type(caught.value) is InputError
    (problem,) = caught.value.problems
    assert problem.message and problem.hint
    assert "\n" not in problem.message + problem.hint


def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(InputError, match="hint: did you mean expandable_segments"):
        parse_alloc_conf("expandable_segment:True")


@pytest.mark.parametrize("text", [
    "backend:cudaMallocAsync", "throw_on_cudamalloc_oom:True",
    "expandable_segments:True,large_segment_size_mb:21",
])
def test_what_is_not_modelled_is_refused(text: str) -> None:
    with pytest.raises(NotYetError):
        parse_alloc_conf(text)


@pytest.mark.parametrize("values", [
    {"roundup_power2_divisions": (3,) * 16}, {"roundup_power2_divisions": (4,)},
    {"garbage_collection_threshold": 1.0}, {"per_process_memory_fraction": 1.01},
])
def test_settings_made_directly_are_checked_too(values: dict[str, object]) -> None:
    with pytest.raises(InputError):
        AllocatorSettings(**values)  # type: ignore[arg-type]


def test_environment_variables() -> None:
    split = AllocatorSettings(max_split_size_bytes=32 * MIB)
    cuda, any_device = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    assert settings_from_environment({}) == AllocatorSettings()
    assert settings_from_environment({any_device: "max_split_size_mb:32"}) == split
    both = {cuda: "max_split_size_mb:32", any_device: "expandable_segments:True"}
    assert settings_from_environment(both) == split
    assert settings_from_environment(both | {cuda: ""}) == AllocatorSettings()


@given(st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.just(UNLIMITED_BYTES) | st.integers(40, 10**6).map(lambda n: n * MIB),
    max_non_split_rounding_bytes=st.none() | st.integers(40, 10**6).map(lambda n: n * MIB),
    large_segment_size_bytes=st.integers(6, 20).map(lambda n: n * 2 * MIB),
    roundup_power2_divisions=st.tuples(*[st.sampled_from([0, 1, 2, 4, 8])] * 16),
    garbage_collection_threshold=st.floats(0, 1, exclude_max=True),
    per_process_memory_fraction=st.floats(0, 1),
))
def test_settings_written_as_text_are_read_back(settings: AllocatorSettings) -> None:
    assert parse_alloc_conf(alloc_conf_text(settings)) == settings
