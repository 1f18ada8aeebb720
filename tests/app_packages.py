"""Stand-ins of the apps that `integrations` knows: packages with their modules, classes and signatures.

Their classes hold real weights in the apps' names and layout, and have no decode of their own: what a replaced function
returns can only come from its drop-in. Written from facts about the apps, not from their code.
"""

from pathlib import Path
from textwrap import dedent

import mlx.core as mx

from checkpoint_files import as_an_mlx_port_stores
from mlx_ltx_vae.integrations import settings
from mlx_ltx_vae.integrations.apps import APPS
from mlx_ltx_vae.integrations.networks import give_back_weights

__all__ = [
    "APPS", "MODULES", "forget_counts", "give_back_weights", "network_arrays", "write_apps",
]  # fmt: skip

STATISTICS = ("per_channel_statistics.mean", "per_channel_statistics.std")

_NETWORK = """
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten


class Network(nn.Module):
    def __init__(self, file):
        super().__init__()
        for name, value in tree_unflatten(list(mx.load(file).items())).items():
            setattr(self, name, value)
"""

_MLX_VIDEO = """
class LTX2VideoDecoder(Network):
    def __call__(self, sample, causal=False, timestep=None, debug=False, chunked_conv=False):
        raise AssertionError("the app's own decode")

    def decode_tiled(self, sample, tiling_config=None, tiling_mode="auto", causal=False, timestep=None, debug=False,
                     on_frames_ready=None):
        raise AssertionError("the app's own decode")
"""

_MLX_VIDEO_DIFFUSION = """
class Upsample(nn.Module):
    def __init__(self, proj, stride):
        super().__init__()
        self.proj, self.stride = proj, stride


class DiffusionVideoDecoder(Network):
    def __init__(self, file, config):
        nn.Module.__init__(self)
        arrays = {}
        for name, array in mx.load(file).items():
            if ".attn.qkv." in name:
                for letter, part in zip("qkv", mx.split(array, 3)):
                    arrays[name.replace("qkv", f"to_{letter}")] = part
            else:
                name = name.replace("per_channel_statistics.mean", "mean_of_means")
                arrays[name.replace("per_channel_statistics.std", "std_of_means")] = array
        for name, value in tree_unflatten(list(arrays.items())).items():
            setattr(self, name, value)
        self.in_channels, self.out_channels = config.in_channels, config.out_channels
        self.patch_size = config.patch_size
        self.stage_channels, self.stage_depths = tuple(config.stage_channels), tuple(config.stage_depths)
        self.stage_kernels = tuple(map(tuple, [*config.stage_kernels[:4], config.stage5_kernel]))
        self.timestep_scale_multiplier = config.timestep_scale_multiplier
        self.upsamples = [
            Upsample(module["proj"], tuple(stride)) for module, (stride, _) in zip(self.upsamples, config.upsamples)
        ]

    def __call__(self, latent, *, seed=0, spatial_tiles=1):
        raise AssertionError("the app's own decode")
"""

_LTX_CORE = """
class VideoDecoder(Network):
    def decode(self, latent, *, _materialize_stages=False):
        raise AssertionError("the app's own decode")

    def tiled_decode(self, latent, tiling_config=None):
        raise AssertionError("the app's own decode")

    def decode_and_stream(self, latent, output_path, *, frame_rate, audio_path=None, seed=0):
        for chunk in self.tiled_decode(latent, None):
            print(f"the app's own plumbing wrote {chunk}")


class VideoEncoder(Network):
    def encode(self, pixels):
        raise AssertionError("the app's own encode")

    def tiled_encode(self, video, tiling_config=None):
        raise AssertionError("the app's own encode")
"""

_DIFFUSION = """
class NADiffusionDecoder(Network):
    def __init__(self, file, config):
        super().__init__(file)
        self.config = config

    def decode(self, latent, *, noise=None, seed=0, tap=None, keyframes=None, keyframe_noise=None):
        raise AssertionError("the app's own decode")

    def tiled_decode(self, latent, tiling=None, *, seed=0, allow_small_overlap=False, keyframes=None):
        raise AssertionError("the app's own decode")
"""

_BLOCKS = """
import sys
import mlx.core as mx
import numpy as np

class _DiffusionVideoDecoder:
    def __init__(self, decoder):
        self._decoder = decoder

    def decode_and_stream(self, video_latent, output_path, frame_rate=24.0, audio_path=None, *, seed=0, keyframes=None):
        raise AssertionError("the app's own decode")


class VideoDecoder:
    def __init__(self, decoder, video_decoder="conv", verbose=True):
        self._decoder, self.video_decoder, self.verbose = decoder, video_decoder, verbose

    def decode_and_stream(self, video_latent, output_path, frame_rate=24.0, audio_path=None, *, seed=0, keyframes=None):
        if self.verbose:
            print("[vae-decode tiling] 12 tiles est. 34.0 GB", file=sys.stderr)
        extra = {} if self.video_decoder == "conv" else {"keyframes": keyframes}
        self._decoder.decode_and_stream(
            video_latent, output_path, frame_rate=frame_rate, audio_path=audio_path, seed=seed, **extra
        )
        return output_path

    def load(self):
        return self._decoder

    def iter_frames(self, latent, *, seed=0, keyframes=None):
        for chunk in self.load()._decoder.tiled_decode(latent, None, seed=seed, keyframes=keyframes):
            yield np.array((mx.clip(chunk.astype(mx.float32), -1, 1)[0].transpose(1, 2, 3, 0) + 1) / 2)


class AudioDecoder:
    def __call__(self, audio_latent):
        return audio_latent + 1
"""

_HDR = """
import numpy as np

def encode_hdr_outputs(chunks, output_path, fps, exr_color_space=None):
    frames = np.concatenate(list(chunks))
    with open(output_path, "wb") as file:
        np.save(file, frames)
    return fps
"""

_LTX_2_MLX = """
class NativeConv3dVideoDecoder(Network):
    def __call__(self, latent, timestep=0.05, show_progress=True, causal=None):
        raise AssertionError("the app's own decode")
"""

_SIMPLE = """
class SimpleVideoDecoder(Network):
    def __init__(self, file):
        nn.Module.__init__(self)
        arrays = {"last_scale_shift_table": mx.zeros((2, 8)), "timestep_scale_multiplier": mx.array(1000.0)}
        for name, array in mx.load(file).items():
            name = name.replace(".conv.weight", ".weight").replace(".conv.bias", ".bias")
            name = name.replace("per_channel_statistics.mean", "mean_of_means")
            name = name.replace("per_channel_statistics.std", "std_of_means")
            arrays[name] = mx.contiguous(mx.moveaxis(array, -1, 1)) if array.ndim == 5 else array
        for name, value in tree_unflatten(list(arrays.items())).items():
            setattr(self, name, value)

    def __call__(self, latent, timestep=0.05, show_progress=True, causal=False):
        raise AssertionError("the app's own decode")


def decode_latent(latent, decoder, timestep=0.05, key=None, temporal_chunk_size=7, temporal_overlap=2):
    raise AssertionError("the app's own decode")
"""

_STREAMING = """
def decode_tiled(latent, decoder_fn, tiling_config, timestep=0.05, show_progress=True, key=None):
    raise AssertionError("the app's own decode")


def decode_streaming(latent, decoder_fn, tiling_config=None, timestep=0.05, show_progress=True):
    raise AssertionError("the app's own decode")
"""

MODULES = {
    "mlx_video.models.ltx_2.video_vae.decoder": _NETWORK + _MLX_VIDEO,
    "mlx_video.models.ltx.video_vae.decoder": _NETWORK + _MLX_VIDEO,
    "mlx_video.models.ltx_2.diffusion_vae.decoder": _NETWORK + _MLX_VIDEO_DIFFUSION,
    "ltx_core_mlx.model.video_vae.video_vae": _NETWORK + _LTX_CORE,
    "ltx_core_mlx.model.video_vae.diffusion_decoder.decoder": _NETWORK + _DIFFUSION,
    "ltx_pipelines_mlx.utils.blocks": _BLOCKS,
    "ltx_pipelines_mlx.utils.hdr_media": _HDR,
    "LTX_2_MLX.model.video_vae.native_decoder": _NETWORK + _LTX_2_MLX,
    "LTX_2_MLX.model.video_vae.simple_decoder": _NETWORK + _SIMPLE,
    "LTX_2_MLX.model.video_vae.tiling": _STREAMING,
    "LTX_2_MLX.pipeline": "from LTX_2_MLX.model.video_vae.tiling import decode_streaming\n",
}


def network_arrays(weights, network="decoder", statistics=STATISTICS):
    """The arrays of a checkpoint's network in the names and the layout of the apps."""
    stored = "vae.per_channel_statistics.mean-of-means", "vae.per_channel_statistics.std-of-means"
    given, prefix = dict(zip(stored, statistics, strict=True)), f"vae.{network}."
    return {
        given.get(name, name.removeprefix(prefix)): mx.array(as_an_mlx_port_stores(name, array))
        for name, array in weights.items()
        if name.startswith(prefix) or name in given
    }


def write_apps(folder: Path, **changes: tuple[str, str]) -> None:
    """Write the packages; `changes` are replaced texts by the last part of a module's name."""
    for name, code in MODULES.items():
        *packages, last = name.split(".")
        before, after = changes.get(last, ("", ""))
        assert before in code, f"{name} has no {before!r}"
        path = folder.joinpath(*packages)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{last}.py").write_text(dedent(code.replace(before, after) if before else code))


def forget_counts() -> None:
    """Forget what the drop-ins of earlier tests have done, which `run` says at the end."""
    settings.counts.clear()
