"""`mlx_ltx_vae upscale`: make the latents of files larger by a latent upsampler."""

import argparse
import time
from dataclasses import replace
from math import prod
from typing import Any

import mlx.core as mx

from .. import DecodePlan, Keyframes, LatentUpsampler, VideoVAE
from ..errors import warn
from ..latents import LatentsWriter, check_latents_name, is_for_comfyui, open_latents
from ..latents.metadata import LatentSpace
from ..model_table import Kind, list_names
from ..options import PlanOptions
from ..pipeline.inputs import open_without_vae
from ..pipeline.prepare_encode import EncodeSettings
from ..pipeline.progress import FrameBar
from ..pipeline.sources import check_values
from ..shapes import LatentShape, format_size
from ..units import format_count, format_seconds
from .cli import CommandParser
from .items import Item, Result, check_inputs, find_pattern, has_table, mark_folders
from .jobs import Job, Task
from .model_choice import choose_by_latents
from .options import read_options
from .terminal import run_command


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    with parser.wrong_usage():
        check_inputs(arguments.latents, arguments.output, ".safetensors")
    if arguments.list:
        arguments.latents = [*arguments.latents, f"@{arguments.list}"]
    if not arguments.latents:
        parser.error("LATENTS is missing")
    if not arguments.model:
        names = list_names([Kind.UPSAMPLER])
        parser.error(f"-m UPSAMPLER is missing: give one of {names}, a file, a folder or a hub id")
    sources = mark_folders(arguments.latents, of_videos=False)
    with parser.wrong_usage():
        read_options(PlanOptions, arguments)
        pattern = find_pattern(sources, arguments.output, ".safetensors")
        if pattern is None and not has_table(sources):
            pattern = "{name}-upscaled.safetensors"
        if pattern:
            check_latents_name(pattern)
    problem = None if arguments.vae else choose_by_latents(arguments, sources, Kind.VIDEO, flag="--vae")
    if not arguments.vae:
        names = list_names([Kind.VIDEO])
        parser.error(
            problem or f"--vae VAE is missing, the VAE of the latents: give one of {names}, a file or a folder"
        )
    job = UpscaleJob(arguments, sources, pattern)
    return run_command(lambda _: job.run(), arguments, computes=not arguments.dry_run)


class UpscaleJob(Job):
    """Job of `upscale`."""

    network, label = "upsampler", "Upsampler"
    vae: LatentUpsampler
    latents_vae: VideoVAE

    @property
    def is_remote(self) -> bool:
        return LatentUpsampler.is_remote(self.arguments.model) or VideoVAE.is_remote(self.arguments.vae)

    def open(self) -> LatentUpsampler:
        if not (is_remote := VideoVAE.is_remote(self.arguments.vae)):  # what is here has its errors before a download
            self.latents_vae = VideoVAE.from_pretrained(self.arguments.vae)
        upsampler = LatentUpsampler.from_pretrained(self.arguments.model, dtype=self.dtype)
        if is_remote:
            self.latents_vae = VideoVAE.from_pretrained(self.arguments.vae)
        upsampler.find_statistics(self.latents_vae)
        return upsampler

    def open_without_download(self) -> None:
        return None

    def make_task(self, item: Item) -> "UpscaleTask":
        return UpscaleTask(self, item)


class UpscaleTask(Task):
    """Upscaling of a latent file, with its metadata, audio and keyframes, where they hold for the result."""

    plan: DecodePlan
    _job: UpscaleJob

    def __init__(self, job: UpscaleJob, item: Item) -> None:
        super().__init__(job, item)
        arguments, outputs = job.arguments, [] if item.output is None else [item.output]
        if not job.has_vae:
            open_without_vae(item.source, tensor=arguments.tensor, grid=arguments.grid)
            self.result = Result([], outputs)
            return
        vae, upsampler = job.latents_vae, job.vae
        self._file = open_latents(
            item.source,
            latent_channels=upsampler.config.latent_channels,
            tensor=arguments.tensor,
            grid=arguments.grid,
            scale=vae.config.scale,
            vae="the upsampler",
        )
        if problem := vae.describe_mismatch(self._file.info.space):
            warn(f"{item.source}: its latents are {problem}, so the result will be wrong; give their VAE with --vae.")
        self._statistics, self._unnormalized = vae.statistics, arguments.unnormalized
        self.plan = upsampler.plan(self._file.shape, memory_budget=arguments.memory_budget)
        inputs = [*upsampler.source.files, *vae.source.files]
        self.result = Result(inputs, outputs, num_frames=self.plan.num_frames, cost=prod(self._file.shape))

    def check_outputs(self) -> None:
        """Find out whether to skip the item. Raise the errors of writing before the weights are read."""
        super().check_outputs()
        for output in self.missing_outputs:
            EncodeSettings(overwrite=self.overwrite).check_output(output, makes_folders=self._job.makes_folders)

    def check_values(self) -> None:
        if self._job.has_vae:
            check_values(self._file.map(statistics=self._statistics, unnormalized=self._unnormalized))

    def networks(self) -> dict[str, dict[str, str]]:
        return super().networks() | {"vae": next(iter(self._job.latents_vae.source.networks.values()))}

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        vae, info, (output,) = self._job.latents_vae, self._file.info, self.result.outputs
        upsampler = self._job.vae.load()  # before the clock starts
        start = time.perf_counter()
        with LatentsWriter(output, overwrite=self.overwrite) as writer:
            latents = self._file.read(statistics=self._statistics, unnormalized=self._unnormalized)
            result = upsampler.upscale(latents, statistics=vae, plan=self.plan, progress=bar)
            writer.write(result)
            shape, rate = LatentShape(*result.shape), upsampler.time_factor
            num_frames, height, width = vae.config.scale.video_grid(shape.grid)
            sizes: dict[str, int | None] = {"num_frames": num_frames, "height": height, "width": width}
            sizes["carry"] = info.carry and rate * (info.carry - 1) + 1
            if info.source_frames:  # a decode leaves out no more than a part of the last latent frame
                source_frames = rate * (self._file.count_source_frames(vae.config.scale) - 1) + 1
                sizes["source_frames"] = max(source_frames, num_frames - vae.config.scale.time + 1)
            new_path = writer.complete(
                fps=info.fps and info.fps * rate,
                sizes=sizes,
                audio=self._read_audio(output),
                keyframes=self._read_keyframes(output, shape, rate),
                space=info.space if info.space != LatentSpace() else vae.latent_space,
                workflow=info.workflow,
            )
        if new_path is not None:
            self.result = replace(self.result, outputs=[str(new_path)])
        seconds, fps = time.perf_counter() - start, None if info.fps is None else float(info.fps * rate)
        values: dict[str, Any] = {"frames": num_frames, "width": width, "height": height, "fps": fps}
        values |= {"latent_shape": list(shape), "seconds": seconds}
        values |= {"peak_memory_bytes": mx.get_peak_memory(), "plan": self.plan.as_dict()}
        latent_frames, frames = format_count(shape.frames, "latent frame"), format_count(num_frames, "frame")
        summary = f"{latent_frames} for {frames} of {format_size(width, height)} in {format_seconds(seconds)}"
        return self._report(summary, values)

    def _read_audio(self, output: str) -> mx.array | None:
        """Return the audio latents of the file, which stay as they are, or `None`; warn if they cannot."""
        audio, is_comfyui = self._file.find_audio(), is_for_comfyui(output)
        if audio is None or not (is_comfyui or self._unnormalized or self._file.normalized is False):
            return None if audio is None else audio.read_stored()
        reason = "a .latent file has none" if is_comfyui else "they are unnormalized"
        warn(f"{audio.source}: its audio latents are left out, since {reason}.")
        return None

    def _read_keyframes(self, output: str, shape: LatentShape, rate: int) -> Keyframes | None:
        """Return the keyframes of the file at the new rate, or `None`; warn if they do not fit the result."""
        file = self._file
        if file.has_keyframes and (is_for_comfyui(output) or shape.grid[1:] != file.shape.grid[1:]):
            warn(f"{file.info.source}: its keyframes are left out, since they have the size before the upscaling.")
        elif stills := file.find_keyframes():
            keyframes = stills.read(statistics=self._statistics, unnormalized=self._unnormalized)
            return Keyframes(keyframes.latents, [rate * frame for frame in keyframes.frames])
        return None
