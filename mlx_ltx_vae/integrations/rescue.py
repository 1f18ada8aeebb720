"""Calls of replaced functions. They end in the app's own function where a drop-in fails, and so in a video."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import mlx.core as mx

from ..backend.device import explained_device_errors
from ..errors import DeviceError, describe_error, telling_warnings
from .apps import Entry
from .dropins import DROPINS
from .networks import give_back_weights
from .saving import AppDecode, app_decode, part_of
from .settings import counts, is_rescued, say

_CALLBACK = "on_frames_ready"
_TIME_AXIS = 2  # of frames (B, 3, n, H, W)


def call_app(entry: Entry, app_call: partial, values: Mapping[str, Any]) -> Any:
    """Call an app's own function in the context of its entry, and save the latents that it decodes.

    `values` are its arguments by its names.
    """
    if inspect.isgeneratorfunction(app_call.func):  # which begins with its first frame
        return _follow(entry, app_call, values)
    decode = _begin(entry, values)
    with part_of(decode), _around(entry, app_call):
        return app_call()


def _follow(entry: Entry, app_call: partial, values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the results of an app's generator."""
    decode = _begin(entry, values)
    with _around(entry, app_call):
        results = app_call()
        try:
            while True:
                with part_of(decode):
                    parts = [next(results, results)]
                if parts[0] is results:
                    return
                yield parts.pop()  # a suspended generator must not hold an array that it has yielded
        finally:
            results.close()


def _around(entry: Entry, app_call: partial) -> Any:
    """Return the context of an app's own function."""
    return DROPINS[entry.dropin](app_call) if entry.is_around and entry.dropin else nullcontext()


def _begin(entry: Entry, values: Mapping[str, Any], *, saves: bool = True) -> AppDecode | None:
    """Return the decode that a call is part of or begins, `None` without latents among its arguments."""
    decode = app_decode.get()
    if decode is None and entry.is_decode:
        latents = next((value for value in values.values() if _is_latents(value)), None)
        decode = None if latents is None else AppDecode(latents, values)
        if decode is not None and saves:
            with telling_warnings(say):
                decode.save()
    return decode


def _is_latents(value: object) -> bool:
    """Return whether a value is an array (B, C, F', H', W') or (C, F', H', W')."""
    return isinstance(value, mx.array) and value.ndim in (4, 5)


def call(entry: Entry, app_call: partial, values: dict[str, Any], num_positional: int) -> Any:
    """Call the drop-in of an entry, and the app's function if that fails.

    `values` are the arguments by the names of the drop-in, of which the first ones are passed by position.
    """
    decode = _begin(entry, values, saves=False)  # the drop-in does, when it knows the VAE
    positional = [values.pop(name) for name in list(values)[:num_positional]]
    callback_errors: list[Exception] = []
    if (callback := values.get(_CALLBACK)) is not None:
        values[_CALLBACK] = _once(callback, callback_errors)
        app_call = _exchange_argument(app_call, callback, values[_CALLBACK])
    noun = "encode" if entry.is_encode else "decode"
    counts[f"begun {noun}"] += 1
    try:
        with part_of(decode), telling_warnings(say):
            result = DROPINS[entry.dropin](*positional, **values)
    except Exception as error:
        if error in callback_errors:  # the app's
            raise
        _prepare_rescue(entry, decode, error)
    else:
        if isinstance(result, Iterator):
            return _iterate(result, app_call, decode, partial(_prepare_rescue, entry, decode))
        counts[noun] += 1
        return result
    with _rescued():  # outside the block, so that an error of the app has no other one as its context
        return app_call()


def _once(callback: Callable[[mx.array, int], object], errors: list[Exception]) -> Callable[[mx.array, int], None]:
    """Return a callback that passes each frame on once, and adds exceptions of the app's `callback` to `errors`."""
    num_frames = 0  # that the app has

    def pass_on(frames: mx.array, start: int) -> None:
        nonlocal num_frames
        done = max(0, num_frames - start)
        if done >= frames.shape[_TIME_AXIS]:
            return
        try:
            callback(frames[:, :, done:], start + done)
        except Exception as error:
            errors.append(error)
            raise
        num_frames = start + frames.shape[_TIME_AXIS]

    return pass_on


def _exchange_argument(app_call: partial, argument: object, replacement: object) -> partial:
    """Return a call with a `replacement` of one of its arguments."""
    args = (replacement if value is argument else value for value in app_call.args)
    keywords = {name: replacement if value is argument else value for name, value in app_call.keywords.items()}
    return partial(app_call.func, *args, **keywords)


def _iterate(
    chunks: Iterator[mx.array], app_call: partial, decode: AppDecode | None, prepare_rescue: Callable[[Exception], None]
) -> Iterator[mx.array]:
    """Yield the frames of a drop-in, and the rest of the app's own where it fails."""
    num_frames = 0  # that the app has
    has_failed = False
    try:
        while True:
            try:
                with part_of(decode), telling_warnings(say):
                    parts: list[Any] = [next(chunks, None)]
            except Exception as error:
                prepare_rescue(error)
                has_failed = True
                break
            if parts[0] is None:
                break
            num_frames += parts[0].shape[_TIME_AXIS]
            yield parts.pop()  # a suspended generator must not hold an array that it has yielded
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    if not has_failed:
        counts["decode"] += 1
        return
    start = 0
    with _rescued():
        app_chunks = iter(app_call())
    while True:
        with _rescued():
            chunk = next(app_chunks, None)
        if chunk is None:
            return
        done = max(0, num_frames - start)
        start += chunk.shape[_TIME_AXIS]
        if done < chunk.shape[_TIME_AXIS]:
            yield chunk[:, :, done:]


def _prepare_rescue(entry: Entry, decode: AppDecode | None, error: Exception) -> None:
    """Save the latents of a call, say so, and give the app its weights back."""
    counts["begun encode" if entry.is_encode else "begun decode"] -= 1
    text = describe_error(_explain(error)).rstrip(".")
    if decode is not None:
        with telling_warnings(say):
            statement = decode.rescue()
            text += f"; {statement}" if statement else ""
    give_back_weights()
    say(f"{text}; the app's own {entry.name} runs.")


def _explain(error: Exception) -> Exception:
    """Return the `DeviceError` of an error that MLX raised, or another error as it is."""
    try:
        with explained_device_errors():
            raise error
    except DeviceError as explained:
        return explained
    except Exception:
        return error


@contextmanager
def _rescued() -> Iterator[None]:
    """Let an app's function call other replaced functions as its own in the block."""
    token = is_rescued.set(True)
    try:
        yield
    finally:
        is_rescued.reset(token)
