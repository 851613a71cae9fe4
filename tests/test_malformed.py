"""Malformed inputs: exit status 2, `error:` and `hint:` lines, no traceback, in under a second."""
from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gpuledger.cli.main import status_of
from gpuledger.config import resolve_run
from malformed_inputs import RUN, malformed_inputs

SECONDS = 1.0
COLD = (
    "file bomb.yaml", "file elf.yaml", "file deep.yaml", "run 71 heads over 8", "folder",
    "config other-mixtral-8x7b", "command unknown preset", "command an option without number")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return dict(malformed_inputs(tmp_path_factory.mktemp("malformed")))


def refused_in_words(status: int, stdout: str, stderr: str) -> bool:
    """Status 2, nothing on stdout, and on stderr pairs of one error line and one hint line."""
    starts = [line.partition(": ")[0] for line in stderr.splitlines()]
    pairs = bool(starts) and starts == ["error", "hint"] * (len(starts) // 2)
    return status == 2 and not stdout and pairs


def test_the_unedited_run_is_accepted():
    run, assumptions = resolve_run(RUN)
    assert (run.num_microbatches, assumptions) == (1, ())


def test_there_are_at_least_200(inputs):
    assert len(inputs) >= 200


def test_each_is_refused_in_words(inputs, capsys):
    wrong = {}
    for name, arguments in inputs.items():
        start = time.perf_counter()
        status = status_of(["estimate", *arguments])
        seconds = time.perf_counter() - start
        said = capsys.readouterr()
        if not refused_in_words(status, said.out, said.err) or seconds > SECONDS:
            wrong[name] = (status, said.err[:200], f"{seconds:.2f} s")
    assert wrong == {}


@pytest.mark.parametrize("name", COLD)
def test_a_cold_process_refuses_in_words_too(name, inputs):
    answer = subprocess.run(
        [sys.executable, "-m", "gpuledger.cli.main", "estimate", *inputs[name]],
        capture_output=True, text=True, timeout=60)
    assert refused_in_words(answer.returncode, answer.stdout, answer.stderr), answer.stderr


def test_all_problems_are_said_at_once(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: gpt2\n"
        "training: {seq_len: 5000, precision: bf61, optimiser: adamw}\n"
        "parallel: {zero_stage: 9}\n"
        "cluster: {gpu: h10, gpus: 8}\n")
    assert status_of(["estimate", str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[::2] == [
        "error: unknown GPU 'h10'",
        "error: training.precision = 'bf61' is not known",
        "error: unknown key training.optimiser",
        "error: parallel.zero_stage = 9 must be at most 3",
    ]
