"""ffmpeg's arguments for audio codecs, and what is said of sound that they change."""

import os
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from ..codec_table import AUDIO_CODECS, AudioCodec
from ..errors import WriterError, option, quote, suggest
from ..files import InputFiles
from .ffmpeg import input_arguments, listing, read_times, run
from .sink import SinkOptions
from .sound import CHANNELS, SOUND_INPUT, clipping, find_sample_rate, warn_of_sound
from .sound_files import FILL_GAPS, ProbedSound, probe_sound, read_peak

#: Seconds of a file's sound that are kept behind the end of the video. A small file may have days of silence.
MAX_REST = 3600
_MAX_FRAMES = 2**20  # more than any video has that is decoded
_MAX_BITS = 24  # that a lossless codec stores of a sample
# A second output: a line for each packet of the audio, in the pipe that this process reads. ffmpeg ends when it cannot
# write them. Otherwise, if this process is killed, it goes on to the end of the audio, which may be hours long.
_END_WITH_READER = ("-map", "1:a:0", "-c", "copy", "-flush_packets", "1", "-f", "framecrc", "pipe:1")


def find_audio_codec(name: str, ending: str, options: SinkOptions) -> AudioCodec:
    """The audio codec that the options name, or the default."""
    key = (options.audio_codec or ("opus" if ending == ".webm" else "aac")).lower()
    if key not in AUDIO_CODECS:
        what = f"the audio codec {quote(options.audio_codec)} is not supported{suggest(key, AUDIO_CODECS)}"
        raise WriterError(f"{name}: {what}; use one of {', '.join(AUDIO_CODECS)}.")
    codec = AUDIO_CODECS[key]
    if ending not in codec.endings:
        allowed = " or ".join(each for each, known in AUDIO_CODECS.items() if ending in known.endings)
        raise WriterError(
            f"{name}: {key} sound is not supported in {ending}; use {allowed}, or a file that ends in "
            f"{' or '.join(codec.endings)}."
        )
    if options.audio_codec is not None and options.audio is None:
        goes = option("an audio codec goes with audio; add audio", "--audio-codec goes with sound; add --audio")
        raise WriterError(f"{name}: {goes}, or leave it out.")
    return codec


def audio_arguments(
    name: str, ending: str, fps: Fraction, options: SinkOptions, num_frames: int | None
) -> tuple[list[str], list[str], list[str]]:
    """ffmpeg's arguments of the audio input, and those in front of the ones of the video's stream and behind them."""
    codec, output = find_audio_codec(name, ending, options), ["-map", "1:a:0"]
    if not isinstance(options.audio, (str, os.PathLike)):
        rate = find_sample_rate(name, options.audio, options.sample_rate)
        # The format is known, so that ffmpeg need not wait for more samples to find it.
        format_ = ["-f", "f32le", "-ar", str(rate), "-ac", str(CHANNELS), "-probesize", "32"]
        encoder = _sound_encoder(name, codec, rate)
        return [*format_, "-i", SOUND_INPUT], [], [*output, *_encode(codec, encoder, rate, CHANNELS)]
    InputFiles([options.audio]).check_output(name)
    if options.shortest and num_frames is None:
        raise WriterError(f"{name}: shortest needs the number of frames to come; add num_frames.")
    video = (_MAX_FRAMES if num_frames is None else num_frames) / fps
    seconds = video if options.shortest else None
    encoder, probed = _probe_file(name, codec, options.audio)
    source = probed.source
    end = None if seconds is None else round(seconds * source.sample_rate)
    output += [*_filters(codec, end), *_encode(codec, encoder, source.sample_rate, source.channels, bits=source.bits)]
    before = [] if options.fragmented else list(_END_WITH_READER)
    # What is read ends near there. Not ffmpeg's -shortest, which may cut the video, and cuts the audio late.
    limit = ["-t", f"{float(video + (0 if options.shortest else MAX_REST)):.6f}"]
    return [*limit, *_file_input(options.audio, probed.shift)], before, output


def _file_input(audio: str | os.PathLike, shift: Fraction) -> list[str]:
    return ["-itsoffset", f"{float(shift):.6f}", *input_arguments(audio)]


def _filters(codec: AudioCodec, end: int | None = None) -> list[str]:
    """The filters of a file's sound, which ends after so many samples."""
    filters = [FILL_GAPS]
    if end is not None:
        filters.append(f"atrim=end_sample={end}")
    if codec.layouts:
        filters.append(f"aformat=channel_layouts={'|'.join(codec.layouts)}")
    return ["-af", ",".join(filters)]


def _encode(codec: AudioCodec, encoder: str, rate: int, channels: int, *, bits: int = 32) -> list[str]:
    """The arguments of an encoder, for sound of so many bits per sample."""
    if bits > 16 and codec.wide_encoder is not None:
        encoder = codec.wide_encoder
    arguments = ["-c:a", encoder]
    if codec.kilobits is not None:
        arguments += ["-b:a", f"{codec.kilobits * max(2, channels)}k"]
    stored = _stored_rate(encoder, rate)
    return arguments if stored == rate else [*arguments, "-ar", str(stored)]


def _stored_rate(encoder: str, rate: int) -> int:
    """The least of the rates of an encoder that loses nothing, or the highest. ffmpeg takes the nearest."""
    rows = listing("-h", f"encoder={encoder}", error=WriterError)
    words = next((row[3:] for row in rows if row[:3] == ["Supported", "sample", "rates:"]), [])
    known = sorted(map(int, words)) or [rate]
    return next((each for each in known if each >= rate), known[-1])


def _encoders(name: str, codec: AudioCodec) -> list[str]:
    """Those of a codec that this ffmpeg has."""
    known = {row[1] for row in listing("-encoders", error=WriterError) if len(row) > 1}
    found = [encoder for encoder in codec.encoders if encoder in known]
    if not found:
        raise WriterError(f"{name}: this ffmpeg was built without {codec.encoders[-1]}; use another audio codec.")
    return found


def _sound_encoder(name: str, codec: AudioCodec, rate: int) -> str:
    *preferred, last = _encoders(name, codec)
    return next((each for each in preferred if _works(tuple(_encode(codec, each, rate, CHANNELS)), rate)), last)


@lru_cache
def _works(encode: tuple[str, ...], rate: int) -> bool:
    silence = ["-f", "lavfi", "-i", f"anullsrc=r={rate}:cl=stereo:d=0.1"]
    return not run("silence", [*silence, *encode, "-f", "null"], WriterError).code


def _probe_file(name: str, codec: AudioCodec, audio: str | os.PathLike) -> tuple[str, ProbedSound]:
    """The encoder for an audio file, and what both are."""
    *preferred, last = _encoders(name, codec)
    for encoder in preferred:
        with suppress(WriterError):  # which the last one raises again, if it is the file's
            return encoder, probe_sound(audio, [*_filters(codec), "-c:a", encoder])
    return last, probe_sound(audio, [*_filters(codec), "-c:a", last])


def warn_of_changes(
    name: str, ending: str, num_frames: int, fps: Fraction, options: SinkOptions, *, peak: float = 0.0
) -> None:
    """Warn, in one sentence, of all that is heard of the audio otherwise than it was given.

    `peak` is the largest sample of audio that is computed.
    """
    if options.audio is None:
        return
    codec, lengths = find_audio_codec(name, ending, options), ""
    if isinstance(options.audio, (str, os.PathLike)):
        encoder, probed = _probe_file(name, codec, options.audio)
        lengths = _describe_lengths(num_frames, fps, options, options.audio, probed.shift)
        rate, changes = probed.source.sample_rate, _file_changes(ending, codec, options.audio, probed)
    else:
        rate = find_sample_rate(name, options.audio, options.sample_rate)
        encoder, changes = _sound_encoder(name, codec, rate), clipping(peak)
    stored = _stored_rate(encoder, rate)
    if stored != rate:
        changes = [f"resampled from {rate} to {stored} Hz", *changes]
    warn_of_sound(name, changes, lengths)


def _file_changes(ending: str, codec: AudioCodec, audio: str | os.PathLike, probed: ProbedSound) -> list[str]:
    source, changes = probed.source, []
    if source.is_remixed(probed.stored_layout):
        keep = [
            key for key, each in AUDIO_CODECS.items() if ending in each.endings and each.max_channels >= source.channels
        ]
        hint = f" (use {' or '.join(keep)} to keep its channels)" if keep else ""
        changes.append(f"remixed from {source.layout} to {probed.stored_layout}{hint}")
    if codec.kilobits is None and source.is_lossless and source.bits > _MAX_BITS:
        changes.append(f"stored with {_MAX_BITS} bits in place of {source.bits}")
    if codec.kilobits is None and source.is_float:
        changes += clipping(read_peak(audio))
    return changes


def _describe_lengths(
    num_frames: int, fps: Fraction, options: SinkOptions, audio: str | os.PathLike, shift: Fraction
) -> str:
    """What is said of audio that is not as long as a video of so many frames; "" if nothing."""
    video, (_, end) = num_frames / fps, read_times([*_file_input(audio, shift), "-map", "0:a:0"])
    if end is None or abs(end - video) <= 1 / fps or (end > video and options.shortest):
        return ""
    lengths = f"the video takes {float(video):.2f} s and its audio {float(end):.2f} s"
    if end > video:
        kept = f", of which {MAX_REST} s after the video are kept" if end > video + MAX_REST else ""
        return f"{lengths}{kept}; {option('shortest=True', '--shortest')} cuts the audio"
    return f"{lengths}, and the rest is silent"
