"""Choose the codecs and the container of a video, and ffmpeg's arguments for them. `codec_table` has the codecs."""

import os
import re
from fractions import Fraction

from ..codec_table import AUDIO_CODECS, CODECS, CONTAINERS, ENCODER_PRESETS, AudioCodec, Codec
from ..errors import WriterError, option, quote, suggest, takes_options, warn
from ..files import check_distinct
from ..options import OutputOptions
from ..shapes import Size, format_size
from .audio import AUDIO_INPUT, CHANNELS, FILL_GAPS, AudioFormat, channel_places, find_audio, find_sample_rate
from .ffmpeg import check_encoder, input_arguments, listing, read_times
from .filters import check_content_light, check_zscale, conversion, file_format, tags
from .metadata import METADATA_INPUT, metadata_arguments

_SUBSAMPLED = re.compile(r"4[124][0-2]p|nv")  # those with chroma planes of half the size
#: The encoders of pictures with several frames, by ending.
ANIMATIONS = {".gif": "gif", ".webp": "libwebp", ".avif": "libsvtav1"}
_MP4_ENDINGS = (".mp4", ".mov")
_OTHER_ENCODERS = {"prores_ks": "prores", "prores_aw": "prores", "libaom-av1": "av1", "librav1e": "av1"}
_H264_SITES = {"left": 0, "center": 1}
#: Seconds of a file's audio that are kept after the end of the video. A small file may have days of silence.
MAX_REST = 3600
_WIDEST = ("7.1",)  # layout that all players know
_MAX_FRAMES = 2**20  # more than any video has that is decoded
# A second output: a line for each packet of the audio, in the pipe that this process reads. ffmpeg ends when it cannot
# write them. Otherwise, if this process is killed, it goes on to the end of the audio, which may be hours long.
_END_WITH_READER = ("-map", "1:a:0", "-c", "copy", "-flush_packets", "1", "-f", "framecrc", "pipe:1")


def warn_of_depth(name: str, codec: Codec, options: OutputOptions) -> None:
    """Warn of frames with 8 bits per color for a codec that stores 10 in any case."""
    if options.format.bit_depth == 8 and codec.pixel_formats[8] == codec.pixel_formats.get(10):
        way = option("bit_depth=10", "--bit-depth 10")
        warn(f"{name}: its codec stores 10 bits per color, and the frames have 8; add {way} for smoother gradients.")


def find_codec(name: str, ending: str, options: OutputOptions) -> Codec:
    """Return the codec that the options name, in any case, or the default; raise a `WriterError` if they do not fit."""
    for field, kind in {"codec": str, "crf": int, "encoder_preset": str, "pix_fmt": str, "audio_codec": str}.items():
        value = getattr(options, field)
        if value is not None and not isinstance(value, kind):
            raise WriterError(f"{name}: {field} is {quote(value)}; expected {'a name' if kind is str else 'a number'}.")
    _find_audio_codec(name, ending, options)
    if options.shortest and options.audio is None:
        flag, add = option("shortest", "--shortest"), option("audio", "--audio")
        raise WriterError(f"{name}: {flag} ends the audio with the video; add {add}, or leave it out.")
    container = CONTAINERS[ending]
    key = (options.codec or (container.hdr_codec if options.format.is_hdr else container.codec)).lower()
    other_names = {other: codec_key for codec_key, codec in CODECS.items() for other in codec.other_names}
    key = other_names.get(key, key)
    if key not in CODECS:
        names, encoders = [*CODECS, *other_names], {codec.encoder: codec_key for codec_key, codec in CODECS.items()}
        what = f"the codec {quote(options.codec)} is not supported{suggest(key, names, encoders | _OTHER_ENCODERS)}"
        raise WriterError(f"{name}: {what}; use one of {', '.join(CODECS)}.")
    codec = CODECS[key]
    if ending not in codec.endings:
        raise WriterError(f"{name}: {key} is not supported in {ending}; use {' or '.join(codec.endings)}.")
    if options.crf is not None and codec.crf is None:
        raise WriterError(f"{name}: {codec.encoder} has no crf; leave it out.")
    if options.crf is not None and codec.crf is not None and not 0 <= options.crf <= codec.crf[1]:
        raise WriterError(f"{name}: a crf of {options.crf} is not between 0 and {codec.crf[1]}.")
    if (depth := options.format.bit_depth) not in codec.pixel_formats:
        (other_depth,) = codec.pixel_formats
        way = option(f"bit_depth={other_depth}", f"--bit-depth {other_depth}")
        raise WriterError(
            f"{name}: {key} has {other_depth} bits per color, not {depth}; add {way}, or use another codec."
        )
    if options.encoder_preset is not None and not codec.has_presets:
        with_presets = " or ".join(other for other, entry in CODECS.items() if entry.has_presets)
        raise WriterError(
            f"{name}: {codec.encoder} has no presets; leave out the encoder preset, or use {with_presets}."
        )
    if options.encoder_preset not in (None, *ENCODER_PRESETS):
        preset, presets = quote(options.encoder_preset), ", ".join(ENCODER_PRESETS)
        raise WriterError(f"{name}: the encoder preset {preset} is not known; use one of {presets}.")
    return codec


def _choose_pixel_format(name: str, codec: Codec, size: Size, fps: Fraction, options: OutputOptions) -> str:
    """Choose the pixel format that the options name, or the default for the size.

    Raises a `WriterError` for other ones, and for frames on which the encoder fails, or writes outside its memory.
    """
    if any(side < least for side, least in zip(size, codec.min_size, strict=True)):
        problem = f"frames are {format_size(*size)}, and {codec.encoder} takes {format_size(*codec.min_size)} and more"
        raise WriterError(f"{name}: {problem}; use another codec.")
    if codec.max_fps is not None and fps > codec.max_fps:
        problem = f"{codec.encoder} takes at most {codec.max_fps} frames per second, not {fps}"
        raise WriterError(f"{name}: {problem}; use another codec.")
    is_odd = any(side % 2 for side in size) and codec.odd_pixel_formats is not None
    formats = codec.odd_pixel_formats if is_odd else codec.pixel_formats
    if not formats:
        raise WriterError(f"{name}: {codec.encoder} takes even sizes, not {format_size(*size)}; use another codec.")
    default = formats[options.format.bit_depth]
    if options.pix_fmt is None:
        return default
    odd = (codec.odd_pixel_formats or {}).values()
    pixel_formats = dict.fromkeys([*codec.pixel_formats.values(), *odd, *codec.more_pixel_formats])
    if options.pix_fmt not in pixel_formats:
        problem = f"the pixel format {quote(options.pix_fmt)} is not supported for {codec.encoder}"
        raise WriterError(
            f"{name}: {problem}{suggest(options.pix_fmt, pixel_formats)}; use one of {', '.join(pixel_formats)}."
        )
    if is_odd and _SUBSAMPLED.search(options.pix_fmt):
        problem = f"{options.pix_fmt} has even sizes, not {format_size(*size)}"
        raise WriterError(f"{name}: {problem}; use {default}, or leave the pixel format out.")
    return options.pix_fmt


def video_arguments(
    name: str,
    ending: str,
    size: Size,
    fps: Fraction,
    options: OutputOptions,
    num_frames: int | None,
    codec: Codec | None = None,
) -> list[str]:
    """Return ffmpeg's arguments between the input and the output of a video or an animation.

    `num_frames` is None if it is not known, and `codec` if it was not found yet.
    """
    if ending in ANIMATIONS:
        return _animation_arguments(name, ending, size, fps, options)
    codec = codec or find_codec(name, ending, options)
    key = next(key for key, table_codec in CODECS.items() if table_codec is codec)
    needs = "which only builds for macOS have" if codec.is_mac_only else f"which {key} needs"
    alternatives = {other: entry.encoder for other, entry in CODECS.items() if ending in entry.endings}
    check_encoder(name, codec.encoder, needs, alternatives)
    arguments = _encoder_arguments(name, codec, size, fps, options)
    inputs: list[str] = []
    if options.audio is not None:
        inputs, before, after = _audio_arguments(name, ending, fps, options, num_frames)
        arguments = [*before, *arguments, *after]
    if options.metadata:
        inputs += ["-f", "ffmetadata", "-i", METADATA_INPUT]
        arguments += ["-map_metadata", "1" if options.audio is None else "2", *metadata_arguments(options.metadata)]
    if codec.tag is not None and ending in _MP4_ENDINGS:
        arguments += ["-tag:v", codec.tag]
    return [*inputs, *arguments, *_container_arguments(ending, options)]


def _animation_arguments(name: str, ending: str, size: Size, fps: Fraction, options: OutputOptions) -> list[str]:
    """Return the `video_arguments` of an animation."""
    check_encoder(name, ANIMATIONS[ending], f"which {ending} needs", ANIMATIONS)
    if ending == ".gif":
        # A palette for each frame: a shared one needs all frames first, and bands. Error diffusion would flicker.
        palette = "split[frames][source];[source]palettegen=stats_mode=single:reserve_transparent=0[palette]"
        return ["-vf", f"{palette};[frames][palette]paletteuse=new=1:dither=bayer:bayer_scale=4", "-f", "gif"]
    if ending == ".webp":
        # Not libwebp_anim, which keeps all frames until the end. libwebp converts RGB by itself.
        return ["-c:v", "libwebp", "-quality", "90", "-pix_fmt", "bgra", "-loop", "0", "-f", "webp"]
    return [*_encoder_arguments(name, CODECS["av1"], size, fps, options), "-f", "avif"]


def _encoder_arguments(name: str, codec: Codec, size: Size, fps: Fraction, options: OutputOptions) -> list[str]:
    check_zscale(WriterError)
    check_content_light(options.format)
    stored = file_format(_choose_pixel_format(name, codec, size, fps, options), options.format)
    arguments = ["-map", "0:v:0", "-c:v", codec.encoder, *codec.options]
    if codec.crf is not None:
        default = codec.hdr_crf if options.format.is_hdr and codec.hdr_crf is not None else codec.crf[0]
        arguments += ["-crf", str(default if options.crf is None else options.crf)]
    if options.encoder_preset is not None:
        arguments += ["-preset", options.encoder_preset]
    to_planar = f"format={options.format.planar}"
    arguments += ["-vf", ",".join([to_planar, *conversion(options.format, stored, size), tags(stored)])]
    arguments += ["-chroma_sample_location", stored.site]
    arguments += ["-r", str(fps)]  # ffmpeg takes 120000/1001 for 120 without it
    if codec.encoder == "libx264" and "420" in stored.planar:  # which leaves out what is inferred without it
        arguments += ["-bsf:v", f"h264_metadata=chroma_sample_loc_type={_H264_SITES[stored.site]}"]
    if codec.has_gops:  # a keyframe every two seconds, so that players can jump; more often in what plays at once
        arguments += ["-g", str(max(1, round((1 if options.fragmented else 2) * fps)))]
    if options.fragmented:
        arguments += codec.live_options
    return arguments


def _container_arguments(ending: str, options: OutputOptions) -> list[str]:
    # Equal frames give equal bytes: Matroska and WebM otherwise have random ids.
    arguments = ["-f", CONTAINERS[ending].format, "-fflags", "+bitexact"]
    if ending not in _MP4_ENDINGS:
        return arguments
    if options.fragmented:
        # Fragments of half a second, and each leaves ffmpeg at once. The header (moov) is written with the first one
        # (delay_moov), when ffmpeg knows the delay of the audio encoder, which would otherwise shift the video.
        flags = "+empty_moov+default_base_moof+frag_keyframe+delay_moov"
        arguments += ["-frag_duration", "500000", "-flush_packets", "1"]
    else:
        flags = "+faststart"  # the index first, so that playback starts before the download ends
    if options.metadata:
        flags += "+use_metadata_tags"  # otherwise only the entries that ffmpeg knows are written
    return [*arguments, "-movflags", flags]


def _find_audio_codec(name: str, ending: str, options: OutputOptions) -> AudioCodec:
    """Return the audio codec that the options name, or the default."""
    key = (options.audio_codec or CONTAINERS[ending].audio_codec).lower()
    if key not in AUDIO_CODECS:
        what = f"the audio codec {quote(options.audio_codec)} is not supported{suggest(key, AUDIO_CODECS)}"
        raise WriterError(f"{name}: {what}; use one of {', '.join(AUDIO_CODECS)}.")
    codec = AUDIO_CODECS[key]
    if ending not in codec.endings:
        allowed = " or ".join(key for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings)
        raise WriterError(
            f"{name}: {key} audio is not supported in {ending}; use {allowed}, or a file that ends in "
            f"{' or '.join(codec.endings)}."
        )
    if options.audio_codec is not None and options.audio is None:
        goes = option("an audio codec goes with audio; add audio", "--audio-codec goes with audio; add --audio")
        raise WriterError(f"{name}: {goes}, or leave it out.")
    return codec


def _audio_arguments(
    name: str, ending: str, fps: Fraction, options: OutputOptions, num_frames: int | None
) -> tuple[list[str], list[str], list[str]]:
    """Return ffmpeg's arguments for the audio input, and those before and after the arguments of the video stream."""
    codec, output = _find_audio_codec(name, ending, options), ["-map", "1:a:0"]
    alternatives = {
        key: audio_codec.encoder for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings
    }
    check_encoder(name, codec.encoder, "which stores its audio", alternatives)
    if not isinstance(options.audio, (str, os.PathLike)):
        rate = find_sample_rate(name, options.audio, options.sample_rate)
        # The format is known, so that ffmpeg need not wait for more samples to find it.
        format_ = ["-f", "f32le", "-ar", str(rate), "-ac", str(CHANNELS), "-probesize", "32"]
        return [*format_, "-i", AUDIO_INPUT], [], [*output, *_encode(codec, rate, CHANNELS)]
    check_distinct([name], [options.audio])
    if options.shortest and num_frames is None:
        raise WriterError(f"{name}: shortest needs the number of frames to come; add num_frames.")
    video = (_MAX_FRAMES if num_frames is None else num_frames) / fps
    source, shift = _find_file(options.audio)
    layout, _ = _choose_layout(codec, source.layout)
    filters = [FILL_GAPS]
    if options.shortest:
        filters.append(f"atrim=end_sample={round(video * source.sample_rate)}")
    if " " not in layout:  # as in "5 channels", which needs no other one
        filters.append(f"aformat=channel_layouts={layout}")
    channels = len(channel_places(layout)) or source.channels
    output += ["-af", ",".join(filters), *_encode(codec, source.sample_rate, channels, bits=source.bits)]
    before = [] if options.fragmented else list(_END_WITH_READER)
    # What is read ends near there. Not ffmpeg's -shortest, which may cut the video, and cuts the audio late.
    limit = ["-t", f"{float(video + (0 if options.shortest else MAX_REST)):.6f}"]
    return [*limit, *_file_input(options.audio, shift)], before, output


def _file_input(audio: str | os.PathLike, shift: Fraction) -> list[str]:
    return ["-itsoffset", f"{float(shift):.6f}", *input_arguments(os.path.abspath(audio))]


def _choose_layout(codec: AudioCodec, layout: str) -> tuple[str, bool]:
    """Return the layout in which a codec stores audio of a layout, and whether that has each of its channels.

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
    """Return the arguments of the encoder, for audio with this number of bits per sample."""
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
    """Warn of a file's audio that is stored with loss or fewer channels, and of audio of another length."""
    if not isinstance(options.audio, (str, os.PathLike)):
        return
    codec, (source, shift) = _find_audio_codec(name, ending, options), _find_file(options.audio)
    codecs = {key: audio_codec for key, audio_codec in AUDIO_CODECS.items() if ending in audio_codec.endings}
    lossless = [key for key, audio_codec in codecs.items() if audio_codec.kilobits is None]
    is_default = options.audio_codec is None and takes_options()
    if lossless and is_default and codec.kilobits is not None and source.is_lossless:
        way = option(f'audio_codec="{lossless[0]}"', f"--audio-codec {lossless[0]}")
        warn(f"{name}: its audio is stored as {codec.encoder.upper()}, which is lossy; {way} keeps it lossless.")
    layout, is_kept = _choose_layout(codec, source.layout)
    if not is_kept:
        keeping = [key for key, audio_codec in codecs.items() if _choose_layout(audio_codec, source.layout)[1]]
        keeping.sort(key=lambda key: (key not in lossless, key == "pcm"))  # whose channels have no places in Matroska
        ways = [option(f'audio_codec="{key}"', f"--audio-codec {key}") for key in keeping[:1]]
        advice = f"; {ways[0]} keeps all channels" if ways and takes_options() else ""
        key = next(key for key, audio_codec in codecs.items() if audio_codec is codec)
        warn(f"{name}: its audio is {source.layout}, which becomes {layout} with {key}{advice}.")
    video, (_, last) = num_frames / fps, read_times([*_file_input(options.audio, shift), "-map", "0:a:0"])
    end = last or Fraction(0)  # without a packet
    if abs(end - video) <= 1 / fps or (end > video and options.shortest):
        return
    rest = ", and the rest is silent"
    if end > video:
        kept = f"; {MAX_REST} s after the video are kept" if end > video + MAX_REST else ""
        rest = f"{kept}; {option('shortest=True', '--shortest')} cuts the audio" if takes_options() else kept
    warn(f"{name}: the video takes {float(video):.2f} s and its audio {float(end):.2f} s{rest}.")


def _find_file(audio: str | os.PathLike) -> tuple[AudioFormat, Fraction]:
    """Find the audio of a file as `find_audio` does. A file without audio is an error."""
    audio_file = find_audio(audio, WriterError)
    if audio_file is None:
        raise WriterError(f"{audio}: contains no audio stream.")
    return audio_file
