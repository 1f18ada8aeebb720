"""The encode command, end to end: a video in, a latent file out, read back and decoded again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from commands import decode
from commands import encode as main
from conftest import link_kernels
from latent_files import LatentsWriter
from many_files import refused, run
from mlx_ltx_vae import VideoVAE, demo, load_latents, save_latents
from tolerances import tolerance
from video_files import open_sink, psnr, read, run_ffmpeg, write

SIZE = (96, 64)
write_video = partial(write, codec="ffv1")


def make_frames(num_frames: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A bright square that moves over a gradient."""
    width, height = size
    rows, columns = np.mgrid[:height, :width]
    frames = np.stack([(rows * 2) % 256, (columns * 2) % 256, rows + columns], axis=-1).astype(np.uint8)
    frames = np.stack([frames] * num_frames)
    for index, frame in enumerate(frames):
        frame[10:30, 2 * index : 2 * index + 20] = (250, 240, 30)
    return frames


@pytest.fixture
def clip(tmp_path):
    """(video of 17 frames, its frames)."""
    frames = make_frames(17)
    return write_video(tmp_path / "clip.mkv", frames, "24000/1001"), frames


encode = partial(run, main)


def encoded(capsys, tmp_path, *arguments):
    """(report, latents, info) of an encode that must work and say nothing on standard error."""
    out = tmp_path / "latents.safetensors"
    assert encode(*arguments, "-o", out, "--json", "-y") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    latents, info = load_latents(out)
    assert list(latents.shape) == report["latent_shape"]
    assert report["output"] == str(out)
    assert (report["width"], report["height"], report["frames"]) == (info.width, info.height, info.num_frames)
    assert 0 < report["peak_memory_bytes"] < 2e9
    assert report["seconds"] > 0
    return report, latents, info


def assert_close(result: mx.array, expected: mx.array) -> None:
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert mx.abs(result.astype(mx.float32) - expected.astype(mx.float32)).max().item() < tolerance(1e-4)


def test_a_video_becomes_the_latents_that_encode_gives(clip, golden, tmp_path, capsys, monkeypatch):
    path, frames = clip
    checkpoint = golden("small_ltx2_3").checkpoint
    pieces, write = [], LatentsWriter.write
    monkeypatch.setattr(LatentsWriter, "write", lambda to, part: pieces.append(part.shape[2]) or write(to, part))
    report, latents, info = encoded(capsys, tmp_path, path, "-m", checkpoint)
    assert pieces == [1, 1, 1], "written as they come"
    assert_close(latents, VideoVAE.from_pretrained(checkpoint, decoder=False).encode(frames))
    assert latents.shape == (1, 8, 3, 2, 3)
    assert (info.fps, info.num_frames, info.height, info.width) == (Fraction(24000, 1001), 17, 64, 96)
    assert report["fps"] == 24000 / 1001


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_latents_keep_the_precision_of_the_encoder(clip, golden, tmp_path, capsys, dtype):
    path, frames = clip
    checkpoint = golden("small_ltx2_3").checkpoint
    _, latents, _ = encoded(capsys, tmp_path, path, "-m", checkpoint, "--dtype", dtype)
    assert latents.dtype == getattr(mx, dtype)
    vae = VideoVAE.from_pretrained(checkpoint, dtype=dtype, decoder=False)
    pieces = [frames[start : start + 8] for start in range(0, 17, 8)]
    assert mx.array_equal(latents, vae.encode(iter(pieces))).item()


def test_report_is_one_line_and_quiet_is_none(clip, golden, tmp_path, capsys):
    arguments = [clip[0], "-m", golden("ltx2_3").checkpoint, "-o"]
    assert encode(*arguments, tmp_path / "a.safetensors") == 0
    made = (
        rf"{tmp_path}/a\.safetensors: 3 latent frames from 17 frames of 96x64, in [\d.]+ s; peak MLX memory [\d.]+ MB"
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    assert re.fullmatch(made + r"; ltx2_3\.safetensors \(LTX-2\.3\)\n", captured.out)
    assert encode(*arguments, tmp_path / "b.safetensors", "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_another_rate_drops_or_repeats_frames_and_keeps_the_speed(golden, tmp_path, capsys):
    frames, checkpoint = make_frames(34), golden("small_ltx2_3").checkpoint
    path = write_video(tmp_path / "clip.mkv", frames, 60)
    vae = VideoVAE.from_pretrained(checkpoint, decoder=False)
    report, latents, info = encoded(capsys, tmp_path, path, "-m", checkpoint, "--fps", "30")
    assert (report["frames"], report["fps"], report["source_fps"]) == (17, 30, 60)
    assert info.fps == 30
    assert_close(latents, vae.encode(frames[::2]))
    arguments = [path, "-m", checkpoint, "-y", "-o", tmp_path / "latents.safetensors", "--frames", ":9"]
    for fps, change in [
        ("23.976", " (60 to 23.976 fps, dropping frames)"),
        ("120", " (60 to 120 fps, repeating frames)"),
        ("60", ""),
    ]:
        assert encode(*arguments, "--fps", fps) == 0
        assert f"from 9 frames of 96x64{change}, in" in capsys.readouterr().out
    assert_close(load_latents(tmp_path / "latents.safetensors")[0], vae.encode(frames[:9]))
    assert encode(*arguments[:-1], ":41", "-q") == 0
    missing, dropped = capsys.readouterr().err.splitlines()[::-1]
    assert missing == f"warning: {path}: the video has 34 frames, not the 41 that were asked for."
    assert "34 frames are not 1 + 8*k" in dropped
    assert encode(*arguments[:-1], ":33", "-q") == 0
    assert capsys.readouterr().err == ""


def test_hdr_and_interlaced_videos_are_encoded_as_players_show_them_with_a_line(golden, tmp_path, capsys):
    path = tmp_path / "clip.mkv"
    picture = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=24", "-frames:v", 9]
    tags = ["-color_trc", "smpte2084", "-vf", "setfield=tff,setparams=color_trc=smpte2084"]
    run_ffmpeg(*picture, *tags, "-c:v", "libx264", "-pix_fmt", "yuv420p10le", "-flags", "+ilme+ildct", path)
    checkpoint = golden("small_ltx2_3").checkpoint
    assert encode(path, "-m", checkpoint, "-y", "-o", tmp_path / "latents.safetensors", "-q") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    text = f"{path}: is converted from PQ to BT.709 and deinterlaced, as players show it"
    assert captured.err == f"warning: {text}; --as-stored reads it as it is.\n"
    shown = load_latents(tmp_path / "latents.safetensors")[0]
    assert encode(path, "-m", checkpoint, "-o", tmp_path / "stored.safetensors", "-q", "--as-stored") == 0
    assert capsys.readouterr().err == ""
    assert not mx.array_equal(load_latents(tmp_path / "stored.safetensors")[0], shown)


def test_a_picture_is_planned_as_one_frame(golden, tmp_path, capsys):
    path = tmp_path / "still.png"
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=100x70", "-frames:v", 1, path)
    arguments = [path, "-m", golden("small_ltx2_3").checkpoint, "-y", "-o", tmp_path / "still.safetensors", "--resize"]
    assert encode(*arguments, "--dry-run") == 0
    assert "video    1 frame of 96x64\n" in capsys.readouterr().out
    assert encode(*arguments) == 0
    assert ": 1 latent frame from 1 frame of 96x64 (scaled from 100x70), in" in capsys.readouterr().out


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["folder", "pattern", "gif"])
def test_images_and_gifs_are_videos_too(golden, tmp_path, capsys, kind):
    frames = make_frames(9)
    target = {"folder": tmp_path / "stills", "pattern": tmp_path / "s_%03d.png", "gif": tmp_path / "clip.gif"}[kind]
    with open_sink(f"{target}/" if kind == "folder" else target, size=SIZE, fps=25) as out:
        out.write(frames)
    checkpoint = golden("small_ltx2_3").checkpoint
    report, latents, info = encoded(capsys, tmp_path, target, "-m", checkpoint)
    assert report["frames"] == 9
    assert (report["fps"], info.fps) == ((25.0, 25) if kind == "gif" else (None, None))
    expected = VideoVAE.from_pretrained(checkpoint, decoder=False).encode(frames)
    if kind == "gif":
        assert latents.shape == expected.shape  # with its own palette
    else:
        assert_close(latents, expected)
    report, _, info = encoded(capsys, tmp_path, target, "-m", checkpoint, "--fps", "23.976")
    assert info.fps == Fraction(24000, 1001)
    assert (report["frames"], report["source_fps"]) == (9, 25.0 if kind == "gif" else None)


def test_a_warning_that_python_makes_an_error_is_one_sentence_and_leaves_no_file(golden, tmp_path, capsys):
    path = write_video(tmp_path / "clip.mkv", make_frames(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as by python -W error
        assert encode(path, "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / "a.safetensors", "-q") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: 20 frames are not 1 + 8*k; the last 3 are left out")
    assert line.endswith(" (a warning, which -W or PYTHONWARNINGS makes an error).")
    assert os.listdir(tmp_path) == ["clip.mkv"]


def test_frames_that_are_over_are_left_out_with_a_line_or_filled_up(golden, tmp_path, capsys):
    frames = make_frames(20)
    path, checkpoint = write_video(tmp_path / "clip.mkv", frames), golden("small_ltx2_3").checkpoint
    out = tmp_path / "latents.safetensors"
    vae = VideoVAE.from_pretrained(checkpoint, decoder=False)
    assert encode(path, "-m", checkpoint, "-o", out, "-q") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 20 frames are not 1 + 8*k; the last 3 are left out")
    latents, info = load_latents(out)
    assert info.num_frames == 17
    assert_close(latents, vae.encode(frames[:17]))
    report, latents, _ = encoded(capsys, tmp_path, path, "-m", checkpoint, "--pad")
    assert report["frames"] == 25
    assert_close(latents, vae.encode(np.concatenate([frames, *[frames[-1:]] * 5])))
    report, latents, _ = encoded(capsys, tmp_path, path, "-m", checkpoint, "--frames", ":9")
    assert report["frames"] == 9
    assert_close(latents, vae.encode(frames[:9]))


@pytest.fixture
def padded(tmp_path, monkeypatch):
    """Latents of 20 frames, which fill a grid of 25."""
    monkeypatch.chdir(tmp_path)
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=32x32:r=25:d=0.8", "clip.mp4")
    assert encode("clip.mp4", "-m", demo.VAE, "-o", "clip.safetensors", "--pad", "-q") == 0
    return "clip.safetensors"


def decoded(capsys, latents, *options):
    """The frames of a decode, of which the report and the plan say how many they are."""
    assert run(decode, latents, "-m", demo.VAE, "-o", "out.npy", "-y", "--json", *options) == 0
    report, frames = json.loads(capsys.readouterr().out), np.load("out.npy")
    assert report["frames"] == report["plan"]["frames"] == len(frames)
    return frames


def test_a_decode_gives_as_many_frames_as_were_encoded(padded, capsys):
    with safe_open(padded, "np") as file:
        assert (file.metadata()["num_frames"], file.metadata()["source_frames"]) == ("25", "20")
    assert load_latents(padded)[1].source_frames == 20
    all_frames = decoded(capsys, padded, "--all-frames")
    assert len(all_frames) == 25
    assert np.array_equal(decoded(capsys, padded), all_frames[:20])
    assert np.array_equal(decoded(capsys, padded, "--frames", "-3:"), all_frames[17:20])
    assert np.array_equal(decoded(capsys, padded, "--frames", "-3:", "--all-frames"), all_frames[22:])
    assert run(decode, padded, "-m", demo.VAE, "-o", "out.mp4") == 0
    assert "20 frames of 32x32, 0.80 s at 25 fps, without 5 frames of padding (--all-frames " in capsys.readouterr().out
    assert len(read("out.mp4")) == 20


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [["--tile-frames", "16:8"], ["--order", "rows"], ["--mode", "single"]])
def test_every_mode_leaves_out_the_padding_and_nothing_else(padded, capsys, options):
    all_frames = decoded(capsys, padded, "--all-frames", *options)
    assert np.array_equal(decoded(capsys, padded, *options), all_frames[:20])


@pytest.mark.parametrize(("options", "frames"), [([], 9), (["--pad"], 12)])
def test_an_encode_of_some_frames_counts_those(padded, capsys, options, frames):
    assert encode("clip.mp4", "-m", demo.VAE, "-o", "a.safetensors", "--frames", "3:15", "--json", *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["source_frames"]) == (17 if options else 9, 12)
    assert len(decoded(capsys, "a.safetensors")) == frames


def test_frames_of_the_middle_are_encoded(clip, golden, tmp_path, capsys):
    path, frames = clip
    arguments = (path, "-m", golden("small_ltx2_3").checkpoint)
    vae = VideoVAE.from_pretrained(arguments[2], decoder=False)
    middle = [("3:12", frames[3:12]), ("8:", frames[8:]), ("9", frames[:9])]
    middle += [("0.1s:0.5s", frames[3:12]), ("0:0.36s", frames[:9]), ("-0.37s:", frames[-9:])]  # at 23.976 fps
    for wanted, expected in [*middle, ("-9:", frames[-9:]), ("-12:-3", frames[-12:-3])]:
        report, latents, _ = encoded(capsys, tmp_path, *arguments, "--frames", wanted)
        assert report["frames"] == 9
        assert_close(latents, vae.encode(expected))
    out = ["-y", "-o", tmp_path / "latents.safetensors"]
    assert encode(*arguments, *out, "--frames", f":-{len(frames)}") == 1
    assert f"has {len(frames)} frames, and none of 0:-{len(frames)}; choose" in capsys.readouterr().err
    for wanted in ("-9:", "0:2s"):
        with pytest.raises(SystemExit, match="2"):
            encode("-", *arguments[1:], *out, "--frames", wanted)
        assert "standard input is read once" in capsys.readouterr().err


@pytest.mark.slow
def test_a_video_comes_from_standard_input(clip, golden, tmp_path):
    path, frames = clip
    checkpoint, out = golden("small_ltx2_3").checkpoint, tmp_path / "latents.safetensors"
    link_kernels(tmp_path)
    command = [sys.executable, "-m", "mlx_ltx_vae.encode", "-", "-m", checkpoint, "-y", "-o", out, "-q"]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True, env={**os.environ, "TMPDIR": tmp_path})
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert_close(load_latents(out)[0], VideoVAE.from_pretrained(checkpoint, decoder=False).encode(frames))
    for given, found in [(b"", b"error: standard input is empty"), (b"words", b"error: standard input: ")]:
        done = subprocess.run(command, input=given, capture_output=True, env={**os.environ, "TMPDIR": tmp_path})
        assert (done.returncode, done.stderr[: len(found)]) == (1, found)
    assert not list(tmp_path.glob("mlx_ltx_vae-*"))


def test_sizes_are_refused_or_made_to_fit(golden, tmp_path, capsys):
    path, checkpoint = write_video(tmp_path / "clip.mkv", make_frames(1, (100, 70))), golden("small_ltx2_3").checkpoint
    arguments = (path, "-m", checkpoint)
    line = refused(capsys, *arguments, "-o", tmp_path / "latents.safetensors", main=main)
    for words in ("100x70", "multiples of 32", "96x64", "--resize", "--crop", "--size WxH"):
        assert words in line
    for options, size in [
        (["--resize"], (96, 64)),
        (["--crop"], (96, 64)),
        (["--size", "64x128"], (64, 128)),
        (["--size", "64x64", "--crop"], (64, 64)),
    ]:
        report, _, _ = encoded(capsys, tmp_path, *arguments, *options)
        assert (report["width"], report["height"], report["source_width"], report["source_height"]) == (*size, 100, 70)
    vae = VideoVAE.from_pretrained(checkpoint, decoder=False)
    _, latents, _ = encoded(capsys, tmp_path, *arguments, "--crop")
    assert_close(latents, vae.encode(make_frames(1, (100, 70))[:, 3:67, 2:98]))


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["options", "table"])
def test_a_size_of_other_proportions_crops_unless_told_to_resize_and_both_are_said(golden, tmp_path, capsys, way):
    frames = np.full((1, 128, 384, 3), (200, 30, 30), np.uint8)
    frames[:, :, 128:256] = blue = (30, 60, 200)  # the middle square
    path, checkpoint = write_video(tmp_path / "clip.mkv", frames), golden("small_ltx2_3").checkpoint
    sources = [path, "--size", "64x64"]
    if way == "table":
        (tmp_path / "clips.csv").write_text(f"path,width,height\n{path},64,64\n")
        sources = [tmp_path / "clips.csv"]
    out = tmp_path / "{name}.safetensors" if way == "table" else tmp_path / "clip.safetensors"
    middle = VideoVAE.from_pretrained(checkpoint, decoder=False).encode(np.full((1, 64, 64, 3), blue, np.uint8))
    for options, said in [([], "scaled and cropped"), (["--crop"], "scaled and cropped"), (["--resize"], "scaled")]:
        assert encode(*sources, "-m", checkpoint, "-y", "-o", out, *options) == 0
        report = capsys.readouterr().out  # that of a table has a line for each input, without details
        assert way == "table" or f"from 1 frame of 64x64 ({said} from 384x128), in" in report
        latents, _ = load_latents(tmp_path / "clip.safetensors")
        is_middle = mx.abs(latents - middle).max().item() < 0.1  # levels of the video are rounded
        assert is_middle == (said != "scaled")


def test_tiles_blend_latents_whatever_their_batches(golden, tmp_path, capsys):
    frames = make_frames(9, (192, 128))
    path, checkpoint = write_video(tmp_path / "clip.mkv", frames), golden("small_ltx2_3").checkpoint
    arguments = (path, "-m", checkpoint)
    _, whole, _ = encoded(capsys, tmp_path, *arguments)
    _, tiled, _ = encoded(capsys, tmp_path, *arguments, "--tile", "128:64")
    in_batches = (*arguments, "--tile", "128:64", "--tile-batch-size", "4")
    _, batched, _ = encoded(capsys, tmp_path, *in_batches)
    assert tiled.shape == whole.shape
    assert not mx.allclose(tiled, whole, atol=tolerance(1e-4)).item()
    assert mx.allclose(tiled, batched, atol=tolerance(1e-4)).item()
    assert encode(*in_batches, "-o", tmp_path / "a.safetensors", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["tile_batch_size"] == 4


def test_errors_are_one_line_and_leave_nothing(clip, tmp_path, capsys):
    path, _ = clip
    out = tmp_path / "latents.safetensors"
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(path.read_bytes()[:-2000])
    before = sorted(tmp_path.iterdir())
    assert "no such file" in refused(capsys, tmp_path / "missing.mp4", "-o", out, "--demo", main=main)
    assert "damaged or truncated" in refused(capsys, cut, "-o", out, "--demo", main=main)
    assert "nothing.safetensors" in refused(capsys, path, "-o", out, "-m", tmp_path / "nothing.safetensors", main=main)
    assert "cannot be written" in refused(
        capsys, path, "-o", tmp_path / "missing" / "out.safetensors", "--demo", main=main
    )
    assert "cannot become 100x64" in refused(capsys, path, "-o", out, "--demo", "--size", "100x64", main=main)
    assert "multiple of 32" in refused(capsys, path, "-o", out, "--demo", "--tile", "100:64", main=main)
    assert sorted(tmp_path.iterdir()) == before
    assert encode(cut, "-o", out, "--demo", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupted_exits_with_130_and_leaves_nothing(tmp_path):
    path = write_video(tmp_path / "clip.mkv", make_frames(73, (256, 192)))
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "mlx_ltx_vae.encode", path, "-o", tmp_path / "out" / "a.safetensors", "--demo"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not os.listdir(tmp_path / "out"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert os.listdir(tmp_path / "out") == []


def test_encoding_a_decoded_clip_decodes_to_the_same_clip(tmp_path):
    """The beginning of the demo clip: decoded, encoded and decoded again, stored without loss in between."""
    latents, info = load_latents(demo.LATENTS)
    given, found = tmp_path / "given.safetensors", tmp_path / "found.safetensors"
    first, again = tmp_path / "first.mkv", tmp_path / "again.mkv"
    save_latents(given, latents[:, :, :2, :, :6], fps=info.fps)
    assert decode([str(given), "-m", str(demo.VAE), "-o", str(first), "--codec", "ffv1", "-q"]) == 0
    assert encode(first, "--demo", "-o", found, "-q") == 0
    assert decode([str(found), "-m", str(demo.VAE), "-o", str(again), "--codec", "ffv1", "-q"]) == 0
    expected, result = map(read, (first, again))
    assert len(result) == 9
    assert psnr(result, expected) > 34  # 35.4 to 35.5 were measured
    assert load_latents(found)[1].fps == info.fps
