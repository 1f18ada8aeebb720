"""LTX Decode to Video and LTX Save Video."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from comfy_api.latest import InputImpl, io, ui

from mlx_ltx_vae import (
    AudioVAE,
    DecodePlan,
    DecodeStream,
    EncodePlan,
    Film,
    HDROptions,
    LatentsError,
    VideoVAE,
    VideoWriter,
    video,
)

from . import host
from .audio_nodes import audio_vae_input
from .host import AUTO, CATEGORY, NO_AUDIO, FileNode, budget, budget_input, fps_input, loaded_input, vae_input
from .latents import PaddedAudio, audio_latents, check_videos, latent_input, samples_of, video_latents, write_audio
from .networks import Source, VAEFile
from .options_node import DecoderOptions, options_input
from .worker import Job, Report, format_bytes


class Format(NamedTuple):
    ending: str
    codec: str
    bit_depth: int
    audio_codec: str
    plays: bool = True  # in a browser


#: What LTX Decode to Video makes: what Save Video takes over without encoding again.
CODECS = {
    "h264": Format(".mp4", "h264", 8, "aac"),
    "hevc": Format(".mp4", "hevc", 10, "aac"),
    "ffv1": Format(".mkv", "ffv1", 8, "flac", plays=False),
}
#: What LTX Save Video makes.
FORMATS = {
    "mp4, h264": CODECS["h264"],
    "mp4, hevc (10 bits)": CODECS["hevc"],
    "mov, prores (10 bits)": Format(".mov", "prores", 10, "pcm", plays=False),
    "mkv, ffv1 (lossless)": CODECS["ffv1"],
    "mkv, ffv1 (lossless, 16 bits)": CODECS["ffv1"]._replace(bit_depth=10),
    "webm, vp9": Format(".webm", "vp9", 8, "opus"),
    "webm, av1": Format(".webm", "av1", 8, "opus"),
}
PIXEL_FORMATS = [
    "auto", "yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le",
]  # fmt: skip


PLAYED = PIXEL_FORMATS[:2]  # by browsers
DEFAULT_CARRY = 25  # as in `Film`
SLACK = Fraction(6, 100)  # seconds of audio that `VideoWriter` fills or cuts
PREVIEW_SIDE = 640  # pixels of the longer side of the video shown instead of one that no browser plays


class Audio(NamedTuple):
    """An AUDIO: samples (channels, n) float32."""

    samples: np.ndarray
    sample_rate: int


class Carry(NamedTuple):
    """Frames that windows of a film share, and how many of them are crossfaded; None for all that fit."""

    frames: int
    blend: int | None


@dataclass(frozen=True)
class Clip:
    """Inputs of a decode. `audio` are audio latents and `audio_vae` is the choice of their VAE, or it is an AUDIO.

    For a film, `latents` and audio latents are lists, with an array for each window.
    """

    vae: Source
    latents: np.ndarray | list[np.ndarray]
    memory_budget: str | None
    options: DecoderOptions = field(default_factory=DecoderOptions)
    audio: np.ndarray | list[np.ndarray] | Audio | None = None
    audio_vae: Source | str = NO_AUDIO
    overlap: Carry | None = None  # of the windows of a film


def describe(plan: DecodePlan | EncodePlan) -> str:
    width, height = plan.frame_size
    tiles = f", tiled (blended in {' and '.join(plan.blended)})" if plan.blended else ""
    return f"{plan.num_frames} frames of {width}x{height} within {format_bytes(plan.peak_bytes)}{tiles}"


def metadata_input() -> io.Boolean.Input:
    text = "Whether the prompt and the workflow, which may have keys and paths in them, go into the file."
    return io.Boolean.Input("save_metadata", default=True, optional=True, tooltip=text)


class VideoNode(FileNode):
    """A node that decodes a LATENT into a file. Its subclass says which, and what becomes of it."""

    @classmethod
    def decode(
        cls,
        output: "Output",
        latent: dict | list[dict],
        vae: str,
        memory_budget: str,
        audio: dict | None = None,
        audio_vae: str = AUTO,
        options: DecoderOptions | None = None,
        loaded_vae: Any = None,
        loaded_audio_vae: Any = None,
        overlap: Carry | None = None,
    ) -> "Written":
        vae_choice: Source | str = audio_vae
        if loaded_audio_vae is not None or audio_vae not in (AUTO, NO_AUDIO):
            vae_choice = host.vae_source("loaded_audio_vae", audio_vae, loaded_audio_vae)
        latents, latents_of_audio = video_latents(latent), None if vae_choice == NO_AUDIO else audio_latents(latent)
        clip = Clip(
            host.vae_source("loaded_vae", vae, loaded_vae),
            latents,
            budget(memory_budget),
            options or DecoderOptions(),
            latents_of_audio if audio is None else Audio(samples_of(audio)[0], int(audio["sample_rate"])),
            vae_choice,
            overlap,
        )
        return host.run(decode_to_file, clip, output, node_id=cls.hidden.unique_id)


class LTXDecodeToVideo(VideoNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDecodeToVideoMLX",
            display_name="LTX Decode to Video (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "latent to video", "mlx", "ltxv decode"],
            description="Decodes LTX latents into a video file, a few frames at a time. No IMAGE of the clip is made. "
            "To keep the file as it is, use LTX Save Video (MLX).",
            inputs=[
                latent_input(),
                vae_input(),
                loaded_input("loaded_vae"),
                budget_input(),
                io.Combo.Input(
                    "codec",
                    options=list(CODECS),
                    default="h264",
                    tooltip="ffv1 is lossless. Save Video changes the tag of hevc, after which QuickTime does not play "
                    "it, and puts ffv1 into an mp4 with AAC audio; LTX Save Video (MLX) does neither.",
                ),
                fps_input("Frames per second. 23.976, 29.97 and 59.94 are taken as 24000/1001 and so on."),
                *audio_inputs(),
                metadata_input(),
                options_input(),
            ],
            outputs=[io.Video.Output(tooltip="A file in ComfyUI's folder for temporary files.")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, codec: str, fps: float, save_metadata: bool = True, **inputs: Any) -> io.NodeOutput:
        video_format = CODECS[codec]
        options = video.OutputOptions(
            codec=video_format.codec,
            bit_depth=video_format.bit_depth,
            metadata=host.metadata(cls.hidden) if save_metadata else {},
            audio_codec=video_format.audio_codec,
        )
        output = Output(lambda size: host.new_file(video_format.ending), fps, options)
        return io.NodeOutput(InputImpl.VideoFromFile(cls.decode(output, **inputs).path))


class LTXSaveVideo(VideoNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXSaveVideoMLX",
            display_name="LTX Save Video (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "save video", "export video", "video combine", "prores", "mlx"],
            description="Decodes LTX latents straight into a video file in ComfyUI's output folder. The file appears "
            "when it is whole, and never replaces another one. A list becomes several videos, or with join one.",
            is_input_list=True,
            inputs=[
                latent_input(),
                vae_input(),
                loaded_input("loaded_vae"),
                budget_input(),
                io.String.Input(
                    "filename_prefix",
                    default="video/LTX",
                    tooltip="As in Save Image: subfolders, %width%, %date:yyyy-MM-dd%, and values of other nodes.",
                ),
                io.Combo.Input("format", options=list(FORMATS), tooltip="The container and the codec."),
                fps_input("Frames per second. 23.976, 29.97 and 59.94 are taken as 24000/1001 and so on."),
                *audio_inputs(),
                io.Int.Input(
                    "crf",
                    default=-1,
                    min=-1,
                    max=63,
                    optional=True,
                    tooltip="Quality: 0 is the best. -1: visually lossless, 18 for h264. Not for prores and ffv1.",
                ),
                io.Combo.Input(
                    "pixel_format",
                    options=PIXEL_FORMATS,
                    default="auto",
                    optional=True,
                    advanced=True,
                    tooltip="auto: the one that most players support.",
                ),
                metadata_input(),
                options_input(),
                *join_inputs(),
            ],
            outputs=[io.Video.Output(tooltip="The file that was saved.", is_output_list=True)],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls,
        join: list[bool] = [False],  # noqa: B006  (never changed)
        carry: list[int] = [DEFAULT_CARRY],  # noqa: B006
        blend: list[int] = [-1],  # noqa: B006
        **lists: list,
    ) -> io.NodeOutput:
        """Save a video of each LATENT, or of all of them. Shorter lists go on with their last value, as in ComfyUI."""
        if join[0]:
            overlap = Carry(carry[0], None if blend[0] < 0 else blend[0])
            calls = [
                {name: values[0] for name, values in lists.items()} | {"latent": lists["latent"], "overlap": overlap}
            ]
        else:
            count = max(map(len, lists.values()))
            check_videos(lists["latent"])  # before the first is decoded
            calls = [
                {name: values[min(index, len(values) - 1)] for name, values in lists.items()} for index in range(count)
            ]
        all_written = [cls.save(**call) for call in calls]
        saved = [host.saved(written.path) for written in all_written]
        previews = [os.path.basename(written.preview) for written in all_written if written.preview is not None]
        if not previews:
            preview_ui = ui.PreviewVideo(saved)
        else:  # `files` is for programs that read the history
            images = [ui.SavedResult(name, "", io.FolderType.temp) for name in previews]
            preview_ui = {"images": images, "animated": (True,), "files": saved}
        return io.NodeOutput([InputImpl.VideoFromFile(written.path) for written in all_written], ui=preview_ui)

    @classmethod
    def save(
        cls,
        filename_prefix: str,
        format: str,
        fps: float,
        crf: int = -1,
        pixel_format: str = "auto",
        save_metadata: bool = True,
        **inputs: Any,
    ) -> "Written":
        video_format = FORMATS[format]
        depth = video_format.bit_depth if pixel_format == "auto" else 10 if "10" in pixel_format else 8
        options = video.OutputOptions(
            codec=video_format.codec,
            crf=crf if crf >= 0 else None,
            bit_depth=depth,
            overwrite=False,
            metadata=host.metadata(cls.hidden) if save_metadata else {},
            pix_fmt=pixel_format if pixel_format != "auto" else None,
            audio_codec=video_format.audio_codec,
        )
        name = partial(host.next_file, filename_prefix, video_format.ending)
        plays = video_format.plays and pixel_format in PLAYED
        return cls.decode(Output(name, fps, options, plays), **inputs)


@dataclass(frozen=True)
class Output:
    """A file. ComfyUI's thread calls `name((width, height))` for its path.

    `plays` is whether a browser plays it; otherwise the decode also makes a small video that it does.
    """

    name: Callable[[tuple[int, int]], str]
    fps: float
    options: video.OutputOptions
    plays: bool = True


class Written(NamedTuple):
    path: str
    preview: str | None


def audio_inputs() -> list[io.Input]:
    audio = io.Audio.Input("audio", optional=True, tooltip="Audio for the video instead of its own, as long as it.")
    tooltip = "Decodes the audio of latents of video and audio. auto: by the file of the VAE, if it has an audio VAE."
    choice = audio_vae_input([AUTO, NO_AUDIO], tooltip, default=AUTO, optional=True)
    return [audio, choice, loaded_input("loaded_audio_vae")]


def join_inputs() -> list[io.Input]:
    join = "Makes one video of a list of latents: overlapping windows, each decoded alone and crossfaded with the next."
    carry = "With join: the frames that a window shares with the one before."
    blend = "With join: how many of these frames are crossfaded; 0 for a hard cut, -1 for all that fit."
    return [
        io.Boolean.Input("join", default=False, optional=True, tooltip=join),
        io.Int.Input("carry", default=DEFAULT_CARRY, min=0, step=8, optional=True, advanced=True, tooltip=carry),
        io.Int.Input("blend", default=-1, min=-1, optional=True, advanced=True, tooltip=blend),
    ]


def start_film(
    job: Job, vae: VideoVAE, clip: Clip, outputs: Sequence[video.FrameOutput], audio: Sequence[DecodePlan]
) -> tuple[DecodePlan, DecodeStream]:
    """Plan a film, check all its windows, and start its decode, as `start_stream` does."""
    carry, blend = clip.overlap
    film = Film(clip.latents, carry=carry, blend=blend)
    plan = vae.plan(film, memory_budget=clip.memory_budget, outputs=outputs, audio=audio)
    job.say(f"{len(clip.latents)} windows: {describe(plan)}")
    return plan, vae.stream(film, plan, **clip.options.stream)


def start_stream(
    job: Job,
    vae: VideoVAE,
    clip: Clip,
    outputs: Sequence[video.FrameOutput] = (),
    audio: Sequence[DecodePlan] = (),
    *,
    joined: bool = False,
) -> tuple[DecodePlan, DecodeStream]:
    """Plan a decode, check all that it is given, and start it. `outputs` and so on are as for `VideoVAE.plan`."""
    options = clip.options.stream
    plan = vae.plan(
        clip.latents.shape,
        memory_budget=clip.memory_budget,
        keyframes=options.get("keyframes"),
        outputs=outputs,
        audio=audio,
        joined=joined,
    )
    clip.options.check_keyframes(plan.num_frames)
    job.say(describe(plan))
    return plan, vae.stream(clip.latents, plan, **options)


def decode_to_file(job: Job, clip: Clip, output: Output) -> Written:
    hdr = clip.options.hdr
    vae = host.networks.load(VideoVAE, clip.vae, "decoder", None if hdr is None else "float32")
    audio_vae, options = load_audio_vae(clip), output.options
    fps, audio_plans = video.parse_fps(output.fps), []
    if hdr is not None:
        options = HDROptions(hdr).choose_frames(options)
    if audio_vae is not None:
        longest = max(audio.shape[2] for audio in ([clip.audio] if clip.overlap is None else clip.audio))
        audio_plans = audio_vae.plans(longest)
    start = start_stream if clip.overlap is None else start_film
    plan, stream = start(job, vae, clip, [options.frames], audio_plans)
    with ExitStack() as stack:
        options = stack.enter_context(with_audio(options, job, clip, vae, audio_vae, plan, fps))
        path = job.call(output.name, plan.frame_size)
        properties = {"size": plan.frame_size, "fps": fps, "num_frames": plan.num_frames}
        preview = None if output.plays else stack.enter_context(open_preview(job, **properties))
        sink = stack.enter_context(video.open_sink(path, options=options, **properties))
        host.make_room(job, plan.peak_bytes)
        for chunk in job.chunks(stream):
            frames = chunk.to_frames(options.frames)
            sink.write(frames)
            pictures = frames if frames.dtype == np.uint8 else (frames >> 8).astype(np.uint8)
            if preview is not None:
                preview.write(shrink(pictures, preview.size))
            job.reports.put(Report(chunk.start + len(frames), plan.num_frames, pictures[-1]))
    return Written(sink.name, preview and preview.name)  # the next number, if a file has taken this one meanwhile


def open_preview(job: Job, size: tuple[int, int], **properties: Any) -> VideoWriter:
    """Open a small video for one that browsers do not play."""
    scale = -(-max(size) // PREVIEW_SIDE)
    width, height = (side // scale for side in size)
    return VideoWriter(job.call(host.new_file, ".mp4"), size=(width, height), **properties)


def shrink(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Frames (n, H, W, 3) uint8 of a size (width, height), each pixel the mean of a square."""
    width, height = size
    scale = frames.shape[2] // width
    squares = frames[:, : height * scale, : width * scale].reshape(len(frames), height, scale, width, scale, 3)
    return squares.mean(axis=(2, 4), dtype=np.float32).round().astype(np.uint8)


@contextmanager
def with_audio(
    options: video.OutputOptions,
    job: Job,
    clip: Clip,
    vae: VideoVAE,
    audio_vae: AudioVAE | None,
    plan: DecodePlan,
    fps: Fraction,
) -> Iterator[video.OutputOptions]:
    """Yield the options of an output with the audio of a clip, whose file is removed at the end."""
    if isinstance(clip.audio, Audio):
        samples, rate = clip.audio
        length = fit_audio(job, clip, Fraction(samples.shape[1], rate), plan.num_frames / fps, rate)
        path = job.call(host.new_file, ".wav")
        try:
            write_audio(path, samples, rate, length)
            yield replace(options, audio=path)
        finally:
            if os.path.exists(path):
                os.remove(path)
    elif audio_vae is not None:
        if clip.overlap is not None:
            frames = [vae.config.scale.video_grid(window.shape[2:])[0] for window in clip.latents]
            stream = audio_vae.stream_joined(clip.audio, frames, fps=fps, carry=clip.overlap.frames)
        else:
            stream = audio_vae.stream(clip.audio, plan.audio)
        seconds = Fraction(stream.num_samples, stream.sample_rate)
        length = fit_audio(job, clip, seconds, plan.num_frames / fps, stream.sample_rate)
        yield replace(options, audio=PaddedAudio(stream, length), shortest=True)
    else:
        if clip.audio is not None:
            job.say("without their audio: choose the audio_vae, or connect loaded_audio_vae")
        yield replace(options, audio_codec=None)


def fit_audio(job: Job, clip: Clip, audio: Fraction, pictures: Fraction, rate: int) -> int:
    """Return the samples of a video. Warns about or refuses audio of another length. Lengths are in seconds."""
    if abs(audio - pictures) > SLACK:
        lengths = f"the video takes {float(pictures):.2f} s and its audio {float(audio):.2f} s"
        if clip.options.refuses_length:
            raise LatentsError(f"{lengths}; correct the fps, give the audio of this video, or set audio_length to fit.")
        job.say(f"{lengths}, so its end is cut" if audio > pictures else f"{lengths}, and the rest is silent")
    return round(pictures * rate)


def load_audio_vae(clip: Clip) -> AudioVAE | None:
    """Load the audio VAE for a clip's audio. `None` without audio, or without one in the VAE's file."""
    if clip.audio is None or isinstance(clip.audio, Audio):
        return None
    if clip.audio_vae != AUTO:
        return host.networks.load(AudioVAE, clip.audio_vae, "decoder")
    has_one = isinstance(clip.vae, VAEFile) and AudioVAE.can_load(clip.vae.path)
    return host.networks.load(AudioVAE, clip.vae, "decoder") if has_one else None
