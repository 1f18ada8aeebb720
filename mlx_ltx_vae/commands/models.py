"""Choice of the model of a command without -m."""

import argparse
import os

from ..errors import ItemsError
from ..model_table import Kind, list_names
from ..units import expand_path
from .options import MODEL_VARIABLE
from .running import note_printer

#: What -m may be, for the error of a command without it.
CHOICES = f"give one of {list_names([Kind.VIDEO])}, a file, a folder or a hub id, or set {MODEL_VARIABLE}"


def choose_by_environment(arguments: argparse.Namespace) -> None:
    """Use the model that the environment names where -m is missing, and say so."""
    model = os.environ.get(MODEL_VARIABLE)
    if model and not arguments.model:
        arguments.model = str(expand_path(model, ItemsError))
        note_printer(arguments)(f"-m {model}, of the environment variable {MODEL_VARIABLE}")
