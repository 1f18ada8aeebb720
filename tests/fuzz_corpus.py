"""The files that the fuzzer starts from: one of each kind that users name, small, made from the tests' fixtures."""

import enum
import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save

import synthetic_checkpoint
from vae_configs import decoder_spec, encoder_spec, parse_vae_config

#: A name that a terminal obeys, shows from right to left, and breaks into lines.
HOSTILE_NAME = "no\x1b[2J\x9b\u202e\u2028\u2066\rInputs\n9"
#: Stands for the folder of the sample, in a list.
HERE = b"@HERE@"

FIXTURES = Path(__file__).parent / "fixtures"
CHANNELS = 8
_BLOCKS = 3
_CASES = ("ltxv_0_9_1", "ltx2_3")
_STATISTICS = ("mean-of-means", "std-of-means")
_DIFFUSERS_CONFIG = {
    "_class_name": "AutoencoderKLLTX2Video", "in_channels": 3, "out_channels": 3, "latent_channels": 8,
    "block_out_channels": [8, 8], "decoder_block_out_channels": [8], "layers_per_block": [1, 1],
    "decoder_layers_per_block": [1, 1], "spatio_temporal_scaling": [True], "decoder_spatio_temporal_scaling": [True],
    "down_block_types": ["LTX2VideoDownBlock3D"], "downsample_type": ["spatiotemporal"],
    "upsample_type": ["spatiotemporal"], "upsample_residual": [True], "upsample_factor": [1], "patch_size": 4,
    "decoder_causal": True, "timestep_conditioning": False, "spatial_compression_ratio": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """Files in a folder, of which the user names one, or the folder itself.

    Attributes:
        kind: "latents", "checkpoint", "configuration", "light": EXR images, "list", or "run": a list for the commands,
            of files that exist.
        named: the file to give to the package; "" for the folder.
        target: the file to damage.
        specials: what the target may be in place of a file. A pipe of latents or names is one that the package reads.
    """

    name: str
    kind: str
    files: dict[str, bytes]
    named: str
    target: str

    @property
    def specials(self) -> tuple["Special", ...]:
        return tuple(Special)[0 if self.kind in ("checkpoint", "configuration") else 1 :]


class Special(enum.Enum):
    """What is no file, or none of the size that it seems to have."""

    PIPE = "a pipe without a writer"
    ENDLESS = "a link to /dev/zero"
    SPARSE = "a file of 6 GB without data"


def latents_array(shape: tuple[int, ...] = (1, CHANNELS, 2, 3, 4)) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@cache
def samples() -> tuple[Sample, ...]:
    """All samples, each of which the package reads without an error (but for pickles, which it refuses)."""
    return (*_latents(), *_checkpoints(), *_configurations(), *_lists(), *_runs(), *_light())


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle)
    return file.getvalue()


def npz(arrays: dict[str, np.ndarray], compressed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def torch_file() -> bytes:
    """A file as `torch.save` writes it: a zip file with a pickle and the values."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("clip/data.pkl", pickle.dumps({"latents": [1.0]}, protocol=2))
        archive.writestr("clip/data/0", latents_array().tobytes())
        archive.writestr("clip/version", "3\n")
    return file.getvalue()


def _single(name: str, kind: str, content: bytes) -> Sample:
    return Sample(name, kind, {name: content}, name, name)


def _latents() -> list[Sample]:
    array = latents_array()
    metadata = {"fps": "24", "num_frames": "9", "height": "96", "width": "128", "normalized": "true", "layout": "BCFHW"}
    packed = array.reshape(1, CHANNELS, -1).transpose(0, 2, 1)
    beside = {"latents": array, "fps": np.float32(23.976), "num_frames": np.int64(9), "height": np.int64(96)}
    stills = {"keyframe_latents": array[:, :, :1], "keyframe_frame_indices": np.array([8])}
    return [
        _single("own.safetensors", "latents", save({"latents": array}, metadata)),
        _single("keyframes.safetensors", "latents", save({"latents": array, **stills}, metadata)),
        _single("keyframes.npz", "latents", npz({"latents": array, **stills})),
        _single("comfy.latent", "latents", save({"latent_tensor": array, "latent_format_version_0": np.empty(0)})),
        _single("packed.safetensors", "latents", save({"samples": packed.copy()}, {"grid": "2x3x4"})),
        _single(f"{HOSTILE_NAME}.safetensors", "latents", save({"latents": array}, metadata)),
        _single("half.npy", "latents", npy(array.astype("float16"))),
        _single("bits.npy", "latents", npy((array.view("uint32") >> 16).astype("uint16"))),
        _single("fortran.npy", "latents", npy(np.asfortranarray(array.astype("float64")))),
        _single("objects.npy", "latents", npy(np.array([array, None], dtype=object), allow_pickle=True)),
        _single("stored.npz", "latents", npz(beside)),
        _single("deflated.npz", "latents", npz(beside, compressed=True)),
        _single("clip.pt", "latents", torch_file()),
        _single("old.pt", "latents", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + pickle.dumps([1.0], protocol=2)),
    ]


def small_config(case: str, num_blocks: int | None = None) -> dict[str, object]:
    """The configuration of a golden case with its first blocks, of one layer each."""
    config = dict(json.loads((FIXTURES / f"{case}.json").read_text())["vae_config"])
    for key in config.keys() & {"blocks", "encoder_blocks", "decoder_blocks"}:
        config[key] = [[name, _one_layer(options)] for name, options in config[key][:num_blocks]]
    return config


def _one_layer(options: int | dict[str, object]) -> int | dict[str, object]:
    if isinstance(options, int):
        return 1
    return options | ({"num_layers": 1} if "num_layers" in options else {})


def small_weights(config: dict[str, object]) -> dict[str, np.ndarray]:
    """Weights of a configuration, by the names of the original files."""
    parsed = parse_vae_config(config, "a sample")
    shapes = {f"vae.encoder.{name}": shape for name, shape in encoder_spec(parsed).weights.items()}
    shapes |= {f"vae.decoder.{name}": shape for name, shape in decoder_spec(parsed).weights.items()}
    shapes |= {f"vae.per_channel_statistics.{name}": (CHANNELS,) for name in _STATISTICS}
    return {name: synthetic_checkpoint.make_tensor(0, name, shape).astype("float16") for name, shape in shapes.items()}


def _checkpoints() -> list[Sample]:
    found = []
    for case in _CASES:
        config = small_config(case, _BLOCKS)
        weights = small_weights(config)
        content = save(weights, {"config": json.dumps({"vae": config})})
        found.append(_single(f"{case}.safetensors", "checkpoint", content))
    bare = save(weights)
    beside = {"vae.safetensors": bare, "config.json": json.dumps({"vae": config}).encode()}
    found.append(Sample("folder", "checkpoint", beside, "", "config.json"))
    return [*found, *_sharded(weights, config)]


def _sharded(weights: dict[str, np.ndarray], config: dict[str, object]) -> list[Sample]:
    names = sorted(weights)
    files: dict[str, bytes] = {"config.json": json.dumps(config).encode()}
    weight_map = {}
    for number, chosen in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{number:05d}-of-00002.safetensors"
        files[shard] = save({name: weights[name] for name in chosen})
        weight_map |= dict.fromkeys(chosen, shard)
    index = "model.safetensors.index.json"
    files[index] = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    return [
        Sample("index", "checkpoint", files, index, index),
        Sample("shards", "checkpoint", files, "", "model-00002-of-00002.safetensors"),
    ]


def _configurations() -> list[Sample]:
    configs: dict[str, object] = {case: small_config(case) for case in (*_CASES, "ltxv_0_9_0", "conv_16x16x4")}
    configs["diffusers"] = _DIFFUSERS_CONFIG
    return [_single(f"{name}.json", "configuration", json.dumps(config).encode()) for name, config in configs.items()]


def _lists() -> list[Sample]:
    table = 'path,output,width,height,frames,fps\na.mp4,a.safetensors,768,512,121,23.976\n"b, c.mp4",,,,,\n'
    return [
        _single("clips.csv", "list", table.encode()),
        _single("more.txt", "list", b"# clips\nfirst.npy\nfolder/second.npy\n"),
    ]


def _runs() -> list[Sample]:
    names = ("a.safetensors", "sub/b.safetensors", f"{HOSTILE_NAME.splitlines()[0]}.safetensors")
    clip = save({"latents": latents_array(shape=(1, CHANNELS, 1, 1, 1))})
    files = dict.fromkeys(names, clip) | {"pair.npy": npy(latents_array(shape=(2, CHANNELS, 1, 1, 1)))}
    table = "path,output\n" + "".join(f"{name},{place}.npy\n" for place, name in enumerate(files))
    lines = "".join(f"{name}\n" for name in files)
    return [
        Sample(f"run {name}", "run", files | {name: text.encode()}, name, name)
        for name, text in (("table.csv", table), ("names.txt", lines))
    ]


def exr(frame: np.ndarray) -> bytes:
    """An EXR image of light (height, width, 3) float16 with the primaries of sRGB, compressed as ZIP."""
    height, width, _ = frame.shape
    channel, window = struct.pack("<iBxxxii", 1, 0, 1, 1), struct.pack("<4i", 0, 0, width - 1, height - 1)
    attributes = {
        (b"channels", b"chlist"): b"".join(name + b"\0" + channel for name in (b"B", b"G", b"R")) + b"\0",
        (b"chromaticities", b"chromaticities"): struct.pack("<8f", 0.64, 0.33, 0.3, 0.6, 0.15, 0.06, 0.3127, 0.329),
        (b"compression", b"compression"): b"\3",
        (b"dataWindow", b"box2i"): window,
        (b"displayWindow", b"box2i"): window,
        (b"lineOrder", b"lineOrder"): b"\0",
        (b"pixelAspectRatio", b"float"): struct.pack("<f", 1),
        (b"screenWindowCenter", b"v2f"): bytes(8),
        (b"screenWindowWidth", b"float"): struct.pack("<f", 1),
    }
    header = exr_header([(*key, value) for key, value in attributes.items()])
    blocks = []
    for row in range(0, height, 16):
        samples = frame[row : row + 16, :, ::-1].transpose(0, 2, 1).astype("<f2")
        halves = np.frombuffer(samples.tobytes(), np.uint8).reshape(-1, 2).T.ravel()
        steps = np.diff(halves, prepend=np.uint8(128)) + np.uint8(128)
        data = zlib.compress(steps.tobytes())
        blocks.append(struct.pack("<2i", row, len(data)) + data)
    starts = np.cumsum([len(header) + 8 * len(blocks), *map(len, blocks[:-1])])
    return header + starts.astype("<u8").tobytes() + b"".join(blocks)


def exr_header(attributes: Iterable[tuple[bytes, bytes, bytes]]) -> bytes:
    """The start of an EXR image with attributes: of each the name, the type and the value."""
    parts = (b"%b\0%b\0" % (name, kind) + struct.pack("<i", len(value)) + value for name, kind, value in attributes)
    return b"\x76\x2f\x31\x01\2\0\0\0" + b"".join(parts) + b"\0"


def _light() -> list[Sample]:
    content = exr(np.sort(np.random.default_rng(0).uniform(0, 4, (32, 32, 3)), axis=1).astype(np.float16))
    return [
        _single("light.exr", "light", content),
        Sample("folder of light", "light", {"0.exr": content, "1.exr": content}, "", "1.exr"),
    ]
