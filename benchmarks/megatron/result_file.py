"""Results beside their script: written anew, or with --check compared with what is there."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def written_or_checked(path: Path, results: Any) -> int:
    """The exit status: 1 if --check is among the arguments and the file holds something else."""
    text = json.dumps(results, indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        return int(path.read_text() != text)
    path.write_text(text)
    return 0
