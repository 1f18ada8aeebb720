"""ffmpeg's arguments for audio codecs, and the warnings of audio files."""

import os
from fractions import Fraction

from ..codec_table import AUDIO_CODECS, AudioCodec
from ..errors import WriterError, option, quote, suggest, warn
from ..files import InputFiles
from .ffmpeg import check_encoder, input_arguments, listing, read_times
from .sink import SinkOptions
from .sound import CHANNELS, SOUND_INPUT, find_sample_rate
from .sound_files import FILL_GAPS, SoundFormat, find_sound

#: Seconds of a file's sound that are kept behind the end of the video. A small file may have days of silence.
MAX_REST = 3600
_MAX_FRAMES = 2**20  # more than any video has that is decoded
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
    others = {key: each.encoder for key, each in AUDIO_CODECS.items() if ending in each.endings}
    check_encoder(name, codec.encoder, "which stores its sound", others)
    if not isinstance(options.audio, (str, os.PathLike)):
        rate = find_sample_rate(name, options.audio, options.sample_rate)
        # The format is known, so that ffmpeg need not wait for more samples to find it.
        format_ = ["-f", "f32le", "-ar", str(rate), "-ac", str(CHANNELS), "-probesize", "32"]
        return [*format_, "-i", SOUND_INPUT], [], [*output, *_encode(codec, rate, CHANNELS)]
    InputFiles([options.audio]).check_output(name)
    if options.shortest and num_frames is None:
        raise WriterError(f"{name}: shortest needs the number of frames to come; add num_frames.")
    video = (_MAX_FRAMES if num_frames is None else num_frames) / fps
    seconds = video if options.shortest else None
    source, shift = _find_file(options.audio)
    end = None if seconds is None else round(seconds * source.sample_rate)
    output += [*_filters(codec, end), *_encode(codec, source.sample_rate, source.channels, bits=source.bits)]
    before = [] if options.fragmented else list(_END_WITH_READER)
    # What is read ends near there. Not ffmpeg's -shortest, which may cut the video, and cuts the audio late.
    limit = ["-t", f"{float(video + (0 if options.shortest else MAX_REST)):.6f}"]
    return [*limit, *_file_input(options.audio, shift)], before, output


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


def _encode(codec: AudioCodec, rate: int, channels: int, *, bits: int = 32) -> list[str]:
    """The arguments of the encoder, for sound of so many bits per sample."""
    encoder = codec.wide_encoder if bits > 16 and codec.wide_encoder is not None else codec.encoder
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


def warn_of_audio(name: str, ending: str, num_frames: int, fps: Fraction, options: SinkOptions) -> None:
    """Warn of a lossless audio file that the default codec does not store as such, and of one of another length."""
    if not isinstance(options.audio, (str, os.PathLike)):
        return
    codec, (source, shift) = find_audio_codec(name, ending, options), _find_file(options.audio)
    lossless = [key for key, each in AUDIO_CODECS.items() if ending in each.endings and each.kilobits is None]
    if lossless and options.audio_codec is None and codec.kilobits is not None and source.is_lossless:
        way = option(f'audio_codec="{lossless[0]}"', f"--audio-codec {lossless[0]}")
        warn(f"{name}: its sound is stored as {codec.encoder.upper()}, which is lossy; {way} keeps it lossless.")
    if lengths := _describe_lengths(num_frames, fps, options, options.audio, shift):
        warn(f"{name}: {lengths}.")


def _find_file(audio: str | os.PathLike) -> tuple[SoundFormat, Fraction]:
    """As `find_sound`. A file without sound is an error."""
    found = find_sound(audio, WriterError)
    if found is None:
        raise WriterError(f"{audio}: contains no audio stream.")
    return found


def _describe_lengths(
    num_frames: int, fps: Fraction, options: SinkOptions, audio: str | os.PathLike, shift: Fraction
) -> str:
    """What is said of audio that is not as long as a video of so many frames; "" if nothing."""
    video, (_, last) = num_frames / fps, read_times([*_file_input(audio, shift), "-map", "0:a:0"])
    end = last or Fraction(0)  # without a packet
    if abs(end - video) <= 1 / fps or (end > video and options.shortest):
        return ""
    lengths = f"the video takes {float(video):.2f} s and its audio {float(end):.2f} s"
    if end > video:
        kept = f", of which {MAX_REST} s after the video are kept" if end > video + MAX_REST else ""
        return f"{lengths}{kept}; {option('shortest=True', '--shortest')} cuts the audio"
    return f"{lengths}, and the rest is silent"
