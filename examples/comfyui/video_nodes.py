"""LTX Decode to Video and LTX Save Video."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from comfy_api.latest import InputImpl, io, ui

from mlx_ltx_vae import AudioVAE, DecodePlan, EncodePlan, HDROptions, VideoVAE
from mlx_ltx_vae.audio_vae import find_sound_decoder
from mlx_ltx_vae.pipeline.audio import every_chunk
from mlx_ltx_vae.units import format_bytes
from mlx_ltx_vae.video import SinkOptions, open_sink

from . import host
from .audio_nodes import audio_vae_input
from .host import AUTO, CATEGORY, NO_SOUND, FileNode, budget, budget_input, fps_input, full_path, vae_input
from .latents import (
    audio_latents,
    check_sound,
    keyframe_inputs,
    latent_input,
    stream_inputs,
    stream_options,
    video_latents,
    write_sound,
)
from .worker import Job, Report


class Format(NamedTuple):
    ending: str
    codec: str
    bit_depth: int
    audio_codec: str | None = None  # instead of the container's default


#: What LTX Decode to Video makes: what Save Video takes over without encoding again.
CODECS = {"h264": Format(".mp4", "h264", 8), "hevc": Format(".mp4", "hevc", 10), "ffv1": Format(".mkv", "ffv1", 8)}
#: What LTX Save Video makes.
FORMATS = {
    "mp4, h264": CODECS["h264"],
    "mp4, hevc (10 bits)": CODECS["hevc"],
    "mov, prores (10 bits)": Format(".mov", "prores", 10, "pcm"),
    "mkv, ffv1 (lossless)": Format(".mkv", "ffv1", 8, "flac"),
    "mkv, ffv1 (lossless, 16 bits)": Format(".mkv", "ffv1", 10, "flac"),
    "webm, vp9": Format(".webm", "vp9", 8),
    "webm, av1": Format(".webm", "av1", 8),
}
#: No curve of HDR.
NO_HDR = "no"
PIXEL_FORMATS = [
    "auto", "yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le",
]  # fmt: skip


@dataclass(frozen=True)
class Clip:
    """Inputs of a decode. `sound` are audio latents, and `sound_vae` the choice of their VAE."""

    vae: str
    latents: np.ndarray
    memory_budget: str | None
    options: dict = field(default_factory=dict)  # of `VideoVAE.stream`
    sound: np.ndarray | None = None
    sound_vae: str = NO_SOUND


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
        latent: dict,
        vae: str,
        memory_budget: str,
        audio: dict | None = None,
        audio_vae: str = AUTO,
        **more: Any,
    ) -> str:
        """Write a file, and return its path. `more` are the inputs of `stream_inputs`."""
        sound = None if audio is not None or audio_vae == NO_SOUND else audio_latents(latent)
        sound_vae = audio_vae if audio_vae in (AUTO, NO_SOUND) else full_path(audio_vae)
        clip = Clip(
            full_path(vae), video_latents(latent), budget(memory_budget), stream_options(**more), sound, sound_vae
        )
        with sound_options(audio) as added:
            return host.run(decode_to_file, clip, output, added, node_id=cls.hidden.unique_id)


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
                budget_input(),
                io.Combo.Input(
                    "codec",
                    options=list(CODECS),
                    default="h264",
                    tooltip="ffv1 is lossless. Save Video changes the tag of hevc, after which QuickTime does not play "
                    "it, and puts ffv1 into an mp4 with AAC sound; LTX Save Video (MLX) does neither.",
                ),
                fps_input("Frames per second. 23.976, 29.97 and 59.94 are taken as 24000/1001 and so on."),
                *sound_inputs(),
                *stream_inputs(),
                *keyframe_inputs(),
                metadata_input(),
            ],
            outputs=[io.Video.Output(tooltip="A file in ComfyUI's folder for temporary files.")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, codec: str, fps: float, save_metadata: bool = True, **inputs: Any) -> io.NodeOutput:
        made = CODECS[codec]
        entries = host.metadata(cls.hidden) if save_metadata else {}
        options = {"codec": made.codec, "bit_depth": made.bit_depth, "fps": fps, "metadata": entries}
        output = Output(lambda size: host.new_file(made.ending), options)
        return io.NodeOutput(InputImpl.VideoFromFile(cls.decode(output, **inputs)))


class LTXSaveVideo(VideoNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXSaveVideoMLX",
            display_name="LTX Save Video (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "save video", "export video", "video combine", "prores", "mlx"],
            description="Decodes LTX latents straight into a video file in ComfyUI's output folder. The file appears "
            "when it is whole, and never replaces another one.",
            inputs=[
                latent_input(),
                vae_input(),
                budget_input(),
                io.String.Input(
                    "filename_prefix",
                    default="video/LTX",
                    tooltip="As in Save Image: subfolders, %width%, %date:yyyy-MM-dd%, and values of other nodes.",
                ),
                io.Combo.Input("format", options=list(FORMATS), tooltip="The container and the codec."),
                fps_input("Frames per second. 23.976, 29.97 and 59.94 are taken as 24000/1001 and so on."),
                *sound_inputs(),
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
                *stream_inputs(),
                io.Combo.Input(
                    "hdr",
                    options=[NO_HDR, "acescct", "logc3"],
                    default=NO_HDR,
                    optional=True,
                    advanced=True,
                    tooltip="The latents are HDR: acescct for LTX-2.5, logc3 for LTX-2.3's HDR LoRA. "
                    "The file is an HLG master; mp4, hevc is what players expect.",
                ),
                *keyframe_inputs(),
            ],
            outputs=[io.Video.Output(tooltip="The file that was saved.")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls,
        filename_prefix: str,
        format: str,
        fps: float,
        crf: int = -1,
        pixel_format: str = "auto",
        hdr: str = NO_HDR,
        save_metadata: bool = True,
        **inputs: Any,
    ) -> io.NodeOutput:
        made = FORMATS[format]
        depth = made.bit_depth if pixel_format == "auto" else 10 if "10" in pixel_format else 8
        options = {"codec": made.codec, "bit_depth": depth, "fps": fps, "overwrite": False}
        options |= {"metadata": host.metadata(cls.hidden)} if save_metadata else {}
        options |= {"crf": crf} if crf >= 0 else {}
        options |= {"pix_fmt": pixel_format} if pixel_format != "auto" else {}
        name = partial(host.next_file, filename_prefix, made.ending)
        curve = None if hdr == NO_HDR else hdr
        path = cls.decode(Output(name, options, made.audio_codec, curve, is_shown=True), **inputs)
        return io.NodeOutput(InputImpl.VideoFromFile(path), ui=ui.PreviewVideo([host.saved(path)]))


@dataclass(frozen=True)
class Output:
    """A file. ComfyUI's thread calls `name((width, height))` for its path; `options` are a `VideoWriter`'s.

    `hdr` is the curve of HDR latents, which become an HLG master. `is_shown`: the node shows the file at its end
    instead of the last picture of the progress.
    """

    name: Callable[[tuple[int, int]], str]
    options: dict
    audio_codec: str | None = None
    hdr: Any = None
    is_shown: bool = False


def sound_inputs() -> list[io.Input]:
    sound = io.Audio.Input("audio", optional=True, tooltip="Sound for the video instead of its own, cut at its end.")
    tooltip = "Decodes the sound of latents of video and audio. auto: by the file of the VAE, if it has an audio VAE."
    return [sound, audio_vae_input([AUTO, NO_SOUND], tooltip, default=AUTO, optional=True)]


@contextmanager
def sound_options(audio: dict | None) -> Iterator[dict]:
    """The options of a `VideoWriter` that add an AUDIO, in a file that is removed at the end of the block."""
    if audio is None:
        yield {}
        return
    check_sound(audio)
    path = host.new_file(".wav")
    try:
        write_sound(path, audio)
        yield {"audio": path, "shortest": True}
    finally:
        os.remove(path)


def decode_to_file(job: Job, clip: Clip, output: Output, sound: dict) -> str:
    vae = host.networks.load(VideoVAE, clip.vae, "decoder", None if output.hdr is None else "float32")
    sound_vae, options, text = load_sound_vae(clip), output.options | sound, ""
    fps, sinks = options.pop("fps"), SinkOptions(bit_depth=options.pop("bit_depth"))
    if output.hdr is not None:
        sinks = HDROptions(output.hdr).choose_frames(sinks)
    plans = () if sound_vae is None else every_chunk(partial(sound_vae.plan, clip.sound.shape[2]))
    wanted = {"outputs": [sinks.frames], "sound": plans}
    wanted["keyframes"] = clip.options.get("keyframes")
    plan = vae.plan(clip.latents.shape, memory_budget=clip.memory_budget, **wanted)
    if sound_vae is not None:
        options["audio"] = sound_vae.stream(clip.sound, plan.sound)
    elif clip.sound is not None:
        text = "; without their sound: choose the audio_vae"
    options |= {"audio_codec": output.audio_codec} if "audio" in options else {}
    stream = vae.stream(clip.latents, plan, **clip.options)
    path = job.call(output.name, plan.frame_size)
    job.reports.put(Report(0, plan.num_frames, text=describe(plan) + text))
    video = {"size": plan.frame_size, "fps": fps, "num_frames": plan.num_frames}
    with open_sink(path, options=replace(sinks, **options), **video) as sink:
        host.make_room(job, plan.peak_bytes)
        for chunk in job.chunks(stream):
            frames = chunk.to_frames(sinks.frames)
            sink.write(frames)
            picture = frames[-1] if frames.dtype == np.uint8 else (frames[-1] >> 8).astype(np.uint8)
            job.reports.put(Report(chunk.start + len(frames), plan.num_frames, None if output.is_shown else picture))
    return sink.name  # the next number, if a file has taken this one meanwhile


def load_sound_vae(clip: Clip) -> AudioVAE | None:
    """The audio VAE for a clip's sound; None if it has none, or if its VAE's file has no audio VAE."""
    if clip.sound is None:
        return None
    if clip.sound_vae != AUTO:
        return host.networks.load(AudioVAE, clip.sound_vae, "decoder")
    return host.networks.load(AudioVAE, clip.vae, "decoder") if find_sound_decoder(None, clip.vae) else None
