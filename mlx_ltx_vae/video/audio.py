"""The sound of outputs: its codecs, the track beside the frames of a video, the pipe to ffmpeg, and .wav files."""

import io
import os
import sys
import wave
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..codec_table import AUDIO_CODECS, AudioCodec
from ..errors import WriterError, option, quote, suggest, takes_options, warn
from ..files import PartFile, check_distinct, writing_to
from ..options import OutputOptions
from ..process import close_in_children
from ..units import expand_path
from .ffmpeg import check_encoder, input_arguments, listing, make_pipe, read_times
from .sink import FrameQueue, write_all
from .sound_files import FILL_GAPS, SAMPLE_RATES, SoundFormat, channel_places, find_sound

#: The channels of all sound here.
CHANNELS = 2
#: Stands for the pipe among ffmpeg's arguments.
SOUND_INPUT = "<the sound>"
#: Seconds by which sound may end before the picture, or after it: less than two latents.
SLACK = Fraction(6, 100)
#: Seconds of a file's sound that are kept after the end of the video. A small file may have days of silence.
MAX_REST = 3600
_MAX_EXCESS = 10  # seconds after the picture that are counted, for the error: an iterator may have no end
_MAX_EMPTY = 10_000  # chunks without samples in a row
_SAMPLE_BYTES = 3  # of a .wav file
_SCALE = 2**23  # as ffmpeg's: 1 is one step above the largest level
_MAX_WAV_BYTES = 2**32 - 2**10  # of a .wav file
_WIDEST = ("7.1",)  # layout that all players know
_LEAD = 1  # seconds of sound that are given to ffmpeg ahead of the picture
_MAX_FRAMES = 2**20  # more than any video has that is decoded
# A second output: a line for each packet of the audio, in the pipe that this process reads. ffmpeg ends when it cannot
# write them. Otherwise, if this process is killed, it goes on to the end of the audio, which may be hours long.
_END_WITH_READER = ("-map", "1:a:0", "-c", "copy", "-flush_packets", "1", "-f", "framecrc", "pipe:1")

#: Arrays (2, n) or (1, 2, n), or chunks of an `AudioStream`; or one such array.
Sound = Iterable[Any]


def find_sample_rate(name: str, audio: object, sample_rate: int | None) -> int:
    """Return the rate of the options, or the rate of an `AudioStream`."""
    rate = getattr(audio, "sample_rate", None) if sample_rate is None else sample_rate
    if isinstance(rate, bool) or not isinstance(rate, int) or rate not in SAMPLE_RATES:
        limits = f"a whole number from {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
        raise WriterError(f"{name}: sound needs its sample rate as {limits}, not {rate!r}; add sample_rate=.")
    return rate


def find_audio_codec(name: str, ending: str, options: OutputOptions) -> AudioCodec:
    """Return the audio codec that the options name, or the default."""
    key = (options.audio_codec or ("opus" if ending == ".webm" else "aac")).lower()
    if key not in AUDIO_CODECS:
        what = f"the audio codec {quote(options.audio_codec)} is not supported{suggest(key, AUDIO_CODECS)}"
        raise WriterError(f"{name}: {what}; use one of {', '.join(AUDIO_CODECS)}.")
    codec = AUDIO_CODECS[key]
    if ending not in codec.endings:
        allowed = " or ".join(key for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings)
        raise WriterError(
            f"{name}: {key} sound is not supported in {ending}; use {allowed}, or a file that ends in "
            f"{' or '.join(codec.endings)}."
        )
    if options.audio_codec is not None and options.audio is None:
        goes = option("an audio codec goes with audio; add audio", "--audio-codec goes with sound; add --audio")
        raise WriterError(f"{name}: {goes}, or leave it out.")
    return codec


def audio_arguments(
    name: str, ending: str, fps: Fraction, options: OutputOptions, num_frames: int | None
) -> tuple[list[str], list[str], list[str]]:
    """ffmpeg's arguments for the audio input, and the arguments before and after the video stream's."""
    codec, output = find_audio_codec(name, ending, options), ["-map", "1:a:0"]
    alternatives = {
        key: audio_codec.encoder for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings
    }
    check_encoder(name, codec.encoder, "which stores its sound", alternatives)
    if not isinstance(options.audio, (str, os.PathLike)):
        rate = find_sample_rate(name, options.audio, options.sample_rate)
        # The format is known, so that ffmpeg need not wait for more samples to find it.
        format_ = ["-f", "f32le", "-ar", str(rate), "-ac", str(CHANNELS), "-probesize", "32"]
        return [*format_, "-i", SOUND_INPUT], [], [*output, *_encode(codec, rate, CHANNELS)]
    check_distinct([name], [options.audio])
    if options.shortest and num_frames is None:
        raise WriterError(f"{name}: shortest needs the number of frames to come; add num_frames.")
    video = (_MAX_FRAMES if num_frames is None else num_frames) / fps
    seconds = video if options.shortest else None
    source, shift = _find_file(options.audio)
    end = None if seconds is None else round(seconds * source.sample_rate)
    layout, _ = choose_layout(codec, source.layout)
    channels = len(channel_places(layout)) or source.channels
    output += [*_filters(layout, end), *_encode(codec, source.sample_rate, channels, bits=source.bits)]
    before = [] if options.fragmented else list(_END_WITH_READER)
    # What is read ends near there. Not ffmpeg's -shortest, which may cut the video, and cuts the audio late.
    limit = ["-t", f"{float(video + (0 if options.shortest else MAX_REST)):.6f}"]
    return [*limit, *_file_input(options.audio, shift)], before, output


def _file_input(audio: str | os.PathLike, shift: Fraction) -> list[str]:
    return ["-itsoffset", f"{float(shift):.6f}", *input_arguments(audio)]


def _filters(layout: str, end: int | None = None) -> list[str]:
    """Return the filters of a file's sound, which is stored in this layout and ends after this number of samples."""
    filters = [FILL_GAPS]
    if end is not None:
        filters.append(f"atrim=end_sample={end}")
    if " " not in layout:  # as in "5 channels", which needs no other one
        filters.append(f"aformat=channel_layouts={layout}")
    return ["-af", ",".join(filters)]


def choose_layout(codec: AudioCodec, layout: str) -> tuple[str, bool]:
    """Return the layout in which a codec stores sound of a layout, and whether that has each of its channels.

    By itself ffmpeg would mix or drop channels that have a place: 7.1 becomes 6.1 with ALAC. It moves side channels to
    the back and vice versa, where nothing else is there. Places without a channel are silent.
    """
    places = set(channel_places(layout))
    is_possible = codec.max_channels is None or len(places) <= codec.max_channels
    if not places or layout in codec.layouts or (not codec.layouts and is_possible):
        return layout, True
    variants = [places]
    for start, end in ("SB", "BS"):
        moves = {f"{start}{side}": f"{end}{side}" for side in "LR"}
        if places.isdisjoint(moves.values()):
            variants.append({moves.get(place, place) for place in places})

    def count_stored(stored: str) -> int:
        return max(len(variant.intersection(channel_places(stored))) for variant in variants)

    best = min(codec.layouts or _WIDEST, key=lambda stored: (-count_stored(stored), len(channel_places(stored))))
    return best, count_stored(best) == len(places)


def _encode(codec: AudioCodec, rate: int, channels: int, *, bits: int = 32) -> list[str]:
    """Return the arguments of the encoder, for sound with this number of bits per sample."""
    encoder = codec.wide_encoder if bits > 16 and codec.wide_encoder is not None else codec.encoder
    arguments = ["-c:a", encoder]
    if codec.kilobits is not None:
        arguments += ["-b:a", f"{codec.kilobits * max(2, channels)}k"]
    stored = _stored_rate(encoder, rate)
    return arguments if stored == rate else [*arguments, "-ar", str(stored)]


def _stored_rate(encoder: str, rate: int) -> int:
    """Return the least of the rates of an encoder that loses nothing, or the highest. ffmpeg takes the nearest."""
    rows = listing("-h", f"encoder={encoder}", error=WriterError)
    words = next((row[3:] for row in rows if row[:3] == ["Supported", "sample", "rates:"]), [])
    rates = sorted(map(int, words)) or [rate]
    return next((stored_rate for stored_rate in rates if stored_rate >= rate), rates[-1])


def warn_of_audio(name: str, ending: str, num_frames: int, fps: Fraction, options: OutputOptions) -> None:
    """Warn of a file's sound that is stored with loss or fewer channels, and of sound of another length."""
    if not isinstance(options.audio, (str, os.PathLike)):
        return
    codec, (source, shift) = find_audio_codec(name, ending, options), _find_file(options.audio)
    codecs = {key: audio_codec for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings}
    lossless = [key for key, audio_codec in codecs.items() if audio_codec.kilobits is None]
    is_default = options.audio_codec is None and takes_options()
    if lossless and is_default and codec.kilobits is not None and source.is_lossless:
        way = option(f'audio_codec="{lossless[0]}"', f"--audio-codec {lossless[0]}")
        warn(f"{name}: its sound is stored as {codec.encoder.upper()}, which is lossy; {way} keeps it lossless.")
    layout, is_kept = choose_layout(codec, source.layout)
    if not is_kept:
        keeping = [key for key, audio_codec in codecs.items() if choose_layout(audio_codec, source.layout)[1]]
        keeping.sort(key=lambda key: (key not in lossless, key == "pcm"))  # whose channels have no places in Matroska
        ways = [option(f'audio_codec="{key}"', f"--audio-codec {key}") for key in keeping[:1]]
        advice = f"; {ways[0]} keeps all channels" if ways and takes_options() else ""
        key = next(key for key, audio_codec in codecs.items() if audio_codec is codec)
        warn(f"{name}: its sound is {source.layout}, which becomes {layout} with {key}{advice}.")
    video, (_, last) = num_frames / fps, read_times([*_file_input(options.audio, shift), "-map", "0:a:0"])
    end = last or Fraction(0)  # without a packet
    if abs(end - video) <= 1 / fps or (end > video and options.shortest):
        return
    rest = ", and the rest is silent"
    if end > video:
        kept = f"; {MAX_REST} s after the video are kept" if end > video + MAX_REST else ""
        rest = f"{kept}; {option('shortest=True', '--shortest')} cuts the audio" if takes_options() else kept
    warn(f"{name}: the video takes {float(video):.2f} s and its audio {float(end):.2f} s{rest}.")


def _find_file(audio: str | os.PathLike) -> tuple[SoundFormat, Fraction]:
    """`find_sound`, but a file without sound is an error."""
    sound_file = find_sound(audio, WriterError)
    if sound_file is None:
        raise WriterError(f"{audio}: contains no audio stream.")
    return sound_file


def each_chunk(name: str, sound: Sound) -> Iterator[np.ndarray]:
    """(n, 2) float32 of each chunk that has samples. Raises a `WriterError` for anything but sound."""
    num_empty = 0
    for chunk in [sound] if hasattr(sound, "shape") else sound:
        waveform = getattr(chunk, "waveform", chunk)
        try:
            samples = np.asarray(waveform)
        except (TypeError, ValueError, RuntimeError):  # such as bfloat16, which numpy does not have
            samples = np.empty(0, object)
        if samples.ndim == 3 and len(samples) == 1:
            samples = samples[0]
        if samples.dtype.kind != "f" or samples.ndim != 2 or samples.shape[0] != CHANNELS:
            kind = f"{getattr(waveform, 'dtype', type(waveform).__name__)} {tuple(getattr(waveform, 'shape', ()))}"
            raise WriterError(f"{name}: takes sound (2, n) of one video, floats in [-1, 1], not {kind}.")
        if not np.isfinite(samples).all():
            raise WriterError(f"{name}: the sound has values that are NaN or infinite.")
        num_empty = 0 if samples.size else num_empty + 1
        if num_empty > _MAX_EMPTY:
            raise WriterError(f"{name}: the sound goes on without samples; end its iterator, or give chunks of some.")
        if samples.size:
            yield np.ascontiguousarray(samples.T, np.float32)


class SoundTrack:
    """Takes chunks of sound as they are needed, and makes them as long as the picture.

    Sound that ends a little before the picture is padded with silence; sound that ends a little after it is cut.
    With `cuts`, sound of any greater length is cut too.
    """

    def __init__(
        self, name: str, chunks: Sound, sample_rate: int, fps: Fraction, num_frames: int | None, *, cuts: bool
    ) -> None:
        self._name, self._rate, self._fps, self._cuts = name, sample_rate, fps, cuts
        self._sound = chunks
        self._chunks = each_chunk(name, chunks)
        self._expected = getattr(chunks, "num_samples", None)
        self._num_frames = num_frames
        self._samples = 0  # that the chunks had so far
        self._num_returned = 0
        self._rest = np.empty((0, CHANNELS), np.float32)  # not returned yet
        if num_frames is not None and self._expected is not None:
            check_sound_length(name, Fraction(self._expected, sample_rate), num_frames / fps, cuts=cuts)

    def until(self, num_frames: int) -> Iterator[np.ndarray]:
        """Return the next samples (n, 2) float32, at least up to the end of this many frames."""
        end = self._count(num_frames)
        if self._num_frames is not None:
            end = min(end + _LEAD * self._rate, self._count(self._num_frames))
        return self._take(end)

    def finish(self, num_frames: int) -> Iterator[np.ndarray]:
        """Yield the remaining samples of this many frames. Raises a `WriterError` if the lengths do not match."""
        end = self._count(num_frames)
        yield from self._take(end)
        video, is_whole = num_frames / self._fps, True
        if self._num_returned == end and self._expected is not None:
            self._samples = self._expected
        elif not self._cuts:
            is_whole = self._count_rest(video)
        check_sound_length(self._name, Fraction(self._samples, self._rate), video, cuts=self._cuts, is_whole=is_whole)
        if self._num_returned < end:
            yield np.zeros((end - self._num_returned, CHANNELS), np.float32)

    def close(self) -> None:
        """End the stream of the chunks, if they are one."""
        close = getattr(self._sound, "close", None)
        if close is not None:
            close()

    def _count(self, num_frames: int) -> int:
        """Return the samples of this many frames."""
        return round(num_frames * self._rate / self._fps)

    def _count_rest(self, video: Fraction) -> bool:
        """Count the remaining samples, up to too many for this many seconds. Return whether all were counted."""
        for samples in self._chunks:
            self._samples += len(samples)
            if self._samples > (video + _MAX_EXCESS) * self._rate:
                return False
        return True

    def _take(self, end: int) -> Iterator[np.ndarray]:
        while self._num_returned < end:
            if not len(self._rest):
                self._rest = next(self._chunks, self._rest)
                self._samples += len(self._rest)
            if not len(self._rest):  # the end: no chunk is empty
                return
            part, self._rest = np.split(self._rest, [end - self._num_returned])
            self._num_returned += len(part)
            yield part


def check_sound_length(name: str, sound: Fraction, video: Fraction, *, cuts: bool, is_whole: bool = True) -> None:
    """Raise a `WriterError` if sound is not as long as its video, both in seconds. `cuts` allows it to be longer.

    Sound that is not whole may be longer than these seconds.
    """
    if sound < video - SLACK or (sound > video + SLACK and not cuts):
        remedy = f"give the sound of this video, or correct the frame rate ({option('fps=', '--fps')})"
        remedy += f"; {option('shortest=True', '--shortest')} cuts longer sound" if sound > video else ""
        lengths = f"the video takes {float(video):.2f} s and its sound {'' if is_whole else 'at least '}"
        raise WriterError(f"{name}: {lengths}{float(sound):.2f} s; {remedy}.")


class SoundPipe:
    """Pipe that ffmpeg reads. A thread writes, so that neither the picture nor the sound waits for the other."""

    def __init__(self) -> None:
        read_end, write_end = make_pipe(WriterError)
        self.read_end = io.FileIO(read_end)
        write = io.FileIO(write_end, "w")
        close_in_children(write)  # where it would keep ffmpeg waiting for more
        self._queue = FrameQueue(partial(_send, write), max_frames=sys.maxsize, at_end=write.close)
        weakref.finalize(self, self._queue.arrays.put, None)  # as in `Sink`

    def start(self) -> None:
        """Start to write, once ffmpeg has the other end, which is closed here."""
        self.read_end.close()
        self._queue.start()

    def put(self, samples: np.ndarray) -> None:
        """Queue samples (n, 2), C-contiguous."""
        self._queue.put(samples)

    def end(self) -> None:
        """End the sound after what is queued, without waiting."""
        self._queue.end()

    def cancel(self) -> None:
        """Drop what is queued, and end the thread. ffmpeg must have ended."""
        self.read_end.close()
        self._queue.cancel()


def _send(pipe: io.FileIO, samples: np.ndarray) -> None:
    with suppress(BrokenPipeError):  # ffmpeg has failed, which is found where frames are written
        write_all(pipe, samples)


def write_wav(
    path: str | os.PathLike, chunks: Sound, *, sample_rate: int | None = None, overwrite: bool = True
) -> tuple[int, Path | None]:
    """Write chunks of sound as they come, with 24 bits, to a file that appears when it is whole.

    Returns the number of samples, and what `PartFile.complete` does. A `sample_rate` of None is the chunks' rate.
    Samples beyond 1 are clipped. Raises `WriterError`s and the errors of the chunks; they leave no file.
    """
    name = expand_path(path, WriterError)
    rate = find_sample_rate(name, chunks, sample_rate)
    part = PartFile(Path(name), overwrite=overwrite)
    count = 0
    try:
        with writing_to(name), part.path.open("r+b") as file, wave.open(file, "wb") as output:
            output.setparams((CHANNELS, _SAMPLE_BYTES, rate, 0, "NONE", ""))
            output.writeframes(b"")
            file.flush()  # while a chunk is computed, the app may fork, and a process writes its buffer when it ends
            for samples in each_chunk(name, chunks):
                count += len(samples)
                if count * CHANNELS * _SAMPLE_BYTES > _MAX_WAV_BYTES:
                    raise WriterError(f"{name}: a .wav file has at most 4 GB; write shorter sound.")
                levels = np.minimum(np.rint(np.clip(samples, -1, 1) * _SCALE), _SCALE - 1).astype("<i4")
                output.writeframes(levels.view(np.uint8).reshape(-1, 4)[:, :_SAMPLE_BYTES].tobytes())
                file.flush()
            if not count:
                raise WriterError(f"{name}: the sound has no samples.")
        moved = part.complete()
    finally:
        part.discard()
    return count, moved
