"""One self-contained HTML page: no network, no external file."""

from .page import report_page

__all__ = ["report_page"]
