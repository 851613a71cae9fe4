"""What is handed in to get the GPUs: run file, launcher, batch jobs, and the page that asks."""

from .files import Chosen, first_request, request_files
from .options import RequestOptions
from .resources import Cadence, Resources, Span, resources

__all__ = [
    "Cadence",
    "Chosen",
    "RequestOptions",
    "Resources",
    "Span",
    "first_request",
    "request_files",
    "resources",
]
