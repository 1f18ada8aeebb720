"""The examples run as scripts, on the demo model. (The server has its own tests.)"""

import ast
import importlib
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import imageio.v3 as iio
import mlx.core as mx
import numpy as np
import pytest

import mlx_ltx_vae
from examples.encode_folder import encode_folder
from examples.generation_app import Decode
from examples.preview_while_denoising import DEMO_PREVIEW, Previews
from examples.replace_tiler import decode
from mlx_ltx_vae import PreviewVAE, VideoReader, VideoVAE, WriterError, demo, load_latents
from video_files import noise, write

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a script, with a part of the demo's latents, and returns the lines that it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setattr("mlx_ltx_vae.load_latents", load_part)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def load_part(path):
    latents, info = load_latents(path)
    return latents[..., :2, :3], info


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE)


@pytest.fixture
def latents(vae):
    latents, _ = load_latents(demo.LATENTS)
    return latents[:, :, :4, :3, :4]


@pytest.mark.parametrize("name", ["encode_folder.py", "generation_app.py", "preview_while_denoising.py"])
def test_an_example_without_arguments_says_how_it_is_called(run, name):
    with pytest.raises(SystemExit) as ended:
        run(name)
    assert f"python examples/{name} " in ended.value.code


def test_a_generation_app_decodes_with_progress(tmp_path, run):
    lines = run("generation_app.py", tmp_path / "clip.mp4")
    assert lines[-1] == "73 of 73 frames"
    assert len(lines) > 5
    with VideoReader(tmp_path / "clip.mp4") as video:
        assert sum(len(frames) for frames in video) == 73


def test_a_generation_app_cancels_a_decode_and_keeps_nothing(tmp_path, vae, latents):
    has_begun, may_go_on = threading.Event(), threading.Event()

    def show(done, total):
        has_begun.set()
        may_go_on.wait(60)

    decoding = Decode(vae, latents, str(tmp_path / "clip.mp4"), show)
    assert has_begun.wait(60)
    decoding.cancel()
    may_go_on.set()
    decoding.wait()
    assert decoding.was_cancelled
    assert not list(tmp_path.iterdir())


def test_a_generation_app_gets_the_error_of_its_decode(tmp_path, vae, latents):
    decoding = Decode(vae, latents, str(tmp_path / "missing" / "clip.mp4"), lambda done, total: None)
    with pytest.raises(WriterError):
        decoding.wait()
    assert not decoding.was_cancelled


def test_an_app_previews_while_it_denoises(tmp_path, run, vae):
    lines = run("preview_while_denoising.py", tmp_path / "previews")
    assert lines[0].startswith("6 previews, ") and lines[1:] == ["73 frames in film.mp4"]
    strips = [iio.imread(tmp_path / "previews" / f"step-{step}.png") for step in range(6)]
    assert {strip.shape for strip in strips} == {(64, 3 * 96, 3)}, "three stills of the size of the video"
    errors = [np.square(strip.astype(float) - strips[-1]).mean() for strip in strips]
    assert errors == sorted(errors, reverse=True), "each step's picture is nearer to the last one"
    clip = np.concatenate(vae.decode_uint8(load_part(demo.LATENTS)[0])[[16, 40, 56]], axis=1)
    assert np.square(strips[-1] - clip.astype(float)).mean() < 255**2 / 10**2.3, "23 dB: people recognize it"
    with VideoReader(tmp_path / "previews" / "film.mp4") as video:
        assert sum(len(frames) for frames in video) == 73


def test_a_preview_ends_when_a_newer_estimate_is_there(tmp_path):
    preview, latents = PreviewVAE.from_pretrained(DEMO_PREVIEW), load_part(demo.LATENTS)[0]
    for shown, expected in ((2, 9), (99, 73)):  # the next film begins anew
        stale, frames = iter([False] * (shown - 1) + [True] * 99), []
        previews = Previews(None, preview, tmp_path, is_stale=lambda stale=stale: next(stale))
        assert previews.play(latents, frames.append) == len(frames) == expected
        assert frames[0].shape == (64, 96, 3)
        assert np.array_equal(frames[0], preview.decode_uint8(latents[:, :, :1])[0])


def test_a_folder_is_encoded_and_a_damaged_video_stops_nothing(tmp_path, vae, capsys):
    (tmp_path / "videos").mkdir()
    for name, length in (("a.mkv", 9), ("b.mkv", 12)):
        write(tmp_path / "videos" / name, noise(length, (70, 64)), fps=25)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"no video")
    errors = encode_folder(tmp_path / "videos", tmp_path / "latents", vae)
    assert [path.name for path in errors] == ["broken.mp4"]
    for name, frames in (("a", 2), ("b", 3)):
        latents, info = load_latents(tmp_path / "latents" / f"{name}.safetensors")
        assert (latents.shape, info.fps) == ((1, 64, frames, 2, 2), 25)


def test_the_folder_example_runs_as_a_script(tmp_path):
    (tmp_path / "videos").mkdir()
    write(tmp_path / "videos" / "a.mkv", noise(9, (64, 64)))
    command = [sys.executable, EXAMPLES / "encode_folder.py", tmp_path / "videos", tmp_path / "latents"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a.mkv: latents (1, 64, 2, 2, 2)\n"


def test_the_tiler_takes_the_place_of_an_apps_own(vae):
    full, _ = load_latents(demo.LATENTS)
    wide = mx.concatenate([full[:, :, :2, :2]] * 2, axis=-1)  # 24 columns are 768 pixels, over the threshold
    received = []
    video = decode(vae.decoder, wide, lambda frames, start: received.append((start, np.array(frames))))
    assert video.shape == (1, 3, 9, 64, 768)
    assert [start for start, _ in received] == sorted(start for start, _ in received)
    assert np.array_equal(np.concatenate([frames for _, frames in received], axis=2), np.array(video))


def test_the_tiler_example_runs_as_a_script(run):
    assert run("replace_tiler.py")[-1] == "video (1, 3, 73, 64, 96)"


def stable_names(page):
    """Return the pairs (module, name) in the table of docs/python.md."""
    section = page.partition("## Stable names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(mlx_ltx_vae[.\w]*)` \| (.*) \|$", section, re.MULTILINE)
    return {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}


STABLE = stable_names((EXAMPLES.parent / "docs" / "python.md").read_text())


def imported_names(source, stable):
    """Return the pairs (module, name) of this package that a source imports, and reads of stable modules."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    pairs = {(node.module, alias.name) for node in imports for alias in node.names}
    modules = {name: f"{module}.{name}" for module, name in pairs if f"{module}.{name}" in dict(stable)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    pairs |= {
        (modules[node.value.id], node.attr)
        for node in attributes
        if isinstance(node.value, ast.Name) and node.value.id in modules
    }
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    pairs |= {(alias.name, "") for node in plain for alias in node.names if "." in alias.name}
    return {(module, name) for module, name in pairs if module.partition(".")[0] == "mlx_ltx_vae"}


def test_stable_names_exist_and_are_exported():
    names = STABLE
    modules = {module.rpartition(".")[2] for module in dict(names) if module != "mlx_ltx_vae"}
    assert {name for module, name in names if module == "mlx_ltx_vae"} == {*dir(mlx_ltx_vae), *modules}
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    for module in ("video", "tiling", "integrations"):
        exported = set(importlib.import_module(f"mlx_ltx_vae.{module}").__all__)
        assert {name for place, name in names if place == f"mlx_ltx_vae.{module}"} <= exported
    assert {name for place, name in names if place.endswith(".integrations")} == set(mlx_ltx_vae.integrations.__all__)


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples_and_nodes_import_only_stable_names(path):
    assert imported_names(path.read_text(), STABLE) - STABLE == set()
