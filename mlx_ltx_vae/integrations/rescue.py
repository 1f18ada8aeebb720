"""Calls of drop-ins that end in the app's own function where a drop-in fails, so that a generation ends in a video."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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


class _Call:
    """One call of an app's function."""

    def __init__(
        self,
        entry: Entry,
        original: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        values: dict[str, Any],
    ) -> None:
        """Record a call. `values` are its arguments by the names of the drop-in, the positional ones first."""
        self._entry, self._original = entry, original
        self._args, self._kwargs, self._values = args, kwargs, values
        self._num_frames = 0  # that the app has got
        self._callback = values.get(_CALLBACK)
        self._callback_error: BaseException | None = None
        if self._callback is not None:
            values[_CALLBACK] = self._hand_over

    def _hand_over(self, frames: mx.array, start: int) -> None:
        """Call the app's callback with frames that it does not have yet."""
        done = max(0, self._num_frames - start)
        if done >= frames.shape[_TIME_AXIS]:
            return
        assert self._callback is not None
        try:
            self._callback(frames[:, :, done:], start + done)
        except BaseException as error:
            self._callback_error = error
            raise
        self._num_frames = start + frames.shape[_TIME_AXIS]

    def run(self, dropin: Callable[..., Any], positional: Sequence[Any]) -> Any:
        """Call the drop-in, and the app's function if that fails."""
        try:
            with telling_warnings(say):
                result = dropin(*positional, **self._values)
        except Exception as error:
            self._prepare_rescue(error, positional)
        else:
            return self._finish(result, positional)
        with _rescued():  # outside the block, so that an error of the app has no other one as its context
            return self._run_original()

    def _finish(self, result: Any, positional: Sequence[Any]) -> Any:
        """Return the result of a drop-in, and count it."""
        if isinstance(result, Iterator):
            return self._iterate(result, positional)
        self._count()
        return result

    def _iterate(self, chunks: Iterator[mx.array], positional: Sequence[Any]) -> Iterator[mx.array]:
        """Yield the frames of a drop-in, and the rest of the app's own where it fails."""
        has_failed = False
        try:
            while True:
                try:
                    with telling_warnings(say):
                        parts: list[Any] = [next(chunks, None)]
                except Exception as error:
                    self._prepare_rescue(error, positional)
                    has_failed = True
                    break
                if parts[0] is None:
                    break
                self._num_frames += parts[0].shape[_TIME_AXIS]
                yield parts.pop()  # a suspended generator must not hold an array that it has yielded
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        if not has_failed:
            self._count()
            return
        start = 0
        with _rescued():
            own_chunks = iter(self._run_original())
        while True:
            with _rescued():
                chunk = next(own_chunks, None)
            if chunk is None:
                return
            done = max(0, self._num_frames - start)
            start += chunk.shape[_TIME_AXIS]
            if done < chunk.shape[_TIME_AXIS]:
                yield chunk[:, :, done:]

    def _count(self) -> None:
        counts["encode" if self._entry.dropin.startswith("encode") else "decode"] += 1

    def _run_original(self) -> Any:
        bound = inspect.signature(self._original).bind(*self._args, **self._kwargs)
        if bound.arguments.get(_CALLBACK) is not None:
            bound.arguments[_CALLBACK] = self._hand_over
        return self._original(*bound.args, **bound.kwargs)

    def _prepare_rescue(self, error: Exception, positional: Sequence[Any]) -> None:
        """Save the latents, say so, and give the app its weights back. Raises the error if it is the app's."""
        if error is self._callback_error:
            raise error
        text = describe_error(error).rstrip(".")
        arrays = [value for value in positional if isinstance(value, mx.array)]
        if arrays and not self._entry.dropin.startswith("encode"):
            text += f"; {self._save(arrays[0])}"
        give_back_weights()
        say(f"{text}; the app's own {self._entry.name} runs.")

    def _save(self, latents: mx.array) -> str:
        """Save latents, unless they are, and return a statement of where they are."""
        folder = current().folder
        if folder is not None and (path := folder.path_of(latents)):
            return f"its latents are in {path}"
        output_path, fps = output.get()
        values, keyframes = self._values, None
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


def call(
    entry: Entry,
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    values: dict[str, Any],
    num_positional: int,
) -> Any:
    """Call the drop-in of an entry with arguments by its names; see `_Call`."""
    positional = [values.pop(name) for name in list(values)[:num_positional]]
    return _Call(entry, original, args, kwargs, values).run(DROPINS[entry.dropin], positional)
