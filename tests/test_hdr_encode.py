"""`encode --hdr`: EXR images, written by ffmpeg, become the latents of codes that numpy computes from the formulas."""

import json

import mlx.core as mx
import numpy as np
import pytest

from commands import encode as main
from conftest import active_memory
from hdr_formulas import ACESCG_TO_REC709, CHROMATICITIES, encode_acescct, write_exr
from mlx_ltx_vae import ReaderError, VideoVAE, demo, load_latents
from tolerances import PEAK_MARGIN, tolerance

WIDTH, HEIGHT, FRAMES = 96, 64, 9


def light(frames=FRAMES):
    """Moving light (F, H, W, 3) from below black to far above white, float32."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin(rows / (3 + channel) + columns / 5 + channel) for channel in range(3)]
    stops = 6 * np.stack(waves, axis=-1) + np.linspace(-1, 1, frames)[:, None, None, None]
    return (2.0**stops - 0.02).astype(np.float32)


def write_shot(folder, frames, *, first=0):
    """Images with numbers that are not padded: 10 comes after 9."""
    folder.mkdir(exist_ok=True)
    write_exr(folder / "frame_%d.exr", frames.transpose(0, 3, 1, 2)[:, [1, 2, 0]], "-start_number", first)
    return folder


@pytest.mark.parametrize("meaning", ["srgb_linear", "acescg", "acescct"])
def test_images_become_the_latents_of_their_acescct_codes(meaning, tmp_path, capsys):
    frames = light()
    colors = frames.astype(np.float64)
    codes = {
        "srgb_linear": lambda: encode_acescct(colors @ np.linalg.inv(ACESCG_TO_REC709).T),
        "acescg": lambda: encode_acescct(colors),
        "acescct": lambda: np.clip(colors, 0, 1),
    }[meaning]()
    folder = write_shot(tmp_path / "shot", frames, first=4)
    out = tmp_path / "a.safetensors"
    arguments = [str(folder), "--demo", "--hdr", meaning, "--fps", "24", "-o", str(out), "--dtype", "float32", "--json"]
    others = active_memory()
    mx.reset_peak_memory()
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    latents, info = load_latents(out)
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32")
    pixels = mx.array((2 * codes - 1).astype(np.float32))[None].transpose(0, 4, 1, 2, 3)
    expected = vae.encode(pixels)
    assert (latents.shape, info.fps, info.num_frames) == (expected.shape, 24, FRAMES)
    assert mx.abs(latents - expected).max().item() < tolerance(1e-4)
    assert report["peak_memory_bytes"] - others <= PEAK_MARGIN * report["plan"]["peak_bytes"]


def refusal(capsys, *arguments):
    assert main([str(each) for each in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1]


def test_images_whose_meaning_is_not_said_are_refused(tmp_path, capsys):
    folder, out = write_shot(tmp_path / "shot", light(1)), tmp_path / "a.safetensors"
    for source in (folder, folder / "frame_0.exr", folder / "frame_%d.exr"):
        message = refusal(capsys, source, "--demo", "-o", out)
        assert message == (
            f"error: {source}: is EXR, and its color space must be known; add --hdr srgb_linear, acescg or acescct."
        )
    assert not out.exists()


def test_images_of_another_kind_are_refused(tmp_path, capsys):
    folder, out = tmp_path / "shot", tmp_path / "a.safetensors"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"")
    message = refusal(capsys, folder, "--demo", "--hdr", "acescg", "-o", out)
    assert message == f"error: {folder}: is not EXR, which alone has a color space for HDR; leave out --hdr."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nan", "frame_3.exr: has pixels that are NaN, not light; repair them in the program that made it."),
        ("size", "is 96x96, and the images before it are 96x64."),
        ("kind", "contains images of several kinds (exr, png); keep one kind."),
    ],
)
def test_images_that_do_not_fit_are_refused(change, message, tmp_path, capsys):
    frames = light()
    if change == "nan":
        frames[3, 5, 6, 1] = np.nan
    folder = write_shot(tmp_path / "shot", frames)
    if change == "size":
        write_shot(folder, np.zeros((1, 96, 96, 3), np.float32), first=FRAMES)
    if change == "kind":
        (folder / "a.png").write_bytes(b"")
    out = tmp_path / "a.safetensors"
    assert refusal(capsys, folder, "--demo", "--hdr", "acescg", "-o", out).endswith(message)
    assert not out.exists()


def test_frames_are_chosen_cropped_and_scaled_in_light(tmp_path, capsys):
    frames = light()
    folder, out = write_shot(tmp_path / "shot", frames), tmp_path / "a.safetensors"
    given = [str(folder), "--demo", "--hdr", "acescg", "-o", str(out), "--dtype", "float32", "-q", "-y"]
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32")

    def expected(chosen):
        pixels = mx.array((2 * encode_acescct(chosen.astype(np.float64)) - 1).astype(np.float32))
        return vae.encode(pixels[None].transpose(0, 4, 1, 2, 3))

    assert main([*given, "--frames", "2:3", "--size", "64x64", "--crop"]) == 0
    assert mx.abs(load_latents(out)[0] - expected(frames[2:3, :, 16:80])).max().item() < tolerance(1e-4)
    flat = write_shot(tmp_path / "flat", np.full((1, 48, 80, 3), 3, np.float32))
    assert main([str(flat), *given[1:], "--size", "96x64", "--resize"]) == 0
    assert mx.abs(load_latents(out)[0] - expected(np.full((1, 64, 96, 3), 3))).max().item() < tolerance(1e-3)


UNKNOWN = (0.7, 0.3, 0.2, 0.7, 0.1, 0.1, 0.3, 0.3)


def state_chromaticities(path, numbers):
    """Write the image again, as other programs write it."""
    library = pytest.importorskip("OpenImageIO")
    image = library.ImageBuf(str(path))
    pixels = image.get_pixels(library.FLOAT)
    spec = library.ImageSpec(pixels.shape[1], pixels.shape[0], 3, "half")
    spec.attribute("chromaticities", "float[8]", numbers)
    output = library.ImageOutput.create(str(path))
    assert output.open(str(path), spec)
    assert output.write_image(pixels)
    assert output.close()


@pytest.mark.parametrize(
    ("meaning", "name", "numbers"),
    [
        *(("acescct", name, CHROMATICITIES[name]) for name in ("sRGB", "ACEScg", "ACES2065-1", "Rec.2020")),
        *(("srgb_linear", name, CHROMATICITIES[name]) for name in ("sRGB", "ACEScg")),
        ("acescg", "sRGB", CHROMATICITIES["sRGB"]),
        ("acescg", f"no known space ({', '.join(map(str, UNKNOWN))})", UNKNOWN),
    ],
)
def test_chromaticities_of_another_space_are_an_error_that_names_both(tmp_path, capsys, meaning, name, numbers):
    folder, out = write_shot(tmp_path / "shot", light(9)), tmp_path / "a.safetensors"
    last = folder / "frame_8.exr"
    state_chromaticities(last, numbers)
    own = "sRGB" if meaning == "srgb_linear" else "ACEScg"
    if name == own:
        assert main([str(folder), "--demo", "--hdr", meaning, "-o", str(out), "-q", "-y"]) == 0
        return
    fitting = {"sRGB": "use --hdr srgb_linear", "ACEScg": "use --hdr acescg"}.get(name, "convert it first")
    message = refusal(capsys, folder, "--demo", "--hdr", meaning, "-o", out)
    both = f"has the primaries of {name}, and {meaning} has the primaries of {own}"
    assert message == f"error: {last}: {both}; {fitting}."
    assert not out.exists()


def test_a_space_that_is_not_known_is_an_error_that_lists_those_that_are(vae, tmp_path):
    folder, out = write_shot(tmp_path / "shot", light(9)), tmp_path / "a.safetensors"
    with pytest.raises(ReaderError, match="'rec2020' is no space of EXR images; expected one of srgb_linear, acescg, "):
        vae.prepare_encode(folder, out, hdr="rec2020")
