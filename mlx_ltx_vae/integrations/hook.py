"""Replace functions of apps by drop-ins: at once in imported modules, and in other modules when they are imported.

An app may have parameters that the table does not know. If one is required, all functions of its class stay the app's.
An optional one changes nothing until a call gives it another value than its default: that call is the app's. Of what a
call passes as `**kwargs`, some names never matter (`HARMLESS`), and with others the app's function runs after the
latents were saved.
"""

import functools
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from .apps import APPS, HARMLESS, CallOptions, Entry, apps_of
from .settings import Settings, current, is_rescued, pop, push, say

#: Names of the drop-ins' parameters by their names in apps. The first one, latents or pixels, is passed by position.
_OTHER_NAMES = {"fps": "frame_rate", "tiling": "tiling_config"}


_KNOWN_OPTIONS = {*CallOptions._fields, "fps"} | HARMLESS
_DEFAULTS = ("seed", "frame_rate", "fps")

#: A module or a class, and the name of a function of it.
_Target = tuple[Any, str]

# The app's function of each target, and the installations that need it replaced.
_REPLACED: "dict[_Target, tuple[Any, list[Installed]]]" = {}


class Installed(MetaPathFinder, AbstractContextManager["Installed"]):
    """Installed drop-ins. `remove`, or the end of a `with` block, restores the apps' functions.

    Attributes:
        replaced: "module:path" of the functions that have been replaced, by their app.
        moved: descriptions of the differences between the app's functions and the table, harmless or not.
    """

    def __init__(self, apps: dict[str, list[str]], settings: Settings) -> None:
        """Install the drop-ins of some `apps`, {module: apps}, with their settings."""
        self._apps, self._settings = apps, settings
        self._targets: list[_Target] = []
        self.replaced: dict[str, list[str]] = {}
        self.moved: list[str] = []
        sys.meta_path.insert(0, self)
        for name in self._apps:
            if (module := sys.modules.get(name)) is not None:
                self._replace_in(module)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Restore the apps' functions, unless another installation needs them replaced, and end its options.

        Decoders that have decoded get their weights back.
        """
        pop(self._settings)
        with suppress(ValueError):
            sys.meta_path.remove(self)
        while self._targets:
            (namespace, name) = target = self._targets.pop()
            original, users = _REPLACED[target]
            users.remove(self)
            if not users:
                del _REPLACED[target]
                setattr(namespace, name, original)
        networks = sys.modules.get(f"{__package__}.networks")  # not loaded until an app decodes
        if networks is not None:
            networks.give_back_weights()

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
        for app in self._apps[module.__name__]:
            entries = [entry for entry in APPS[app] if entry.module == module.__name__]
            for owner, group in groupby(entries, key=attrgetter("owner")):
                self._replace_class(app, module, owner, list(group))

    def _replace_class(self, app: str, module: ModuleType, owner: str, entries: list[Entry]) -> None:
        """Replace all functions of a class, or none if one is missing or needs a parameter that no drop-in has.

        The latents of functions that stay the app's are saved too, if a folder is set.
        """
        namespace = getattr(module, owner, None) if owner else module
        members: Mapping[str, Any] = {} if namespace is None else vars(namespace)
        app_functions = {
            entry: members.get(entry.name) for entry in entries if entry.name in members or not entry.is_optional
        }
        problems = [problem for entry, function in app_functions.items() if (problem := _find_problem(entry, function))]
        if problems:
            name = owner or entries[0].name
            say(f"{app}{_version(module)}: {'; '.join(problems)}; {name} stays the app's own.")
            self.moved += problems
            for entry, function in app_functions.items():
                if entry.is_decode and inspect.isfunction(function) and current().folder is not None:
                    self._replace(namespace, replace(entry, dropin="", is_around=True), function, ())
            return
        for entry, function in app_functions.items():
            if unknown := [name for name in _parameters(function) if name not in entry.parameters]:
                text = f"{module.__name__}:{entry.path} also takes"
                first_name = next(iter(_parameters(function)))
                options = [name for name in unknown if name != first_name and name not in _KNOWN_OPTIONS]
                if options:
                    option_names = " and ".join(options)
                    say(f"{app}{_version(module)}: {text} {option_names}; calls that use it stay the app's own.")
                self.moved.append(f"{text} {', '.join(unknown)}")
            self._replace(namespace, entry, function, tuple(entry.name for entry in app_functions))
            self.replaced.setdefault(app, []).append(f"{module.__name__}:{entry.path}")

    def _replace(self, namespace: Any, entry: Entry, function: Any, names: tuple[str, ...]) -> None:
        """Replace one function, also where other modules have imported it, by whatever name."""
        original = getattr(function, "original", function)
        replacement = make_replacement(entry, original, namespace if entry.owner else None, names)
        for owner, name in [(namespace, entry.name)] if entry.owner else _names_of(function):
            _, users = _REPLACED.setdefault((owner, name), (original, []))
            if not users:
                setattr(owner, name, replacement)
            users.append(self)
            self._targets.append((owner, name))


def install(*apps: str, memory_budget: str | int | None = None, save_latents: str | None = None) -> Installed:
    """Replace the decoders of apps, both of modules that are imported already and of modules imported later.

    Args:
        apps: repositories as in `APPS`, such as "dgrauet/ltx-2-mlx". Without one, all apps.
        memory_budget: for each decode and encode, as for `VideoVAE.plan`; one that is too small means the least that
            works. `None` means that of an installation before this one, or the default.
        save_latents: a folder, which gets a latent file of each decode; it is made if it does not exist. `None` means
            that of an installation before this one.

    A class that differs from the table in an app's version is not replaced, and one line on standard error says so.
    Where a drop-in fails, the latents are saved, a line says where, and the app's own function runs.
    """
    modules, folder = apps_of(apps), None
    if save_latents is not None:
        from .saving import LatentsFolder  # which imports MLX

        folder = LatentsFolder(save_latents)
    return Installed(modules, push(memory_budget, folder))


def make_replacement(
    entry: Entry, original: Callable[..., Any], owner: type | None, names: tuple[str, ...]
) -> Callable[..., Any]:
    """Return a function that replaces an app's `original`, and has it as its attribute `original`.

    Arguments are matched by the app's signature, so that their order and a new name of a parameter change nothing.
    Methods of a subclass that overrides one of the replaced `names`, and of other classes, stay the app's.
    """
    signature, num_positional = inspect.signature(original), 1 if owner is None else 2

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        app_call = functools.partial(original, *args, **kwargs)
        is_other = owner is not None and not _inherits(args[0] if args else None, owner, names)
        if is_rescued.get() or (is_other and current().folder is None):
            return app_call()
        try:
            values = dict(_named_arguments(signature, args, kwargs))
        except TypeError:  # which the app's function raises too
            return app_call()
        from .networks import give_back_weights  # which imports the decoder
        from .rescue import call, call_app

        if entry.is_around or is_other:
            return call_app(replace(entry, dropin="") if is_other else entry, app_call, values)
        later_names = [name for name in list(values)[num_positional:] if name in signature.parameters]
        if any(name not in entry.parameters and name not in _KNOWN_OPTIONS for name in later_names):
            give_back_weights()
            return call_app(entry, app_call, values)
        values = {_OTHER_NAMES.get(name, name): value for name, value in values.items()}
        return call(entry, app_call, values, num_positional)

    replacement.original, replacement.dropin = original, entry.dropin  # type: ignore[attr-defined]
    return replacement


def _named_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call that differ from the defaults, with the names of the app's parameters.

    Those that the drop-ins have under the same name are yielded always, since the app's defaults may be other ones.
    Keywords that are no parameters of the app's function follow.
    """
    keywords = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **keywords)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif value is not signature.parameters[name].default or (name in _DEFAULTS and value is not None):
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
