"""A VAE that is opened, and decodes and encodes that are decided before they run: nothing reads weights before."""

import json
import os
import re
import shutil
from fractions import Fraction

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audio_cases import random_latents
from commands import decode, encode
from mlx_ltx_vae import (
    AudioVAE,
    CheckpointError,
    Film,
    LatentsError,
    LTXVAEError,
    PlanError,
    VideoVAE,
    WriterError,
    demo,
    load_latents,
    save_latents,
)
from test_video_audio_track import heard
from video_files import read

VAE, LATENTS = str(demo.VAE), str(demo.LATENTS)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with latents of 17 frames of 64x64 of the demo's VAE, at 30 frames per second; the current one."""
    monkeypatch.chdir(tmp_path)
    latents = np.array(load_latents(LATENTS)[0].astype(mx.float32))[:, :, :3, :2, :2]
    save_file({"latents": np.ascontiguousarray(latents)}, "clip.safetensors", metadata={"fps": "30"})
    return mx.array(latents)


@pytest.mark.parametrize("frames", [None, (3, 12)])
def test_a_prepared_file_is_what_the_command_and_the_arrays_become(small, frames, capsys):
    vae = VideoVAE.from_pretrained(VAE, dtype="float32")
    prepared = vae.prepare("clip.safetensors", "file.npy", frames=frames)
    report = prepared.run()
    vae.decode_to_file(small, "array.npy", frames=frames)
    options = [] if frames is None else ["--frames", f"{frames[0]}:{frames[1]}"]
    assert decode(["clip.safetensors", "-m", VAE, "--dtype", "float32", "-o", "command.npy", "--json", *options]) == 0
    command = json.loads(capsys.readouterr().out)
    names = ("mode", "order", "chunk", "frames", "peak_bytes")
    assert [prepared.plan.as_dict()[name] for name in names] == [command["plan"][name] for name in names]
    frames_of = [np.load(f"{name}.npy") for name in ("file", "array", "command")]
    assert all(np.array_equal(other, frames_of[0]) for other in frames_of)
    assert (report.frames, report.fps, command["fps"]) == (len(frames_of[0]), 30, 30.0)
    assert command.keys() == {*report.as_dict(), "vae"}
    assert prepared.outputs == ["file.npy"]


@pytest.mark.parametrize("latents", ["file", "array", "film", "iterator", "batch"])
def test_nothing_is_read_or_written_before_the_run(small, loads, latents):
    vae = VideoVAE.from_pretrained(VAE)
    value = {
        "file": "clip.safetensors",
        "array": small,
        "film": Film([small, small], carry=9),
        "iterator": iter([small[:, :, :2], small[:, :, 2:]]),
        "batch": mx.concatenate([small, small]),
    }[latents]
    prepared = vae.prepare(value, "out.npy")
    assert (prepared.plan is None) is (latents == "iterator")
    vae.plan(small.shape)
    assert loads == [] and os.listdir() == ["clip.safetensors"]
    report = prepared.run()
    assert len(loads) == 1
    frames = [len(np.load(name)) for name in prepared.outputs]
    assert sum(frames) == report.frames
    assert frames == {"film": [25], "batch": [17, 17]}.get(latents, [17])


@pytest.mark.parametrize(
    ("latents", "path", "options", "error", "words"),
    [
        ("missing.safetensors", "a.mp4", {}, LatentsError, "missing.safetensors: there is no such file"),
        ("clip.safetensors", "none/a.mp4", {}, WriterError, "none is missing"),
        ("clip.safetensors", "a.mp4", {"codec": "prores"}, WriterError, "prores is not supported in .mp4"),
        ("clip.safetensors", "a.mp4", {"overwrite": False}, WriterError, "a.mp4: already exists"),
        ("clip.safetensors", "a.npy", {"memory_budget": "1MB"}, PlanError, "least"),
        ("clip.safetensors", "a.npy", {"frames": (0, 18)}, PlanError, "0:17"),
        ("infinite.safetensors", "a.npy", {}, LatentsError, "infinite.safetensors: 1 of"),
        ("clip.safetensors", "a.mp4", {"audio": "voice.wav"}, LTXVAEError, "voice.wav"),
    ],
)
def test_errors_come_before_weights_and_leave_no_file(small, loads, latents, path, options, error, words):
    array = np.array(small)
    array[0, 0, 0, 0, 0] = np.inf
    save_file({"latents": array}, "infinite.safetensors")
    if "overwrite" in options:
        open("a.mp4", "w").close()
    before = sorted(os.listdir())
    with pytest.raises(error, match=words):
        VideoVAE.from_pretrained(VAE).prepare(latents, path, **options)
    assert loads == [] and sorted(os.listdir()) == before


def test_the_audio_of_a_latent_file_goes_with_its_picture(small, audio_case):
    model = audio_case("ltx2").checkpoint
    audio_vae, vae = AudioVAE.from_pretrained(model, encoder=False), VideoVAE.from_pretrained(VAE)
    audio = random_latents(14)
    arrays = {**load_file("clip.safetensors"), "audio_latents": audio}
    save_file(arrays, "audio.safetensors", metadata={"fps": "30"})
    samples = np.array(audio_vae.decode(audio))[0]
    for plan in (None, vae.plan(small.shape)):
        report = vae.prepare("audio.safetensors", "out.mkv", plan, audio=audio_vae).run()
        decoded = heard("out.mkv", report.sample_rate)[:, : samples.shape[1]]
        assert np.corrcoef(decoded.ravel(), samples[:, : decoded.shape[1]].ravel())[0, 1] > 0.9
    words = r"clip.safetensors: has no audio latents by a usual name; pass audio_vae\.stream of load_audio_latents"
    with pytest.raises(LatentsError, match=words):
        vae.prepare("clip.safetensors", "b.mkv", audio=audio_vae)
    save_file({**arrays, "audio_latents": audio[:, :, :1]}, "short.safetensors", metadata={"fps": "30"})
    for plan, options in ((None, {"frames": (12, 17)}), (vae.plan(small.shape, frames=(12, 17)), {})):
        with pytest.raises(WriterError, match=r"the video takes 0\.17 s and its audio 0\.00 s"):
            vae.prepare("short.safetensors", "b.mkv", plan, audio=audio_vae, **options).run()
    with pytest.raises(LatentsError, match="an AudioVAE decodes the audio latents of a file"):
        vae.prepare(small, "b.mkv", audio=audio_vae)
    encoder = AudioVAE.from_pretrained(audio_case("encoder").checkpoint)
    with pytest.raises(CheckpointError, match=r"has no decoder and no vocoder; give a file or folder with audio VAE"):
        vae.prepare("audio.safetensors", "b.mkv", audio=encoder)


def test_a_prepared_encode_writes_the_file_of_the_command(small, loads, capsys):
    assert decode(["clip.safetensors", "-m", VAE, "-o", "video.mkv", "--codec", "ffv1", "-q"]) == 0
    loads.clear()
    vae = VideoVAE.from_pretrained(VAE)
    with vae.prepare_encode("video.mkv", "api.safetensors", frames=(0, 12), pad=True) as prepared:
        assert loads == [] and not os.path.exists("api.safetensors")
        report = prepared.run()
    assert (report.frames, report.source_frames, report.fps) == (17, 12, Fraction(30))
    assert encode(["video.mkv", "-m", VAE, "-o", "command.safetensors", "--frames", ":12", "--pad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {*report.as_dict(), "vae"}
    with open("api.safetensors", "rb") as file, open("command.safetensors", "rb") as other:
        assert file.read() == other.read()
    with vae.prepare_encode("video.mkv", "windows", windows=9, carry=1) as prepared:
        assert prepared.run().windows == 2
    assert sorted(os.listdir("windows")) == ["00001.safetensors", "00002.safetensors"]
    vae.decode_to_file("api.safetensors", "back.mkv", codec="ffv1")
    assert len(read("back.mkv")) == 12  # without the padding


def test_a_prepared_encode_that_does_not_run_closes_its_video(small):
    assert decode(["clip.safetensors", "-m", VAE, "-o", "video.mp4", "-q"]) == 0
    vae = VideoVAE.from_pretrained(VAE)
    with pytest.raises(PlanError, match=r"windows have 1 \+ 8\*k frames"):
        vae.prepare_encode("video.mp4", "windows", windows=10, carry=1)
    with pytest.raises(WriterError, match=r"a\.npy"):
        vae.prepare_encode("video.mp4", "a.npy")
    with vae.prepare_encode("video.mp4", "a.safetensors") as prepared:
        pass
    with pytest.raises(StopIteration):
        next(prepared._video)
    assert sorted(os.listdir()) == ["clip.safetensors", "video.mp4"]


def test_values_of_a_file_that_were_checked_are_not_checked_again(small, monkeypatch):
    """A run reads them for the frames, and a sample of a few latent frames, here all three."""
    num_bytes, read = [], os.preadv
    decode = VideoVAE.from_pretrained(VAE).prepare("clip.safetensors", "clip.npy")
    monkeypatch.setattr(os, "preadv", lambda *arguments: num_bytes.append(read(*arguments)) or num_bytes[-1])
    decode.run()
    assert sum(num_bytes) == 2 * small.nbytes


def test_weights_are_found_from_another_folder(small, tmp_path, monkeypatch):
    shutil.copy(VAE, "vae.safetensors")
    vae, latents = VideoVAE.from_pretrained("vae.safetensors"), load_latents("clip.safetensors")[0]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert vae.decode_uint8(latents).shape[0] == 17


def test_a_plan_states_the_frames_of_a_file_with_padding(small):
    latents, _ = load_latents("clip.safetensors")
    save_latents("padded.safetensors", latents, fps=30, source_frames=12)
    vae = VideoVAE.from_pretrained(VAE)
    for options, count in (({}, 17), ({"frames": (2, 7)}, 5)):
        vae.decode_to_file("padded.safetensors", "a.mkv", vae.plan(latents.shape, **options), codec="ffv1")
        assert len(read("a.mkv")) == count
    other = vae.plan((*latents.shape[:3], 5, 5))
    for source in (latents, "padded.safetensors"):
        with pytest.raises(PlanError, match=r"the plan was made for latents of shape .*; these are"):
            vae.prepare(source, "b.mkv", other)
    with pytest.raises(LatentsError, match="keyframes have the type list; expected Keyframes"):
        vae.prepare("padded.safetensors", "b.mkv", keyframes=[1, 2])


@pytest.fixture
def video(small):
    assert decode(["clip.safetensors", "-m", VAE, "-o", "video.mp4", "-q"]) == 0
    return "video.mp4"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *[
            ({"frames": frames}, "frames are the first and one more than the last, such as (24, 48), not ")
            for frames in ("3:20", (None, 9), (1.5, 9), (3, 12, 1), (12, 3), 5)
        ],
        ({"windows": "9", "carry": 1}, "more than the 1 that they share, not '9'; correct windows=."),
        ({"carry": 9}, "carry= is for windows=; add it"),
        ({"size": 5}, "size is 5; expected a width and a height"),
        ({"size": (64.0, 32)}, "size is (64.0, 32); expected a width and a height"),
        ({"fit": "crop"}, "the fit 'crop' is not one of Fit.EXACT, Fit.RESIZE, Fit.CROP."),
        ({"audio": "ltx-2.3"}, "audio is 'ltx-2.3'; expected an AudioVAE"),
        ({"audio": "VAE"}, "expected an AudioVAE"),
        ({"hdr": "acescg"}, "which alone has a color space for HDR; leave out hdr=, or use VideoReader."),
        ({"path": "nodir/a.safetensors"}, "a.safetensors: cannot be written (the folder "),
        ({"path": "nodir/w", "windows": 9, "carry": 1}, "nodir/w: cannot be written (the folder "),
        ({"path": "full", "windows": 9, "carry": 1}, "full: already exists and is not an empty folder"),
        ({"path": "full.safetensors"}, "full.safetensors: cannot be written (it is a folder)."),
        ({"video": 5}, "expected the path of a file"),
    ],
)
def test_arguments_of_a_prepared_encode_are_refused_in_a_sentence(video, loads, options, words):
    loads.clear()
    vae = VideoVAE.from_pretrained(VAE)
    for folder in ("full", "full.safetensors"):
        os.makedirs(f"{folder}/inside")
    arguments = {"video": video, "path": "a.safetensors", **options}
    if arguments.get("audio") == "VAE":
        arguments["audio"] = vae
    with pytest.raises(LTXVAEError, match=re.escape(words)):
        vae.prepare_encode(**arguments)
    assert loads == [] and not os.path.exists("a.safetensors")


def test_a_prepared_encode_takes_a_size_as_text_and_runs_once(video):
    with VideoVAE.from_pretrained(VAE).prepare_encode(video, "a.safetensors", size="32x64") as prepared:
        assert (prepared.run().width, prepared.plan.height) == (32, 64)
    with pytest.raises(LTXVAEError, match="video.mp4: this encode has run or was closed, and an encode runs once"):
        prepared.run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "nodir/a.safetensors"], "nodir/a.safetensors: cannot be written (the folder "),
        (["-o", "full/", "--windows", "9", "--carry", "1"], "already exists and is not an empty folder"),
        (["-o", "new/", "--windows", "9", "--carry", "1"], None),
        (["-o", "new/"], None),
        (["-o", "clip.safetensors"], None),
    ],
)
def test_a_dry_run_of_an_encode_looks_at_the_output(video, capsys, options, words):
    os.makedirs("full/inside")
    for more in (["--dry-run"], [] if words else ["--dry-run", "-y"]):
        assert encode([video, "-m", VAE, *options, *more]) == (1 if words else 0)
        assert (words or "") in capsys.readouterr().err
    assert sorted(os.listdir()) == ["clip.safetensors", "full", "video.mp4"]


def test_load_reads_each_network_once(loads):
    vae = VideoVAE.from_pretrained(VAE)
    assert vae.load() is vae
    assert loads == ["decoder", "encoder"]
    assert vae.decoder is vae.load().decoder and len(loads) == 2


@pytest.mark.parametrize("name", ["ltx-2.3", "ltx-2.5-diffusion", "0.9.5", "taehv"])
def test_a_published_vae_plans_and_has_no_weights(name):
    vae = VideoVAE.published(name)
    shape = (1, vae.config.latent_channels, 4, 8, 8)
    plan = vae.plan(shape, memory_budget="40GB")
    video = vae.config.scale.video_grid(shape[2:])
    estimate = VideoVAE.estimate(name, frames=video[0], size=(video[2], video[1]), memory_budget="40GB")
    assert estimate.as_dict() == plan.as_dict()
    for use in (lambda: vae.decode(mx.random.normal(shape)), vae.load, lambda: vae.decoder):
        with pytest.raises(CheckpointError, match=f"{name}: this VAE was made without files; from_pretrained opens"):
            use()
