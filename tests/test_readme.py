"""The Python examples of the README, of docs/ and of examples/ run as they are printed."""

import re
import shlex
import shutil
import subprocess
import sys
import threading
import wave
from contextlib import asynccontextmanager
from pathlib import Path

import imageio_ffmpeg
import mlx.core as mx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from checkpoint_files import named_parameters
from examples.server import make_app
from mlx_ltx_vae import VideoReader, VideoVAE, VideoWriter, demo, load_latents, save_latents
from mlx_ltx_vae.networks import layers
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.video_vae import block_types, networks
from mlx_ltx_vae.networks.video_vae.networks import ConvDecoder
from tolerances import tolerance
from vae_configs import parse_vae_config

ROOT = Path(__file__).parents[1]


def run_examples(page, names, containing=""):
    """Run the page's Python examples that contain a text (in lower case) with the globals `names`."""
    for example in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        if containing in example.lower():
            exec(compile(example, page, "exec"), names)  # the examples are ours


def assert_all_orders_agree(vae, latents):
    expected = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    for order in ("time", "rows", "columns"):
        pixels = vae.decode(latents, vae.plan(latents.shape, mode="exact", order=order))
        assert pixels.shape == expected.shape
        assert mx.allclose(pixels, expected, atol=tolerance(2e-5))
    return expected


@pytest.fixture
def folder(tmp_path, monkeypatch, hub_cache):
    """The working folder, with the files that the examples name, and the model in the cache of the hub."""
    hub_cache("ltx-2.3", demo.VAE)
    latents, info = load_latents(demo.LATENTS)
    save_latents(tmp_path / "clip.safetensors", latents[:, :, :2, :3, :4], fps=info.fps)
    with wave.open(str(tmp_path / "voice.wav"), "wb") as audio:
        audio.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        audio.writeframes(bytes(8000))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_the_readme_runs(folder):
    names = {}
    run_examples("README.md", names)
    assert (folder / "out.mp4").stat().st_size > 1000
    assert names["pixels"].shape == (1, 3, 9, 96, 128)
    assert names["latents"].shape == (1, 64, 2, 3, 4)
    assert mx.isfinite(names["latents"]).all()


def test_the_example_of_the_python_page_runs(folder, capsys):
    names = {}
    run_examples("docs/python.md", names)
    assert names["frames"].shape == (9, 96, 128, 3)
    with VideoReader(folder / "clip.mp4") as reader:
        assert sum(frames.shape[0] for frames in reader) == 9
    assert (folder / "first.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert [int(line.split()[0]) for line in printed.out.splitlines()] == list(range(9))
    assert "9/9" in printed.err


def test_raw_frames_go_into_ffmpeg_as_the_page_pipes_them(tmp_path):
    (command,) = re.findall(
        r"^    (mlx_ltx_vae .* -o - \|\n .*ffmpeg .*)$", (ROOT / "docs/usage.md").read_text(), re.MULTILINE
    )
    latents, _ = load_latents(demo.LATENTS)
    save_latents(tmp_path / "clip.safetensors", latents[:, :, :2, :3, :4])
    for old, new in (
        ("mlx_ltx_vae ", f"{shlex.quote(sys.executable)} -m mlx_ltx_vae "),
        ("ffmpeg ", f"{shlex.quote(imageio_ffmpeg.get_ffmpeg_exe())} -loglevel error "),
        ("-m VAE", f"-m {shlex.quote(str(demo.VAE))}"),
        ("768x512", "128x96"),
    ):
        command = command.replace(old, new)
    subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, check=True, timeout=120)
    with VideoReader(tmp_path / "clip.avi") as reader:
        assert sum(frames.shape[0] for frames in reader) == 9


def test_grain_is_added_as_the_hdr_page_says(tmp_path):
    (command,) = re.findall(r"^    (ffmpeg .*\\\n.*)$", (ROOT / "docs/hdr.md").read_text(), re.MULTILINE)
    frames = np.full((3, 64, 64, 3), 128, np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", size=(64, 64), fps=24, codec="hevc") as out:
        out.write(frames)
    program = f"{shlex.quote(imageio_ffmpeg.get_ffmpeg_exe())} -loglevel error "
    subprocess.run(["bash", "-c", command.replace("ffmpeg ", program)], cwd=tmp_path, check=True, timeout=120)
    with VideoReader(tmp_path / "grain.mp4") as reader:
        pixels = np.concatenate(list(reader))
    assert (pixels.dtype, pixels.shape) == (np.uint16, frames.shape)
    assert pixels.std() > 257 / 2  # half a level of 8 bits


def test_the_example_decoder_of_the_architecture_page_streams_along_all_axes():
    names = {}
    run_examples("docs/architecture.md", names, "class nearestdecoder")
    vae = VideoVAE(None, None, names["NearestDecoder"]())
    pixels = assert_all_orders_agree(vae, mx.random.normal((1, 3, 4, 5, 3)))
    assert pixels.shape == (1, 3, 4, 160, 96)


def test_the_example_block_of_the_architecture_page_streams_along_all_axes(monkeypatch):
    monkeypatch.setitem(block_types.DECODER_BLOCKS, "gate", None)  # so that the entry is removed after the test
    monkeypatch.setattr(networks, "BLOCK_MODULES", dict(networks.BLOCK_MODULES))
    names = {**vars(layers), **vars(block_types), **vars(networks)}
    run_examples("docs/architecture.md", names, "gate")
    raw = {"encoder_blocks": [["compress_all", 1]], "decoder_blocks": [["gate", 1], ["compress_all", 1]]}
    raw |= {"latent_channels": 8, "encoder_base_channels": 8, "decoder_base_channels": 8}
    raw["spatial_padding_mode"] = "zeros"
    config = parse_vae_config(raw, "the example")
    decoder = ConvDecoder(config, Statistics(mx.zeros(8), mx.ones(8)))
    assert {name: weight.shape for name, weight in named_parameters(decoder).items()} == decoder.spec.weights
    vae = VideoVAE(config, None, decoder)
    pixels = assert_all_orders_agree(vae, mx.random.normal((1, 8, 4, 5, 3)))
    assert pixels.shape == (1, 3, 7, 40, 24)


def test_the_map_of_the_architecture_page_is_that_of_the_contracts():
    contract = (ROOT / "pyproject.toml").read_text().split('name = "One way through the package"')[1]
    layers = re.findall(r'^    "(.*)",$', contract.split("layers = [")[1].split("]")[0], re.MULTILINE)
    (shown,) = re.findall(r"```\n(__main__.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
    assert [re.split("  +", line)[0] for line in shown.splitlines()] == layers


def decode_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_the_server_is_mounted_in_an_app_as_its_page_says(tmp_path, monkeypatch):
    shutil.copy(demo.VAE, tmp_path / "ltx-2.5-video-vae-conv-bf16.safetensors")
    monkeypatch.chdir(tmp_path)
    names = {
        "FastAPI": Starlette,
        "asynccontextmanager": asynccontextmanager,
        "make_app": make_app,
        "VideoVAE": VideoVAE,
    }
    run_examples("examples/server.md", names)
    with TestClient(names["app"], base_url="http://app.example") as client:
        response = client.get("/ltx/")
        assert response.status_code == 200
        assert "MediaSource" in response.text
        assert "the file: " in client.post("/ltx/video").text
        assert decode_threads()
    assert not decode_threads()


def test_every_python_block_of_the_pages_is_run_by_a_test():
    """So that a new one is not forgotten: where it is run depends on what it needs."""
    run_here = {
        "README.md": [""],
        "python.md": [""],
        "architecture.md": ["class nearestdecoder", "gate"],
        "server.md": [""],
        "audio.md": [""],  # by test_decode_audio.py
    }
    sections = re.findall(r'section\("([^"]+)"\)', (ROOT / "tests" / "test_integrations.py").read_text())
    pages = [path for folder in ("docs", "examples") for path in (ROOT / folder).glob("*.md")]
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages):
        text = page.read_text()
        if page.name == "integrations.md":
            for section in re.split(r"^## ", text, flags=re.MULTILINE):
                assert "```python" not in section or section.partition("\n")[0] in sections
            continue
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            assert any(part in block.lower() for part in run_here.get(page.name, [])), f"{page.name}: {block}"
