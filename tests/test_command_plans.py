"""The commands plan what the API plans, in every precision and for every backend."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from commands import decode, encode
from mlx_ltx_vae import VideoVAE, VideoWriter
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.networks.convolution import rules
from mlx_ltx_vae.planning.planner import plan_decode

SIZE = (1920, 1088)
VIDEO_SIZE = (960, 544)
DTYPES = [None, "float32", "bfloat16", "float16"]


@pytest.fixture
def checkpoint(request, golden, tmp_path):
    """A checkpoint that stores its weights in one dtype, or all in float16 but for the first layers."""
    weights, metadata = mx.load(str(golden("small_ltx2_3").checkpoint), return_metadata=True)
    path = tmp_path / "vae.safetensors"
    cast = {}
    for name, weight in weights.items():
        mixed = mx.bfloat16 if ".conv_in." in name else mx.float16
        cast[name] = weight.astype(mixed if request.param == "mixed" else getattr(mx, request.param))
    mx.save_safetensors(str(path), cast, metadata)
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Latents of `SIZE` and a video."""
    folder = tmp_path_factory.mktemp("inputs")
    latents, video = folder / "clip.npy", folder / "clip.mkv"
    np.save(latents, np.zeros((1, 8, 3, SIZE[1] // 32, SIZE[0] // 32), np.float32))
    with VideoWriter(video, size=VIDEO_SIZE, fps=24, codec="ffv1") as out:
        out.write(np.zeros((9, VIDEO_SIZE[1], VIDEO_SIZE[0], 3), np.uint8))
    return latents, video


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("checkpoint", "backend"),
    [("mixed", Backend.CPU), *((name, Backend.METAL) for name in ("float32", "bfloat16", "mixed"))],
    indirect=["checkpoint"],
)
def test_a_command_plans_what_the_api_plans(checkpoint, inputs, tmp_path, capsys, monkeypatch, backend):
    monkeypatch.setattr(device, "backend", lambda: backend)
    monkeypatch.setattr(device, "available_memory", lambda counted_bytes=0: 2**36)
    # Metal's fast convolutions, of which bfloat16 operands have few, also for the few channels of this network.
    monkeypatch.setattr(rules, "_WINOGRAD_MIN_CHANNELS", 1)
    monkeypatch.setattr(rules, "_WINOGRAD_ALIGNMENT", 1)
    # The command's latents stay in their file.

    def in_parts(spec, shape, machine, options):
        return plan_decode(spec, shape, machine, replace(options, holds_latents=False))

    monkeypatch.setattr("mlx_ltx_vae.opened_vae.plan_decode", in_parts)
    latents, video = inputs

    def planned(command, *arguments):
        assert command([*map(str, arguments), "-m", str(checkpoint), "--dry-run", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["plan"]

    peaks = set()
    for dtype in DTYPES:
        vae = VideoVAE.from_pretrained(checkpoint, dtype=dtype)  # whose encoder no plan of a decode counts
        options = ["--dtype", dtype] if dtype else []
        plan = vae.plan((1, 8, 3, SIZE[1] // 32, SIZE[0] // 32)).as_dict()
        assert planned(decode, latents, *options) == json.loads(json.dumps(plan)), dtype
        peaks.add(plan["peak_bytes"])
        encoder = VideoVAE.from_pretrained(checkpoint, dtype=dtype, decoder=False)
        plan = encoder.plan_encode((9, VIDEO_SIZE[1], VIDEO_SIZE[0], 3)).as_dict()
        assert planned(encode, video, "-o", tmp_path / "out.safetensors", *options) == json.loads(json.dumps(plan)), (
            dtype
        )
    assert len(peaks) > 1
