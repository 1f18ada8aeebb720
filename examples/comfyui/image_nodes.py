"""LTX Decode Frames, LTX Encode and LTX Demo Latents."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from comfy_api.latest import InputImpl, io

from mlx_ltx_vae import VideoReader, VideoVAE, demo, load_latents
from mlx_ltx_vae.units import format_bytes

from . import host
from .host import CATEGORY, FileNode, budget, budget_input, full_path, vae_input
from .latents import keyframe_inputs, latent_input, stream_inputs, stream_options, to_numpy, video_latents
from .video_nodes import Clip, describe
from .worker import Job, Report

FRAMES_AT_ONCE = 8


class LTXDecodeFrames(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDecodeFramesMLX",
            display_name="LTX Decode Frames (MLX)",
            category=CATEGORY,
            search_aliases=["vae decode", "latent to image", "mlx"],
            description="Decodes LTX latents into images. They take 12 bytes of memory for each pixel of each frame, "
            "which the node shows before it decodes; LTX Decode to Video (MLX) does not need that.",
            inputs=[latent_input(), vae_input(), budget_input(), *stream_inputs(), *keyframe_inputs()],
            outputs=[io.Image.Output(tooltip="All frames, in float32.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, latent: dict, vae: str, memory_budget: str, **more: Any) -> io.NodeOutput:
        clip = Clip(full_path(vae), video_latents(latent), budget(memory_budget), stream_options(**more))
        return io.NodeOutput(torch.from_numpy(host.run(decode_frames, clip, node_id=cls.hidden.unique_id)))


def decode_frames(job: Job, clip: Clip) -> np.ndarray:
    """The frames (F, H, W, 3) in [0, 1], float32."""
    vae = host.networks.load(VideoVAE, clip.vae, "decoder")
    keyframes = clip.options.get("keyframes")
    plan = vae.plan(clip.latents.shape, memory_budget=clip.memory_budget, keyframes=keyframes)
    stream = vae.stream(clip.latents, plan, **clip.options)
    width, height = plan.frame_size
    shape = plan.num_frames, height, width, 3
    num_bytes = 4 * int(np.prod(shape))
    text = f"{describe(plan)}, and {format_bytes(num_bytes)} for the images"
    job.reports.put(Report(0, plan.num_frames, text=text))
    host.make_room(job, plan.peak_bytes + num_bytes)
    images = np.empty(shape, np.float32)
    for chunk in job.chunks(stream):
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
            search_aliases=["vae encode", "image to latent", "video to latent", "mlx"],
            description="Encodes images or a video into LTX latents. A video is read from its file as it is encoded. "
            "Sides must be multiples of 32. Of a number of frames that is not 1 + 8k, the last ones are left out.",
            inputs=[
                io.MultiType.Input("frames", types=[io.Image, io.Video], tooltip="Images, or a video."),
                vae_input(),
                budget_input(),
            ],
            outputs=[io.Latent.Output(tooltip="Normalized, as ComfyUI's samplers take them.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, frames: Any, vae: str, memory_budget: str) -> io.NodeOutput:
        source = frames if isinstance(frames, torch.Tensor) else file_of(frames) or frames.get_components().images
        if isinstance(source, torch.Tensor):
            source = to_numpy(source)[..., :3]
        arguments = full_path(vae), source, budget(memory_budget)
        latents = host.run(encode, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"samples": torch.from_numpy(latents)})


def file_of(video: Any) -> str | None:
    """The file of a VIDEO; None if it is a part of one, or has none."""
    source = video.get_stream_source() if isinstance(video, InputImpl.VideoFromFile) else None
    return source if isinstance(source, str) and video.get_active_trim_window() == (0, 0) else None


def encode(job: Job, vae_path: str, source: np.ndarray | str, memory_budget: str | None) -> np.ndarray:
    """Latents (1, C, F', H', W'), of images (F, H, W, 3) in [0, 1] or of a file."""
    vae = host.networks.load(VideoVAE, vae_path, "encoder")
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
    host.make_room(job, plan.peak_bytes)
    latents: list[np.ndarray] = []
    for part in vae.encode_stream(parts, plan):
        job.check()
        latents.append(np.array(part.astype(mx.float32)))
        job.reports.put(Report(sum(each.shape[2] for each in latents), total))
    return np.concatenate(latents, axis=2)


class LTXDemoLatents(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDemoLatentsMLX",
            display_name="LTX Demo Latents (MLX)",
            category=CATEGORY,
            search_aliases=["example latent", "test latent", "mlx"],
            description="Latents of a short clip, for the demo VAE. Both come with mlx_ltx_vae.",
            inputs=[],
            outputs=[io.Latent.Output(tooltip="73 frames of 384x256, for the demo VAE only.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        latents = host.run(load_demo, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"samples": torch.from_numpy(latents)})


def load_demo(job: Job) -> np.ndarray:
    return np.array(load_latents(demo.LATENTS)[0].astype(mx.float32))
