"""`decode --join`: windows in files become one video."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from audio_cases import random_latents
from commands import decode, encode, info, preview
from latent_files import LatentsWriter
from many_files import VAE as DEMO
from many_files import failed, names, run
from mlx_ltx_vae import AudioVAE, Keyframes, VideoReader, VideoVAE, VideoWriter, demo, load_latents, save_latents
from test_joined import TOLERANCE, joined, joined_audio, windows_of
from test_video_audio_track import heard

VAE = [*DEMO, "--dtype", "float32"]
FRAMES = 41  # of a window of 6 latent frames
CARRY = 17
NAMES = ("w1", "w2", "w10")
COUNT = FRAMES + 2 * (FRAMES - CARRY)  # of three windows


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE, encoder=False, dtype="float32")


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """Latents in the files w1, w2 and w10 of a folder, which do not state their carry."""
    monkeypatch.chdir(tmp_path)
    Path("windows").mkdir()
    arrays = windows_of(6, 6, 6, channels=64)
    for name, array in zip(NAMES, arrays, strict=True):
        save_latents(f"windows/{name}.safetensors", array, fps=24)
    return arrays


def levels_of(film):
    return np.clip(np.round((film[0].transpose(1, 2, 3, 0).astype(np.float64) + 1) * 127.5), 0, 255).astype(np.uint8)


def same(path, expected):
    """Levels are equal, but where a value lies between two."""
    result = np.load(path)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    difference = np.abs(result.astype(int) - expected)
    return difference.max() <= 1 and (difference > 0).mean() < 1e-3


@pytest.mark.slow
def test_windows_in_a_folder_files_or_a_list_become_one_film(windows, vae, capsys):
    decoded = [vae.decode(window) for window in windows]
    Path("windows/notes.txt").write_text("not latents")
    Path("list.txt").write_text("windows/w2.safetensors\nwindows/w10.safetensors\n")
    files = [f"windows/{name}.safetensors" for name in NAMES]
    for sources in (["windows"], files[:1] + ["--list", "list.txt"]):
        assert run(decode, *sources, *VAE, "--join", "--carry", CARRY, "--blend", 8, "-y", "-o", "film.npy") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"film.npy: {COUNT} frames of 64x32, 3.7 s at 24 fps, in ")
        assert same("film.npy", levels_of(joined(decoded, CARRY, 8)))
    assert names(".") == ["film.npy", "list.txt", "windows/notes.txt", *sorted(files)]


def test_a_folder_is_in_the_order_of_the_numbers_in_its_names(tmp_path, capsys):
    in_order = ["2.npy", "10.npy", "w2.npz", "w2b.npz", "w10.npz", "\u00b21.npy"]  # a digit only for some programs
    for name in [".hidden.npy", "notes.txt"]:
        (tmp_path / name).touch()
    for length, name in enumerate(in_order, 3):
        latents = np.zeros((1, 64, length, 1, 1), np.float32)
        np.save(tmp_path / name, latents) if name.endswith(".npy") else np.savez(tmp_path / name, latents=latents)
    arguments = [tmp_path, *VAE, "--join", "--carry", 1, "--fps", 24, "--dry-run", "--json"]
    assert run(decode, *arguments) == 0
    windows = json.loads(capsys.readouterr().out)["plan"]["windows"]
    assert [window["frames"] for window in windows] == [8 * length - 7 for length in range(3, 9)]


def test_the_carry_is_what_the_files_state_or_25(windows, capsys):
    for number, window in enumerate(windows):
        save_latents(f"{number}.safetensors", window, carry=CARRY)
    assert load_latents("0.safetensors")[1].carry == CARRY
    files = [f"{number}.safetensors" for number in range(3)]
    assert run(decode, *files, *VAE, "--join", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["frames"], plan["carry"], plan["blend"]) == (COUNT, CARRY, CARRY)
    assert [each["window"] for each in plan["windows"]] == [1, 2, 3]
    assert plan["peak_bytes"] == max(each["peak_bytes"] for each in plan["windows"])
    save_file({"latents": np.zeros((1, 64, 6, 1, 2), np.float32)}, "odd.safetensors", {"carry": "12"})
    line = failed(capsys, "odd.safetensors", *files[:1], *VAE, "--join", "--fps", 24, "-o", "film.mp4")
    assert line == ("error: 0.safetensors: states a carry of 17 frames, and odd.safetensors of 12; correct one.")
    line = failed(capsys, "odd.safetensors", *VAE, "--join", "-o", "film.mp4")
    assert line.startswith("error: odd.safetensors: states a carry of 12, and windows share 1 + 8*k frames, or 0 for")
    save_latents("2.safetensors", windows[2], carry=25)
    line = failed(capsys, *files, *VAE, "--join", "-o", "film.mp4")
    assert line == "error: 2.safetensors: states a carry of 25 frames, and 0.safetensors of 17; correct one."
    line = failed(capsys, *files[:2], *VAE, "--join", "--carry", 25, "-o", "film.mp4")
    problem = "states a carry of 17 frames, and --carry 25 contradicts it; leave out --carry."
    assert line == f"error: 0.safetensors: {problem}"
    for name in files:
        save_latents(name, load_latents(name)[0])
    assert run(decode, *files, *VAE, "--join", "--carry", 25, "--blend", 1, "--dry-run") == 0
    text = capsys.readouterr().out
    assert text.startswith("film     73 frames of 64x32, 3.0 s at 24 fps\nwindows  3, carry 25, blend 1\npeak     ")
    assert "\n\nwindow 1:\nlatents " in text
    assert "\n\nwindows 2 to 3:\nlatents " in text
    assert run(decode, "windows", *VAE, "--join", "--blend", 1, "--dry-run") == 0
    assert capsys.readouterr().out == text


@pytest.mark.slow
def test_frames_of_a_film_need_only_some_windows(windows, vae):
    film = levels_of(joined([vae.decode(window) for window in windows], CARRY, 4))
    arguments = ["windows", *VAE, "--join", "--carry", CARRY, "--blend", 4, "-q", "-o"]
    save_file({"latents": np.full(windows[0].shape, np.nan, np.float32)}, "windows/w10.safetensors", {"fps": "24"})
    for given, wanted in {"30:61": slice(30, 61), "41:50": slice(41, 50), ":-28": slice(0, -28)}.items():
        assert run(decode, *arguments, f"{wanted.start}.npy", "--frames", given) == 0
        assert same(f"{wanted.start}.npy", film[wanted])
    assert run(decode, *arguments, "first.npy", "--frames", "0:2s") == 0
    assert same("first.npy", film[:48])
    assert run(decode, *arguments, "still.png", "--frames", "40:41") == 0
    assert run(decode, *arguments, "bad.npy", "--frames", "61:62") == 1  # the fade to the last window
    assert not Path("bad.npy").exists()


def test_what_does_not_fit_is_one_sentence_with_the_file_and_nothing_is_written(windows, capsys, loads):
    save_latents("wide.safetensors", mx.zeros((1, 64, 6, 1, 3)), fps=24)
    save_latents("slow.safetensors", windows[0], fps=12)
    save_latents("short.safetensors", windows[0][:, :, :3], fps=24)
    Path("empty").mkdir()
    Path("table.csv").write_text("path,output\nwindows/w1.safetensors,a.mp4\n")
    for sources, text in [
        (["windows", "wide.safetensors"], "wide.safetensors: has latents (1, 64, 6, 1, 3), and the first window "),
        (["windows", "slow.safetensors"], "slow.safetensors: states 12 frames per second, and windows/w1.safetensors"),
        (["short.safetensors", "windows"], "windows/w1.safetensors: shares 17 frames with the window before"),
        (["windows", "short.safetensors"], "short.safetensors: has 17 frames, and shares the first 17 with the window"),
        (["windows", "none.safetensors"], "none.safetensors: there is no such file."),
        (["empty"], "empty: this folder has no latent files (.safetensors, "),
        (["table.csv"], "table.csv, line 2: states an output, and all windows have one"),
        (["windows", "-"], "-: is a pipe, which can be read only once"),
    ]:
        line = failed(capsys, *sources, *VAE, "--join", "--carry", CARRY, "-o", "film.mp4")
        assert line.startswith(f"error: {text}")
    np.save("w.npy", np.array(windows[0]))
    line = failed(capsys, "windows", "w.npy", *VAE, "--join", "--fps", 24, "--carry", CARRY, "-o", "w.npy")
    assert line == "error: w.npy: is one of the inputs, which are never replaced; choose another output."
    assert loads == []


def test_a_window_that_fails_leaves_nothing(windows, capsys):
    save_file({"latents": np.full(windows[0].shape, np.nan, np.float32)}, "windows/w10.safetensors", {"fps": "24"})
    line = failed(capsys, "windows", *VAE, "--join", "--carry", CARRY, "-o", "film.mp4")
    assert line.startswith("error: windows/w10.safetensors: ")


def overwritten(path, values):
    """Write the values of a window in place, which changes no more than its time."""
    with path.open("r+b") as file:
        file.seek(-values.nbytes, os.SEEK_END)
        file.write(values.tobytes())


def cut_and_written(path, values):
    content = path.read_bytes()
    os.truncate(path, 100)
    path.write_bytes(content)


def replaced(path, values):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


@pytest.mark.quick(3)
@pytest.mark.parametrize("change", [overwritten, cut_and_written, replaced])
@pytest.mark.parametrize("name", NAMES)
def test_a_window_that_changes_after_it_was_planned_is_an_error(windows, before_loads, capsys, change, name):
    path = Path(f"windows/{name}.safetensors")
    os.utime(path, ns=(0, 0))  # before any tick of the clock in which the test runs
    before_loads(lambda _: change(path, np.array(windows[0])))
    line = failed(capsys, "windows", *VAE, "--join", "--carry", CARRY, "-o", "film.npy")
    assert line.startswith(f"error: {path}: cannot be read, as the file changed while it was read; wait until ")


def test_a_window_whose_audio_changes_after_it_was_planned_is_an_error(windows, before_loads, capsys, audio_case):
    for number, window in enumerate(windows[:2]):
        save_latents(f"{number}.safetensors", window, audio=mx.array(random_latents(40)))
        os.utime(f"{number}.safetensors", ns=(0, 0))
    before_loads(lambda _: cut_and_written(Path("1.safetensors"), None))
    model = ["--audio-model", audio_case("ltx2").checkpoint]
    arguments = ["0.safetensors", "1.safetensors", "--join", "--carry", CARRY, *model, "-o", "film.wav"]
    assert failed(capsys, *arguments).startswith("error: 1.safetensors: cannot be read, as the file changed while it ")


def with_nan(array):
    """Latents, of pictures or of audio, whose last position in time is NaN."""
    values = np.array(array)
    values[0, :, -1] = np.nan
    return values


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--dry-run", "--json"]])
def test_values_of_all_windows_are_checked_before_anything_is_decoded(
    windows, capsys, loads, audio_case, golden, options
):
    join, audio = ["--join", "--carry", CARRY, *options], {"audio_latents": random_latents(43)}
    for number, window in enumerate(map(np.array, windows)):
        save_file({"latents": window, **audio}, f"{number}.safetensors")
    bad = {"audio_latents": with_nan(audio["audio_latents"])}
    save_file({"latents": np.array(windows[2]), **bad}, "2.safetensors")
    files, model = [f"{number}.safetensors" for number in range(3)], ["--audio-model", audio_case("ltx2").checkpoint]
    said = "error: 2.safetensors: audio latents 'audio_latents': 128 of 5504 values are not finite"
    assert failed(capsys, *files, *VAE, *join, *model, "-o", "film.mp4").startswith(said)
    assert failed(capsys, *files, *join[:3], *model, *options, "-o", "film.wav").startswith(said)
    for number, window in enumerate((*windows[:2], with_nan(windows[2]))):
        save_file({"latents": np.array(window)}, f"{number}.safetensors")
    for main, vae in ((decode, VAE), (preview, ["-m", demo.LATENT_RGB])):
        line = failed(capsys, *files, *vae, *join, "-o", "film.mp4", main=main)
        assert line.startswith("error: 2.safetensors: 128 of ")
        assert " are not finite (NaN or infinite), the first at (b, c, f, h, w) = (0, 0, 5, 0, 0); check the " in line
    for number, window in enumerate(windows_of(3, 3, channels=8, size=(2, 2))):
        planes = {"keyframe_latents": np.array(window[:, :, :1]), "keyframe_frame_indices": np.array([4])}
        planes["keyframe_latents"][0, 0, 0, 1, 1] = np.nan if number else 0
        save_file({"latents": np.array(window), **planes}, f"{number}.safetensors")
    diffusion = ["-m", golden("ltx2_5_keyframes").checkpoint, "--join", "--carry", 9, *options]
    line = failed(capsys, *files[:2], *diffusion, "-o", "film.mp4")
    assert line.startswith("error: 1.safetensors: keyframe latents: 1 of 32 values are not finite")
    assert loads == []


def test_a_batch_of_windows_becomes_several_films(windows, vae):
    for number, pair in enumerate(windows_of(4, 4, channels=64, batch=2)):
        save_latents(f"{number}.safetensors", pair)
        windows[number] = pair
    files = ["0.safetensors", "1.safetensors"]
    assert run(decode, *files, *VAE, "--join", "--carry", 9, "-o", "film.npy", "-q") == 0
    for item in range(2):
        decoded = [vae.decode(pair[item : item + 1]) for pair in windows[:2]]
        assert same(f"film-{item}.npy", levels_of(joined(decoded, 9, 9)))


def test_previews_of_films_have_their_frames(windows, capsys):
    rgb = ["-m", demo.LATENT_RGB]
    assert run(preview, "windows", *rgb, "--join", "--carry", CARRY, "-o", "film.npy") == 0
    line = capsys.readouterr().out
    frames = 6 + 2 * (6 - 3)  # one for each latent frame
    assert line.startswith(f"film.npy: {frames} frames of ")
    assert "3.7 s at 3.23596 fps" in line  # as long as the film: 89 / 24 s
    assert len(np.load("film.npy")) == frames
    assert run(preview, "windows", *rgb, "--join", "--carry", CARRY, "-o", "film.png") == 0
    assert Path("film.png").exists()


@pytest.mark.slow
def test_the_audio_of_windows_is_joined_to_the_sample(windows, audio_case, capsys):
    model, fps, frames, carry, count = audio_case("ltx2").checkpoint, 24, 17, 9, 33
    audio_tracks = [random_latents(round(frames / fps * 25), seed=seed) for seed in range(3)]
    for number, (window, audio) in enumerate(zip(windows, audio_tracks, strict=True)):
        save_latents(f"{number}.safetensors", window[:, :, :3], fps=fps, audio=mx.array(audio))
    files = [f"{number}.safetensors" for number in range(3)]
    arguments = [*files, *VAE, "--join", "--carry", carry, "--blend", 4, "--audio-model", model, "--audio-codec", "pcm"]
    assert run(decode, *arguments, "-o", "film.mov") == 0
    assert f"{count} frames of 64x32, 1.4 s at 24 fps, audio at 24000 Hz, in " in capsys.readouterr().out
    vae = AudioVAE.from_pretrained(model, encoder=False)
    waveforms = [np.array(vae.decode(audio))[0] for audio in audio_tracks]
    ends = [frames, 25, count]
    kept = np.diff([0, *(round(Fraction(end, fps) * 24000) for end in ends)]).tolist()
    expected = joined_audio(waveforms, kept, 24000)
    result = heard("film.mov", 24000)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < 1e-4
    alone = [*files, "--join", "--carry", carry, "--audio-model", model, "-o", "film.wav"]
    assert run(decode, *alone) == 0
    assert capsys.readouterr().out.startswith("film.wav: 1.4 s of audio at 24000 Hz, in ")
    assert np.abs(heard("film.wav", 24000) - expected).max() < 1e-4
    assert "has 17 frames, and windows share 17; correct --carry." in failed(capsys, *alone, "--carry", 17)
    assert run(decode, *arguments, "-o", "part.mov", "--frames", "14:26", "-q") == 0
    result = heard("part.mov", 24000)
    assert result.shape == (2, 12000)
    assert np.abs(result - expected[:, 14000:26000]).max() < 1e-4
    save_latents("2.safetensors", windows[2][:, :, :3], fps=fps)
    line = failed(capsys, *arguments, "-o", "other.mov")
    assert line.startswith("error: 2.safetensors: has no audio latents")


def pictures(count):
    """Noise with a square that moves, so that no two frames are alike."""
    frames = np.random.default_rng(0).integers(0, 60, (count, 32, 64, 3)).astype(np.uint8)
    for number, frame in enumerate(frames):
        frame[8:24, number % 48 : number % 48 + 16] = 200
    return frames


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("count", "options", "spans"),
    [
        (42, ["--pad"], [(0, 25), (16, 41), (32, 42)]),
        (10, [], [(0, 9)]),
        (38, [], [(0, 25), (16, 33)]),  # 5 frames are left out
        (42, [], [(0, 25), (16, 41)]),  # of the next window there would be one frame
        (27, ["--carry", 0], [(0, 25), (25, 26)]),
    ],
)
def test_a_video_is_encoded_in_the_windows_of_a_film(tmp_path, monkeypatch, capsys, count, options, spans):
    monkeypatch.chdir(tmp_path)
    frames, vae = pictures(count), VideoVAE.from_pretrained(demo.VAE, decoder=False, dtype="float32")
    with VideoWriter("clip.mkv", size=(64, 32), fps=24, codec="ffv1") as out:
        out.write(frames)
    carry = 0 if options[:1] == ["--carry"] else 9
    options = options if carry == 0 else ["--carry", carry, *options]
    assert run(encode, "clip.mkv", *VAE, "--windows", 25, *options, "-o", "windows/", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert names("windows") == [f"{number:05d}.safetensors" for number in range(1, len(spans) + 1)]
    stored = np.concatenate([frames, *[frames[-1:]] * 7])
    with VideoReader("clip.mkv") as video:
        assert np.array_equal(np.concatenate(list(video)), frames)
    for name, (first, end) in zip(names("windows"), spans, strict=True):
        latents, info = load_latents(f"windows/{name}")
        whole = first + 1 + 8 * -(-(end - first - 1) // 8)
        expected = vae.encode(stored[first:whole])
        assert latents.shape == expected.shape
        assert mx.abs(latents - expected).max().item() < TOLERANCE
        stated = None if len(spans) == 1 else carry
        assert (info.carry, info.fps, info.num_frames) == (stated, 24, whole - first)
    assert (report["frames"], report["windows"], report["carry"]) == (whole, len(spans), carry)
    assert report["source_frames"] == count
    assert run(decode, "windows", *VAE, "--join", "-o", "film.npy", "-q") == 0
    film = np.load("film.npy")
    assert len(film) == min(count, whole), "without padding"
    assert run(decode, "windows", *VAE, "--join", "--all-frames", "-o", "all.npy", "-q") == 0
    every_frame = np.load("all.npy")
    assert len(every_frame) == whole
    assert np.array_equal(film, every_frame[: len(film)])


@pytest.mark.quick(1)
@pytest.mark.slow
@pytest.mark.parametrize(("size", "carry", "blends"), [(17, 9, [9, 7, 7]), (33, 17, [17, 15])])
def test_windows_that_share_more_than_they_add_are_joined(tmp_path, monkeypatch, capsys, size, carry, blends):
    monkeypatch.chdir(tmp_path)
    count = size + (size - carry) * len(blends)
    with VideoWriter("clip.mkv", size=(64, 32), fps=24, codec="ffv1") as out:
        out.write(pictures(count))
    assert run(encode, "clip.mkv", *VAE, "--windows", size, "--carry", carry, "-o", "w/", "-q") == 0
    assert capsys.readouterr().err == ""
    assert run(info, "w/00001.safetensors") == 0
    assert f"stated: frames {size}, width 64, height 32, carry {carry}" in capsys.readouterr().out
    arguments = ["w", *VAE, "--join", "-o", "film.npy"]
    assert run(decode, *arguments, "--dry-run") == 0
    assert f"carry {carry}, blend {blends[-1]} to {carry}\n" in capsys.readouterr().out
    assert run(decode, *arguments, "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["blend"], [window["blend"] for window in plan["windows"]]) == (carry, [0, *blends])
    assert len(np.load("film.npy")) == count
    most = blends[-1]
    line = failed(capsys, *arguments, "-y", "--blend", most + 1)
    assert line.endswith(f"adds only {most + 1} frames; blend at most {most} (--blend {most}), or correct --carry.")
    assert run(decode, *arguments, "-y", "--blend", most, "-q") == 0
    arguments = ["w", "-m", demo.LATENT_RGB, "--join", "-o", "film.npy", "-y"]  # a frame for eight of the video
    assert run(preview, *arguments, "-q") == 0
    assert len(np.load("film.npy")) == 1 + (count - 1) // 8


def test_windows_are_encoded_into_a_new_folder_or_not_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with VideoWriter("clip.mkv", size=(64, 32), fps=24, codec="ffv1") as out:
        out.write(pictures(65))
    Path("full").mkdir()
    Path("full/a.safetensors").write_text("kept")
    arguments = ["clip.mkv", *VAE, "-o"]
    line = failed(capsys, *arguments, "full/", "--windows", FRAMES, "--carry", CARRY, main=encode)
    assert line.startswith("error: full: already exists and is not an empty folder")
    for options, text in [
        ([42, "--carry", 17], "windows have 1 + 8*k frames, more than the 17 that they share, not 42"),
        ([25], "windows have 1 + 8*k frames, more than the 25 that they share, not 25"),
        ([41, "--carry", 20], "windows share 1 + 8*k frames, or 0 for none, not 20"),
    ]:
        line = failed(capsys, *arguments, "w/", "--windows", *options, main=encode)
        assert line.startswith(f"error: {text}; correct ")
    writes = LatentsWriter.complete
    monkeypatch.setattr(
        LatentsWriter,
        "complete",
        lambda self, **stated: writes(self, **stated) if self._name.endswith("1.safetensors") else 1 / 0,
    )
    failed(capsys, *arguments, "w/", "--windows", FRAMES, "--carry", CARRY, main=encode)


@pytest.mark.slow
def test_an_interrupted_film_leaves_nothing(tmp_path):
    (tmp_path / "windows").mkdir()
    for number, window in enumerate(windows_of(20, 20, 20, 20, channels=64, size=(4, 4))):
        save_latents(tmp_path / f"windows/{number}.safetensors", window)
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", "windows", *VAE, "--join", "-o", "film.mp4"]
    before = names(tmp_path)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and names(tmp_path) == before:
            time.sleep(0.01)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert names(tmp_path) == before


def test_keyframes_in_files_are_carried_from_windows_that_are_not_decoded(tmp_path, monkeypatch, golden, capsys):
    monkeypatch.chdir(tmp_path)
    model = golden("ltx2_5_keyframes").checkpoint
    vae = VideoVAE.from_pretrained(model, encoder=False)
    channels = vae.decoder.spec.in_channels
    windows = windows_of(3, 3, 3, channels=channels, size=(2, 2))
    stills = windows_of(1, 1, channels=channels, size=(2, 2))
    keyframes = [Keyframes(stills[0], [8]), Keyframes(stills[1], [16]), None]
    for number, (window, each) in enumerate(zip(windows, keyframes, strict=True)):
        save_latents(f"{number}.safetensors", window, keyframes=each)
    film = vae.stream_joined(
        list(zip(windows, keyframes, strict=True)),
        carry=9,
        blend=4,
        seed=3,
        frames=(19, 25),
        order="columns",
    )
    expected = levels_of(np.concatenate([np.array(chunk.pixels) for chunk in film], axis=2))
    arguments = [f"{number}.safetensors" for number in range(3)]
    arguments += ["-m", model, "--join", "--carry", 9, "--blend", 4, "--seed", 3, "--order", "columns", "--json"]
    assert run(decode, *arguments, "--frames", "19:25", "-o", "film.npy") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["keyframes"] == [8, 24]
    assert [each["keyframes"] for each in report["plan"]["windows"]] == [[0, 16], [8]]
    assert same("film.npy", expected)


@pytest.mark.slow
def test_windows_are_decoded_with_the_keyframes_of_their_files(tmp_path, monkeypatch, golden, capsys):
    monkeypatch.chdir(tmp_path)
    model, rng = golden("ltx2_5_keyframes").checkpoint, np.random.default_rng(0)
    windows = []
    for number, frames in enumerate([(3, 9), (), (5,)]):
        latents = mx.array(rng.normal(size=(1, 8, 2, 1, 2)).astype(np.float32))
        stills = mx.array(rng.normal(size=(1, 8, len(frames), 1, 2)).astype(np.float32))
        keyframes = Keyframes(stills, frames) if frames else None
        save_latents(f"{number}.safetensors", latents, keyframes=keyframes, carry=1)
        windows.append((latents, keyframes))
    sources = [f"{number}.safetensors" for number in range(3)]
    assert run(decode, *sources, "-m", model, "--join", "-o", "film.npy", "--json") == 0
    assert json.loads(capsys.readouterr().out)["keyframes"] == [3, 9, 21]
    stream = VideoVAE.from_pretrained(model, encoder=False).stream_joined(windows, carry=1)
    expected = np.concatenate([chunk.to_uint8() for chunk in stream])
    assert np.abs(np.load("film.npy").astype(int) - expected).max() <= 1
