"""A progress line on stderr: only on a terminal, and only for what takes longer than a second."""

from __future__ import annotations

import sys
import time

WIDTH = 30
PATIENCE_SECONDS = 1.0
INTERVAL_SECONDS = 0.1


class Progress:
    """Called with (done, total); drawn at most ten times a second. `end` removes the line."""

    def __init__(self, what: str):
        self.what = what
        self.visible = sys.stderr.isatty()
        self.next_at = time.monotonic() + PATIENCE_SECONDS
        self.drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.visible or now < self.next_at:
            return
        self.next_at = now + INTERVAL_SECONDS
        filled = WIDTH * done // total if total else WIDTH
        bar = "#" * filled + "." * (WIDTH - filled)
        sys.stderr.write(f"\r{self.what} [{bar}] {done:,} of {total:,}")
        sys.stderr.flush()
        self.drawn = True

    def end(self) -> None:
        """Clear the line."""
        if self.drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
