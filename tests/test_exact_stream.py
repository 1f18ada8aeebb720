"""examples/exact_stream, its test vectors, and the numbers of docs/exact-stream.md."""

import importlib.util
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.networks.specs import ConvSpec
from mlx_ltx_vae.published import PublishedVAE
from tolerances import tolerance

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "exact_stream"
TOLERANCE = 1e-5


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("exact_stream", FOLDER / "exact_stream.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def vectors():
    return mx.load(str(FOLDER / "vectors.safetensors"))


@pytest.mark.parametrize("step", [1, 2, 8])
def test_the_program_agrees_with_the_vectors_whatever_its_step(program, monkeypatch, capsys, step):
    monkeypatch.setattr(program, "STEP", step)
    monkeypatch.setattr("sys.argv", ["exact_stream.py"])
    program.main()
    line = capsys.readouterr().out
    assert line.startswith("129 frames and 56 caches: the largest difference is ")
    assert float(line.split()[-1]) <= tolerance(TOLERANCE)


def test_the_program_takes_both_layouts_of_kernels_and_both_kinds_of_names(program, vectors):
    weights = mx.load(str(FOLDER / "checkpoint.safetensors"))
    other = {
        name.removeprefix("vae."): array.transpose(0, 2, 3, 4, 1) if array.ndim == 5 else array
        for name, array in weights.items()
    }
    results = []
    for arrays in (weights, other):
        stream = program.ExactStream(arrays)
        frames = [frame for number in range(3) for frame in stream.push(vectors["latents"][0, :, number])]
        results.append(mx.concatenate([*frames, *stream.flush()]))
    assert results[0].shape == (17, 64, 64, 3)
    assert mx.array_equal(*results)


def test_frames_become_final_as_the_page_says(program, vectors):
    stream = program.ExactStream(mx.load(str(FOLDER / "checkpoint.safetensors")))
    counts = [sum(map(len, stream.push(vectors["latents"][0, :, number]))) for number in range(17)]
    assert counts == [0] * 14 + [5, 8, 8]
    assert sum(map(len, stream.flush())) == 108
    page = " ".join((ROOT / "docs" / "exact-stream.md").read_text().split())
    assert "The 15th makes the first 5 frames final, every later one 8 more, and the flush the last 108." in page


def test_the_vectors_are_what_the_package_decodes(vectors):
    vae = VideoVAE.from_pretrained(FOLDER / "checkpoint.safetensors", dtype="float32")
    pixels = np.array(vae.decode(vectors["latents"]))[0].transpose(1, 2, 3, 0)
    frames, means = np.array(vectors["frames"]), np.array(vectors["means"])
    assert np.abs(pixels[np.array(vectors["frame_numbers"])] - frames).max() <= tolerance(TOLERANCE)
    assert np.abs(pixels.mean(axis=(1, 2)) - means).max() <= tolerance(TOLERANCE)
    assert frames.std(axis=0).min() > 0, "frames must differ everywhere"


def test_the_example_is_small_and_needs_mlx_and_numpy_alone():
    lines = (FOLDER / "exact_stream.py").read_text().splitlines()
    assert len(lines) <= 200
    modules = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert modules == {"sys", "pathlib", "mlx.core", "numpy"}
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 2_000_000


def test_the_page_has_the_numbers_of_the_published_decoder():
    published = PublishedVAE.find("ltx-2.3")
    spec = published.family.spec(published.config, "decoder")
    caches, skips, receptive_field, rate = 0, 0, 0.0, 1
    for layer, (_, height, width) in spec.walk((1, 1, 1)):
        if isinstance(layer, ConvSpec):
            caches += 2 * layer.in_channels * height * width
            skips += 2 * layer.skip_channels * height * width
            receptive_field += 1 / rate
        rate *= layer.up[0]
    page = (ROOT / "docs" / "exact-stream.md").read_text()
    assert f"{caches:,} numbers for the convolutions and {skips:,} for the skips" in page
    assert f"384 * {caches} * 4 = {384 * caches * 4 / 1e9:.2f} GB       and {384 * skips * 4 / 1e9:.2f} GB" in page
    assert f"= {receptive_field} latent frames" in page
