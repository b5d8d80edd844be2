"""What to train: datasets and models by name. Imports torch and `discreet.core.check` alone."""

from discreet.tasks.datasets import DATASETS, Task, load, load_npz
from discreet.tasks.models import MODELS, build, parameters
from discreet.tasks.sources import MissingDataset

__all__ = ["DATASETS", "MODELS", "MissingDataset", "Task", "build", "load", "load_npz", "parameters"]
