"""Replace functions of apps by drop-ins: at once in imported modules, and in other modules when they are imported."""

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

#: Names of the drop-ins' parameters by their names in apps. The first one, latents or pixels, is passed by position.
_OTHER_NAMES = {"fps": "frame_rate", "tiling": "tiling_config"}


class Installed(MetaPathFinder, AbstractContextManager["Installed"]):
    """Installed drop-ins. `remove`, or the end of a `with` block, restores the apps' functions.

    Attributes:
        replaced: "module:path" of the functions that have been replaced, by their app.
        moved: descriptions of the differences between the app's functions and the table, harmless or not.
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
        """Restore the apps' functions and stop saving latents. Decoders that have decoded have lost their weights."""
        set_options(None, None)
        with suppress(ValueError):
            sys.meta_path.remove(self)
        while self._undo:
            self._undo.pop()()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of an app by the other finders, and replace its functions after it has been executed."""
        if fullname not in self._apps:
            return None
        finders = (finder for finder in list(sys.meta_path) if not isinstance(finder, Installed))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
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
        """Replace all functions of a class, or none if one is missing or needs a parameter that no drop-in has."""
        namespace = getattr(module, owner, None) if owner else module
        if namespace is None and entries[0].is_recent:
            return
        app_functions = {entry: None if namespace is None else vars(namespace).get(entry.name) for entry in entries}
        problems = [problem for entry, function in app_functions.items() if (problem := _find_problem(entry, function))]
        if problems:
            name = owner or entries[0].name
            _say(f"{app}{_version(module)}: {'; '.join(problems)}; {name} stays the app's own.")
            self.moved += problems
            return
        for entry, function in app_functions.items():
            unknown = _unknown_parameters(entry, function)
            self.moved += [f"{module.__name__}:{entry.path} also takes {', '.join(unknown)}"] * bool(unknown)
            self._replace(namespace, entry, function, tuple(entry.name for entry in entries))
            self.replaced.setdefault(app, []).append(f"{module.__name__}:{entry.path}")

    def _replace(self, namespace: Any, entry: Entry, function: Any, names: tuple[str, ...]) -> None:
        """Replace one function, also where other modules have imported it, by whatever name."""
        original = getattr(function, "original", function)
        replacement = make_replacement(entry, original, namespace if entry.owner else None, names)
        for target, name in [(namespace, entry.name)] if entry.owner else _names_of(function):
            setattr(target, name, replacement)
            self._undo.append(functools.partial(setattr, target, name, function))


def install(*apps: str, memory_budget: str | int | None = None, save_latents: str | None = None) -> Installed:
    """Replace the decoders of apps, both of modules that are imported already and of modules imported later.

    Args:
        apps: repositories as in `APPS`, such as "dgrauet/ltx-2-mlx". Without one, all apps.
        memory_budget: for each decode and encode, as for `VideoVAE.plan`. `None` means its default.
        save_latents: a folder, which gets a latent file of each decode; it is made if it does not exist.

    A class that differs from the table in an app's version is not replaced, and one line on standard error says so.
    """
    entries_of(apps)
    set_options(memory_budget, save_latents)
    return Installed(apps)


def make_replacement(
    entry: Entry, original: Callable[..., Any], owner: type | None, names: tuple[str, ...]
) -> Callable[..., Any]:
    """Return a function that replaces an app's `original`, and has it as its attribute `original`.

    Arguments are matched by the app's signature, so that their order and a new name of a parameter change nothing.
    Methods of a subclass that overrides one of the replaced `names`, and of other classes, stay the app's.
    """
    dropin = DROPINS[entry.dropin]
    signature, num_positional = inspect.signature(original), 1 if owner is None else 2

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if owner is not None and not _inherits(args[0] if args else None, owner, names):
            return original(*args, **kwargs)
        if entry.is_around:
            return dropin(original, *args, **kwargs)
        values = dict(_named_arguments(signature, args, kwargs))
        positional = [values.pop(name) for name in list(values)[:num_positional]]
        return dropin(*positional, **{_OTHER_NAMES.get(name, name): value for name, value in values.items()})

    replacement.original, replacement.dropin = original, dropin  # type: ignore[attr-defined]
    return replacement


def _named_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call that differ from the defaults, with the names of the app's parameters.

    Keywords that are no parameters of the app's function follow.
    """
    keywords = {name: value for name, value in kwargs.items() if name in signature.parameters}
    for name, value in signature.bind(*args, **keywords).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif value is not signature.parameters[name].default:
            yield name, value
    yield from ((name, value) for name, value in kwargs.items() if name not in keywords)


def _inherits(instance: object, owner: type, names: Sequence[str]) -> bool:
    """Return whether an object is of a class and its own class overrides none of these methods."""
    kind = type(instance)
    return isinstance(instance, owner) and all(getattr(kind, name) is getattr(owner, name) for name in names)


def _find_problem(entry: Entry, function: Any) -> str | None:
    """Describe why a function of an app cannot be replaced. Returns `None` if it can."""
    path = f"{entry.module}:{entry.path}"
    if function is None:
        return f"it has no {path}"
    if isinstance(function, (staticmethod, classmethod)) or not inspect.isroutine(function):
        return f"{path} is not a method" if entry.owner else f"{path} is not a function"
    if entry.is_around:  # it is called with its own arguments
        return None
    first_name, *later_names = _parameters(function) or [""]
    if not first_name:
        return f"{path} names no parameters"
    if entry.parameters[0] in later_names:
        return f"{path} takes {first_name} before {entry.parameters[0]}"
    unknown = [name for name in later_names if name not in entry.parameters]
    needed = [name for name in unknown if _parameters(function)[name].default is inspect.Parameter.empty]
    return f"{path} needs {', '.join(needed)}, which mlx_ltx_vae does not know" if needed else None


def _unknown_parameters(entry: Entry, function: Any) -> list[str]:
    """Return the names of parameters that the table does not have."""
    return [name for name in _parameters(function) if name not in entry.parameters]


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function, without `self`."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.items()
    return {name: parameter for name, parameter in parameters if name != "self" and parameter.kind not in kinds}


def _names_of(function: object) -> list[tuple[ModuleType, str]]:
    """Return the modules that have a function, and its names there."""
    modules = [(module, getattr(module, "__dict__", {})) for module in list(sys.modules.values())]
    return [(module, name) for module, names in modules for name, value in list(names.items()) if value is function]


def _version(module: ModuleType) -> str:
    """Return the version of the package of a module, after a space, or "" if the package is not installed."""
    root = module.__name__.partition(".")[0]
    packages = importlib.metadata.packages_distributions().get(root, ())
    return next((f" {importlib.metadata.version(name)}" for name in packages), "")


def _say(text: str) -> None:
    """Write a line on standard error."""
    with suppress(OSError):
        sys.stderr.write(f"mlx_ltx_vae: {one_line(text)}\n")
