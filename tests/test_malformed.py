"""Malformed inputs: exit status 2, `error:` and `hint:` lines, no traceback, in under a second."""
from __future__ import annotations

import time

import pytest
from malformed_inputs import RUN, malformed_inputs
from run_resolution import resolved

from gpuledger.config import resolve_run

SECONDS = 1.0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return dict(malformed_inputs(tmp_path_factory.mktemp("malformed")))


def test_the_unedited_run_is_accepted():
    assert resolve_run(RUN)[0].num_microbatches == 1


def test_there_are_at_least_200(inputs):
    assert len(inputs) >= 200


def test_each_is_refused_in_words(inputs):
    wrong = {}
    for name, arguments in inputs.items():
        start = time.perf_counter()
        status, stdout, stderr = resolved(arguments)
        seconds = time.perf_counter() - start
        lines = stderr.splitlines()
        words = [line.split(":")[0] for line in lines]
        pairs = words == ["error", "hint"] * (len(words) // 2) and lines
        if status != 2 or stdout or not pairs or "Traceback" in stderr or seconds > SECONDS:
            wrong[name] = (status, stderr[:200], f"{seconds:.2f} s")
    assert wrong == {}
