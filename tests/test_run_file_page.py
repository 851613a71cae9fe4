"""docs/run_file.md: its tables come from the records, its example is a run."""
from __future__ import annotations

import runpy
from pathlib import Path

from gpuledger.config import load_run
from gpuledger.config.reading import read_yaml

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_tables_are_up_to_date():
    made = runpy.run_path(str(DOCS / "update_run_file.py"))["page"]()
    page = (DOCS / "run_file.md").read_text(encoding="utf-8")
    assert page == made, "run python docs/update_run_file.py"


def test_the_example_is_a_run():
    example = (DOCS / "run_file.md").read_text(encoding="utf-8").split("```")[1]
    run = load_run(read_yaml(example.removeprefix("yaml"), "the example"))
    assert (run.parallel.dp, run.num_microbatches) == (8, 16)
