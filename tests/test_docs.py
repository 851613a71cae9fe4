"""What the documentation says is what the product does."""
from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from drawn_runs import random_run
from gpuledger.formulas import formulas
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device

ROOT = Path(__file__).resolve().parents[1]
TABLES = sorted((ROOT / "docs" / "formulas.d").glob("*.md"))


def test_formulas_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "update_formulas.py"))["page"]()
    assert (ROOT / "docs" / "formulas.md").read_text() == page, "run python docs/update_formulas.py"


def test_every_row_has_six_cells_and_an_id_of_its_own() -> None:
    ids: Counter[str] = Counter()
    for table in TABLES:
        for line in table.read_text().splitlines():
            if line.startswith("| ["):
                cells = line.strip().strip("|").split(" | ")
                assert len(cells) == 6, f"{table.name}: {line}"
                ids[cells[0].strip()] += 1
    assert [name for name, count in ids.items() if count > 1] == []
    assert len(formulas()) == len(ids)


@pytest.mark.parametrize("seed", range(30))
def test_every_entry_names_a_known_formula(seed: int) -> None:
    peak = StepPeak(random_run(seed), Device()).find()
    unknown = {e.equation for e in (*peak.states, *peak.live)} - set(formulas())
    assert unknown == set()


def test_ids_in_docstrings_are_known() -> None:
    used = {match for path in (ROOT / "src" / "gpuledger").rglob("*.py")
            for match in re.findall(r"\[([A-Z]\d+)\]", path.read_text())}
    assert used - set(formulas()) == set()


def test_functions_and_tests_of_formulas_exist() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [f"[{row.id}] {name}" for row in formulas().values()
               for name in re.findall(r"`[\w/]*\.?(test_\w+)`", row.test) if f"def {name}(" not in tests
               and f"{name}.py" not in tests and not list((ROOT / "tests").rglob(f"{name}.py"))]
    assert missing == []


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_shows_what_its_command_prints() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "update_readme.py"))["page"]()
    assert (ROOT / "README.md").read_text() == page, "run python docs/update_readme.py"
