"""Try the patches of examples/apps: the apps' own classes, with narrow random weights, before and after the patch.

    python scripts/try_apps.py mlx-video|mlx-video-with-audio|dgrauet-ltx-2-mlx|dmlsrc-LTX-2-MLX CLONE

CLONE, a clone of the app, is not changed: the commit that the patch names is exported to a temporary folder. Only
the packages of the app's VAE are imported, so its other requirements need not be installed. What the patched app
decodes is compared with the app's own decode in a single pass, and so are the app's tiles, for comparison: in two
generations with one decoder, and with the other padding if the app has it. The first difference ends the script.
"""

import argparse
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import imageio_ffmpeg
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map

from mlx_ltx_vae import VideoReader
from mlx_ltx_vae.integrations import vae_of

PATCHES = Path(__file__).parents[1] / "examples" / "apps"
LATENT_FRAMES, ROWS, COLUMNS = 7, 3, 9
NUM_FRAMES, NARROWING = 1 + 8 * (LATENT_FRAMES - 1), 16
TOLERANCE = 2e-5  # of float32 pixels in [-1, 1], as between any two orders of summation
# The blocks of LTX-2.3's decoder, as the metadata of its checkpoints lists them.
BLOCKS_2_3 = [
    ["res_x", {"num_layers": 4}], ["compress_space", {"multiplier": 2}], ["res_x", {"num_layers": 6}],
    ["compress_time", {"multiplier": 2}], ["res_x", {"num_layers": 4}], ["compress_all", {"multiplier": 1}],
    ["res_x", {"num_layers": 2}], ["compress_all", {"multiplier": 2}], ["res_x", {"num_layers": 2}],
]  # fmt: skip


@dataclass(frozen=True)
class App:
    """Location of an app's VAE: in `folder` of the clone; `modules` below `root`, the module of `function` first."""

    folder: str
    root: str
    modules: tuple[str, ...]
    function: str
    make: Callable[..., nn.Module]
    compare: Callable[..., str]


def narrow(module: ModuleType, *names: str) -> None:
    """Classes of an app that state their widths, with a sixteenth of them."""

    def divide(value: Any) -> Any:
        return value // NARROWING if isinstance(value, int) and value >= 128 else value

    for name in names:
        wide = getattr(module, name)

        def init(self: Any, *args: Any, wide: type = wide, **kwargs: Any) -> None:
            wide.__init__(self, *map(divide, args), **{key: divide(value) for key, value in kwargs.items()})

        setattr(module, name, type(name, (wide,), {"__init__": init}))


def make_mlx_video(module: ModuleType) -> nn.Module:
    """The narrow decoder of mlx-video."""
    blocks = [("res", 64, 5), ("d2s", 64, 2, (2, 2, 2)), ("res", 32, 5), ("d2s", 32, 2, (2, 2, 2)), ("res", 16, 5)]
    blocks += [("d2s", 16, 2, (2, 2, 2)), ("res", 8, 5)]
    return module.LTX2VideoDecoder(in_channels=8, decoder_blocks=blocks, timestep_conditioning=False)


def make_mlx_video_with_audio(module: ModuleType) -> nn.Module:
    """The narrow decoder of mlx-video-with-audio."""
    narrow(module, "CausalConv3d", "ResBlockGroup", "DepthToSpaceUpsample")
    return module.LTX2VideoDecoder(in_channels=8, timestep_conditioning=False)


def make_ltx_2_mlx(module: ModuleType) -> nn.Module:
    """The narrow decoder of dgrauet's ltx-2-mlx."""
    narrow(module, "Conv3dBlock", "ResBlockStage", "DepthToSpaceUpsample", "PerChannelStatistics")
    return module.VideoDecoder()


def make_dmlsrc(_: ModuleType, decoders: ModuleType) -> nn.Module:
    """The narrow decoder of dmlsrc's LTX-2-MLX."""
    return decoders.NativeConv3dVideoDecoder(BLOCKS_2_3, base_channels=8, compute_dtype=mx.float32)


def tiles(module: ModuleType, time: str = "TemporalTilingConfig") -> Any:
    """The app's own object for tiles of 128 pixels and 32 frames, smaller than the clip on two axes."""
    return module.TilingConfig(module.SpatialTilingConfig(128, 64), getattr(module, time)(32, 8))


def compare_tiled(
    own: list[ModuleType], patched: list[ModuleType], models: list[nn.Module], latents: mx.array, folder: Path
) -> str:
    """Compare the patched `decode_tiled` with a single pass, and what it hands to a callback with what it returns."""
    expected = models[0](latents)
    streamed: list[mx.array] = []

    def on_frames_ready(frames: mx.array, start: int) -> None:
        assert start == sum(each.shape[2] for each in streamed)
        streamed.append(frames)

    options = {"tiling_mode": "auto", "debug": False}  # as the apps call it
    found = models[1].decode_tiled(latents, tiling_config=tiles(patched[1]), on_frames_ready=on_frames_ready, **options)
    assert mx.array_equal(mx.concatenate(streamed, axis=2), found)
    assert len(streamed) > 1, "it streams"
    raises(KeyboardInterrupt, lambda: models[1].decode_tiled(latents, tiling_config=None, on_frames_ready=interrupt))
    own_tiles = models[0].decode_tiled(latents, tiling_config=tiles(own[1]), **options)
    return report(found, expected, own_tiles)


def compare_streaming(
    own: list[ModuleType], patched: list[ModuleType], models: list[nn.Module], latents: mx.array, folder: Path
) -> str:
    """Compare the patched `decode_streaming` with the app's single pass, and with a function in the decoder's place."""
    expected = own[0].decode_single_pass(latents, models[0])
    config = "TemporalChunkConfig"
    chunks = list(patched[0].decode_streaming(latents, models[1], tiles(patched[0], config), show_progress=False))
    assert len(chunks) > 1, "it streams"
    assert mx.array_equal(next(patched[0].decode_streaming(latents, models[1])), chunks[0])  # as the pipelines call it
    (whole,) = patched[0].decode_streaming(latents, models[0].__call__, show_progress=False)
    assert largest(whole, expected) < TOLERANCE
    own_tiles = mx.concatenate(
        list(own[0].decode_streaming(latents, models[0], tiles(own[0], config), show_progress=False)), axis=2
    )
    return report(mx.concatenate(chunks, axis=2), expected, own_tiles)


def compare_files(
    own: list[ModuleType], patched: list[ModuleType], models: list[nn.Module], latents: mx.array, folder: Path
) -> str:
    """Compare the videos with sound that both apps write, and the pixels before."""
    expected, half = models[0].decode(latents), latents.astype(mx.bfloat16)
    assert models[1].decode(half).dtype == models[0].decode(half).dtype == mx.bfloat16
    own_tiles = mx.concatenate(list(models[0].tiled_decode(latents, tiles(own[1]))), axis=2)
    text = report(vae_of(models[1]).decode(latents), expected, own_tiles)
    # Other weights, which are noticed: they make gray squares, which a video keeps nearly unchanged.
    models[0].conv_out.conv.weight = mx.repeat(models[0].conv_out.conv.weight[:1] / 2, 48, axis=0)
    models[0].conv_out.conv.bias = mx.zeros(48)
    models[1].update(models[0].parameters())
    expected = models[0].decode(latents)
    voice = folder / "voice.wav"
    with wave.open(str(voice), "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 32000))
    # The app looks for ffmpeg on the PATH.
    (folder / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    videos = []
    for name, model in zip(("own.mp4", "patched.mp4"), models, strict=True):
        written = str(folder / name)
        assert model.decode_and_stream(latents, written, frame_rate=25.0, audio_path=str(voice)) is None
        with VideoReader(written) as reader:
            assert reader.fps == 25
            videos.append(np.concatenate(list(reader)).astype(int))
        probe = subprocess.run([str(folder / "ffmpeg"), "-i", written], capture_output=True, text=True, check=False)
        assert "Audio: aac" in probe.stderr
    assert videos[0].shape == videos[1].shape == (NUM_FRAMES, 32 * ROWS, 32 * COLUMNS, 3)
    frames = np.array(mx.clip((expected[0].transpose(1, 2, 3, 0) + 1) * 127.5, 0, 255))
    own_psnr, psnr = (20 * np.log10(255 / np.sqrt(np.square(video - frames).mean())) for video in videos)
    assert psnr > own_psnr - 0.5, (psnr, own_psnr)
    return f"{text}; frames of its file {psnr:.1f} dB from the pixels, of the app's file {own_psnr:.1f} dB"


APPS = {
    "mlx-video": App(
        "mlx_video/models/ltx_2/video_vae",
        "",
        ("mlx_video.models.ltx_2.video_vae.decoder", "mlx_video.models.ltx_2.video_vae.tiling"),
        "LTX2VideoDecoder.decode_tiled",
        make_mlx_video,
        compare_tiled,
    ),
    "mlx-video-with-audio": App(
        "mlx_video/models/ltx/video_vae",
        "",
        ("mlx_video.models.ltx.video_vae.decoder", "mlx_video.models.ltx.video_vae.tiling"),
        "LTX2VideoDecoder.decode_tiled",
        make_mlx_video_with_audio,
        compare_tiled,
    ),
    "dgrauet-ltx-2-mlx": App(
        "packages/ltx-core-mlx",
        "packages/ltx-core-mlx/src",
        ("ltx_core_mlx.model.video_vae.video_vae", "ltx_core_mlx.model.video_vae.tiling"),
        "VideoDecoder.decode_and_stream",
        make_ltx_2_mlx,
        compare_files,
    ),
    "dmlsrc-LTX-2-MLX": App(
        "LTX_2_MLX/model/video_vae",
        "",
        ("LTX_2_MLX.model.video_vae.tiling", "LTX_2_MLX.model.video_vae.native_decoder"),
        "decode_streaming",
        make_dmlsrc,
        compare_streaming,
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


def largest(found: mx.array, expected: mx.array) -> float:
    """The largest difference between two arrays."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return mx.abs(found - expected).max().item()


def report(found: mx.array, expected: mx.array, own_tiles: mx.array) -> str:
    """Check that pixels equal the app's single pass, and say how far its tiles are from them."""
    difference = largest(found, expected)
    assert difference < TOLERANCE, difference
    return (
        f"{found.shape[2]} frames, at most {difference:.1e} from the app's single pass (the app's tiles: "
        f"{largest(own_tiles, expected):.1e}), of pixels up to {mx.abs(expected).max().item():.2f}"
    )


def randomize(model: nn.Module) -> Any:
    """Weights and statistics that keep the size of what goes through, and biases that count."""
    keys = iter(mx.random.split(mx.random.key(0), len(tree_flatten(model.parameters()))))

    def draw(array: mx.array) -> mx.array:
        fan_in = array.size // array.shape[0] if array.ndim == 5 else 10
        return mx.random.normal(array.shape, key=next(keys)) / fan_in**0.5 + (array if array.ndim == 1 else 0)

    weights = tree_map(draw, model.parameters())
    mx.eval(weights)
    return weights


@contextmanager
def exported(app: App, clone: Path, patch: Path, apply: bool) -> Iterator[Path]:
    """A folder with the app's VAE at the commit that the patch names, before or after the patch."""
    (commit,) = re.findall(r"For commit (\w{40})\.", patch.read_text())
    (requirements,) = re.findall(r"^--- a/(.*\.toml)$", patch.read_text(), re.MULTILINE)
    paths = dict.fromkeys([app.folder, requirements])  # no more, since clones may lack large files
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", clone, "archive", commit, *paths], capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        if apply:
            subprocess.run(["git", "apply", "--unidiff-zero", patch.resolve()], cwd=folder, check=True)
        yield Path(folder)


def load(root: Path, names: tuple[str, ...]) -> list[ModuleType]:
    """Modules of an app, without what the packages around them import."""
    parents = [names[0].split(".")[:depth] for depth in range(1, names[0].count(".") + 1)]
    for parts in parents:
        package = sys.modules[".".join(parts)] = ModuleType(".".join(parts))
        package.__path__ = [str(root.joinpath(*parts))]
    modules = [importlib.import_module(name) for name in names]
    for name in [name for name in sys.modules if name.split(".")[0] == parents[0][0]]:
        del sys.modules[name]
    return modules


def find(module: ModuleType, path: str) -> Callable[..., object]:
    """A function of a module by its path, such as "VideoDecoder.decode"."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def parameters(function: Callable[..., object]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def try_app(name: str, clone: Path) -> str:
    """Compare the app before and after its patch; returns what was found, in a line."""
    app, patch = APPS[name], PATCHES / f"{name}.patch"
    with (
        exported(app, clone, patch, apply=False) as own_root,
        exported(app, clone, patch, apply=True) as patched_root,
        tempfile.TemporaryDirectory() as folder,
    ):
        own, patched = (load(root / app.root, app.modules) for root in (own_root, patched_root))
        assert find(patched[0], app.function).__module__ == "mlx_ltx_vae.integrations"
        assert parameters(find(patched[0], app.function)) == parameters(find(own[0], app.function))
        takes = inspect.signature(app.make).parameters
        models = [app.make(*modules[: len(takes)]) for modules in (own, patched)]
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
        for generation in range(3):
            if generation == 2:  # with the other padding, and what has moved loaded again
                for model in models:
                    pad_otherwise(model)
                models[1].update(models[0].parameters())
            place = Path(folder, str(generation))
            place.mkdir()
            text += "\n  " + app.compare(own, patched, models, make_latents(models[1]), place)
    return f"{name}: {vae.config.generation}, {size / 1e6:.1f} MB of weights and {held} bytes more:{text}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", choices=APPS)
    parser.add_argument("clone", type=Path)
    arguments = parser.parse_args()
    print(try_app(arguments.app, arguments.clone))
