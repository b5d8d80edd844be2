"""Datasets, public features and models by name."""

from discreet.data import features
from discreet.data.datasets import DATASETS, Task, load, load_npz, published_records
from discreet.data.models import MODELS, build, parameters
from discreet.data.sources import MissingDataset

__all__ = ["DATASETS", "MODELS", "MissingDataset", "Task", "build", "features", "load", "load_npz", "parameters"]
__all__ += ["published_records"]
