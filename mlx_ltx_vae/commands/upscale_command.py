"""`mlx_ltx_vae upscale`: make the latents of files larger by a latent upsampler."""

import argparse
from dataclasses import replace
from math import prod
from typing import Any

from .. import DecodePlan, LatentUpsampler, VideoVAE
from ..latents import check_latents_name
from ..model_table import Kind, list_names
from ..options import PlanOptions
from ..pipeline.inputs import open_without_vae
from ..pipeline.prepare_encode import EncodeSettings
from ..pipeline.progress import FrameBar
from ..shapes import format_size
from ..units import format_count, format_seconds
from ..upsampler import PreparedUpscale
from .cli import CommandParser
from .items import Item, Result, check_inputs, find_pattern, mark_folders
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
        pattern = find_pattern(sources, arguments.output, ".safetensors", "{name}-upscaled.safetensors")
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

    def make_task(self, item: Item) -> "UpscaleTask":
        return UpscaleTask(self, item)


class UpscaleTask(Task):
    """Upscaling of a latent file."""

    plan: DecodePlan
    _job: UpscaleJob

    def __init__(self, job: UpscaleJob, item: Item) -> None:
        super().__init__(job, item)
        arguments, outputs = job.arguments, [] if item.output is None else [item.output]
        tensor, grid = arguments.tensor, arguments.grid
        if not job.has_vae:
            open_without_vae(item.source, tensor=tensor, grid=grid)
            self.result = Result([], outputs)
            return
        self._upscale = PreparedUpscale(
            job.vae,
            job.latents_vae,
            item.source,
            tensor=tensor,
            grid=grid,
            unnormalized=arguments.unnormalized,
            memory_budget=arguments.memory_budget,
        )
        self.plan, cost = self._upscale.plan, prod(self._upscale.shape)
        self.result = Result(self._upscale.inputs, outputs, num_frames=self.plan.num_frames, cost=cost)

    def check_outputs(self) -> None:
        """Find out whether to skip the item. Raise the errors of writing before the weights are read."""
        super().check_outputs()
        for output in self.missing_outputs:
            EncodeSettings(overwrite=self.overwrite).check_output(output, makes_folders=self._job.makes_folders)

    def check_values(self) -> None:
        if self._job.has_vae:
            self._upscale.check_values()

    def networks(self) -> dict[str, dict[str, str]]:
        return super().networks() | {"vae": next(iter(self._job.latents_vae.source.networks.values()))}

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        (output,) = self.result.outputs
        report = self._upscale.run(output, overwrite=self.overwrite, progress=bar)
        self.result = replace(self.result, outputs=[report.output])
        frames, size = format_count(report.frames, "frame"), format_size(report.width, report.height)
        latent_frames = format_count(report.latent_shape.frames, "latent frame")
        summary = f"{latent_frames} for {frames} of {size} in {format_seconds(report.seconds)}"
        values = {name: value for name, value in vars(report).items() if name != "output"}
        return self._report(summary, {**values, "plan": self.plan.as_dict()})
