"""`preview -o gallery.html`: a page with a preview of each latent file, on which the ones to decode are marked."""

import argparse
import io
import json
import os
import shlex
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image

from .. import DeviceError, LTXVAEError, PreviewVAE, VideoReader, VideoVAE, WriterError
from ..audio_vae import find_audio_decoder
from ..errors import ItemsError, OutputClosed, describe_error
from ..frame_format import FrameOutput
from ..latents import open_latents
from ..model_table import Kind, models_for
from ..options import OutputOptions, PlanOptions
from ..pipeline.clip_audio import AudioSettings
from ..pipeline.frames import scaling_step
from ..pipeline.prepare import DecodeSettings
from ..shapes import format_size
from ..units import DEFAULT_FPS, format_count
from .cli import CommandParser
from .decode_command import PreviewJob, run_decode
from .gallery_page import GalleryClip, PreviewFolder, preview_folder, preview_of, read_page, read_picks, write_page
from .items import Item, Result, mark_folders, read_inputs
from .model_choice import choose_by_latents
from .terminal import print_traceback, write_line

_CRF = 30  # of previews, which are small then
_STILL_SIZE, _STILL_QUALITY = 320, 70  # pixels of the longer side, and JPEG's quality
_SECONDS_PER_LOOK, _SECONDS_PER_PAGE = 1, 2  # of --watch, and between pages while previews are made
_SECONDS_PER_RETRY = 10  # of --watch, after an error that may pass
_PASSING = (WriterError, DeviceError, MemoryError, OSError)  # such as those of a full disk
_COLORS = np.array([[0.8, 0.6, -0.3], [0.8, 0, 0.6], [0.8, -0.6, -0.3]])  # red, green and blue, by three directions
_NUM_SAMPLES, _SAMPLED_FRAMES = 8, 4  # latent files that colors are chosen for, and latent frames of each
# Options that change a preview.
_OPTIONS = (
    "model", "dtype", "fps", "frames", "all_frames", "tensor", "grid", "unnormalized", "hdr",
    "hdr_output", "max_size", "audio_model",
)  # fmt: skip


def run_gallery(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Make the gallery of complete arguments, and return the exit code."""
    for name, reason in (("join", "shows each latent file on its own"), ("exr", "has videos and no images")):
        if getattr(arguments, name):
            parser.error(f"a gallery {reason}; leave out --{name}")
    if arguments.hdr and arguments.hdr_output is None:
        arguments.hdr_output = "sdr"  # which all browsers play
    if not arguments.model:
        choose_by_latents(arguments, arguments.latents, Kind.PREVIEW)  # without one, there are colors
    page = Path(arguments.output)
    arguments.output, arguments.skip_existing = os.path.join(preview_folder(page), ""), False
    arguments.distributed = "off"
    plan = PlanOptions(memory_budget=arguments.memory_budget)
    output = OutputOptions(crf=_CRF, frames=preview_frames(arguments))
    settings = DecodeSettings(output, plan, audio=preview_audio(arguments, is_required=False))
    return run_decode(parser, arguments, settings, "{name}.mp4", partial(GalleryJob, page))


def preview_frames(arguments: argparse.Namespace) -> FrameOutput:
    """Return what previews have of the decoded frames."""
    return FrameOutput(steps=() if arguments.max_size is None else (scaling_step(arguments.max_size),))


def preview_audio(arguments: argparse.Namespace, *, is_required: bool) -> AudioSettings | None:
    """Return the audio of previews. `None` means no audio. Unless it `is_required`, audio latents may be missing."""
    if arguments.audio_model is None:
        return None
    find_vae = partial(find_audio_decoder, arguments.audio_model, None, arguments.dtype)
    return AudioSettings(find_vae, is_required=is_required)


class GalleryJob(PreviewJob):
    """Job that makes the previews that a page lacks, and writes the page."""

    is_many = True  # an error is a card of the page

    def __init__(
        self,
        page: Path,
        arguments: argparse.Namespace,
        sources: Sequence[str],
        pattern: str | None,
        settings: DecodeSettings,
    ) -> None:
        super().__init__(arguments, sources, pattern, settings)
        self._page, self._clips = page, dict[str, GalleryClip]()  # by their paths
        self._states = dict[str, list[Any]]()  # of the latent files, in order
        self._items, self._next_page = list[Item](), 0.0  # latent files without a preview
        self._folder = PreviewFolder(page)
        self._written: list[GalleryClip] | None = None  # cards of the page, if nothing has changed since then
        self._passing_errors, self._last_error, self._wait = set[str](), "", _SECONDS_PER_LOOK
        self._options = ", ".join(f"{name} {getattr(self.arguments, name)}" for name in _OPTIONS)
        self._is_watched = self.arguments.watch and not self.arguments.dry_run
        self._colors: PreviewVAE | None = None
        self._marks = dict[str, str]()  # of the lists of --picks

    def run(self) -> None:
        """Make the page, and with --watch again whenever the latent files have changed, or a preview is missing."""
        is_dry_run = self.arguments.dry_run
        self._marks = read_picks(self.arguments.picks)
        try:
            if not is_dry_run:
                self._folder.use()
            clips = read_page(self._page, self.confirm, is_dry_run=is_dry_run)
            self._clips = {clip.path: clip for clip in clips}
            while self._is_watched:
                self._wait = _SECONDS_PER_LOOK
                try:
                    self._update()
                    self._last_error = ""
                except (BrokenPipeError, OutputClosed):
                    raise
                except Exception as error:  # the next look may succeed
                    self._tell(error)
                time.sleep(self._wait)
            self._update()
        finally:
            self._folder.clean()
        if failed := [clip for clip in self._cards() if clip.error]:
            raise ItemsError(f"{len(failed)} of {format_count(len(self._states), 'input')} failed.")

    def _update(self) -> None:
        """Make the previews that are missing, and the page if it has changed."""
        if not self.arguments.dry_run:
            self._folder.use()
        with suppress(*[ItemsError] * self._is_watched):  # the folder may still be empty
            self._find_items()
        if self._items:
            super().run()
        if self.arguments.dry_run:
            if not self._items:
                self.summarize([], [], 0, [])
            return
        num_new = sum(not self._clips[os.path.abspath(item.source)].error for item in self._items)
        if num_new or self._cards() != self._written or not self._page.exists():
            self._written = None
            self._folder.clean(self._write(is_complete=True))
            self._written = self._cards()
            self._print_totals(num_new)
        if self._is_watched:
            self._folder.use()

    def _tell(self, error: Exception) -> None:
        """Print an error, unless it is still the last one, after which --watch goes on."""
        if self.arguments.debug:
            print_traceback(error)
        text, self._wait = describe_error(error), _SECONDS_PER_RETRY
        if text != self._last_error:
            write_line(f"error: {text}", sys.stderr)
        self._last_error = text

    def _find_items(self) -> None:
        """Find the latent files, and those of them that have changed since their previews were made."""
        states, self._items = dict[str, list[Any]](), []
        for item in read_inputs(mark_folders(self.sources, of_videos=False), of_videos=False):
            path, state = os.path.abspath(item.source), list[Any]()
            with suppress(OSError):
                status = os.stat(path)
                state = [status.st_mtime_ns, status.st_size, self._options]
            clip = self._clips.get(path)
            is_made = (
                clip is not None and clip.state == state and (not self._is_watched or self._folder.has(clip.videos))
            )
            if path not in states and not is_made:
                self._items.append(Item(item.source, item.name, preview_of(self._page, path)))
            states[path] = state
        self._states = states

    def make_items(self) -> list[Item]:
        return self._items

    def may_replace(self, files: Iterable[str]) -> bool:
        return True  # they are previews

    def open_pictures(self) -> VideoVAE:
        return super().open_pictures() if self.arguments.model else self._colors or self._find_colors()

    def _find_colors(self) -> PreviewVAE:
        """Return a projection to colors by the three main directions of latents, of which the first is brightness."""
        samples: list[np.ndarray] = []
        for item in self._items:
            with suppress(LTXVAEError, OSError):  # which its card says
                latents = open_latents(item.source, tensor=self.arguments.tensor, grid=self.arguments.grid).map()
                start = max(0, latents.shape.frames - _SAMPLED_FRAMES) // 2
                values = latents[slice(1), slice(None), slice(start, start + _SAMPLED_FRAMES)].astype(mx.float32)
                samples.append(np.array(values).reshape(latents.shape.channels, -1))
            if len(samples) == _NUM_SAMPLES:
                break
        channels = len(samples[0]) if samples else 3
        cells = np.concatenate([np.eye(channels), *(sample for sample in samples if len(sample) == channels)], axis=1)
        variances, directions = np.linalg.eigh(np.cov(cells))
        weight = _COLORS @ (directions[:, :-4:-1] / np.sqrt(4 * variances[-1])).T
        weights = {"weight": np.tile(weight, (4, 1)), "bias": np.tile(-weight @ cells.mean(1), 4)}  # 2x2 pixels a cell
        arrays = {f"decoder.to_rgb.{name}": mx.array(values.astype(np.float32)) for name, values in weights.items()}
        vae = PreviewVAE.from_weights(arrays, {"latent_rgb": {"vae": "the latents' own colors"}})
        self._colors = vae if samples else None
        return vae

    def _failed(self, result: Result, error: Exception) -> Result:
        result = super()._failed(result, error)
        if isinstance(error, _PASSING) and result.error:
            self._passing_errors.add(result.error)
            self._wait = _SECONDS_PER_RETRY
        return result

    def print_result(self, item: Item, result: Result) -> None:
        path = os.path.abspath(item.source)
        clip = self._clips.get(path)
        if not result.error or clip is None or clip.state or clip.error != result.error:  # it was not tried before
            super().print_result(item, replace(result, outputs=()))
        if self.arguments.dry_run:
            return
        self._clips[path] = self._describe(path, item, result)
        if time.monotonic() > self._next_page:
            self._write(is_complete=False)
            self._next_page = time.monotonic() + _SECONDS_PER_PAGE

    def _describe(self, path: str, item: Item, result: Result) -> GalleryClip:
        """Return the card of a clip."""
        state = self._states[path]
        date = f"{datetime.fromtimestamp(state[0] / 1e9):%Y-%m-%d %H:%M}" if state else ""
        argument = f"./{item.source}" if item.source.startswith(("-", "@")) else item.source
        clip = GalleryClip(path, shlex.quote(argument), Path(path).name, date, state, error=result.error or "")
        if clip.error:
            return replace(clip, state=[]) if clip.error in self._passing_errors else clip
        try:
            file = self.reader.open(item.source)
        except LTXVAEError as error:  # it was replaced meanwhile
            return replace(clip, error=str(error))
        scale = self.reader.config.scale
        frames, height, width = scale.video_grid(file.shape.grid)
        frames = frames if self.arguments.all_frames else file.count_source_frames(scale)
        fps, batch = float(self.arguments.fps or file.info.fps or DEFAULT_FPS), file.shape.batch
        facts = f"{frames / fps:.1f} s · {format_count(frames, 'frame')} · {format_size(width, height)} · {fps:.6g} fps"
        models = models_for(file.info.space.generation, Kind.VIDEO)
        return replace(
            clip,
            facts=facts if batch == 1 else f"{facts} · {batch} videos",
            prompt=find_text(file.entries, "prompt", "text"),
            seed=find_text(file.entries, "seed", "noise_seed"),
            model=models[0].name if models else "",
            videos=tuple(Path(output).name for output in result.outputs),
            stills=tuple(map(_first_frame, result.outputs)),
            fps=result.values.get("fps", 0),
            seconds=frames / fps,
        )

    def summarize(self, items: Sequence[Item], results: Sequence[Result], seconds: float, peaks: Sequence[int]) -> None:
        if self.arguments.dry_run:
            super().summarize(items, results, seconds, peaks)

    def _write(self, *, is_complete: bool) -> set[str]:
        return write_page(
            self._page, self._cards(), is_watched=self._is_watched, is_complete=is_complete, marks=self._marks
        )

    def _cards(self) -> list[GalleryClip]:
        """Return the cards of the page, in the order of the latent files."""
        return [self._clips[path] for path in self._states if path in self._clips]

    def _print_totals(self, num_new: int) -> None:
        failed = sum(bool(clip.error) for clip in self._cards())
        report = {"output": str(self._page), "clips": len(self._states), "new": num_new, "failed": failed}
        self.end_progress(report)
        if self.arguments.json:
            write_line(json.dumps(report), sys.stdout)
        elif not self.arguments.quiet:
            write_line(
                f"{self._page}: {format_count(len(self._states), 'clip')}, {num_new} new, {failed} failed", sys.stdout
            )


def _first_frame(preview: str) -> str:
    """Return the first frame of a preview as JPEG in base64, or "" if it cannot be read."""
    try:
        with VideoReader(preview, multiple=2, max_frames=1) as video:
            image = Image.fromarray(next(video)[0])
    except (LTXVAEError, StopIteration):  # another program has replaced it; the page shows it without a still
        return ""
    image.thumbnail((_STILL_SIZE, _STILL_SIZE))
    content = io.BytesIO()
    image.save(content, "jpeg", quality=_STILL_QUALITY)
    return b64encode(content.getvalue()).decode()


def find_text(entries: Mapping[str, str], key: str, input_name: str) -> str:
    """Return a prompt or a seed in the metadata of a latent file, "" if it states none.

    ComfyUI's `prompt` is a graph of nodes, whose first input of one of these names counts.
    """
    try:
        nodes = json.loads(entries.get("prompt", "")).values()
        values = [node["inputs"].get(name) for node in nodes for name in (key, input_name)]
        return next((str(value) for value in values if isinstance(value, str | int) and value != ""), "")
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):  # no graph
        return entries.get(key, "")
