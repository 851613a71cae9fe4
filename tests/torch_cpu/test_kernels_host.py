"""The CUDA sources on the CPU: adversarial schedules, sanitizers, coverage, planted bugs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from kernel_programs import (
    PLANTED_BUGS,
    SCHEDULES,
    VARIANTS,
    PlantedBug,
    compile_program,
    compile_units,
    run_program,
)

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import toolchain
from gpuledger.torch_runs.kernels.check import STRICT_HOST


@pytest.fixture(scope="module", autouse=True)
def compiler() -> str:
    try:
        return toolchain.find_cxx()
    except InputError as error:
        pytest.skip(f"the kernels cannot be built here: {error.problems[0].message}")


@pytest.fixture(scope="module")
def programs(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The comparison program with gcov, with ThreadSanitizer, with AddressSanitizer and UBSan."""
    names = ("coverage", "address", "thread")
    folders = [tmp_path_factory.mktemp(name) for name in names]
    built = toolchain.in_parallel(lambda name: compile_program(
        VARIANTS[name], folders[names.index(name)]), names)
    return dict(zip(names, built, strict=True))


def test_results_do_not_depend_on_the_schedule(programs: dict[str, Path]) -> None:
    printed = set()
    for schedule in ("forward", "reverse", "1"):
        done = run_program(programs["coverage"], schedule=schedule)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1, printed
    assert re.fullmatch(r"\d{4,} comparisons, 0 failures, checksum [0-9a-f]{16}\n", printed.pop())


def test_the_tests_reach_95_percent_of_the_lines(programs: dict[str, Path]) -> None:
    run_program(programs["coverage"])
    folder = programs["coverage"].parent
    report = subprocess.run(["gcov", "-n", *folder.glob("*.gcda")], cwd=folder, check=True,
                            capture_output=True, text=True).stdout
    lines = re.findall(r"File '.*/csrc/(?:kernels|compat/gpu)[^']*/?([\w.]+)'\n"
                       r"Lines executed:([\d.]+)% of (\d+)", report)
    assert len(lines) >= 12
    total = sum(int(count) for _, _, count in lines)
    reached = sum(float(share) * int(count) / 100 for _, share, count in lines)
    print(f"{reached:.0f} of {total} lines")
    assert reached / total >= 0.95


def test_thread_sanitizer_finds_no_race(programs: dict[str, Path]) -> None:
    done = run_program(programs["thread"], "sanitize")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data race" in run_program(programs["thread"], "race").stderr


def test_address_sanitizer_finds_no_bad_access(programs: dict[str, Path]) -> None:
    done = run_program(programs["address"], "sanitize")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "heap-buffer-overflow" in run_program(programs["address"], "out_of_bounds").stderr
    assert "misaligned address" in run_program(programs["address"], "misaligned").stderr


def schedule_that_catches(program: Path) -> str:
    """The first schedule under which the program fails; empty if it passes under all."""
    for schedule in SCHEDULES:
        try:
            failed = run_program(program, "sanitize", schedule).returncode != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            return schedule
    return ""


def test_every_planted_bug_is_caught(tmp_path: Path) -> None:
    units = compile_units(tmp_path)

    def verdict(bug: PlantedBug) -> str:
        return schedule_that_catches(bug.program(tmp_path, units))

    caught = toolchain.in_parallel(verdict, PLANTED_BUGS)
    assert [bug.name for bug, by in zip(PLANTED_BUGS, caught, strict=True) if not by] == []


def test_a_32_bit_index_does_not_compile(tmp_path: Path) -> None:
    bug = PlantedBug("narrow_index", "kernels/norm.cuh", "rms_norm.cu",
                     "const int64_t base = row * a.cols;\n    const A rstd",
                     "const int base = row * a.cols;\n    const A rstd")
    source = bug.plant(tmp_path) / "csrc" / "kernels" / "rms_norm.cu"
    with pytest.raises(InputError, match="Werror=conversion"):
        toolchain.run([toolchain.find_cxx(), *STRICT_HOST, "-fsyntax-only", source])
