"""Sound alone, as a .wav file of 24 bits."""

import os
import wave
from pathlib import Path

import numpy as np

from ..errors import WriterError
from ..files import PartFile, writing_to
from .sound import CHANNELS, Sound, clipping, each_chunk, find_peak, find_sample_rate, warn_of_sound

_SAMPLE_BYTES = 3
_SCALE = 2**23  # as ffmpeg's: 1 is one step above the largest level
_MAX_BYTES = 2**32 - 2**10  # of a .wav file


def write_wav(path: str | os.PathLike, chunks: Sound, *, sample_rate: int | None = None, overwrite: bool = True) -> int:
    """Write chunks of sound as they come, with 24 bits, to a file that appears when it is whole.

    Returns the number of samples. `sample_rate` is that of the chunks if it is None. Sound that is clipped is a
    warning. Errors are `WriterError`s and those of the chunks; they leave no file.
    """
    name = os.fspath(path)
    rate = find_sample_rate(name, chunks, sample_rate)
    part = PartFile(Path(path), overwrite=overwrite)
    count, peak = 0, 0.0
    try:
        with writing_to(name), part.path.open("r+b") as file, wave.open(file, "wb") as output:
            output.setparams((CHANNELS, _SAMPLE_BYTES, rate, 0, "NONE", ""))
            output.writeframes(b"")
            file.flush()  # while a chunk is computed, the app may fork, and a process writes its buffer when it ends
            for samples in each_chunk(name, chunks):
                count += len(samples)
                if count * CHANNELS * _SAMPLE_BYTES > _MAX_BYTES:
                    raise WriterError(f"{name}: a .wav file has at most 4 GB; write shorter sound.")
                peak = max(peak, find_peak(samples))
                levels = np.minimum(np.rint(np.clip(samples, -1, 1) * _SCALE), _SCALE - 1).astype("<i4")
                output.writeframes(levels.view(np.uint8).reshape(-1, 4)[:, :_SAMPLE_BYTES].tobytes())
                file.flush()
            if not count:
                raise WriterError(f"{name}: the sound has no samples.")
        part.complete()
        warn_of_sound(name, clipping(peak))
    finally:
        part.discard()
    return count
