"""LTX Preview and LTX Sampling Preview."""

import logging
import os
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import comfy.utils
import mlx.core as mx
import numpy as np
import torch
from comfy.patcher_extension import WrappersMP
from comfy_api.latest import InputImpl, io, ui
from PIL import Image

from mlx_ltx_vae import LTXVAEError, PreviewVAE, VideoWriter, video

from . import host
from .host import CATEGORY, FileNode, files_in, fps_input, full_path
from .latents import latent_input, to_numpy, video_latents
from .networks import FileState, VAEFile, file_state
from .video_nodes import describe
from .worker import Job, Report

SHEET_SIZE = 768  # pixels of the longer side of the pictures while sampling


@cache
def makes_stills(path: str, state: FileState) -> bool:
    """Tell whether a file has a decoder of single pictures. `state` changes when the file is replaced."""
    return PreviewVAE.can_load(path)


def decoder_input() -> io.Combo.Input:
    files = [(choice, full_path(choice)) for choice in files_in("vae_approx", "vae")]
    return io.Combo.Input(
        "decoder",
        options=[*(choice for choice, path in files if makes_stills(path, file_state(path))), "demo preview"],
        tooltip="A tiny decoder, such as taeltx2_3.safetensors, or a projection (latent_rgb).",
    )


class LTXPreview(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXPreviewMLX",
            display_name="LTX Preview (MLX)",
            category=CATEGORY,
            search_aliases=["taehv", "tiny vae", "taeltx", "contact sheet", "mlx"],
            description="Shows in seconds what is in LTX latents, as a contact sheet or as a clip, by a tiny decoder.",
            inputs=[
                latent_input(),
                decoder_input(),
                io.Combo.Input(
                    "show", options=["contact sheet", "clip"], default="contact sheet", tooltip="Both are returned."
                ),
                fps_input("Frames per second of the whole video."),
            ],
            outputs=[
                io.Image.Output(display_name="contact sheet", tooltip="Frames of the clip beside each other."),
                io.Video.Output(display_name="clip", tooltip="A file in ComfyUI's folder for temporary files."),
            ],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, latent: dict, decoder: str, show: str, fps: float) -> io.NodeOutput:
        sheet, clip = host.new_file(".png"), host.new_file(".mp4")
        arguments = full_path(decoder), video_latents(latent), fps, sheet, clip
        host.run(preview, *arguments, node_id=cls.hidden.unique_id)
        image = np.asarray(Image.open(sheet), np.float32)[None] / 255
        if show == "clip":
            preview_ui = ui.PreviewVideo([ui.SavedResult(os.path.basename(clip), "", io.FolderType.temp)])
        else:
            preview_ui = ui.SavedImages([ui.SavedResult(os.path.basename(sheet), "", io.FolderType.temp)])
        return io.NodeOutput(torch.from_numpy(image), InputImpl.VideoFromFile(clip), ui=preview_ui)


def preview(job: Job, path: str, latents: np.ndarray, fps: float, sheet: str, clip: str) -> None:
    """Write a contact sheet and a clip."""
    vae = host.networks.load(PreviewVAE, VAEFile(path), "decoder")
    plan = vae.plan(latents.shape, bit_depth=8)
    video_frames, *_ = vae.config.scale.video_grid(plan.latent_shape.grid)
    share = Fraction(plan.num_frames, video_frames)  # of the video's frames, which some decoders make
    options = {"size": plan.frame_size, "fps": share * video.parse_fps(fps), "num_frames": plan.num_frames}
    job.say(describe(plan))
    pictures = video.open_sink(sheet, options=video.OutputOptions(contact_sheet=True), **options)
    with pictures, VideoWriter(clip, **options) as writer:
        for chunk in job.chunks(vae.stream(latents, plan, bit_depth=8)):
            frames = chunk.to_uint8()
            pictures.write(frames)
            writer.write(frames)
            job.reports.put(Report(chunk.start + len(frames), plan.num_frames))  # a picture would lie over the sheet


class LTXSamplingPreview(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXSamplingPreviewMLX",
            display_name="LTX Sampling Preview (MLX)",
            category=CATEGORY,
            search_aliases=["preview override", "live preview", "taehv", "mlx"],
            description="Shows pictures of the clip in the sampler after each of its steps, by a tiny decoder.",
            inputs=[
                io.Model.Input("model", tooltip="A model of LTX-Video or LTX-2."),
                decoder_input(),
                io.Int.Input("pictures", default=4, min=1, max=16, tooltip="How many moments of the clip are shown."),
            ],
            outputs=[io.Model.Output(tooltip="The model, for the sampler.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, model: Any, decoder: str, pictures: int) -> io.NodeOutput:
        model = model.clone()
        sample = partial(sample_with_pictures, full_path(decoder), pictures, cls.hidden.unique_id)
        model.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "ltx_preview_mlx", sample)
        return io.NodeOutput(model)


def sample_with_pictures(
    path: str,
    count: int,
    node_id: str | None,
    executor: Callable[..., Any],
    noise: Any,
    latent_image: Any,
    sampler: Any,
    sigmas: Any,
    denoise_mask: Any = None,
    callback: Callable[..., Any] | None = None,
    *more: Any,
    latent_shapes: Any = None,
    **options: Any,
) -> Any:
    """Wraps the sampling of a model. After the `callback` of the sampler, each step shows pictures of its estimate."""
    bar = comfy.utils.ProgressBar(len(sigmas) - 1)
    shapes, is_off = latent_shapes or [latent_image.shape], not host.shows_pictures()
    host.tell("no pictures: ComfyUI's preview method is none" if is_off else "pictures after each step", node_id)

    def after_step(step: int, estimate: Any, current: Any, total_steps: int) -> None:
        nonlocal is_off
        if callback is not None:
            callback(step, estimate, current, total_steps)
        if is_off:
            return
        try:
            latents = to_numpy(comfy.utils.unpack_latents(estimate, shapes)[0][:1])
            picture = host.run(sheet_of, path, latents, count, node_id=None)
        except LTXVAEError as error:  # which is no reason to end what may have taken an hour
            logging.warning("LTX Sampling Preview (MLX) goes without pictures: %s", error)
            host.tell(f"no pictures: {error}", node_id)
            is_off = True
            return
        bar.update_absolute(step + 1, total_steps, ("JPEG", Image.fromarray(picture), SHEET_SIZE))

    return executor(
        noise, latent_image, sampler, sigmas, denoise_mask, after_step, *more, latent_shapes=latent_shapes, **options
    )


def sheet_of(job: Job, path: str, latents: np.ndarray, count: int) -> np.ndarray:
    """Pictures (H, W, 3) of this many moments of a clip, in rows."""
    vae = host.networks.load(PreviewVAE, VAEFile(path), "decoder")
    pixels = vae.decode_stills(latents)
    picked = np.unique(np.linspace(0, pixels.shape[2] - 1, count).round().astype(int))
    chosen = pixels[0, :, mx.array(picked)].astype(mx.float32).transpose(0, 2, 3, 1)
    stills = np.array(mx.round((mx.clip(chosen, -1, 1) + 1) * 127.5).astype(mx.uint8))  # (n, H, W, 3)
    columns = int(np.ceil(np.sqrt(len(stills))))
    blank = np.zeros((-len(stills) % columns, *stills.shape[1:]), np.uint8)
    rows = np.concatenate([stills, blank]).reshape(-1, columns, *stills.shape[1:])
    return np.ascontiguousarray(rows.transpose(0, 2, 1, 3, 4).reshape(-1, columns * stills.shape[2], 3))
