"""The validation matrix in one process per run; see campaign.sh."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from gpuledger.cli.validate import show_progress, summary, summary_text
from gpuledger.config.load import load_gpu
from gpuledger.errors import GpuledgerError
from gpuledger.files import write_whole
from gpuledger.torch_runs.matrix import matrix_file, read_matrix, run_matrix
from gpuledger.torch_runs.validate import emulated_bench, real_bench


def main(results: Path, rehearsal: str | None) -> None:
    begin = time.monotonic()
    bench = emulated_bench(load_gpu(rehearsal)) if rehearsal else real_bench()
    runs = read_matrix(matrix_file("validation"), bench.gpu)
    found = run_matrix(runs, bench, results / "runs", show_progress)
    seconds = round(time.monotonic() - begin, 1)
    where = {"gpu": bench.gpu.name, "emulated": bench.emulated, "seconds": seconds}
    write_whole(results / "summary.json", json.dumps(where | summary(found), indent=2))
    print(summary_text(found))
    print(f"{seconds} s")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    except GpuledgerError as error:
        sys.exit(str(error))
