"""LTX Decode Frames, LTX Encode and LTX Demo Latents."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from comfy_api.latest import InputImpl, io
from PIL import Image

from mlx_ltx_vae import Fit, LatentsError, ReaderError, VideoReader, VideoVAE, demo, load_latents, video

from . import host
from .host import CATEGORY, FileNode, budget, budget_input, loaded_input, vae_input, vae_source
from .latents import latent_input, to_numpy, video_latents
from .networks import Source
from .options_node import DecoderOptions, options_input
from .video_nodes import Clip, describe, start_stream
from .worker import Job, Report, format_bytes

FRAMES_AT_ONCE = 8
FLOATS = video.FrameOutput(video.FrameFormat("rgbf32le"))  # with white at 1
RESIZE = {"crop": Fit.CROP, "fit": Fit.RESIZE}
Size = tuple[int, int]  # (width, height)


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
            inputs=[latent_input(), vae_input(), loaded_input("loaded_vae"), budget_input(), options_input()],
            outputs=[io.Image.Output(tooltip="All frames, in float32.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        latent: dict,
        vae: str,
        memory_budget: str,
        options: DecoderOptions | None = None,
        loaded_vae: Any = None,
    ) -> io.NodeOutput:
        options = options or DecoderOptions()
        if options.hdr is not None:
            raise LatentsError("hdr is for files, as LTX Save Video (MLX) writes them; set it to no for images.")
        source = vae_source("loaded_vae", vae, loaded_vae)
        clip = Clip(source, video_latents(latent), budget(memory_budget), options)
        return io.NodeOutput(torch.from_numpy(host.run(decode_frames, clip, node_id=cls.hidden.unique_id)))


def decode_frames(job: Job, clip: Clip) -> np.ndarray:
    """Decode the frames (F, H, W, 3) in [0, 1], float32."""
    vae = host.networks.load(VideoVAE, clip.vae, "decoder")
    plan, stream = start_stream(job, vae, clip, [FLOATS], joined=True)
    width, height = plan.frame_size
    shape = plan.num_frames, height, width, 3
    job.say(f"{format_bytes(plan.memory.result)} for the images")
    host.make_room(job, plan.peak_bytes)
    images = np.empty(shape, np.float32)
    for chunk in job.chunks(stream):
        frames = np.clip(chunk.to_frames(FLOATS), 0, 1)
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
            "Sides become multiples of 32. Of a number of frames that is not 1 + 8k, the last ones are left out.",
            inputs=[
                io.MultiType.Input("frames", types=[io.Image, io.Video], tooltip="Images, or a video."),
                vae_input(),
                loaded_input("loaded_vae"),
                budget_input(),
                io.Combo.Input(
                    "resize",
                    options=list(RESIZE),
                    default="crop",
                    optional=True,
                    tooltip="Sides that are no multiples of 32. crop: the edges are cut off evenly. fit: both sides "
                    "are scaled to the nearest multiples.",
                ),
            ],
            outputs=[io.Latent.Output(tooltip="Normalized, as ComfyUI's samplers take them.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls, frames: Any, vae: str, memory_budget: str, resize: str = "crop", loaded_vae: Any = None
    ) -> io.NodeOutput:
        source = frames if isinstance(frames, torch.Tensor) else file_of(frames) or frames.get_components().images
        if isinstance(source, torch.Tensor):
            source = to_numpy(source)[..., :3]
        arguments = vae_source("loaded_vae", vae, loaded_vae), source, budget(memory_budget), RESIZE[resize]
        latents = host.run(encode, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"samples": torch.from_numpy(latents)})


def file_of(frames: Any) -> str | None:
    """Return the file of a VIDEO, or `None` if it is a part of one or has none."""
    source = frames.get_stream_source() if isinstance(frames, InputImpl.VideoFromFile) else None
    return source if isinstance(source, str) and frames.get_active_trim_window() == (0, 0) else None


def encode(job: Job, source: Source, frames: np.ndarray | str, memory_budget: str | None, fit: Fit) -> np.ndarray:
    """Latents (1, C, F', H', W'), of images (F, H, W, 3) in [0, 1] or of a file."""
    vae = host.networks.load(VideoVAE, source, "encoder")
    multiple = vae.config.scale.height
    if isinstance(frames, str):
        with VideoReader(frames, multiple=multiple, fit=fit) as reader:
            say_size(job, reader.source_size, reader.size)
            return encode_parts(job, vae, reader, (reader.num_frames or 1, *reader.size[::-1]), memory_budget)
    size = frames.shape[2], frames.shape[1]
    target = fit_size(size, fit, multiple)
    say_size(job, size, target)
    parts = pixels(frames, target, fit)
    return encode_parts(job, vae, parts, (len(frames), *target[::-1]), memory_budget)


def fit_size(size: Size, fit: Fit, multiple: int) -> Size:
    """Return the size that images are cropped or scaled to, as `VideoReader` does it with a video."""
    within = size[0] // multiple * multiple, size[1] // multiple * multiple
    nearest = max(1, round(size[0] / multiple)) * multiple, max(1, round(size[1] / multiple)) * multiple
    if fit is Fit.CROP and 0 in within:
        sizes = f"{format_size(size)} cannot be cropped to multiples of {multiple}"
        raise ReaderError(f"the images: {sizes}; resize it to {format_size(nearest)} (resize: fit) or to another size.")
    return within if fit is Fit.CROP else nearest


def format_size(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def say_size(job: Job, size: Size, target: Size) -> None:
    if size != target:
        job.say(f"frames of {format_size(size)} are made {format_size(target)}")


def pixels(images: np.ndarray, size: Size, fit: Fit) -> Iterator[np.ndarray]:
    """Yield a few frames of a size (width, height) at a time: (1, 3, n, H, W) in [-1, 1]."""
    width, height = size
    top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
    for start in range(0, len(images), FRAMES_AT_ONCE):
        part = images[start : start + FRAMES_AT_ONCE]
        if fit is Fit.CROP:
            part = part[:, top : top + height, left : left + width]
        elif part.shape[1:3] != (height, width):
            part = np.stack([scaled(image, size) for image in part])
        yield (part * 2 - 1).transpose(3, 0, 1, 2)[None]


def scaled(image: np.ndarray, size: Size) -> np.ndarray:
    """Scale an image (H, W, 3) of floats to a size."""
    planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in image.transpose(2, 0, 1)]
    return np.stack([np.asarray(plane.resize(size, Image.Resampling.BICUBIC)) for plane in planes], axis=2)


def encode_parts(
    job: Job, vae: VideoVAE, parts: Iterator[np.ndarray], grid: tuple[int, int, int], memory_budget: str | None
) -> np.ndarray:
    plan = vae.plan_encode((1, 3, *grid), memory_budget=memory_budget)
    total = plan.latent_shape.frames
    job.say(describe(plan))
    host.make_room(job, plan.peak_bytes)
    latents: list[np.ndarray] = []
    for part in vae.encode_stream(parts, plan):
        job.check()
        latents.append(np.array(part.astype(mx.float32)))
        job.reports.put(Report(sum(latents_part.shape[2] for latents_part in latents), total))
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
