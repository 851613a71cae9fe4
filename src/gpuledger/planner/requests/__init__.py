"""What is handed in to get the GPUs: run file, launcher, batch jobs, and the page that asks."""

from .files import request_files
from .options import RequestOptions
from .resources import Cadence, Resources, Span, resources

__all__ = ["Cadence", "RequestOptions", "Resources", "Span", "request_files", "resources"]
