"""Compare the classes of MLX apps, with narrow random weights, as they are and with the drop-ins in place.

    python scripts/try_apps.py APP CLONE

APP is a name of the table in `mlx_ltx_vae/integrations/apps.py`; CLONE, a clone of the app or its unpacked package. Of
the app only the modules of its VAE are executed, so its other requirements need not be installed. What the replaced
functions return is compared with the app's own single pass, and so are the app's tiles, for comparison: in two
generations with one decoder, and with the other padding if the app has it. The first difference ends the script, or a
function whose parameters the table does not know.
"""

import argparse
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import imageio_ffmpeg
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map

from mlx_ltx_vae import VideoReader, VideoVAE
from mlx_ltx_vae.integrations import install, vae_of
from mlx_ltx_vae.integrations.apps import APPS

LATENT_FRAMES, ROWS, COLUMNS = 7, 3, 9
NUM_FRAMES, NARROWING = 1 + 8 * (LATENT_FRAMES - 1), 16
TOLERANCE = 1e-4  # of float32 values in [-1, 1]
# The blocks of LTX-2.3's decoder, as the metadata of its checkpoints lists them.
BLOCKS_2_3 = [
    ["res_x", {"num_layers": 4}], ["compress_space", {"multiplier": 2}], ["res_x", {"num_layers": 6}],
    ["compress_time", {"multiplier": 2}], ["res_x", {"num_layers": 4}], ["compress_all", {"multiplier": 1}],
    ["res_x", {"num_layers": 2}], ["compress_all", {"multiplier": 2}], ["res_x", {"num_layers": 2}],
]  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """How an app is tried: its source `folders` in the clone, its `modules`, and what makes and compares decoders.

    `compare_others` compares once what the app has beside its decoder.
    """

    folders: tuple[str, ...]
    modules: tuple[str, ...]
    make: Callable[..., nn.Module]
    compare: Callable[..., str]
    compare_others: Callable[..., str] | None = None


def narrow(module: ModuleType, *names: str) -> None:
    """Classes of an app that state their widths, with a sixteenth of them."""

    def divide(value: Any) -> Any:
        is_width = isinstance(value, int) and value >= 128 and value != 129  # an app takes the first 128 of them
        return value // NARROWING if is_width else value

    for name in names:
        wide = getattr(module, name)

        def init(self: Any, *args: Any, wide: type = wide, **kwargs: Any) -> None:
            wide.__init__(self, *map(divide, args), **{key: divide(value) for key, value in kwargs.items()})

        setattr(module, name, type(name, (wide,), {"__init__": init}))


def make_mlx_video(modules: SimpleNamespace) -> nn.Module:
    """Return the narrow decoder of mlx-video."""
    blocks = [("res", 64, 5), ("d2s", 64, 2, (2, 2, 2)), ("res", 32, 5), ("d2s", 32, 2, (2, 2, 2)), ("res", 16, 5)]
    blocks += [("d2s", 16, 2, (2, 2, 2)), ("res", 8, 5)]
    return modules.decoder.LTX2VideoDecoder(in_channels=8, decoder_blocks=blocks, timestep_conditioning=False)


def make_mlx_video_with_audio(modules: SimpleNamespace) -> nn.Module:
    """Return the narrow decoder of mlx-video-with-audio."""
    narrow(modules.decoder, "CausalConv3d", "ResBlockGroup", "DepthToSpaceUpsample")
    return modules.decoder.LTX2VideoDecoder(in_channels=8, timestep_conditioning=False)


def make_ltx_2_mlx(modules: SimpleNamespace) -> nn.Module:
    """Return the narrow decoder of dgrauet's ltx-2-mlx."""
    narrow(modules.video_vae, "Conv3dBlock", "ResBlockStage", "DepthToSpaceUpsample", "PerChannelStatistics")
    narrow(modules.video_vae, "SpaceToDepthDownsample")
    return modules.video_vae.VideoDecoder()


def make_dmlsrc(modules: SimpleNamespace) -> nn.Module:
    """Return the narrow decoder of dmlsrc's LTX-2-MLX."""
    return modules.native_decoder.NativeConv3dVideoDecoder(BLOCKS_2_3, base_channels=8, compute_dtype=mx.float32)


def make_acelogic(modules: SimpleNamespace) -> nn.Module:
    """Return the narrow decoder of Acelogic's LTX-2-MLX, for LTX-2."""
    decoder = modules.simple_decoder.SimpleVideoDecoder(base_channels=8, timestep_conditioning=False)
    decoder.conv_in = modules.simple_decoder.Conv3dSimple(8, 64)
    decoder.mean_of_means, decoder.std_of_means = mx.zeros(8), mx.full(8, 3.0)
    return decoder


def tiles(module: ModuleType, time: str = "TemporalTilingConfig") -> Any:
    """Return the app's own object for tiles of 128 pixels and 32 frames, smaller than the clip on two axes."""
    return module.TilingConfig(module.SpatialTilingConfig(128, 64), getattr(module, time)(32, 8))


def compare_tiled(original: SimpleNamespace, new: SimpleNamespace, models: list[nn.Module], latents: mx.array) -> str:
    """Compare the replaced `decode_tiled` with a single pass, and what it hands to a callback with what it returns."""
    expected = models[0](latents)
    streamed: list[mx.array] = []

    def on_frames_ready(frames: mx.array, start: int) -> None:
        assert start == sum(part.shape[2] for part in streamed)
        streamed.append(frames)

    options = {"tiling_mode": "auto", "debug": False}  # as the apps call it
    pixels = models[1].decode_tiled(
        latents, tiling_config=tiles(new.tiling), on_frames_ready=on_frames_ready, **options
    )
    assert mx.array_equal(mx.concatenate(streamed, axis=2), pixels)
    assert len(streamed) > 1, "it streams"
    assert mx.array_equal(models[1](latents), pixels)
    raises(KeyboardInterrupt, lambda: models[1].decode_tiled(latents, tiling_config=None, on_frames_ready=interrupt))
    own_tiles = models[0].decode_tiled(latents, tiling_config=tiles(original.tiling), **options)
    return report(pixels, expected, own_tiles)


def compare_streaming(
    original: SimpleNamespace, new: SimpleNamespace, models: list[nn.Module], latents: mx.array
) -> str:
    """Compare the replaced `decode_streaming` with the app's single pass, also of a function in the decoder's place."""
    expected = original.tiling.decode_single_pass(latents, models[0])
    config = "TemporalChunkConfig"
    chunks = list(new.tiling.decode_streaming(latents, models[1], tiles(new.tiling, config), show_progress=False))
    assert len(chunks) > 1, "it streams"
    assert mx.array_equal(next(new.tiling.decode_streaming(latents, models[1])), chunks[0])  # as the pipelines call it
    (single,) = new.tiling.decode_streaming(latents, models[0].__call__, show_progress=False)
    assert largest(single, expected) < TOLERANCE
    own_tiles = mx.concatenate(
        list(original.tiling.decode_streaming(latents, models[0], tiles(original.tiling, config), show_progress=False)),
        axis=2,
    )
    return report(mx.concatenate(chunks, axis=2), expected, own_tiles)


def compare_simple(original: SimpleNamespace, new: SimpleNamespace, models: list[nn.Module], latents: mx.array) -> str:
    """Compare the decoder of Acelogic's LTX-2-MLX, its levels, and its stream."""
    for model in models:  # these are zero without a timestep embedder
        tables = {name: array * 0 for name, array in tree_flatten(model.parameters()) if name.endswith("shift_table")}
        model.load_weights(list(tables.items()), strict=False)
    expected = models[0](latents, show_progress=False)
    pixels = models[1](latents, show_progress=False)
    assert models[1](latents.astype(mx.bfloat16), show_progress=False).dtype == mx.float32
    levels = [
        module.simple_decoder.decode_latent(latents, model).astype(mx.int32)
        for module, model in zip((original, new), models, strict=True)
    ]
    assert mx.abs(levels[0] - levels[1]).max().item() <= 1
    chunks = list(new.tiling.decode_tiled(latents, models[1], tiles(new.tiling), show_progress=False))
    assert len(chunks) > 1, "it streams"
    assert mx.array_equal(mx.concatenate(chunks, axis=2), pixels)
    own_tiles = list(original.tiling.decode_tiled(latents, models[0], tiles(original.tiling), show_progress=False))
    return report(pixels, expected, mx.concatenate(own_tiles, axis=2))


def compare_decoders(
    original: SimpleNamespace, new: SimpleNamespace, models: list[nn.Module], latents: mx.array
) -> str:
    """Compare what the decoders of ltx-2-mlx return."""
    expected, half = models[0].decode(latents), latents.astype(mx.bfloat16)
    assert models[1].decode(half).dtype == models[0].decode(half).dtype == mx.bfloat16
    pixels = models[1].decode(latents, seed=3)
    assert mx.array_equal(mx.concatenate(list(models[1].tiled_decode(latents, tiles(new.tiling))), axis=2), pixels)
    own_tiles = mx.concatenate(list(models[0].tiled_decode(latents, tiles(original.tiling))), axis=2)
    return report(pixels, expected, own_tiles)


def compare_others(original: SimpleNamespace, new: SimpleNamespace, models: list[nn.Module], latents: mx.array) -> str:
    """Compare the encoders of ltx-2-mlx, the videos with audio that it writes, and its diffusion decoder."""
    expected = models[0].decode(latents)
    text = f"encoder {compare_encoders(original.video_vae, new.video_vae, expected):.1e}"
    original.video_vae.find_ffmpeg = imageio_ffmpeg.get_ffmpeg_exe
    text += f"; {compare_files([module.blocks.VideoDecoder for module in (original, new)], models, latents)}"
    if hasattr(original, "decoder"):  # it came in November 2026
        text += f"; diffusion decoder {compare_diffusion(original.decoder, new.decoder, original.config):.1e}"
    return text


def compare_encoders(original: ModuleType, new: ModuleType, pixels: mx.array) -> float:
    """Compare latents of one clip, also where the app uses tiles."""
    encoders = [module.VideoEncoder() for module in (original, new)]
    weights = randomize(encoders[0])
    for encoder in encoders:
        encoder.update(weights)
    pixels = mx.clip(pixels[:, :, :17], -1, 1)
    expected = encoders[0].encode(pixels)
    scale = max(1, mx.abs(expected).max().item())
    half = [encoder.encode(pixels[:, :, :1].astype(mx.bfloat16)).dtype for encoder in encoders]
    assert half[0] == half[1], half
    assert largest(encoders[1].tiled_encode(pixels, None), expected) < TOLERANCE * scale
    difference = largest(encoders[1].encode(pixels), expected) / scale
    assert difference < TOLERANCE, difference
    return difference


def compare_diffusion(original: ModuleType, new: ModuleType, config: ModuleType) -> float:
    """Compare the app's single pass, its one-tile stream and keyframes, of narrow decoders.

    The app's slabs of columns change what a block makes of its window's half at the left and right edges.
    """
    narrowed = config.DiffusionDecoderConfig(
        in_channels=8, out_channels=3, patch_size=4, head_dim=16, stage_channels=(128, 64, 32, 32, 16),
        stage_depths=(1, 1, 1, 1, 2), stage_kernels=((3, 3, 3),) * 4,
        upsamples=(((1, 2, 2), 2), ((2, 1, 1), 2), ((2, 2, 2), 1), ((2, 2, 2), 2)), stage5_kernel=(3, 3, 3),
        t_embed_hidden=16, timestep_scale_multiplier=1000.0,
    )  # fmt: skip
    decoders = [module.NADiffusionDecoder(narrowed) for module in (original, new)]
    weights = randomize(decoders[0])
    for decoder in decoders:
        decoder.update(weights)
    latents = mx.random.normal((1, 8, 4, 3, 4), key=mx.random.key(3))
    stills = original.DecodeKeyframes(mx.random.normal((1, 8, 2, 3, 4), key=mx.random.key(4)), (5, 16))
    margin = 2 * 1 * 4  # blocks, half of a window, and pixels of a patch
    differences: list[float] = []
    for options in ({}, {"seed": 7}, {"seed": 7, "keyframes": stills}):
        expected = decoders[0].decode(latents, **options)
        chunks = list(decoders[1].tiled_decode(latents, None, **options))
        for pixels in (decoders[1].decode(latents, **options), mx.concatenate(chunks, axis=2)):
            differences.append(largest(pixels[..., margin:-margin], expected[..., margin:-margin]))
    assert max(differences) < TOLERANCE, differences
    return max(differences)


def compare_files(blocks: Sequence[type], models: list[nn.Module], latents: mx.array) -> str:
    """Compare the videos with audio that both apps write, and what the replaced one prints and saves."""
    # Other weights, which are noticed: they make gray squares, which a video keeps nearly unchanged.
    kept = models[0].parameters()
    models[0].conv_out.conv.weight = mx.repeat(models[0].conv_out.conv.weight[:1] / 2, 48, axis=0)
    models[0].conv_out.conv.bias = mx.zeros(48)
    models[1].update(models[0].parameters())
    expected = models[0].decode(latents)
    videos = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        voice = folder / "voice.wav"
        with wave.open(str(voice), "wb") as audio:
            audio.setparams((1, 2, 16000, 0, "NONE", ""))
            audio.writeframes(bytes(2 * 32000))
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        for place, block, model in zip(("own.mp4", "new.mp4"), blocks, models, strict=True):
            written, decoder = str(folder / place), object.__new__(block)
            decoder._decoder, decoder.verbose, decoder.video_decoder, printed = model, True, "conv", io.StringIO()
            with redirect_stderr(printed):
                assert decoder.decode_and_stream(latents, written, frame_rate=25.0, audio_path=str(voice)) == written
            assert place == "own.mp4" or "vae-decode" not in printed.getvalue(), printed.getvalue()
            with VideoReader(written) as reader:
                assert reader.fps == 25
                videos.append(np.concatenate(list(reader)).astype(int))
            probe = subprocess.run([ffmpeg, "-i", written], capture_output=True, text=True, check=False)
            assert "Audio: aac" in probe.stderr
    models[0].update(kept)
    models[1].update(kept)
    assert videos[0].shape == videos[1].shape == (NUM_FRAMES, 32 * ROWS, 32 * COLUMNS, 3)
    frames = np.array(mx.clip((expected[0].transpose(1, 2, 3, 0) + 1) * 127.5, 0, 255))
    own_psnr, psnr = (20 * np.log10(255 / np.sqrt(np.square(video - frames).mean())) for video in videos)
    assert psnr > own_psnr - 0.5, (psnr, own_psnr)
    return f"its file {psnr:.1f} dB from the pixels, the app's {own_psnr:.1f} dB"


def compare_failure(models: list[nn.Module], latents: mx.array) -> str:
    """Compare what an app makes after an error of this package, with the weights that it gets back."""
    expected, pixels = None, None
    folder, stream = Path.cwd(), VideoVAE.stream
    with tempfile.TemporaryDirectory() as name, redirect_stderr(io.StringIO()) as printed:
        os.chdir(name)
        VideoVAE.stream = lambda *_, **__: 1 / 0  # type: ignore[assignment, method-assign]
        try:
            expected, pixels = (getattr(model, "decode", model)(latents) for model in models)
            assert [path.suffix for path in Path(name).iterdir()] == [".safetensors"]
        finally:
            os.chdir(folder)
            VideoVAE.stream = stream  # type: ignore[method-assign]
    assert mx.array_equal(expected, pixels)
    return next(line for line in printed.getvalue().splitlines() if "the app's own" in line)


LTX_CORE = "ltx_core_mlx.model"
DIFFUSION = f"{LTX_CORE}.video_vae.diffusion_decoder"
TRIALS = {
    "Blaizzy/mlx-video": Trial(
        ("",),
        ("mlx_video.models.ltx_2.video_vae.decoder", "mlx_video.models.ltx_2.video_vae.tiling"),
        make_mlx_video,
        compare_tiled,
    ),
    "james-see/mlx-video-with-audio": Trial(
        ("",),
        ("mlx_video.models.ltx.video_vae.decoder", "mlx_video.models.ltx.video_vae.tiling"),
        make_mlx_video_with_audio,
        compare_tiled,
    ),
    "dgrauet/ltx-2-mlx": Trial(
        ("packages/ltx-core-mlx/src", "packages/ltx-pipelines-mlx/src"),
        (
            f"{LTX_CORE}.video_vae.video_vae",
            f"{LTX_CORE}.video_vae.tiling",
            "ltx_pipelines_mlx.utils.blocks",
            "ltx_core_mlx.utils.memory",
            "ltx_core_mlx.utils.ffmpeg",
            f"{DIFFUSION}.decoder",
            f"{DIFFUSION}.config",
        ),
        make_ltx_2_mlx,
        compare_decoders,
        compare_others,
    ),
    "dmlsrc/LTX-2-MLX": Trial(
        ("",),
        ("LTX_2_MLX.model.video_vae.tiling", "LTX_2_MLX.model.video_vae.native_decoder"),
        make_dmlsrc,
        compare_streaming,
    ),
    "Acelogic/LTX-2-MLX": Trial(
        ("",),
        ("LTX_2_MLX.model.video_vae.tiling", "LTX_2_MLX.model.video_vae.simple_decoder"),
        make_acelogic,
        compare_simple,
    ),
}


def make_latents(model: nn.Module) -> mx.array:
    """Seeded noise, as an app has it between two stages: denormalized and normalized with the decoder's statistics."""
    vectors = {name: array for name, array in tree_flatten(model.parameters()) if array.ndim == 1}
    mean, std = (
        next(array.reshape(-1, 1, 1, 1) for name, array in vectors.items() if re.search(rf"(^|[._]){word}(_|$)", name))
        for word in ("mean", "std")
    )
    latents = mx.random.normal((1, mean.size, LATENT_FRAMES, ROWS, COLUMNS), key=mx.random.key(1))
    return ((latents * std + mean) - mean) / std


def pad_otherwise(model: nn.Module) -> None:
    """Exchange reflection and zeros as padding in all convolutions of an app that has both."""
    for module in model.modules():
        mode = getattr(module, "spatial_padding_mode", None)
        name = {"zeros": "reflect", "reflect": "zeros"}.get(getattr(mode, "value", mode))
        if name is not None:
            module.spatial_padding_mode = type(mode)(name)


def interrupt(*_: object) -> None:
    """Effect of Ctrl-C in a callback."""
    raise KeyboardInterrupt


def raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    """Check that a call raises this."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} did not reach the caller")


def largest(array: mx.array, expected: mx.array) -> float:
    """Return the largest difference between two arrays."""
    assert array.shape == expected.shape, (array.shape, expected.shape)
    return mx.abs(array - expected).max().item()


def report(pixels: mx.array, expected: mx.array, own_tiles: mx.array) -> str:
    """Check that pixels equal the app's single pass, and say how far its tiles are from them."""
    difference = largest(pixels, expected)
    assert difference < TOLERANCE, difference
    return (
        f"{pixels.shape[2]} frames, at most {difference:.1e} from the app's single pass (the app's tiles: "
        f"{largest(own_tiles, expected):.1e}), of pixels up to {mx.abs(expected).max().item():.2f}"
    )


def randomize(model: nn.Module) -> Any:
    """Weights and statistics that keep the size of what goes through, and biases that count."""
    keys = iter(mx.random.split(mx.random.key(0), len(tree_flatten(model.parameters()))))

    def draw(array: mx.array) -> mx.array:
        fan_in = array.size // array.shape[0] if array.ndim > 2 else 10
        return mx.random.normal(array.shape, key=next(keys)) / fan_in**0.5 + (array if array.ndim == 1 else 0)

    weights = tree_map(draw, model.parameters())
    mx.eval(weights)
    return weights


def _make_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def _make_export(folders: Sequence[str], name: str) -> type:
    """Return a class for what a package that is not executed would export."""
    if any(Path(folder, name).is_dir() or Path(folder, f"{name}.py").exists() for folder in folders):
        raise AttributeError(name)  # a module, which is to be imported
    return _make_class(name)


class Elsewhere(MetaPathFinder, Loader):
    """Finds empty modules, whose every name is a class, for what an app imports beside its VAE."""

    def __init__(self, roots: Sequence[Path], executed: Sequence[str]) -> None:
        self._names = {path.name for root in roots for path in root.iterdir() if path.is_dir()}
        self._executed = (*executed, *{f"{name.rpartition('.')[0]}." for name in executed if "vae" in name})

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        is_own = name.partition(".")[0] in self._names
        is_executed = any(
            name == module or (module.endswith(".") and name.startswith(module)) for module in self._executed
        )
        if not is_own or is_executed:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _make_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def sources(trial: Trial, clone: Path) -> Iterator[list[Path]]:
    """Yield the folders with the app's packages: of a work tree, or else of the last commit of a clone without one."""
    if any((clone / folder / trial.modules[0].partition(".")[0]).is_dir() for folder in trial.folders):
        yield [clone / folder for folder in trial.folders]
        return
    with tempfile.TemporaryDirectory() as place:
        code = [f":(glob){prefix}**/*.py" for prefix in (f"{folder}/" if folder else "" for folder in trial.folders)]
        archive = subprocess.run(["git", "-C", clone, "archive", "HEAD", *code], capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", place], input=archive.stdout, check=True)
        yield [Path(place, folder) for folder in trial.folders]


def load(roots: Sequence[Path], names: Sequence[str]) -> SimpleNamespace:
    """Modules of an app by the last part of their names, without what the packages around them import."""
    parents = dict.fromkeys(
        ".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)
    )
    for parent in parents:
        package = sys.modules[parent] = ModuleType(parent)
        package.__path__ = [str(root.joinpath(*parent.split("."))) for root in roots]
        package.__getattr__ = partial(_make_export, package.__path__)  # type: ignore[method-assign]
    existing = [
        name for name in names if any(root.joinpath(*name.split(".")).with_suffix(".py").exists() for root in roots)
    ]
    elsewhere = Elsewhere(roots, names)
    sys.meta_path.insert(0, elsewhere)
    packages = {name.partition(".")[0] for name in names}
    try:
        loaded = {name.rpartition(".")[2]: importlib.import_module(name) for name in existing}
    finally:
        sys.meta_path.remove(elsewhere)
        app_modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in packages}
    return SimpleNamespace(**loaded, others=app_modules)


def try_app(app: str, clone: Path) -> str:
    """Compare an app as it is and replaced; returns what was found."""
    trial = TRIALS[app]
    with sources(trial, clone) as roots:
        original = load(roots, trial.modules)
        with install(app) as installed:
            new = load(roots, trial.modules)
            assert not installed.moved, installed.moved
            missing = [
                entry.path
                for entry in APPS[app]
                if entry.module in new.others and not entry.is_optional
                if f"{entry.module}:{entry.path}" not in installed.replaced[app]
            ]
            assert not missing, missing
            models = [trial.make(modules) for modules in (original, new)]
            weights = randomize(models[0])
            for model in models:
                model.update(weights)
            size = sum(array.nbytes for _, array in tree_flatten(weights))
            models[0].update(tree_map(lambda array: array + 0, weights))  # arrays of its own
            mx.eval(models[0].parameters())
            del weights
            before = mx.get_active_memory()
            vae = vae_of(models[1])
            held = mx.get_active_memory() - before
            assert vae_of(models[1]) is vae, "loaded once"
            assert held < size / 100, f"{held} of {size} bytes: the arrays moved"
            text = ""
            if trial.compare_others is not None:
                text += "\n  " + trial.compare_others(original, new, models, make_latents(models[1]))
            for generation in range(3):
                if generation == 2:  # with the other padding, and what has moved loaded again
                    for model in models:
                        pad_otherwise(model)
                    models[1].update(models[0].parameters())
                text += "\n  " + trial.compare(original, new, models, make_latents(models[1]))
            text += "\n  " + compare_failure(models, make_latents(models[1]))
    return f"{app}: {vae.config.generation}, {size / 1e6:.1f} MB of weights and {held} bytes more:{text}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", choices=TRIALS)
    parser.add_argument("clone", type=Path)
    arguments = parser.parse_args()
    print(try_app(arguments.app, arguments.clone))
