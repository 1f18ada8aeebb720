"""The names of outputs, of an item and of the videos in its batch, and their folders."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ItemsError, LatentsError, quote
from ..files.atomic import writing_to
from .inputs import Item, is_list

_NAME = "{name}"  # stands for the name of the input
_MAX_BATCH = 10_000


def are_many(arguments: Sequence[str]) -> bool:
    """Whether arguments name more than one input; a list always does, whatever its length."""
    return len(arguments) > 1 or any(map(is_list, arguments))


def find_pattern(arguments: Sequence[str], output: str | None, ending: str) -> str | None:
    """The output of each input, with `{name}` for the input's name. For many, `out/` is `out/{name}` and an ending."""
    if are_many(arguments) and ("-" in arguments or output == "-"):
        raise ItemsError("- is standard input or output, which takes one input; name files.")
    if output is None or _NAME in output or not are_many(arguments):
        return output
    if output.endswith(("/", os.sep)) or os.path.isdir(output):
        return os.path.join(output, _NAME + ending)
    raise ItemsError(
        f"{output}: is one output for several inputs; name a folder (out/) or a pattern (out/{_NAME}{ending})."
    )


def name_items(items: Sequence[Item], pattern: str | None, *, is_dry_run: bool) -> list[Item]:
    """The items with their outputs, without which they may be in a dry run.

    Outputs that a table states replace the pattern. They are relative to its folder, or to the table's without one.
    """
    items = [_with_output(item, pattern) for item in items]
    check_outputs(items)
    sources = {os.path.realpath(item.source) for item in items} if len(items) > 1 else set()
    for item in items:
        if item.output is None and not is_dry_run:
            raise ItemsError(f"{item.source}: has no output; name a folder for it with -o.")
        if item.output and os.path.realpath(item.output) in sources:
            raise ItemsError(f"{item.source}: its output {item.output} is one of the inputs; name another folder.")
    return items


def _with_output(item: Item, pattern: str | None) -> Item:
    folder = item.folder if pattern is None else os.path.dirname(pattern.split(_NAME)[0])
    output = os.path.join(folder, item.output) if item.output else pattern and pattern.replace(_NAME, item.name)
    return replace(item, output=output, folder=folder)


def check_outputs(items: Sequence[Item]) -> None:
    """Check that outputs differ, and that those of lists and tables stay in their folder, also through links."""
    owners: dict[str, int] = {}
    folders = {folder: os.path.realpath(folder) for folder in {item.folder for item in items}}
    for index, item in enumerate(items):
        for output in item.outputs or ([item.output] if item.output else []):
            real = os.path.realpath(output)
            owner = owners.setdefault(real, index)
            if owner != index:
                raise ItemsError(
                    f"{items[owner].source} and {item.source} would both be written to {output}; rename one, or name "
                    "them in a list (@clips.txt), which keeps their folders."
                )
            folder = folders[item.folder]
            if item.where and os.path.commonpath([folder, real]) != folder:
                raise ItemsError(
                    f"{item.where}: its output {quote(output)} is not inside the folder {item.folder or os.curdir}; "
                    "name a file in that folder, or another folder with -o."
                )


def all_exist(outputs: Sequence[str]) -> bool:
    """Whether an item's outputs are there: files, or folders of stills that are not empty. False for no outputs."""
    return bool(outputs) and all(map(_exists, outputs))


def _exists(output: str) -> bool:
    path = Path(output)
    if "%" in path.name and not path.exists():
        path = path.parent
    return output != "-" and (any(path.iterdir()) if path.is_dir() else path.exists())


def nearest_existing(output: str) -> str:
    """The output as if the nearest folder above it that exists were its own: what can be checked before it is made."""
    path = Path(output)
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.path.join(folder, path.name) + ("/" if output.endswith("/") else "")


def make_folder(output: str) -> None:
    """Make the folder of an output."""
    with writing_to(output):
        Path(output).parent.mkdir(parents=True, exist_ok=True)


def name_outputs(output: str, batch: int) -> list[str]:
    """The output of each video of a batch: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png."""
    if batch == 1:
        return [output]
    if batch > _MAX_BATCH:
        raise LatentsError(f"the file has {batch} videos, and at most {_MAX_BATCH} are decoded at once; split it.")
    if output == "-":
        raise LatentsError(f"the file has {batch} videos, and standard output takes one; name an output file.")
    path = Path(output)
    if output.endswith("/") or os.path.isdir(path):
        return [f"{path}-{item}/" for item in range(batch)]
    if "%" in path.name:
        return [str(path.parent.with_name(f"{path.parent.name}-{item}") / path.name) for item in range(batch)]
    return [str(path.with_name(f"{path.stem}-{item}{path.suffix}")) for item in range(batch)]
