"""Sound alone, as a .wav file."""

import os
import wave
from pathlib import Path

import numpy as np

from ..errors import WriterError
from ..files.atomic import PartFile, writing_to
from .sound import CHANNELS, Sound, each_chunk, find_sample_rate

_SAMPLE_BYTES, _LARGEST = 2, 2**15 - 1
_MAX_BYTES = 2**32 - 2**10  # of a .wav file


def write_wav(path: str | os.PathLike, chunks: Sound, *, sample_rate: int | None = None, overwrite: bool = True) -> int:
    """Write chunks of sound as they come, with 16 bits, to a file that appears when it is whole.

    Returns the number of samples. `sample_rate` is that of the chunks if it is None. Errors are `WriterError`s and
    those of the chunks; they leave no file.
    """
    name = os.fspath(path)
    rate = find_sample_rate(name, chunks, sample_rate)
    part = PartFile(Path(path), overwrite=overwrite)
    count = 0
    try:
        with writing_to(name), part.path.open("r+b") as file, wave.open(file, "wb") as output:
            output.setparams((CHANNELS, _SAMPLE_BYTES, rate, 0, "NONE", ""))
            output.writeframes(b"")
            file.flush()  # while a chunk is computed, the app may fork, and a process writes its buffer when it ends
            for samples in each_chunk(name, chunks):
                count += len(samples)
                if count * CHANNELS * _SAMPLE_BYTES > _MAX_BYTES:
                    raise WriterError(f"{name}: a .wav file has at most 4 GB; write shorter sound.")
                levels = np.rint(np.clip(samples, -1, 1) * _LARGEST).astype("<i2")
                output.writeframes(levels.tobytes())
                file.flush()
            if not count:
                raise WriterError(f"{name}: the sound has no samples.")
        part.complete()
    finally:
        part.discard()
    return count
