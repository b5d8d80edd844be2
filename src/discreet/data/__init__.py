"""What to train: datasets and models by name. Imports torch and `discreet.core.check` alone."""

from discreet.data.datasets import DATASETS, Task, load, load_npz
from discreet.data.models import MODELS, build, parameters
from discreet.data.sources import MissingDataset

__all__ = ["DATASETS", "MODELS", "MissingDataset", "Task", "build", "load", "load_npz", "parameters"]
