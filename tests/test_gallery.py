"""Galleries: which previews are made, where they are, and what the page and the command say."""

import base64
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image

from commands import decode, encode, info, preview
from gallery_pages import RGB, read_cards, save_clip
from latent_files import LatentSpace
from many_files import VAE, names, run
from mlx_ltx_vae import ReaderError, demo, load_latents, save_latents
from mlx_ltx_vae.commands import gallery, gallery_page
from mlx_ltx_vae.commands.gallery import find_text
from mlx_ltx_vae.video.audio import find_audio
from test_full_disk import fill, small_disk  # noqa: F401
from video_files import run_ffmpeg


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with three clips in latents/."""
    monkeypatch.chdir(tmp_path)
    for number, frames in ((1, 2), (2, 3), (10, 1)):
        save_clip(tmp_path / "latents" / f"clip-{number}.safetensors", frames=frames)
    return tmp_path


def decode_preview(card, height, width):
    """The frames of the preview in a card, by ffmpeg."""
    video = Path("preview.mp4")
    video.write_bytes(base64.b64decode(card["data"][0]))
    frames = run_ffmpeg("-i", video, "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    video.unlink()
    return np.frombuffer(frames, np.uint8).reshape(-1, height, width, 3).astype(int)


def test_a_page_is_alone_and_has_the_preview_and_the_facts_of_each_clip(folder, capsys):
    os.utime("latents/clip-1.safetensors", (0, time.mktime((2026, 11, 28, 3, 12, 0, 0, 0, -1))))
    assert run(preview, "latents", *RGB, "-o", "gallery.html") == 0
    assert capsys.readouterr().out.endswith("gallery.html: 3 clips, 3 new, 0 failed\n")
    assert names(".") == ["gallery.html", *sorted(f"latents/clip-{number}.safetensors" for number in (1, 2, 10))]
    first, second, still = read_cards(Path("gallery.html"))
    assert (first["name"], first["date"]) == ("clip-1.safetensors", "2026-11-28 03:12")
    assert first["facts"] == "0.4 s · 9 frames · 192x128 · 24 fps"
    assert second["facts"] == "0.7 s · 17 frames · 192x128 · 24 fps"
    assert still["facts"] == "0.0 s · 1 frame · 192x128 · 24 fps"
    assert run(preview, "latents/clip-2.safetensors", *RGB, "-o", "other.npy", "-q") == 0
    expected = np.load("other.npy")
    frames = decode_preview(second, *expected.shape[1:3])
    assert frames.shape == expected.shape
    assert np.abs(frames - expected).mean() < 8  # H.264


def test_previews_that_are_there_and_newer_than_their_latents_are_not_made_again(folder, capsys, loads):
    command = ["latents", *RGB, "-o", "gallery.html"]
    assert run(preview, *command) == 0
    page, cards, num_loads = Path("gallery.html").read_bytes(), read_cards(Path("gallery.html")), len(loads)
    assert run(preview, *command) == 0
    assert capsys.readouterr().out.endswith("gallery.html: 3 clips, 0 new, 0 failed\n")
    assert read_cards(Path("gallery.html")) == cards
    assert len(loads) == num_loads
    os.utime("latents/clip-2.safetensors")
    save_clip(Path("latents/clip-3.safetensors"))
    Path("latents/clip-1.safetensors").unlink()
    assert run(preview, *command) == 0
    assert capsys.readouterr().out.endswith("gallery.html: 3 clips, 2 new, 0 failed\n")
    assert [card["name"] for card in read_cards(Path("gallery.html"))] == [
        f"clip-{number}.safetensors" for number in (2, 3, 10)
    ]
    assert Path("gallery.html").read_bytes() != page
    assert run(preview, *command, "--fps", "12", "--json") == 0  # other previews
    report = {"output": "gallery.html", "clips": 3, "new": 3, "failed": 0}
    assert json.loads(capsys.readouterr().out) == report
    assert "· 12 fps" in read_cards(Path("gallery.html"))[0]["facts"]


def test_a_run_that_was_interrupted_goes_on_where_it_was(folder, monkeypatch):
    monkeypatch.setattr(gallery, "_SECONDS_PER_PAGE", 0)
    describe, described = gallery.GalleryJob._describe, []

    def stop_at_the_third(job, path, *arguments):
        if len(described) == 2:
            raise KeyboardInterrupt
        described.append(path)
        return describe(job, path, *arguments)

    monkeypatch.setattr(gallery.GalleryJob, "_describe", stop_at_the_third)
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 130
    assert [card["data"] for card in read_cards(Path("gallery.html"))] == [[], []]
    assert len(names("gallery-clips")) == 3
    monkeypatch.setattr(gallery.GalleryJob, "_describe", lambda *each: described.append(each[1]) or describe(*each))
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 0
    assert [Path(path).name for path in described] == [f"clip-{number}.safetensors" for number in (1, 2, 10)]
    assert all(card["data"] for card in read_cards(Path("gallery.html")))
    assert not Path("gallery-clips").exists()


def test_previews_of_a_large_page_are_in_a_folder_and_return_if_they_fit_again(folder, monkeypatch):
    command = ["latents", *RGB, "-o", "gallery.html", "-q"]
    assert run(preview, *command) == 0
    data = [card["data"][0] for card in read_cards(Path("gallery.html"))]
    monkeypatch.setattr(gallery_page, "PAGE_BYTES", 1000)
    assert run(preview, *command) == 0
    cards = read_cards(Path("gallery.html"))
    files = [Path("gallery-clips", card["videos"][0]) for card in cards]
    assert [card["data"] for card in cards] == [[], [], []]
    assert [base64.b64encode(file.read_bytes()).decode() for file in files] == data
    assert sorted(Path("gallery-clips").iterdir()) == sorted(files)
    Path("gallery-clips", "mine.txt").write_text("kept")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run(preview, *command) == 0
    assert [card["data"][0] for card in read_cards(Path("gallery.html"))] == data
    assert names("gallery-clips") == ["mine.txt"]


def test_clips_that_cannot_be_read_are_cards_that_say_why(folder, capsys):
    Path("latents/broken.safetensors").write_text("nothing")
    nan = mx.full((1, 64, 1, 4, 6), mx.nan)
    mx.save_safetensors("latents/nan.safetensors", {"latents": nan})
    mx.save_safetensors("latents/small.safetensors", {"latents": nan[:, :3]})
    assert run(preview, "latents", "missing.safetensors", *RGB, "-o", "gallery.html") == 1
    output = capsys.readouterr()
    assert output.out.endswith("gallery.html: 7 clips, 3 new, 4 failed\n")
    *errors, last = output.err.splitlines()
    assert last == "error: 4 of 7 inputs failed."
    cards = {card["name"]: card for card in read_cards(Path("gallery.html"))}
    failed = [card for card in cards.values() if card["error"]]
    assert [f"error: {card['error']}" for card in failed] == errors
    assert not any(card["videos"] for card in failed)
    assert "is neither safetensors" in cards["broken.safetensors"]["error"]
    assert "NaN" in cards["nan.safetensors"]["error"]
    assert "there is no such file" in cards["missing.safetensors"]["error"]
    save_clip(Path("latents/broken.safetensors"))
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 1
    assert "broken" not in capsys.readouterr().err


def test_without_a_model_clips_have_the_colors_of_their_latents(folder, capsys):
    latents = np.random.default_rng(0).normal(size=(1, 128, 9, 5, 7)).astype(np.float32) * 0.1
    latents[:, 17, :, :, 3:] += 5  # two halves
    mx.save_safetensors("halves.safetensors", {"latents": mx.array(latents)})
    assert run(preview, "halves.safetensors", "-o", "colors.html", "-q") == 0
    (card,) = read_cards(Path("colors.html"))
    assert card["facts"] == "2.7 s · 65 frames · 224x160 · 24 fps"
    frames = decode_preview(card, 10, 14)
    assert len(frames) == 9
    left, right = frames[:, :, :6].mean((0, 1, 2)), frames[:, :, 6:].mean((0, 1, 2))
    assert (np.abs(left - right) > 60).all()
    assert frames[:, 1:-1, 1:5].std() < 12
    assert run(preview, "latents", "-o", "gallery.html", "-q") == 0
    assert len(read_cards(Path("gallery.html"))) == 3
    Path("broken.npy").write_text("nothing")
    assert run(preview, "broken.npy", "-o", "broken.html", "-q") == 1
    assert "-m MODEL is missing" in refused_usage(capsys, "latents", "-o", "videos/")


def refused_usage(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        run(preview, *arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_only_a_gallery_is_replaced_without_a_question(folder, capsys):
    Path("gallery.html").write_text("<html>precious")
    assert run(preview, "latents", *RGB, "-o", "gallery.html") == 1
    assert "gallery.html: already exists; choose another name" in capsys.readouterr().err
    assert names(".") == ["gallery.html", *names("latents")] or Path("gallery.html").read_text() == "<html>precious"
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-y", "-q") == 0
    assert len(read_cards(Path("gallery.html"))) == 3
    Path("folder.html").mkdir()
    assert run(preview, "latents", *RGB, "-o", "folder.html", "-q") == 1


def test_a_dry_run_writes_nothing(folder, capsys):
    before = names(".")
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "--dry-run") == 0
    assert "Inputs: 3 planned" in capsys.readouterr().out
    assert names(".") == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-o", "gallery.html", "--join"], "a gallery shows each latent file on its own; leave out --join"),
        (["-o", "clip.mp4", "--watch"], "--watch is for a gallery; name a page with -o, such as gallery.html"),
    ],
)
def test_options_that_are_for_others_are_refused(folder, capsys, arguments, error):
    assert error in refused_usage(capsys, "latents", *RGB, *arguments)


def test_a_batch_is_one_card_with_several_videos(folder):
    latents, _ = load_latents(demo.LATENTS)
    mx.save_safetensors("pair.safetensors", {"latents": mx.concatenate([latents[:, :, :2], latents[:, :, 1:3]])})
    for _ in range(2):
        assert run(preview, "pair.safetensors", *RGB, "-o", "gallery.html", "-q") == 0
        (card,) = read_cards(Path("gallery.html"))
        assert card["facts"].endswith(" · 2 videos")
        assert len(set(card["data"])) == 2
    assert not Path("gallery-clips").exists()


GRAPH = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 42, "positive": ["6", 0]}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a fox in the snow", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "worst quality"}},
}


@pytest.mark.parametrize(
    ("metadata", "texts"),
    [
        ({}, ("", "")),
        ({"prompt": "a red balloon", "seed": "7"}, ("a red balloon", "7")),
        ({"prompt": json.dumps(GRAPH)}, ("a fox in the snow", "42")),
        ({"prompt": "[1]", "seed": "x"}, ("[1]", "x")),
        ({"prompt": "{}"}, ("", "")),
        ({"prompt": '{"1": 5}'}, ('{"1": 5}', "")),
        ({"prompt": "[" * 100_000}, ("[" * 100_000, "")),
    ],
)
def test_prompt_and_seed_are_found_where_the_file_states_them(metadata, texts):
    assert (find_text(metadata, "prompt", "text"), find_text(metadata, "seed", "noise_seed")) == texts


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!--"


def test_texts_of_files_are_no_markup(folder):
    name = HOSTILE.replace("/", "∕")
    clip = save_clip(folder / "latents" / f"{name}.safetensors", prompt=HOSTILE, seed=HOSTILE, generation=HOSTILE)
    (folder / "latents" / f"broken {name}.npy").write_text("")
    assert run(preview, "latents", *RGB, "-o", f"{name}.html", "-q") == 1
    page = folder / f"{name}.html"
    cards = {card["name"]: card for card in read_cards(page)}
    assert (cards[clip.name]["prompt"], cards[clip.name]["seed"], cards[clip.name]["model"]) == (HOSTILE, HOSTILE, "")
    assert "<img src=x" in cards[f"broken {name}.npy"]["error"]

    class Elements(HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags = []

        def handle_starttag(self, tag, attributes):
            self.tags.append((tag, dict(attributes).get("type")))

    elements = Elements()
    elements.feed(page.read_text())
    assert [kind for tag, kind in elements.tags if tag == "script"] == [*["application/json"] * 6, None]
    assert "img" not in dict(elements.tags)


def test_arguments_are_safe_to_paste_and_name_the_files(folder):
    odd = ["it's $(touch hacked).safetensors", "-m.safetensors", "@list.safetensors", "ü `a`\n&.safetensors"]
    for name in odd:
        save_clip(folder / name)
    paths = [f"./{name}" if name.startswith(("-", "@")) else name for name in odd]
    assert run(preview, *paths, "latents/clip-1.safetensors", *RGB, "-o", "gallery.html", "-q") == 0
    cards = read_cards(Path("gallery.html"))
    for card, name in zip(cards, odd, strict=False):
        (argument,) = shlex.split(card["argument"])
        assert Path(argument).resolve() == folder / name
        assert not argument.startswith(("-", "@"))
        assert card["path"] == str(folder / name)
    shell = ["bash", "-c", f"ls -d {' '.join(card['argument'] for card in cards)} >/dev/null"]
    assert subprocess.run(shell, check=False).returncode == 0
    assert not Path("hacked").exists()


def test_picks_by_the_generation_that_files_state(folder):
    save_clip(Path("new.safetensors"), generation="LTX-2.3")
    assert run(preview, "new.safetensors", "latents/clip-1.safetensors", *RGB, "-o", "gallery.html", "-q") == 0
    assert [card["model"] for card in read_cards(Path("gallery.html"))] == ["ltx-2.3", ""]


def test_what_run_saves_is_looked_at_and_decoded(folder):
    """`run --save-latents`, this page and `decode --list`, one after another."""
    latents, _ = load_latents(demo.LATENTS)
    Path("night").mkdir()
    for start in range(3):
        part = latents[:, :, start : start + 2, :4, :6]
        save_latents(f"night/2026-01-01-00{start}.safetensors", part, fps=25, space=LatentSpace("LTX-2.3"))
    assert run(preview, "night", *RGB, "-o", "gallery.html", "-q") == 0
    cards = read_cards(Path("gallery.html"))
    assert [Path(card["path"]) for card in cards] == sorted(Path("night").resolve().iterdir())
    assert [(card["model"], card["facts"]) for card in cards] == [
        ("ltx-2.3", "0.4 s · 9 frames · 192x128 · 25 fps")
    ] * 3
    Path("picks.txt").write_text("".join(f"{card['path']}\n" for card in cards[1:]))
    assert run(decode, "--list", "picks.txt", *VAE, "-o", "picks/", "-q") == 0
    assert len(names("picks")) == 2


def test_hdr_previews_are_what_browsers_play(folder):
    assert run(preview, "latents/clip-1.safetensors", *RGB, "--hdr", "acescct", "-o", "gallery.html", "-q") == 0
    Path("hdr.mp4").write_bytes(base64.b64decode(read_cards(Path("gallery.html"))[0]["data"][0]))
    report = subprocess.run([get_ffmpeg_exe(), "-i", "hdr.mp4"], check=False, capture_output=True, text=True).stderr
    stream = next(line for line in report.splitlines() if "Video:" in line)
    assert "h264" in stream
    assert "yuv420p(" in stream
    assert "bt2020" not in stream


def test_a_model_of_previews_in_the_cache_is_taken(folder, hub_cache, capsys):
    hub_cache("taeltx-2.3", Path(__file__).parents[1] / "examples" / "demo_preview.safetensors")
    save_clip(Path("stated/clip.safetensors"), generation="LTX-2.3")
    assert run(preview, "stated", "-o", "gallery.html") == 0
    assert "-m taeltx-2.3" in "".join(capsys.readouterr())
    (card,) = read_cards(Path("gallery.html"))
    assert len(decode_preview(card, 128, 192)) == 9  # not one for each latent frame


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clips(folder):
    program = "import resource, sys; from mlx_ltx_vae.preview import main; main(sys.argv[1:]); "
    program += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    peaks = []
    for count in (20, 300):
        for number in range(count):
            Path("many").mkdir(exist_ok=True)
            shutil.copy("latents/clip-2.safetensors", f"many/{number}.safetensors")
        command = [sys.executable, "-c", program, "many", *RGB, "-o", f"{count}.html", "-q"]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        assert len(read_cards(Path(f"{count}.html"))) == count
    assert peaks[1] < 1.1 * peaks[0]


def make_pipe(path):
    """Make a named pipe. A program that waits for its writer gets an end after 20 seconds, so that a test can fail."""

    def end():
        with suppress(OSError):  # nobody reads it
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    os.mkfifo(path)
    timer = threading.Timer(20, end)
    timer.daemon = True
    timer.start()


def test_a_named_pipe_in_a_folder_is_left_out_by_every_command(folder, capsys, monkeypatch):
    def warnings():
        lines = capsys.readouterr().err.splitlines()
        return [line.split(", ")[0] for line in lines if "pipe" in line]

    make_pipe("latents/clip-0.safetensors")
    watch(monkeypatch, lambda: None, lambda: None, model=[])
    assert [card["name"] for card in read_cards(Path("gallery.html"))] == [
        f"clip-{number}.safetensors" for number in (1, 2, 10)
    ]
    assert warnings() == ["warning: latents/clip-0.safetensors: is a named pipe"]
    assert run(decode, "latents", *VAE, "-o", "videos/", "-q") == 0
    assert len(names("videos")) == len(warnings()) + 2 == 3
    assert run(info, "latents", "--json") == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 3 and "pipe" in output.err
    make_pipe("videos/clip-0.mp4")
    assert run(encode, "videos", *VAE, "-o", "encoded/", "--pad", "-q") == 0
    assert len(names("encoded")) == 3
    assert warnings() == ["warning: videos/clip-0.mp4: is a named pipe"]
    Path("pipes").mkdir()
    make_pipe("pipes/a.npy")
    assert run(decode, "pipes", *VAE, "-o", "videos/", "-q") == 1
    assert "pipes: this folder has no latent files" in capsys.readouterr().err


def watch(monkeypatch, *steps, page="gallery.html", model=RGB, page_seconds=0):
    """Run --watch, with a step after each look, which then follows at once, and Ctrl-C after the last.

    During a look, a page is written `page_seconds` after the one before it.
    """
    looks = iter(steps)

    def sleep(_):
        step = next(looks, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with monkeypatch.context() as inside:
        inside.setattr(gallery, "_SECONDS_PER_PAGE", page_seconds)
        inside.setattr(gallery, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        assert run(preview, "latents", *model, "-o", page, "--watch") == 130
    assert next(looks, None) is None


def previews():
    """The previews in the folder, with the numbers of their files, which are others when they are made again."""
    return {path.name: path.stat().st_ino for path in Path("gallery-clips").glob("*.mp4")}


def test_what_somebody_removes_from_a_watched_page_is_made_again(folder, capsys, monkeypatch):
    states = []

    def remove_one():
        states.append(previews())
        sorted(Path("gallery-clips").glob("*.mp4"))[0].unlink()

    def empty_one():
        states.append(previews())
        sorted(Path("gallery-clips").glob("*.mp4"))[1].write_bytes(b"")

    def remove_all():
        states.append(previews())
        shutil.rmtree("gallery-clips")
        Path("gallery.html").unlink()

    def keep_all():
        states.append(previews())

    watch(monkeypatch, remove_one, empty_one, remove_all, keep_all)
    assert [len(state) for state in states] == [3, 3, 3, 3]
    assert states[0].keys() == states[1].keys() == states[2].keys() == states[3].keys() == previews().keys()
    assert previews() == states[3]  # nothing is made without need
    assert len(read_cards(Path("gallery.html"))) == 3
    output = capsys.readouterr()
    assert [line for line in output.out.splitlines() if line.startswith("gallery.html")] == [
        f"gallery.html: 3 clips, {number} new, 0 failed" for number in (3, 1, 1, 3)
    ]
    assert "error" not in output.err


def test_a_watched_page_goes_on_when_a_full_disk_has_room_again(folder, small_disk, capsys, monkeypatch):  # noqa: F811
    page = small_disk / "gallery.html"

    def fill_disk():
        fill(small_disk)
        save_clip(Path("latents/clip-3.safetensors"))
        save_clip(Path("latents/clip-4.safetensors"))

    def look():
        assert len(read_cards(page)) == 3
        assert all(path.stat().st_size for path in small_disk.rglob("*"))

    def free_disk():
        look()
        (small_disk / "filler").unlink()

    watch(monkeypatch, fill_disk, look, free_disk, lambda: None, page=str(page), page_seconds=3600)
    cards = read_cards(page)
    assert [card["error"] for card in cards] == [""] * 5
    assert all((small_disk / "gallery-clips" / card["videos"][0]).stat().st_size > 500 for card in cards)
    *errors, last = capsys.readouterr().err.splitlines()
    assert last == "interrupted"
    assert len(errors) == 3, errors  # each once, of the two clips and of the page
    assert errors[2] == f"error: {page}: cannot be written (No space left on device)."
    assert all("No space left on device" in error for error in errors)


def test_a_plain_run_leaves_the_previews_of_a_watcher_alone_and_the_last_cleans_up(folder, monkeypatch):
    states = []

    def run_beside():
        save_clip(Path("latents/clip-3.safetensors"))
        states.append(previews())
        assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 0
        assert all(card["data"] for card in read_cards(Path("gallery.html")))
        states.append(previews())

    watch(monkeypatch, run_beside)
    assert states[0].items() <= states[1].items()
    assert len(previews()) == 4
    assert not any(card["data"] for card in read_cards(Path("gallery.html")))
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 0
    assert not Path("gallery-clips").exists()


def test_a_full_disk_leaves_no_empty_preview_and_the_error_names_the_file(folder, small_disk, capsys):  # noqa: F811
    page = small_disk / "gallery.html"
    command = ["latents", *RGB, "-o", str(page), "-q"]
    assert run(preview, *command) == 0
    cards = read_cards(page)
    fill(small_disk)
    assert run(preview, *command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {small_disk}/gallery-clips/clip-1-")
    assert error.endswith(".mp4: cannot be written (No space left on device).\n")
    assert sorted(os.listdir(small_disk)) == ["filler", "gallery.html"]
    (small_disk / "filler").unlink()
    assert run(preview, *command) == 0
    assert read_cards(page) == cards


def test_a_dry_run_that_has_nothing_to_plan_says_so(folder, capsys):
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 0
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "--dry-run") == 0
    assert capsys.readouterr().out == "Inputs: 0 planned, 0 skipped, 0 failed\n"
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["planned"] == 0


def test_a_dry_run_of_a_page_that_is_there_writes_nothing(folder, capsys):
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 0
    before = names(".")
    save_clip(Path("latents/clip-3.safetensors"))
    assert run(preview, "latents", *RGB, "-o", "gallery.html", "--dry-run") == 0
    assert "Inputs: 1 planned" in capsys.readouterr().out
    assert names(".") == [*before, "latents/clip-3.safetensors"]


@pytest.mark.slow
def test_three_galleries_at_once_on_one_page_end_well(folder):
    for number in range(20, 30):
        save_clip(folder / "latents" / f"clip-{number}.safetensors")
    command = [sys.executable, "-m", "mlx_ltx_vae.preview", "latents", *RGB, "-o", "gallery.html", "-q"]
    for _ in range(2):  # the second time, each takes the previews from the page
        runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        assert [process.communicate()[1] for process in runs] == ["", "", ""]
        assert [process.returncode for process in runs] == [0, 0, 0]
        assert all(card["data"] for card in read_cards(Path("gallery.html")))
        assert len(read_cards(Path("gallery.html"))) == 13
        assert not Path("gallery-clips").exists()


@pytest.mark.slow
def test_a_watched_page_shows_clips_as_they_come_and_stays_whole(folder):
    command = [sys.executable, "-m", "mlx_ltx_vae.preview", "new", *RGB, "-o", "gallery.html", "--watch"]
    page, version = Path("gallery.html"), Path("gallery-clips/version.js")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:

        def wait(condition):
            end = time.monotonic() + 60
            while not condition():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.05)

        try:
            wait(version.exists)
            (folder / "new").mkdir()
            save_clip(folder / "new/b.safetensors")
            wait(lambda: [card["name"] for card in read_cards(page) if card["videos"]] == ["b.safetensors"])
            first_version = version.read_text()
            Path("new/a.npy").write_text("half")
            wait(lambda: [bool(card["error"]) for card in read_cards(page)] == [True, False])
            latents, _ = load_latents(demo.LATENTS)
            np.save("new/a.npy", np.array(latents[:, :, :1]))
            wait(lambda: [bool(card["videos"]) for card in read_cards(page)] == [True, True])
            wait(lambda: version.read_text() != first_version)
            assert [card["data"] for card in read_cards(page)] == [[], []]
            assert all(Path("gallery-clips", card["videos"][0]).exists() for card in read_cards(page))
        finally:
            process.send_signal(2)
            errors = process.communicate()[1]
    assert process.returncode == 130
    assert "interrupted" in errors
    assert run(preview, "new", *RGB, "-o", "gallery.html", "-q") == 0
    assert all(card["data"] for card in read_cards(page))
    assert not version.parent.exists()


def test_a_page_has_a_still_of_each_clip_and_the_marks_of_lists(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        save_clip(tmp_path / "latents" / f"{number}.safetensors")
    Path("picks.txt").write_text("latents/0.safetensors\n# rejected: latents/1.safetensors\n# a comment\n")
    arguments = ["latents", *RGB, "-o", "page.html", "-q"]
    assert run(preview, *arguments, "--picks", "picks.txt", "--picks", "others.txt") == 0
    assert "others.txt: there is no such list yet, so the page begins without its marks." in capsys.readouterr().err
    cards = read_cards(tmp_path / "page.html")
    still = Image.open(io.BytesIO(base64.b64decode(cards[0]["stills"][0])))
    assert (still.format, still.size) == ("JPEG", (48, 32))
    assert (cards[0]["seconds"], cards[0]["fps"]) == (pytest.approx(9 / 24), pytest.approx(24 * 2 / 9))
    script = re.search(r'class="page">(.*)</script>', (tmp_path / "page.html").read_text("ascii", "replace"))
    paths = [str(tmp_path / "latents" / f"{number}.safetensors") for number in range(2)]
    assert json.loads(script[1])["picks"]["marks"] == {paths[0]: "pick", paths[1]: "reject"}
    Path("picks.txt").write_bytes(b"\xff\xfe")
    assert run(preview, *arguments, "--picks", "picks.txt") == 1
    assert "picks.txt: cannot be read as a list that a gallery has saved" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run(preview, "latents", *RGB, "-o", "clips/", "--picks", "picks.txt")


def test_previews_have_audio_where_there_is_some(tmp_path, monkeypatch, audio_case, capsys):
    monkeypatch.chdir(tmp_path)
    save_clip(tmp_path / "latents" / "a.safetensors")
    latents = mx.load("latents/a.safetensors")
    audio = mx.random.normal((1, 8, 9, 16), key=mx.random.key(0))
    mx.save_safetensors("latents/b.safetensors", {**latents, "audio_latents": audio}, {"fps": "24"})
    arguments = ["latents", *RGB, "--audio-model", audio_case("ltx2").checkpoint, "-q"]
    assert run(preview, *arguments, "-o", "page.html") == 0
    for card, has_audio in zip(read_cards(tmp_path / "page.html"), (False, True), strict=True):
        Path("clip.mp4").write_bytes(base64.b64decode(card["data"][0]))
        assert bool(find_audio(Path("clip.mp4"), ReaderError)) is has_audio
    with pytest.raises(SystemExit, match="2"):
        run(preview, *arguments, "-o", "a.wav")
    assert "decode -o NAME.wav decodes the audio alone" in capsys.readouterr().err
