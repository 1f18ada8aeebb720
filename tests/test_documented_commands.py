"""The commands in the README, docs/ and examples/ run as printed, on the demo model and files of the names they use.

Not run here: installations, `make`, `hf` and `git`; pipes and Python blocks (test_readme.py, test_integrations.py); the
server (test_example_server.py). Of measurements, which take minutes, and of `mlx_ltx_vae run`, whose apps are not here
(test_app_run.py has stand-ins), only the options are checked, the apps' too. What a launcher starts is run alone.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import wave
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audio_cases import random_latents
from benchmarks.__main__ import build_parser as benchmarks_parser
from commands import PARSERS as ALL_PARSERS
from commands import mlx_ltx_vae
from latent_files import LatentSpace
from mlx_ltx_vae import convert, decode, demo, encode, info, load_latents, preview, save_latents
from upsampler_cases import make_config, make_weights
from upsampler_cases import write as write_upsampler
from video_files import noise, run_ffmpeg, write

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])]
COMMANDS = {
    "mlx_ltx_vae": mlx_ltx_vae,
    "mlx_ltx_vae.decode": decode.main,
    "mlx_ltx_vae.encode": encode.main,
    "mlx_ltx_vae.info": info.main,
    "mlx_ltx_vae.preview": preview.main,
    "mlx_ltx_vae.convert": convert.main,
    "mlx_ltx_vae.export": lambda arguments: mlx_ltx_vae(["export", *arguments]),
    "mlx_ltx_vae.upscale": lambda arguments: mlx_ltx_vae(["upscale", *arguments]),
}
PARSERS = {"benchmarks": benchmarks_parser} | {f"mlx_ltx_vae.{name}": ALL_PARSERS[name] for name in ("bench", "run")}
FENCES = re.DOTALL | re.MULTILINE
NAMES = "|".join(ALL_PARSERS)
SHAPE = (2, 3, 4)  # F', H', W'
OLD = 1e9  # the time of the files that are there before a command runs


def documented_commands(page):
    """The words after `python -m` of each command of a page, comments and pipes left out.

    `mlx_ltx_vae decode` stands for `python -m mlx_ltx_vae.decode`. Inline code that only names a command is none.
    """
    text = re.sub(r"^```sh\n(.*?)^```", lambda block: block[1].replace("\n", "\n    "), page.read_text(), flags=FENCES)
    text = re.sub(r"^```.*?^```", "", text, flags=FENCES).replace("\\\n", "")
    for match in re.finditer(r"^    (\S.*)$|`([^`\n]+)`", text, re.MULTILINE):
        line = re.sub(rf"(?<!\S)mlx_ltx_vae ({NAMES})\b", r"python -m mlx_ltx_vae.\1", match[1] or match[2])
        command = re.search(r"(?:^|[ =\w]* )python -m ((?:mlx_ltx_vae|benchmarks)\b.*)", " " + line)
        if command and "|" not in line:
            words = shlex.split(command[1], comments=True)
            if match[1] or len(words) > 1:
                yield words


FOUND = sorted({tuple(words) for page in PAGES for words in documented_commands(page)})
RUN = [words for words in FOUND if words[0] in COMMANDS]
# `python -m benchmarks` alone is not a measurement, and `mlx_ltx_vae run --` runs nothing.
NAMED = {("benchmarks",), ("mlx_ltx_vae.run",), ("mlx_ltx_vae.run", "--")}
PARSED = [words for words in FOUND if words[0] in PARSERS and words not in NAMED]


@pytest.fixture(scope="module")
def files(tmp_path_factory, audio_case):
    """A folder with the files that the commands name."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        decoder, encoder = audio_case("ltx2"), audio_case("encoder")
        tensors = {**load_file(encoder.checkpoint), **load_file(decoder.checkpoint)}
        save_file(tensors, "AUDIO", metadata={"config": json.dumps(decoder.manifest["config"])})
        write_files(folder)
    return folder


def write_files(folder):
    frames, rows, columns = SHAPE
    latents = load_latents(demo.LATENTS)[0][:, :, :frames, :rows, :columns]
    save_latents("clip.safetensors", latents, fps=24)
    save_latents("batch.safetensors", mx.concatenate([latents[:, :, :1], latents[:, :, :1]]))
    save_latents("audio.safetensors", latents, fps=24, audio=mx.array(random_latents(9)))
    Path("windows").mkdir()
    for number in range(2):
        window = load_latents(demo.LATENTS)[0][:, :, :5, :1, :1]
        save_latents(f"windows/{number}.safetensors", window, fps=24, audio=mx.array(random_latents(34)))
    Path("windows.txt").write_text("windows/0.safetensors\nwindows/1.safetensors\n")
    Path("output/latents").mkdir(parents=True)
    Path("latents").mkdir()
    for name in (
        "clip.latent",
        "latents.safetensors",
        "large.safetensors",
        "latents/2026-11-27-001.safetensors",
        "output/latents/ComfyUI_00001_.latent",
    ):
        Path(name).write_bytes(Path("clip.safetensors").read_bytes())
    array = np.array(latents.astype(mx.float32))
    for name in ("clip.npy", "a.npy", "b.npy"):
        np.save(name, array)
    np.savez("clip.npz", latents=array)
    Path("picks.txt").write_text("clip.safetensors\n")
    Path("more.txt").write_text("a.npy\n".replace("a", "clip"))
    write(folder / "clip.mov", noise(9, (64, 64)), codec="prores")
    write(folder / "clip.mp4", noise(9, (64, 64)))
    write(folder / "long.mp4", noise(33, (64, 32)))
    write(
        folder / "audio.mov",
        noise(9, (64, 64)),
        codec="prores",
        audio=[np.zeros((2, 6000), np.float32)],
        sample_rate=16000,
    )
    Path("clips.csv").write_text("path\nclip.mov\n")
    Path("clips").mkdir()
    shutil.copy("clip.mp4", "clips")
    Path("clips/clip.txt").write_text("a caption")
    models = (
        "ltx-2-19b-dev.safetensors",
        "ltx-2.5-video-vae-conv-bf16.safetensors",
        "ltx-2.5-video-vae-bf16.safetensors",
        "ltx-2",
    )
    config = make_config(channels=64)  # of the demo's latents
    write_upsampler("UPSAMPLER", make_weights(config), config)
    for name in ("VAE", "A", "B", *models):
        Path(name).symlink_to(demo.VAE)
    save_latents("stated.safetensors", latents, fps=24, space=LatentSpace("LTX-2.3"))
    Path("latent_rgb.safetensors").symlink_to(demo.LATENT_RGB)
    Path("shot").mkdir()
    run_ffmpeg("-f", "lavfi", "-i", "testsrc=size=64x64", "-frames:v", 9, "shot/%d.exr")
    run_ffmpeg("-f", "lavfi", "-i", "testsrc=size=64x64", "-frames:v", 1, "photo.png")
    with wave.open("voice.wav", "wb") as audio:
        audio.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        audio.writeframes(bytes(8000))
    for path in folder.rglob("*"):
        os.utime(path, (OLD, OLD), follow_symlinks=False)


@pytest.fixture
def folder(files, tmp_path, monkeypatch, hub_cache):
    """The working folder, with such files of its own, and a cache of the hub with three models."""
    hub_cache("ltx-2.3", demo.VAE)
    hub_cache("ltx-2.3-upscaler-x2", files / "UPSAMPLER")
    hub_cache("taeltx-2.3", ROOT / "examples" / "demo_preview.safetensors")
    monkeypatch.delenv("MLX_LTX_VAE_MODEL", raising=False)
    monkeypatch.chdir(shutil.copytree(files, tmp_path, symlinks=True, dirs_exist_ok=True))
    return tmp_path


def small(words):
    """The command for the small files: other sizes, the tensor's name, and no seed, which the demo's VAE refuses."""
    arguments = [
        {"NAME": "latents", "24:48": "4:8", ":61": ":4", "61:": "4:", "768x512": "64x64"}.get(word, word)
        for word in words
    ]
    if "--audio-model" in arguments:
        arguments[0] = arguments[0].replace("clip", "audio")
    if "--layout" in arguments and "--frames" in arguments:
        arguments[arguments.index("--frames") + 1] = "9"
    if "--seed" in arguments:
        at = arguments.index("--seed")
        del arguments[at : at + 2]
    if "--grid" in arguments:
        arguments[arguments.index("--grid") + 1] = "x".join(map(str, SHAPE))
        source = next(word for word in arguments if word.startswith("clip."))
        packed = np.load("clip.npy").reshape(1, 64, -1).transpose(0, 2, 1)
        np.save("clip.npy", packed)
        arguments[arguments.index(source)] = "clip.npy"
    return arguments


def test_the_commands_of_all_pages_are_found():
    assert len(RUN) >= 20
    assert len(PARSED) >= 15
    assert {words[0] for words in FOUND} | {"mlx_ltx_vae"} == {*COMMANDS, *PARSERS}


@pytest.mark.quick(12)
@pytest.mark.parametrize("words", map(list, RUN), ids=" ".join)
def test_a_documented_command_runs(words, folder, monkeypatch):
    name, *arguments = words
    output = arguments[arguments.index("-o") + 1] if "-o" in arguments else "no output"
    output = folder / output.replace("{name}", "a").replace("%05d", "00000")
    if output.is_file():  # an input of other commands
        output.unlink()
    monkeypatch.setattr(sys, "argv", [name])
    assert COMMANDS[name](small(arguments)) in (0, None)
    if "-o" in arguments:
        assert output.stat().st_mtime > OLD


@pytest.mark.parametrize("words", PARSED, ids=" ".join)
def test_the_options_of_a_documented_measurement_exist(words, folder, capsys):
    name, *arguments = words
    parser = PARSERS[name]()
    try:
        if name == "mlx_ltx_vae.run":
            check_app(parser.parse_inputs(arguments).program)
        else:
            parser.parse_args(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code
    assert (code, capsys.readouterr().err) == (0, "")


def check_app(words):
    """Parse the command line of an app as the app does. A script, and the name PROGRAM, have no parser here."""
    for start, make_parser in {
        ("ltx-2-mlx",): ltx_2_mlx_parser,
        ("-m", "mlx_video.generate"): mlx_video_parser,
    }.items():
        if tuple(words[: len(start)]) == start:
            make_parser().parse_args(words[len(start) :])
            return
    assert words[0] == "PROGRAM" or words[0].endswith(".py")


def ltx_2_mlx_parser():
    """What `ltx-2-mlx generate` requires, by its source of November 2026."""
    parser = argparse.ArgumentParser("ltx-2-mlx")
    parser.add_argument("command", choices=["generate"])
    parser.add_argument("--prompt", "-p", required=True)
    parser.add_argument("--output", "-o", required=True)
    parser.add_argument("--frame-rate", type=float, required=True)
    parser.add_argument("--frames", "-f", type=int, required=True)  # but for models that predict a duration
    pipeline = parser.add_mutually_exclusive_group(required=True)
    for name in ("--one-stage", "--two-stage", "--two-stages-hq", "--distilled"):
        pipeline.add_argument(name, action="store_true")
    return parser


def mlx_video_parser():
    """What `mlx_video.generate` requires, by its source of 9ddc440."""
    parser = argparse.ArgumentParser("mlx_video.generate")
    parser.add_argument("--prompt", "-p", required=True)
    parser.add_argument("--output", "-o", default="output.mp4")
    return parser
