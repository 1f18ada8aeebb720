"""The nodes. Arrays go to the MLX thread and come back as numpy's. ComfyUI is called from its own thread only."""

import json
import logging
import os
import uuid
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import folder_paths
import mlx.core as mx
import numpy as np
import torch
from comfy.cli_args import args
from comfy_api.latest import InputImpl, io, ui
from PIL import Image

from mlx_ltx_vae import DecodePlan, EncodePlan, LatentsError, VideoReader, VideoVAE, VideoWriter
from mlx_ltx_vae.files import FileState, file_state
from mlx_ltx_vae.frame_rate import parse_fps
from mlx_ltx_vae.latents.audio import looks_like_audio
from mlx_ltx_vae.units import format_bytes
from mlx_ltx_vae.video import FrameOutput, SinkOptions, open_sink
from server import PromptServer

from .worker import Job, MLXThread, Report

CATEGORY = "model/latent/ltxv"
#: Ending and bit depth. Those that Save Video takes over without encoding again.
CODECS = {"h264": (".mp4", 8), "hevc": (".mp4", 10), "ffv1": (".mkv", 8)}
FILE_ENDINGS = (".safetensors", ".sft")
POLL_SECONDS = 0.05
PREVIEW_SIZE = 512
FRAMES_AT_ONCE = 8

mlx_thread = MLXThread()


def files_in(*folders: str) -> list[str]:
    """The files of some of ComfyUI's folders for models, as `folder/name`."""
    files = [f"{folder}/{name}" for folder in folders for name in folder_paths.get_filename_list(folder)]
    return [file for file in files if file.endswith(FILE_ENDINGS)]


def latent_input() -> io.Latent.Input:
    return io.Latent.Input("latent", tooltip="Of video, or of video and audio, of which the audio is left out.")


def vae_input() -> io.Combo.Input:
    tooltip = "A VAE, or a whole model, of which only the VAE is read. Kept in memory for the next run."
    return io.Combo.Input("vae", options=files_in("vae", "checkpoints"), tooltip=tooltip)


def budget_input() -> io.String.Input:
    tooltip = "Peak memory, such as 8GB or 50% (of what is available). auto: 50%, or what is needed at least."
    return io.String.Input("memory_budget", default="auto", tooltip=tooltip)


def fps_input(tooltip: str) -> io.Float.Input:
    return io.Float.Input("fps", default=24.0, min=0.01, max=1000.0, step=0.001, tooltip=tooltip)


def full_path(choice: str) -> str:
    """The path of one of `files_in`."""
    return folder_paths.get_full_path_or_raise(*choice.split("/", 1))


def run(work: Callable[..., Any], *arguments: Any, node_id: str | None, unloads: bool = True) -> Any:
    """Call `work(job, *arguments)` on the MLX thread. Shows its reports, and ends it if ComfyUI is interrupted.

    Before that it `unloads` ComfyUI's models.
    """
    if unloads:
        model_management.unload_all_models()
        model_management.soft_empty_cache()
    job, bar = Job(work, *arguments), None
    mlx_thread.submit(job)
    try:
        while not job.wait(POLL_SECONDS):
            model_management.throw_exception_if_processing_interrupted()
            bar = show(job, bar, node_id)
        show(job, bar, node_id)
    finally:  # the exception of an interruption is a BaseException, and progress may raise it, too
        job.cancel()
        job.wait()
    return job.result()


def show(job: Job, bar: comfy.utils.ProgressBar | None, node_id: str | None) -> comfy.utils.ProgressBar | None:
    """Show the newest report of a job, and all texts."""
    report = None
    while not job.reports.empty():
        report = job.reports.get()
        if report.text is not None:
            logging.info(report.text)
            PromptServer.instance.send_progress_text(report.text, node_id)
    if report is None:
        return bar
    bar = bar or comfy.utils.ProgressBar(report.total, node_id=node_id)
    preview = None if report.picture is None else ("JPEG", Image.fromarray(report.picture), PREVIEW_SIZE)
    bar.update_absolute(report.done, report.total, preview)
    return bar


@lru_cache(maxsize=2)
def load(path: str, state: FileState, network: str) -> VideoVAE:
    """One network of a file. `state` makes a file that was replaced another one."""
    return VideoVAE.from_pretrained(path, encoder=network == "encoder", decoder=network == "decoder")


def load_vae(path: str, network: str) -> VideoVAE:
    return load(path, file_state(path), network)


def new_file(ending: str) -> str:
    """A new name in ComfyUI's folder for temporary files, which it removes when it ends."""
    folder = folder_paths.get_temp_directory()
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"ltx_{uuid.uuid4().hex}{ending}")


def video_latents(latent: dict) -> np.ndarray:
    """The video's part of a LATENT, (1, C, F', H', W')."""
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        samples = samples.unbind()[0]  # audio comes last
    if looks_like_audio(samples.shape, None):
        raise LatentsError("these are latents of audio alone; connect those of the video, or of both.")
    if samples.ndim != 5:
        raise LatentsError(f"video latents have 5 axes, and these have the shape {tuple(samples.shape)}.")
    if samples.shape[0] != 1:
        raise LatentsError(f"these are the latents of {samples.shape[0]} videos; take one with LatentFromBatch.")
    return samples.detach().cpu().float().numpy()


def budget(text: str) -> str | None:
    return None if text.strip().lower() in ("", "auto") else text


def describe(plan: DecodePlan | EncodePlan) -> str:
    width, height = plan.frame_size
    return f"{plan.num_frames} frames of {width}x{height} within {format_bytes(plan.peak_bytes)}"


class FileNode(io.ComfyNode):
    """A node with a file as `vae` or `decoder`. ComfyUI runs it again if the file was replaced."""

    @classmethod
    def fingerprint_inputs(cls, vae: str | None = None, decoder: str | None = None, **_: Any) -> FileState | None:
        choice = vae or decoder  # None if it comes from another node
        return file_state(full_path(choice)) if choice else None


class LTXDecodeToVideo(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDecodeToVideoMLX",
            display_name="LTX Decode to Video (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "latent to video"],
            description="Decodes LTX latents into a video file, a few frames at a time. No IMAGE of the clip is made.",
            inputs=[
                latent_input(),
                vae_input(),
                budget_input(),
                io.Combo.Input("codec", options=list(CODECS), default="h264", tooltip="ffv1 is lossless."),
                fps_input("Frames per second. 23.976, 29.97 and 59.94 are taken as 24000/1001 and so on."),
                io.Audio.Input("audio", optional=True, tooltip="Sound for the video, cut at its end."),
            ],
            outputs=[io.Video.Output()],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls, latent: dict, vae: str, memory_budget: str, codec: str, fps: float, audio: dict | None = None
    ) -> io.NodeOutput:
        ending, bit_depth = CODECS[codec]
        path = new_file(ending)
        options = {"codec": codec, "bit_depth": bit_depth, "fps": fps, "metadata": metadata(cls.hidden)}
        with sound_options(audio) as sound:
            arguments = full_path(vae), video_latents(latent), budget(memory_budget), path, options | sound
            run(decode_to_video, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput(InputImpl.VideoFromFile(path))


def metadata(hidden: Any) -> dict[str, str]:
    """The prompt and the workflow, as ComfyUI's own nodes write them."""
    if args.disable_metadata:
        return {}
    entries = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {key: json.dumps(value) for key, value in entries.items() if value is not None}


def decode_to_video(
    job: Job, vae_path: str, latents: np.ndarray, memory_budget: str | None, path: str, options: dict
) -> None:
    vae, bit_depth = load_vae(vae_path, "decoder"), options["bit_depth"]
    plan = vae.plan(latents.shape, memory_budget=memory_budget, bit_depth=bit_depth)
    job.reports.put(Report(0, plan.num_frames, text=describe(plan)))
    with VideoWriter(path, size=plan.frame_size, num_frames=plan.num_frames, **options) as video:
        for chunk in job.chunks(vae.stream(latents, plan, bit_depth=bit_depth)):
            frames = chunk.to_frames(FrameOutput(video.frames))
            video.write(frames)
            picture = frames[-1] if bit_depth == 8 else (frames[-1] >> 8).astype(np.uint8)
            job.reports.put(Report(chunk.start + len(frames), plan.num_frames, picture))


@contextmanager
def sound_options(audio: dict | None) -> Iterator[dict]:
    """The options of a `VideoWriter` that add an AUDIO, in a file that is removed at the end of the block."""
    if audio is None:
        yield {}
        return
    path = new_file(".wav")
    try:
        write_sound(path, audio)
        yield {"audio": path, "shortest": True}
    finally:
        os.remove(path)


def write_sound(path: str, audio: dict) -> None:
    """Write an AUDIO, of which only the first item of a batch is taken, as 32-bit PCM."""
    with wave.open(path, "wb") as file:
        samples = audio["waveform"][0].detach().cpu().double().numpy()  # (channels, samples)
        levels = np.clip(np.rint(samples * 2**31), -(2**31), 2**31 - 1).astype("<i4")
        file.setparams((len(levels), 4, int(audio["sample_rate"]), 0, "NONE", ""))
        file.writeframes(np.ascontiguousarray(levels.T))


class LTXDecodeFrames(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDecodeFramesMLX",
            display_name="LTX Decode Frames (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "latent to image"],
            description="Decodes LTX latents into images. They take 12 bytes of memory for each pixel of each frame, "
            "which the node shows before it decodes; LTX Decode to Video (MLX) does not need that.",
            inputs=[latent_input(), vae_input(), budget_input()],
            outputs=[io.Image.Output()],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, latent: dict, vae: str, memory_budget: str) -> io.NodeOutput:
        arguments = full_path(vae), video_latents(latent), budget(memory_budget)
        images = run(decode_frames, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput(torch.from_numpy(images))


def decode_frames(job: Job, vae_path: str, latents: np.ndarray, memory_budget: str | None) -> np.ndarray:
    """The frames (F, H, W, 3) in [0, 1], float32."""
    vae = load_vae(vae_path, "decoder")
    plan = vae.plan(latents.shape, memory_budget=memory_budget)
    width, height = plan.frame_size
    shape = plan.num_frames, height, width, 3
    text = f"{describe(plan)}, and {format_bytes(4 * np.prod(shape))} for the images"
    job.reports.put(Report(0, plan.num_frames, text=text))
    images = np.empty(shape, np.float32)
    for chunk in job.chunks(vae.stream(latents, plan)):
        chunk.check()
        frames = np.array(mx.clip((chunk.frames[0].astype(mx.float32) + 1) / 2, 0, 1))
        done = chunk.start + len(frames)
        images[chunk.start : done] = frames
        job.reports.put(Report(done, plan.num_frames, np.rint(frames[-1] * 255).astype(np.uint8)))
    return images


class LTXEncode(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXEncodeMLX",
            display_name="LTX Encode (MLX)",
            category=CATEGORY,
            search_aliases=["vae encode", "image to latent", "video to latent"],
            description="Encodes images or a video into LTX latents. A video is read from its file as it is encoded. "
            "Sides must be multiples of 32. Of a number of frames that is not 1 + 8k, the last ones are left out.",
            inputs=[
                io.MultiType.Input("frames", types=[io.Image, io.Video], tooltip="Images, or a video."),
                vae_input(),
                budget_input(),
            ],
            outputs=[io.Latent.Output()],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, frames: Any, vae: str, memory_budget: str) -> io.NodeOutput:
        source = frames if isinstance(frames, torch.Tensor) else file_of(frames) or frames.get_components().images
        if isinstance(source, torch.Tensor):
            source = source.detach().cpu().float().numpy()[..., :3]
        arguments = full_path(vae), source, budget(memory_budget)
        latents = run(encode, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"samples": torch.from_numpy(latents)})


def file_of(video: Any) -> str | None:
    """The file of a VIDEO; None if it is a part of one, or has none."""
    source = video.get_stream_source() if isinstance(video, InputImpl.VideoFromFile) else None
    return source if isinstance(source, str) and video.get_active_trim_window() == (0, 0) else None


def encode(job: Job, vae_path: str, source: np.ndarray | str, memory_budget: str | None) -> np.ndarray:
    """Latents (1, C, F', H', W'), of images (F, H, W, 3) in [0, 1] or of a file."""
    vae = load_vae(vae_path, "encoder")
    if isinstance(source, str):
        with VideoReader(source, multiple=1) as reader:
            return encode_parts(job, vae, reader, (reader.num_frames or 1, *reader.size[::-1]), memory_budget)
    return encode_parts(job, vae, pixels(source), source.shape[:3], memory_budget)


def pixels(images: np.ndarray) -> Iterator[np.ndarray]:
    """A few frames at a time: (1, 3, n, H, W) in [-1, 1]."""
    for start in range(0, len(images), FRAMES_AT_ONCE):
        yield (images[start : start + FRAMES_AT_ONCE] * 2 - 1).transpose(3, 0, 1, 2)[None]


def encode_parts(
    job: Job, vae: VideoVAE, parts: Iterator[np.ndarray], grid: tuple[int, int, int], memory_budget: str | None
) -> np.ndarray:
    plan = vae.plan_encode((1, 3, *grid), memory_budget=memory_budget)
    total, left_out = plan.latent_shape.frames, grid[0] - plan.num_frames
    text = describe(plan) + (f"; left out at the end: {left_out}" if left_out else "")
    job.reports.put(Report(0, total, text=text))
    latents: list[np.ndarray] = []
    for part in vae.encode_stream(parts, plan):
        job.check()
        latents.append(np.array(part.astype(mx.float32)))
        job.reports.put(Report(sum(each.shape[2] for each in latents), total))
    return np.concatenate(latents, axis=2)


class LTXPreview(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXPreviewMLX",
            display_name="LTX Preview (MLX)",
            category=CATEGORY,
            description="Shows in seconds what is in LTX latents, as a contact sheet or as a clip, by a tiny decoder.",
            inputs=[
                latent_input(),
                io.Combo.Input(
                    "decoder",
                    options=files_in("vae_approx"),
                    tooltip="A tiny decoder, such as taeltx2_3.safetensors, or a projection (latent_rgb).",
                ),
                io.Combo.Input(
                    "show", options=["contact sheet", "clip"], default="contact sheet", tooltip="Both are returned."
                ),
                fps_input("Frames per second of the whole video."),
            ],
            outputs=[io.Image.Output(display_name="contact sheet"), io.Video.Output(display_name="clip")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, latent: dict, decoder: str, show: str, fps: float) -> io.NodeOutput:
        sheet, clip = new_file(".png"), new_file(".mp4")
        arguments = full_path(decoder), video_latents(latent), fps, sheet, clip
        run(preview, *arguments, node_id=cls.hidden.unique_id, unloads=False)  # they may go on to sample
        image = np.asarray(Image.open(sheet), np.float32)[None] / 255
        if show == "clip":
            shown = ui.PreviewVideo([ui.SavedResult(os.path.basename(clip), "", io.FolderType.temp)])
        else:
            shown = ui.SavedImages([ui.SavedResult(os.path.basename(sheet), "", io.FolderType.temp)])
        return io.NodeOutput(torch.from_numpy(image), InputImpl.VideoFromFile(clip), ui=shown)


def preview(job: Job, path: str, latents: np.ndarray, fps: float, sheet: str, clip: str) -> None:
    """Write a contact sheet and a clip."""
    vae = load_vae(path, "decoder")
    plan = vae.plan(latents.shape, bit_depth=8)
    share = Fraction(vae.decoder.spec.scale.time, vae.config.time_scale)  # of the video's frames, which some make
    options = {"size": plan.frame_size, "fps": share * parse_fps(fps), "num_frames": plan.num_frames}
    job.reports.put(Report(0, plan.num_frames, text=describe(plan)))
    pictures = open_sink(sheet, options=SinkOptions(contact_sheet=True), **options)
    with pictures, VideoWriter(clip, **options) as video:
        for chunk in job.chunks(vae.stream(latents, plan, bit_depth=8)):
            frames = chunk.to_uint8()
            pictures.write(frames)
            video.write(frames)
            job.reports.put(Report(chunk.start + len(frames), plan.num_frames, frames[-1]))


NODES: list[type[io.ComfyNode]] = [LTXDecodeToVideo, LTXDecodeFrames, LTXEncode, LTXPreview]
