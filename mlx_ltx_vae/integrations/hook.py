"""Puts drop-ins in the place of apps' functions: at once in modules that are imported, later as they are imported."""

import functools
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from ..errors import one_line
from .apps import APPS, Entry, entries_of
from .dropins import DROPINS, set_options

#: What apps call the parameters of drop-ins. The first one, the latents or the pixels, goes by its place.
_OTHER_NAMES = {"fps": "frame_rate", "tiling": "tiling_config"}


class Installed(MetaPathFinder, AbstractContextManager["Installed"]):
    """The drop-ins that are in place. `remove`, or the end of a `with` block, puts the apps' own functions back.

    Attributes:
        replaced: "module:path" of the functions that have been replaced, by their app.
        moved: what each function has that the table does not know, harmless or not, in words.
    """

    def __init__(self, apps: tuple[str, ...]) -> None:
        self._apps = entries_of(apps)
        self._undo: list[Callable[[], None]] = []
        self.replaced: dict[str, list[str]] = {}
        self.moved: list[str] = []
        sys.meta_path.insert(0, self)
        for name in self._apps:
            if (module := sys.modules.get(name)) is not None:
                self._replace_in(module)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Put the apps' own functions back, and end the saving. Decoders that have decoded have lost their weights."""
        set_options(None, None)
        with suppress(ValueError):
            sys.meta_path.remove(self)
        while self._undo:
            self._undo.pop()()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of an app as the other finders do, and replace its functions when it has been executed."""
        if fullname not in self._apps:
            return None
        others = (finder for finder in list(sys.meta_path) if not isinstance(finder, Installed))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        execute: Any = getattr(spec and spec.loader, "exec_module", None)
        if execute is not None:

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._replace_in(module)

            spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        return spec

    def _replace_in(self, module: ModuleType) -> None:
        app = self._apps[module.__name__]
        entries = [entry for entry in APPS[app] if entry.module == module.__name__]
        for owner, group in groupby(entries, key=attrgetter("owner")):
            self._replace_class(app, module, owner, list(group))

    def _replace_class(self, app: str, module: ModuleType, owner: str, entries: list[Entry]) -> None:
        """Replace all functions of a class, or none of them if one is missing or takes what no drop-in knows."""
        place = getattr(module, owner, None) if owner else module
        if place is None and entries[0].is_recent:
            return
        found = {entry: vars(place).get(entry.name) if place is not None else None for entry in entries}
        problems = [problem for entry, own in found.items() if (problem := _find_problem(entry, own))]
        if problems:
            what = owner or entries[0].name
            _say(f"{app}{_version(module)}: {'; '.join(problems)}; {what} stays the app's own.")
            self.moved += problems
            return
        for entry, own in found.items():
            others = _unknown_parameters(entry, own)
            self.moved += [f"{module.__name__}:{entry.path} also takes {', '.join(others)}"] * bool(others)
            self._replace(place, entry, own, tuple(each.name for each in entries))
            self.replaced.setdefault(app, []).append(f"{module.__name__}:{entry.path}")

    def _replace(self, place: Any, entry: Entry, own: Any, names: tuple[str, ...]) -> None:
        """Replace one function, also where other modules have imported it, by whatever name."""
        new = make_replacement(entry, getattr(own, "original", own), place if entry.owner else None, names)
        for each, name in [(place, entry.name)] if entry.owner else _names_of(own):
            setattr(each, name, new)
            self._undo.append(functools.partial(setattr, each, name, own))


def install(*apps: str, memory_budget: str | int | None = None, save_latents: str | None = None) -> Installed:
    """Replace the decoders of apps, those that are imported already and those that will be.

    Args:
        apps: repositories as in `APPS`, such as "dgrauet/ltx-2-mlx"; all without one.
        memory_budget: for each decode and encode, as for `VideoVAE.plan`; None for its default.
        save_latents: a folder, which gets a latent file of each decode; it is made if it does not exist.

    What a version of an app has otherwise than the table says is one line on standard error, and stays the app's own.
    """
    entries_of(apps)
    set_options(memory_budget, save_latents)
    return Installed(apps)


def make_replacement(
    entry: Entry, own: Callable[..., Any], owner: type | None, names: tuple[str, ...]
) -> Callable[..., Any]:
    """The function that takes the place of an app's `own`, which is its attribute `original`.

    Arguments are matched by the app's signature, so that a new order or a new name of a known one changes nothing.
    Methods of a subclass that overrides one of the replaced `names`, and of other classes, stay the app's.
    """
    dropin = DROPINS[entry.dropin]
    signature, num_given = inspect.signature(own), 1 if owner is None else 2

    @functools.wraps(own)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if owner is not None and not _is_own(args[0] if args else None, owner, names):
            return own(*args, **kwargs)
        if entry.is_around:
            return dropin(own, *args, **kwargs)
        values = dict(_given(signature, args, kwargs))
        given = [values.pop(name) for name in list(values)[:num_given]]
        return dropin(*given, **{_OTHER_NAMES.get(name, name): value for name, value in values.items()})

    replacement.original, replacement.dropin = own, dropin  # type: ignore[attr-defined]
    return replacement


def _given(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments of a call that are no defaults, by the names of the app's parameters; then those it does not know."""
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    for name, value in signature.bind(*args, **known).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif value is not signature.parameters[name].default:
            yield name, value
    yield from ((name, value) for name, value in kwargs.items() if name not in known)


def _is_own(given: object, owner: type, names: Sequence[str]) -> bool:
    kind = type(given)
    return isinstance(given, owner) and all(getattr(kind, name) is getattr(owner, name) for name in names)


def _find_problem(entry: Entry, own: Any) -> str | None:
    """Why a function of an app cannot be replaced, in words."""
    where = f"{entry.module}:{entry.path}"
    if own is None:
        return f"it has no {where}"
    if isinstance(own, (staticmethod, classmethod)) or not inspect.isroutine(own):
        return f"{where} is not a method" if entry.owner else f"{where} is not a function"
    if entry.is_around:  # it is called as it is
        return None
    first, *others = _parameters(own) or [""]
    if not first:
        return f"{where} names no parameters"
    if entry.parameters[0] in others:
        return f"{where} takes {first} before {entry.parameters[0]}"
    unknown = [name for name in others if name not in entry.parameters]
    needed = [name for name in unknown if _parameters(own)[name].default is inspect.Parameter.empty]
    return f"{where} needs {', '.join(needed)}, which mlx_ltx_vae does not know" if needed else None


def _unknown_parameters(entry: Entry, own: Any) -> list[str]:
    """Parameters that the table does not have."""
    return [name for name in _parameters(own) if name not in entry.parameters]


def _parameters(own: Any) -> dict[str, inspect.Parameter]:
    """The named parameters of a function, without `self`."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(own).parameters
    return {name: each for name, each in found.items() if name != "self" and each.kind not in kinds}


def _names_of(own: object) -> list[tuple[ModuleType, str]]:
    """The modules that have a function, and its names there."""
    modules = [(module, getattr(module, "__dict__", {})) for module in list(sys.modules.values())]
    return [(module, name) for module, found in modules for name, each in list(found.items()) if each is own]


def _version(module: ModuleType) -> str:
    """The version of the package that a module belongs to, after a space; "" if it is not installed."""
    root = module.__name__.partition(".")[0]
    found = importlib.metadata.packages_distributions().get(root, ())
    return next((f" {importlib.metadata.version(name)}" for name in found), "")


def _say(text: str) -> None:
    """Write a line on standard error."""
    with suppress(OSError):
        sys.stderr.write(f"mlx_ltx_vae: {one_line(text)}\n")
