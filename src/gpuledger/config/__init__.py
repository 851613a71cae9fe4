"""What a run is: frozen records, and how names, files and options become one."""

from .cautions import cautions
from .cluster import Cluster, DensePeaks, Gpu
from .load import load_cluster, load_gpu, load_model
from .model import Bias, Model
from .options import RunOptions
from .parallelism import Parallelism
from .presets import list_presets
from .record import Record
from .resolve import load_run, resolve_run
from .run import Run
from .training import EveryK, Training

__all__ = [
    "Bias",
    "Cluster",
    "DensePeaks",
    "EveryK",
    "Gpu",
    "Model",
    "Parallelism",
    "Record",
    "Run",
    "RunOptions",
    "Training",
    "cautions",
    "list_presets",
    "load_cluster",
    "load_gpu",
    "load_model",
    "load_run",
    "resolve_run",
]
