"""Choice of the model of a command without -m."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from .. import LatentsError
from ..checkpoint import find_cached
from ..errors import ItemsError, telling_warnings
from ..files import expand_path, is_pipe
from ..latents.video import read_latent_space
from ..model_table import Kind, list_names, models_for
from .items import read_inputs
from .options import MODEL_VARIABLE
from .terminal import note_printer

#: What -m may be, for the error of a command without it.
CHOICES = f"give one of {list_names([Kind.VIDEO])}, a file, a folder or a hub id, or set {MODEL_VARIABLE}"


def choose_by_environment(arguments: argparse.Namespace) -> None:
    """Use the model that the environment names where -m is missing, and say so."""
    model = os.environ.get(MODEL_VARIABLE)
    if model and not arguments.model:
        arguments.model = str(expand_path(model, ItemsError))
        note_printer(arguments)(f"-m {model}, from {MODEL_VARIABLE}")


def choose_by_latents(
    arguments: argparse.Namespace, sources: Sequence[str], kind: Kind, *, flag: str | None = None
) -> str | None:
    """Use a cached model for the latents, in files, lists and folders, as the missing -m, --audio-model or `flag`.

    Says so. Returns an error if the latents state their VAE and no model is in the cache, or if they state several.
    """
    flag = flag or ("--audio-model" if kind is Kind.AUDIO else "-m")
    destination = "model" if flag == "-m" else flag.removeprefix("--").replace("-", "_")
    spaces_by_key: dict[frozenset[str | None], Any] = {}  # latent spaces with their files, by keys
    with suppress(ItemsError):  # of a list that cannot be read, which is an error later
        for source in _regular_files(sources):
            with suppress(LatentsError):  # likewise
                space = read_latent_space(source)
                if any(space):
                    spaces_by_key.setdefault(space.key, (space, source))
    if not spaces_by_key:
        return None
    if len(spaces_by_key) > 1:
        (first, source), (second, other_source), *_ = (
            (space.generation or f"fingerprint {space.fingerprint}", source) for space, source in spaces_by_key.values()
        )
        return f"{flag} is missing, and {source} is of {first}, {other_source} of {second}; decode them apart"
    ((space, source),) = spaces_by_key.values()
    model = find_cached(space, kind)
    if model is not None:
        setattr(arguments, destination, model.name)
        note_printer(arguments)(f"{flag} {model.name}, for the latents of {source}")
        return None
    choices = models_for(space.generation, kind)
    if not choices:
        return None
    choice = f"give {flag} {choices[0].name} ({choices[0].terms}), which is downloaded"
    return f"{flag} is missing, and {source} is of {space.generation}: {choice}, or a file, folder or hub id"


def _regular_files(sources: Sequence[str]) -> Iterator[str]:
    """Yield the files of the inputs that can be read twice, which pipes cannot."""
    lists = [source for source in sources if os.path.exists(path := source.removeprefix("@")) and not is_pipe(path)]
    with telling_warnings(lambda text: None):  # they come when the command runs
        items = read_inputs(lists, of_videos=False)
    for item in items:
        if os.path.isfile(item.source):
            yield item.source
