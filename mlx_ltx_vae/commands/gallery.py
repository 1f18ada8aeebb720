"""`preview -o gallery.html`: a page with a preview of each latent file, on which the ones to decode are marked."""

import argparse
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.machine import Work
from ..checkpoint import Checkpoint, open_weights
from ..errors import ItemsError, LTXVAEError
from ..latents import open_latents
from ..options import OutputOptions, PlanOptions
from ..shapes import format_size
from ..units import DEFAULT_FPS, format_count
from .cli import CommandParser
from .decode_command import DecodeJob, DecodeSettings, run_decode
from .gallery_page import Clip, GalleryPage
from .items import Item, ItemFiles, mark_folders, read_inputs
from .jobs import Result
from .running import print_report

_CRF = 30  # of previews, which are small then
_SECONDS_PER_LOOK, _SECONDS_PER_PAGE = 1, 2  # of --watch, and between pages while previews are made
_NUM_SAMPLES, _SAMPLED_FRAMES = 8, 4  # latent files that colors are chosen for, and latent frames of each
# Options that change a preview.
_OPTIONS = ("model", "dtype", "fps", "frames", "first_seconds", "tensor", "grid", "unnormalized", "hdr", "hdr_output")


def is_page(output: str | None) -> bool:
    """Return whether an output is a gallery."""
    return Path(output or "").suffix.lower() in (".html", ".htm")


def run_gallery(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Make the gallery of complete arguments, and return the exit code."""
    for name, reason in (("join", "shows each latent file on its own"), ("exr", "has videos and no images")):
        if getattr(arguments, name):
            parser.error(f"a gallery {reason}; leave out --{name}")
    page = GalleryPage(arguments.output)
    arguments.output, arguments.skip_existing = os.path.join(page.folder, ""), False
    arguments.distributed = Work.OFF.value
    output, settings = OutputOptions(crf=_CRF), DecodeSettings(PlanOptions(memory_budget=arguments.memory_budget))
    return run_decode(parser, arguments, output, settings, "{name}.mp4", make_job=partial(GalleryJob, page))


class GalleryJob(DecodeJob):
    """Job that makes the previews that a page lacks, and writes the page."""

    is_many = True  # an error is a card of the page
    makes_folders = True

    def __init__(self, page: GalleryPage, *job: Any) -> None:
        super().__init__(*job)
        self._page, self._clips = page, dict[str, Clip]()  # by their paths
        self._states = dict[str, list[Any]]()  # of the latent files, in order
        self._items = list[Item]()  # those without a preview
        self._options = ", ".join(f"{name} {getattr(self.arguments, name)}" for name in _OPTIONS)
        self._is_watched = self.arguments.watch and not self.arguments.dry_run
        self._colors: Checkpoint | None = None
        self._num_new, self._next_page = 0, 0.0

    def run(self) -> None:
        """Make the page, and with --watch again whenever the latent files have changed."""
        self._clips = {clip.path: clip for clip in self._page.read(super().may_replace)}
        paths: list[str] | None = None
        while True:
            with suppress(*([ItemsError] if self._is_watched else [])):  # the folder may still be empty
                self._find_items()
            if self._items:
                super().run()
            if (self._items or paths != list(self._states)) and not self.arguments.dry_run:
                self._write(is_complete=True)
                self._print_summary()
            if not self._is_watched:
                break
            paths = list(self._states)
            time.sleep(_SECONDS_PER_LOOK)
        if failed := self._num_failed:
            raise ItemsError(f"{failed} of {format_count(len(self._states), 'input')} failed.")

    def _find_items(self) -> None:
        """Find the latent files, and those of them that have changed since their previews were made."""
        self._states, self._items = {}, []
        for item in read_inputs(mark_folders(self.sources, of_videos=False), of_videos=False):
            path, state = os.path.abspath(item.source), list[Any]()
            with suppress(OSError):
                status = os.stat(path)
                state = [status.st_mtime_ns, status.st_size, self._options]
            if path not in self._states and (path not in self._clips or self._clips[path].state != state):
                self._clips.pop(path, None)
                self._items.append(Item(item.source, item.name, self._page.preview_of(path)))
            self._states[path] = state

    def make_items(self) -> list[Item]:
        return self._items

    def may_replace(self, files: Iterable[str]) -> bool:
        return True  # they are previews

    def open(self) -> Checkpoint:
        return super().open() if self.arguments.model else self._colors or self._find_colors()

    def _find_colors(self) -> Checkpoint:
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
        scaled = directions[:, :-4:-1] / np.sqrt(4 * variances[:-4:-1].clip(1e-6))
        weight = np.array([[0.8, 0.4, -0.2], [0.8, 0, 0.4], [0.8, -0.4, -0.2]]) @ scaled.T
        weights = {"weight": np.tile(weight, (4, 1)), "bias": np.tile(-weight @ cells.mean(1), 4)}  # 2x2 pixels a cell
        arrays = {f"decoder.to_rgb.{name}": mx.array(values.astype(np.float32)) for name, values in weights.items()}
        colors = open_weights(arrays, {"latent_rgb": {"vae": "the latents' own colors"}})
        self._colors = colors if samples else None
        return colors

    def print_result(self, item: Item, result: Result) -> None:
        super().print_result(item, replace(result, files=ItemFiles()))
        if self.arguments.dry_run:
            return
        path = os.path.abspath(item.source)
        self._clips[path] = self._describe(path, item, result)
        self._num_new += result.error is None
        if time.monotonic() > self._next_page:
            self._write(is_complete=False)
            self._next_page = time.monotonic() + _SECONDS_PER_PAGE

    def _describe(self, path: str, item: Item, result: Result) -> Clip:
        """Return the card of a clip."""
        state = self._states[path]
        date = f"{datetime.fromtimestamp(state[0] / 1e9):%Y-%m-%d %H:%M}" if state else ""
        argument = item.source if not item.source.startswith(("-", "@")) else f"./{item.source}"
        clip = Clip(path, shlex.quote(argument), Path(path).name, date, state)
        if result.error is not None:
            return replace(clip, error=result.error)
        file = self.open_latents(item.source)
        frames, *size = self.checkpoint.config.scale.video_grid(file.shape.grid)
        fps = self.arguments.fps or file.info.fps or DEFAULT_FPS
        facts = [f"{float(frames / fps):.1f} s", format_count(frames, "frame"), format_size(*size[::-1])]
        facts += [f"{float(fps):.6g} fps"] + ([f"batch of {file.shape.batch}"] if file.shape.batch > 1 else [])
        prompt, seed = find_prompt(file.entries)
        return replace(
            clip,
            facts=" · ".join(facts),
            prompt=prompt,
            seed=seed,
            model=_model_of(file.entries),
            videos=tuple(Path(output).name for output in result.files.outputs),
        )

    def summarize(self, items: Sequence[Item], results: Sequence[Result], seconds: float) -> None:
        if self.arguments.dry_run:
            super().summarize(items, results, seconds)

    def _write(self, *, is_complete: bool) -> None:
        self._page.clips = [self._clips[path] for path in self._states if path in self._clips]
        self._page.write(is_watched=self._is_watched, is_complete=is_complete)

    @property
    def _num_failed(self) -> int:
        return sum(bool(clip.error) for clip in self._page.clips)

    def _print_summary(self) -> None:
        counts = {"clips": len(self._states), "new": self._num_new, "failed": self._num_failed}
        report = {"output": str(self._page.path), **counts}
        self._num_new = 0
        self.end_progress(report)
        if self.arguments.json:
            print_report(json.dumps(report))
        elif not self.arguments.quiet:
            print_report("{output}: {clips} clips, {new} of them new, {failed} failed".format(**report))


def find_prompt(entries: Mapping[str, str]) -> tuple[str, str]:
    """Return the prompt and the seed in the metadata of a latent file, "" if it does not state them.

    ComfyUI's `prompt` is a graph, whose first text and first seed count.
    """
    texts, seeds = [entries.get("prompt", "")], [entries.get("seed", "")]
    with suppress(ValueError, RecursionError, AttributeError, TypeError, KeyError):  # no graph
        inputs = [node["inputs"] for node in json.loads(texts[0]).values()]
        texts = [text for values in inputs if isinstance(text := values.get("text"), str)]
        numbers = [values.get(name) for values in inputs for name in ("noise_seed", "seed")]
        seeds += [str(number) for number in numbers if isinstance(number, int)]
    return next(filter(None, texts), ""), next(filter(None, seeds), "")


def _model_of(entries: Mapping[str, str]) -> str:
    """Return the short name of the VAE that latents belong to, "" if their file does not state it."""
    match = re.fullmatch(r"LTX-[0-9](\.[0-9])?", entries.get("generation", ""))
    return match[0].lower() if match else ""
