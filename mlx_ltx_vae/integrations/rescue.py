"""Calls of drop-ins that end in the app's own function where a drop-in fails, so that a generation ends in a video."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import mlx.core as mx

from ..errors import describe_error, telling_warnings
from ..latents.writer import rescue_latents
from .apps import Entry
from .dropins import DROPINS, to_keyframes
from .networks import give_back_weights
from .settings import counts, current, is_rescued, output, say

_CALLBACK = "on_frames_ready"
_TIME_AXIS = 2  # of frames (B, 3, n, H, W)


def call(entry: Entry, app_call: partial, values: dict[str, Any], num_positional: int) -> Any:
    """Call the drop-in of an entry, and the app's function if that fails.

    `values` are the arguments by the names of the drop-in, of which the first ones are passed by position.
    """
    positional = [values.pop(name) for name in list(values)[:num_positional]]
    callback_errors: list[Exception] = []
    if (callback := values.get(_CALLBACK)) is not None:
        values[_CALLBACK] = _once(callback, callback_errors)
        app_call = _exchange_argument(app_call, callback, values[_CALLBACK])
    try:
        with telling_warnings(say):
            result = DROPINS[entry.dropin](*positional, **values)
    except Exception as error:
        if error in callback_errors:  # the app's
            raise
        _prepare_rescue(entry, positional, values, error)
    else:
        if isinstance(result, Iterator):
            return _iterate(result, app_call, partial(_prepare_rescue, entry, positional, values))
        counts["encode" if entry.is_encode else "decode"] += 1
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
    chunks: Iterator[mx.array], app_call: partial, prepare_rescue: Callable[[Exception], None]
) -> Iterator[mx.array]:
    """Yield the frames of a drop-in, and the rest of the app's own where it fails."""
    num_frames = 0  # that the app has
    has_failed = False
    try:
        while True:
            try:
                with telling_warnings(say):
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


def _prepare_rescue(entry: Entry, positional: Sequence[Any], values: Mapping[str, Any], error: Exception) -> None:
    """Save the latents of a call, say so, and give the app its weights back."""
    text = describe_error(error).rstrip(".")
    arrays = [value for value in positional if isinstance(value, mx.array)]
    if arrays and not entry.is_encode:
        text += f"; {_save(arrays[0], values)}"
    give_back_weights()
    say(f"{text}; the app's own {entry.name} runs.")


def _save(latents: mx.array, values: Mapping[str, Any]) -> str:
    """Save latents, unless they are, and return a statement of where they are."""
    folder = current().folder
    if folder is not None and (path := folder.path_of(latents)):
        return f"its latents are in {path}"
    output_path, fps = output.get()
    keyframes = None
    with suppress(Exception):  # of keyframes whose kind is not known, which may be why the decode failed
        keyframes = to_keyframes(values.get("keyframes"))
    path, rate = values.get("output_path", output_path), values.get("frame_rate", fps)
    left_out = "" if (keyframes is None) is (values.get("keyframes") is None) else ", without the keyframes"
    return rescue_latents(latents, path, rate, keyframes) + left_out


@contextmanager
def _rescued() -> Iterator[None]:
    """Let an app's function call other replaced functions as its own in the block."""
    token = is_rescued.set(True)
    try:
        yield
    finally:
        is_rescued.reset(token)
