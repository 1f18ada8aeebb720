"""The decode command, end to end: a latent file in, a video out, read back with ffmpeg."""

import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import open_checkpoint
from commands import decode as main
from commands import mlx_ltx_vae as package
from many_files import refused, run
from mlx_ltx_vae import VideoVAE, demo, save_latents
from video_files import run_ffmpeg


@pytest.fixture
def clip(golden, tmp_path):
    """(latent file, checkpoint, the frames they decode to)."""
    case = golden("small_ltx2_3")
    latents = mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1))
    path = tmp_path / "clip.safetensors"
    save_latents(path, latents, fps="24000/1001")
    vae = VideoVAE.from_pretrained(case.checkpoint, encoder=False)
    frames = np.concatenate([chunk.to_uint8() for chunk in vae.stream(latents)])
    return path, case.checkpoint, frames


def read_back(path, width, height):
    """The frames of a video, decoded by ffmpeg, (F, H, W, 3)."""
    raw = run_ffmpeg("-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def test_a_lossless_video_contains_exactly_the_decoded_frames(clip, tmp_path, capsys):
    latents, checkpoint, frames = clip
    out = tmp_path / "out.mkv"
    assert run(main, latents, "-m", checkpoint, "-o", out, "--codec", "ffv1") == 0
    assert np.array_equal(read_back(out, 96, 64), frames)
    made = rf"{out}: 17 frames of 96x64, 0\.71 s at 23\.976 fps, in [\d.]+ s \(first frame after [\d.]+ s\)"
    assert re.fullmatch(
        made + r"; peak MLX memory [\d.]+ MB; small_ltx2_3\.safetensors \(custom, convolutional decoder\)\n",
        capsys.readouterr().out,
    )


KINDS = [
    ("ltx2_3", "LTX-2.3", "convolutional"),
    ("ltx2_5_diffusion", "LTX-2.5 diffusion", "diffusion"),
    ("taehv_ltx2_wide", "taeltx2_3_wide", "tiny"),
    ("latent_rgb", "latent_rgb", "projection"),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "generation", "kind", "source"),
    [*((*kind, "{0}/{1}") for kind in KINDS), (*KINDS[0], "{0}"), (*KINDS[0], "{0}:{1}")],
)
def test_reports_name_the_file_the_generation_and_the_kind_of_decoder(
    golden, tmp_path, capsys, case, generation, kind, source
):
    given = demo.LATENT_RGB if case == "latent_rgb" else golden(case).checkpoint
    (tmp_path / "vaes").mkdir()
    vae = tmp_path / "vaes" / f"{case}.safetensors"
    vae.symlink_to(given)
    clip = tmp_path / "clip.npy"
    channels = open_checkpoint(vae).config.latent_channels
    np.save(clip, np.random.default_rng(0).normal(size=(1, channels, 1, 2, 2)).astype(np.float32))
    command = [str(clip), "-m", source.format(tmp_path / "vaes", vae.name), "-y", "-o", str(tmp_path / "out.npy")]
    line = f"{vae.name} ({generation}, {kind} decoder)"
    expected = {"file": str(vae), "generation": generation, "decoder": kind}
    for options in ([], ["--dry-run"]):
        assert main([*command, *options]) == 0
        assert capsys.readouterr().out.endswith(f"{'VAE      ' if options else '; '}{line}\n")
        assert main([*command, *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["vae"] == expected


@pytest.mark.parametrize("is_normalized", [True, False])
def test_latents_that_look_normalized_otherwise_than_said_are_a_warning(golden, tmp_path, capsys, is_normalized):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 1, 6, 7), key=mx.random.key(0))
    if not is_normalized:
        latents = latents * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)
    np.save(tmp_path / "clip.npy", latents)
    command = [tmp_path / "clip.npy", "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / "out.npy", "-q", "-y"]
    assert run(main, *command, *([] if is_normalized else ["--unnormalized"])) == 0
    assert capsys.readouterr().err == ""
    assert run(main, *command, *(["--unnormalized"] if is_normalized else [])) == 0
    looks, remedy = ("normalized", "leave out") if is_normalized else ("unnormalized", "add")
    assert f"of {looks} latents; if the picture is wrong, {remedy} --unnormalized." in capsys.readouterr().err


def test_packed_and_unnormalized_latents_decode_to_the_same_video(clip, tmp_path, capsys):
    path, checkpoint, frames = clip
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    latents = mx.load(str(path))["latents"]
    foreign = latents.moveaxis(1, 4) * vae.std + vae.mean  # (B, F', H', W', C), as diffusers' LTX-2
    packed, out = tmp_path / "packed.npy", tmp_path / "out.npy"
    np.save(packed, np.array(foreign.reshape(1, -1, 8)))
    assert "--grid FxHxW" in refused(capsys, packed, "-m", checkpoint, "-o", out)
    arguments = [packed, "-m", checkpoint, "-o", out, "--grid", "3x2x3", "--unnormalized", "-q", "-y"]
    assert main([str(argument) for argument in arguments]) == 0
    assert np.abs(np.load(out).astype(int) - frames).max() <= 1
    marked, out = tmp_path / "marked.safetensors", tmp_path / "marked.npy"
    mx.save_safetensors(str(marked), {"latents": foreign}, {"normalized": "false"})
    assert main([str(marked), "-m", str(checkpoint), "-o", str(out), "-q", "-y"]) == 0
    assert np.abs(np.load(out).astype(int) - frames).max() <= 1
    assert "leave out --unnormalized" in refused(capsys, path, "-m", checkpoint, "-y", "-o", out, "--unnormalized")


def test_tiles_and_budgets_determine_the_plan(clip, tmp_path, capsys):
    latents, checkpoint, frames = clip

    def planned(*options):
        assert main([str(latents), "-m", str(checkpoint), "--dry-run", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)["plan"]

    assert planned()["mode"] == "exact"
    assert planned("--order", "columns")["order"] == "columns"
    assert planned("--mode", "single")["mode"] == "single"
    assert planned("--chunk", "2")["chunk"] == 2
    tiled = planned("--tile", "64:32", "--tile-frames", "16:8")
    assert (tiled["mode"], tiled["calls"]) == ("tiled", 2 * 1 * 2)
    assert planned("--preset", "aggressive")["mode"] == "tiled"
    assert planned("--memory-budget", "1GB")["peak_bytes"] < 1e9
    small = ["--memory-budget", "1MB", "--dry-run"]
    assert "the least that works" in refused(capsys, latents, "-m", checkpoint, *small)
    assert "multiple of 32" in refused(capsys, latents, "-m", checkpoint, "--tile", "100:32", "--dry-run")
    out = tmp_path / "tiled.npy"
    assert main([str(latents), "-m", str(checkpoint), "-o", str(out), "--tile", "64:32", "-q"]) == 0
    assert np.load(out).shape == frames.shape


def test_json_is_one_object_and_nothing_else(clip, tmp_path, capsys):
    latents, checkpoint, _ = clip
    assert run(main, latents, "-m", checkpoint, "-o", tmp_path / "out.mp4", "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.err == ""
    assert report["frames"] == 17
    assert (report["width"], report["height"]) == (96, 64)
    assert report["fps"] == pytest.approx(24000 / 1001)
    assert 0 < report["first_frame_seconds"] <= report["seconds"]
    assert report["peak_memory_bytes"] > 0
    assert report["plan"]["mode"] == "exact"
    assert report["output"] == str(tmp_path / "out.mp4")


def test_dry_run_prints_the_plan_and_writes_nothing(clip, tmp_path, capsys):
    latents, checkpoint, _ = clip
    out = tmp_path / "out.mp4"
    assert main([str(latents), "-m", str(checkpoint), "-o", str(out), "--dry-run"]) == 0
    assert "17 frames of 96x64" in capsys.readouterr().out
    assert main([str(latents), "-m", str(checkpoint), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["chunk"] == 1
    assert not out.exists()


def test_dry_run_refuses_what_the_decode_would_refuse_before_it_reads_weights(clip, tmp_path, capsys, loads):
    latents, checkpoint, _ = clip
    voice = tmp_path / "voice.wav"
    voice.write_text("not audio")
    for output, options, words in [
        ("out.mp4", ["--audio", voice], "voice.wav: contains no audio"),
        ("missing/out.mp4", [], "missing is missing)"),
    ]:
        arguments = [latents, "-m", checkpoint, "-o", tmp_path / output, *options]
        text = refused(capsys, *arguments, "--dry-run")
        assert words in text
        assert text == refused(capsys, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.safetensors", "voice.wav"]
    assert loads == []


def test_an_address_of_the_hub_gets_a_suggestion(clip, tmp_path, capsys):
    for address, reference in [
        ("https://huggingface.co/owner/name", ""),
        ("https://huggingface.co/owner/name/tree/main/vae", ":vae"),
        ("https://huggingface.co/owner/name/blob/main/vae/a.safetensors?x=1", ":vae/a.safetensors"),
        ("hf.co/owner/name/tree/main/", ""),
        ("hf://owner/name/vae/a.safetensors", ":vae/a.safetensors"),
    ]:
        assert main([str(clip[0]), "-m", address, "-o", str(tmp_path / "out.mp4")]) == 1
        message = capsys.readouterr().err
        assert f"(did you mean owner/name{reference}?)" in message
        assert message.startswith(f"error: {address.rstrip('/')}")


@pytest.mark.parametrize("command", ["decode", "encode", "preview"])
def test_the_short_help_is_a_screen_and_points_to_the_whole(command, capsys):
    def lines(option):
        with pytest.raises(SystemExit, match="0"):
            package([command, option])
        return capsys.readouterr().out.splitlines()

    short, whole = lines("-h"), lines("--help")
    assert len(short) < 40 < len(whole)
    assert short[-1] == f'"python -m mlx_ltx_vae {command} --help" shows all options.'
    assert {"-o", "-m", "--frames"} <= {word.strip(",") for line in short for word in line.split()[:1]}


def test_quiet_prints_nothing(clip, tmp_path, capfd):
    latents, checkpoint, _ = clip
    assert main([str(latents), "-m", str(checkpoint), "-o", str(tmp_path / "out.gif"), "-q"]) == 0
    assert capfd.readouterr() == ("", "")


def test_standard_output_receives_only_raw_frames(clip, capfdbinary):
    latents, checkpoint, frames = clip
    assert run(main, latents, "-m", checkpoint, "-o", "-") == 0
    assert capfdbinary.readouterr().out == frames.tobytes()


def test_errors_are_one_line_that_says_what_is_wrong(clip, tmp_path, capsys):
    latents, checkpoint, _ = clip
    out = tmp_path / "out.mp4"
    bad = tmp_path / "nan.npy"
    np.save(bad, np.full((1, 8, 1, 2, 2), np.nan, np.float32))
    wide = tmp_path / "wide.npy"
    np.save(wide, np.zeros((1, 16, 1, 2, 2), np.float32))
    assert "NaN" in refused(capsys, bad, "-m", checkpoint, "-o", out)
    assert "16" in refused(capsys, wide, "-m", checkpoint, "-o", out)
    assert "nothing.npy" in refused(capsys, tmp_path / "nothing.npy", "-m", checkpoint, "-o", out)
    assert "nothing.safetensors" in refused(capsys, latents, "-m", tmp_path / "nothing.safetensors", "-o", out)
    assert "missing" in refused(capsys, latents, "-m", checkpoint, "-o", tmp_path / "missing" / "out.mp4")
    assert "takes no timestep" in refused(capsys, latents, "-m", checkpoint, "-o", out, "--timestep", "0.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.safetensors", "nan.npy", "wide.npy"]


def test_demo_files_ship_with_the_package_and_are_small():
    assert demo.VAE.is_file()
    assert demo.LATENTS.is_file()
    assert sum(path.stat().st_size for path in Path(demo.VAE).parent.glob("*.safetensors")) <= 6_000_000


def test_demo_needs_no_other_options(tmp_path, capsys):
    out = tmp_path / "demo.mp4"
    assert main(["--demo", "--dry-run", "--json"]) == 0
    assert 48 <= json.loads(capsys.readouterr().out)["plan"]["frames"] <= 121
    assert main(["--demo", "-o", str(out), "--frames", ":9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    frames = read_back(out, report["width"], report["height"])
    assert len(frames) == report["frames"] == 9
    assert frames.std() > 20, "the demo shows something"
