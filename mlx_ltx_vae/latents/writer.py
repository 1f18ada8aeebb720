"""Writes latents as safetensors: at once, or as they arrive, in memory that does not grow with the clip.

A name that ends in .latent makes the file that ComfyUI's node LoadLatent reads. ComfyUI's latents of LTX are
normalized, too.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import dtype_name, to_mlx
from ..errors import LatentsError, WriterError, describe_error, quote
from ..files import PartFile, expand_path, numbered_names, writing_to
from ..process import uninterrupted
from ..shapes import DEFAULT_SCALE, LatentShape, is_count
from ..units import Rate, find_fps
from .containers import TensorBlocks, to_bytes, write_safetensors
from .formats import check_finite, check_shape
from .keyframes import NUMBER_NAMES, STILL_NAMES, Keyframes
from .layouts import Layout, TrainerClip
from .metadata import AUDIO_NAMES, AXES_KEY, CHANNELS_FIRST, MAX_SIZE, LatentsMetadata, LatentSpace, find_video_sizes

_FLOATS = ("float32", "float16", "bfloat16")
_TENSORS = {".safetensors": "latents", ".latent": "latent_tensor"}  # by the ending of the file
# Without this empty tensor, LoadLatent rescales the values.
_COMFYUI_MARK = "latent_format_version_0"
_BLOCK_BYTES = 2**25
_DECODE_COMMAND = "mlx_ltx_vae decode {} -m VAE -o clip.mp4"


NO_SPACE = LatentSpace()


class LatentsWriter(AbstractContextManager["LatentsWriter"]):
    """Writer of normalized latents as they arrive. `complete` gives the file its name.

    The file is ordered by channel, and its header contains the number of frames. So the frames are first written to a
    file without a name in the same folder. `is_inner` is as for `PartFile`. With a `layout` it is a trainer's file, of
    one video.

    Raises:
        WriterError: for another ending than .safetensors and .latent, or that of the layout, and a file that cannot be
            written.
    """

    def __init__(
        self, path: str | os.PathLike, *, overwrite: bool = True, is_inner: bool = False, layout: Layout | None = None
    ) -> None:
        self._name, self._layout = expand_path(path, WriterError), layout
        check_latents_name(self._name, layout)
        self._part = PartFile(Path(self._name), overwrite=overwrite, is_inner=is_inner)
        self._shape: LatentShape | None = None
        self._dtype = mx.float32
        try:
            with uninterrupted(), writing_to(self._name):
                self._frames = tempfile.TemporaryFile(dir=self._part.path.parent)  # noqa: SIM115
        except WriterError:
            self._part.discard()
            raise

    def write(self, latents: mx.array) -> None:
        """Append latents (B, C, n, H', W') along time: finite, of one size, and all float32, float16 or bfloat16."""
        check_shape(latents.shape, None, self._name)
        self._check_values(latents, "latents")
        if self._layout is not None and self._layout.dtype is not None:
            latents = latents.astype(self._layout.dtype)
        shape = LatentShape(*latents.shape)
        before = self._shape or shape._replace(frames=0)
        if before._replace(frames=0) != shape._replace(frames=0) or (self._shape and latents.dtype != self._dtype):
            raise LatentsError(f"{self._name}: latents {tuple(shape)} follow latents {tuple(before)} of another kind.")
        self._shape, self._dtype = before._replace(frames=before.frames + shape.frames), latents.dtype
        with writing_to(self._name):
            for frame in range(shape.frames):
                self._frames.write(to_bytes(latents[:, :, frame]))

    def complete(
        self,
        *,
        fps: Rate | None = None,
        sizes: Mapping[str, int | None] | None = None,
        audio: mx.array | None = None,
        keyframes: Keyframes | None = None,
        space: LatentSpace = NO_SPACE,
        workflow: Mapping[str, str] | None = None,
    ) -> Path | None:
        """Write the file, with the arguments and errors of `save_latents`. Returns what `PartFile.complete` returns.

        `sizes` are "num_frames", "height", "width", "source_frames" and "carry". `workflow` is that of `LatentsInfo`.
        """
        assert self._shape is not None, "latents were written"
        sizes = sizes or {}
        exact_fps = None if fps is None else find_fps(self._name, fps, WriterError)
        video = sizes.get("num_frames"), sizes.get("height"), sizes.get("width")
        find_video_sizes(LatentsMetadata(video), self._shape.grid, None, self._name)
        if self._layout is None:
            entries = {**space.entries, **(workflow or {})}
            self._write_own(self._shape, {"fps": exact_fps, **sizes}, audio, keyframes, entries)
        else:
            assert audio is None and keyframes is None, "trainers read them from other files"
            self._write_for(self._layout, self._shape, exact_fps, sizes, space)
        return self._part.complete()

    def _write_own(
        self,
        shape: LatentShape,
        values: Mapping[str, object],
        audio: mx.array | None,
        keyframes: Keyframes | None,
        entries: Mapping[str, str],
    ) -> None:
        """Write a file of this package, or of ComfyUI."""
        metadata = {key: str(value) for key, value in values.items() if value is not None}
        metadata |= {"normalized": "true", AXES_KEY: CHANNELS_FIRST, **entries}
        arrays = {} if audio is None else {AUDIO_NAMES[0]: audio}
        if keyframes is not None:
            keyframes.check(shape, f"{self._name}: ")
            stills = to_mlx(keyframes.latents, "keyframe latents")
            self._check_values(stills, "keyframe latents")
            arrays |= {STILL_NAMES[0]: stills, NUMBER_NAMES[0]: mx.array(list(keyframes.frames), mx.int32)}
        if is_for_comfyui(self._name):
            if arrays:
                raise WriterError(
                    f"{self._name}: ComfyUI reads no audio and no keyframes from it; use a .safetensors name."
                )
            arrays = {_COMFYUI_MARK: mx.zeros(0)}
        latents = TensorBlocks(_TENSORS[Path(self._name).suffix], self._dtype, shape, self._planes(shape))
        tensors = [latents, *(TensorBlocks.of(name, array) for name, array in arrays.items())]
        with writing_to(self._name), self._part.path.open("r+b") as file:
            write_safetensors(file, tensors, metadata)

    def _write_for(
        self,
        layout: Layout,
        shape: LatentShape,
        fps: Fraction | None,
        sizes: Mapping[str, int | None],
        space: LatentSpace,
    ) -> None:
        """Write a trainer's file."""
        if shape.batch > 1:
            raise LatentsError(f"{self._name}: a file of {layout.name} has one video, not {shape.batch}; split them.")
        video = DEFAULT_SCALE.video_grid(shape.grid)
        num_frames, height, width = (
            sizes.get(name) or size for name, size in zip(("num_frames", "height", "width"), video, strict=True)
        )
        source_frames = min(sizes.get("source_frames") or num_frames, num_frames)
        latents = TensorBlocks("latents", self._dtype, shape[1:], self._planes(shape))
        clip = TrainerClip(self._name, latents, num_frames, height, width, source_frames, fps, space)
        with writing_to(self._name), self._part.path.open("r+b") as file:
            layout.write(file, clip)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the disk is full, so that not all was written
            self._frames.close()
        self._part.discard()

    def _check_values(self, latents: mx.array, name: str) -> None:
        if dtype_name(latents.dtype) not in _FLOATS:
            raise LatentsError(f"{self._name}: {name} are {latents.dtype}; expected float32, float16 or bfloat16.")
        check_finite(latents, self._name if name == "latents" else f"{self._name}: {name}")

    def _planes(self, shape: LatentShape) -> Iterator[bytes]:
        """Yield the values in the order of the file, some channels at a time."""
        self._frames.flush()
        num_planes = shape.batch * shape.channels
        plane = shape.height * shape.width * self._dtype.size
        planes_at_once = max(1, _BLOCK_BYTES // (shape.frames * plane))
        for first in range(0, num_planes, planes_at_once):
            count = min(planes_at_once, num_planes - first)
            block = np.empty((shape.frames, count, plane), np.uint8)
            for frame in range(shape.frames):
                start = (frame * num_planes + first) * plane
                if os.preadv(self._frames.fileno(), [memoryview(block[frame]).cast("B")], start) != count * plane:
                    raise OSError("its temporary file was cut")
            yield block.swapaxes(0, 1).tobytes()


@explained_device_errors()
def save_latents(
    path: str | os.PathLike,
    latents: mx.array,
    *,
    fps: Rate | None = None,
    num_frames: int | None = None,
    height: int | None = None,
    width: int | None = None,
    audio: mx.array | None = None,
    keyframes: Keyframes | None = None,
    source_frames: int | None = None,
    carry: int | None = None,
    space: LatentSpace = NO_SPACE,
    overwrite: bool = True,
) -> Path:
    """Write normalized latents `(B, C, F', H', W')` as safetensors. The file gets its name when it is complete.

    Returns its path, which has a number if without `overwrite` another file has taken the name meanwhile.

    Args:
        latents: float32, float16 or bfloat16.
        fps: frames per second of the video (see `parse_fps`).
        num_frames, height, width: size of the video, in frames and pixels.
        audio: latents of the video's audio (B, 8, T, 16), normalized.
        keyframes: the video's keyframes, normalized, in one of the dtypes above.
        source_frames: the number of frames that were encoded, before padding; `decode` gives that many back.
        carry: the number of frames that the video shares with the next one, if it is a window of a film: 1 + 8*k or 0.
        space: `vae.latent_space` of the VAE that the latents belong to. A decode by another one warns.

    Raises:
        LatentsError: for other shapes and dtypes, values that are not finite, and sizes that do not fit the latents.
        WriterError: for another ending than .safetensors and .latent (ComfyUI's, without audio and keyframes), an
            invalid frame rate, and a file that cannot be written.
    """
    path = expand_path(path, WriterError)  # first, since arguments may be swapped
    latents = to_mlx(latents, "latents")
    audio = None if audio is None else to_mlx(audio, "audio latents")
    with LatentsWriter(path, overwrite=overwrite) as writer:
        writer.write(latents)
        if carry is not None:
            _check_carry(carry, num_frames or DEFAULT_SCALE.video_grid(latents.shape[2:])[0], path)
        if source_frames is not None and not (is_count(source_frames, 1) and source_frames <= MAX_SIZE):
            expected = f"a whole number of frames from 1 to {MAX_SIZE}"
            raise LatentsError(f"{path}: a source has {expected}, not {quote(source_frames)}.")
        grid = {"num_frames": num_frames, "height": height, "width": width}
        sizes = grid | {"source_frames": source_frames, "carry": carry}
        other_path = writer.complete(fps=fps, sizes=sizes, audio=audio, keyframes=keyframes, space=space)
    return other_path or Path(path)


def rescue_latents(
    latents: mx.array, output: str | os.PathLike | None, fps: Rate | None, keyframes: Keyframes | None = None
) -> str:
    """Save the latents of a decode that failed, and return a statement of where they are, or why they are not saved.

    They are in a new file beside the `output` that they were for, or else in the working folder, or in the one for
    temporary files. Keyframes that the file cannot hold are left out.
    """
    name = "latents.safetensors" if output is None else Path(output).with_suffix(".latents.safetensors").name
    folders = [*([] if output is None else [Path(output).parent]), Path(), Path(tempfile.gettempdir())]
    problem = ""
    for folder in folders:
        path = (folder / name).absolute()
        try:
            names = chain([path], numbered_names(path))
            path = next(candidate for candidate in names if not os.path.lexists(candidate))
            latents = latents if latents.ndim != 4 else latents[None]
            try:
                save_latents(path, latents, fps=fps, keyframes=keyframes, overwrite=False)
            except LatentsError:
                if keyframes is None:
                    raise
                save_latents(path, latents, fps=fps, overwrite=False)
                return f"its latents, without the keyframes, are in {path} ({_DECODE_COMMAND.format(path)})"
        except Exception as error:  # the error of the decode counts more
            problem = problem or describe_error(error).rstrip(".")
            continue
        return f"its latents are in {path} ({_DECODE_COMMAND.format(path)})"
    return f"its latents are not saved ({problem})"


@explained_device_errors()
def save_audio_latents(path: str | os.PathLike, audio: mx.array) -> None:
    """Write audio latents (B, 8, T, 16) without a video, named as by `save_latents`. Existing files are kept."""
    audio, part = to_mlx(audio, "audio latents"), PartFile(Path(path), overwrite=False)
    with writing_to(path), part.path.open("r+b") as file:
        write_safetensors(file, [TensorBlocks.of(AUDIO_NAMES[0], audio)], {"normalized": "true"})
    part.complete()


def check_latents_name(path: str | os.PathLike, layout: Layout | None = None) -> None:
    """Raise a `WriterError` for a path that ends neither in .safetensors nor in .latent, or not as its layout wants."""
    if layout is not None:
        layout.check_name(os.fspath(path))
        return
    if Path(path).suffix not in _TENSORS:
        raise WriterError(
            f"{path}: latents are written as safetensors; use a name that ends in .safetensors, or in .latent for "
            "ComfyUI."
        )


def is_for_comfyui(path: str | os.PathLike) -> bool:
    """Return whether a name is of a file for ComfyUI's node LoadLatent, which holds the latents of a video alone."""
    return Path(path).suffix == ".latent"


def _check_carry(carry: int, num_frames: int, source: str) -> None:
    """Raise a `LatentsError` for a carry that is impossible in a window with `num_frames`."""
    if rule := DEFAULT_SCALE.carry_rule(carry):
        raise LatentsError(f"{source}: windows share {rule}, not {quote(carry)}; correct the carry.")
    if carry >= num_frames:
        raise LatentsError(f"{source}: a window of {num_frames} frames cannot share {carry}; correct the carry.")
