"""No file that is read is ever written: an error, before the weights are read, through every way in."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from audio_cases import random_latents
from commands import decode, encode, preview
from mlx_ltx_vae import VideoVAE, VideoWriter, WriterError, demo, load_latents
from test_video_audio import make_audio
from video_files import numbered, save_images, write

LATENTS = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1))
#: Names that are other files, each with the file that it is. Several are links.
LINKS = {
    "link.npy": "s.npy", "preview.mkv": "demo.npy", "link.mkv": "vae.safetensors", "vae.png": "vae.safetensors",
    "list.mkv": "clips.txt",
    "table.mkv": "tables.csv", "latents.mkv": "audio.npy", "model.mkv": "audio.safetensors", "latents.wav": "audio.npy",
    "model.wav": "audio.safetensors", "video.safetensors": "video.mp4", "image.safetensors": "frames/00000.png",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(golden, audio_case, tmp_path_factory):
    """A file of every kind that is read."""
    folder = tmp_path_factory.mktemp("inputs")
    np.save(folder / "s.npy", np.array(LATENTS))
    np.save(folder / "demo.npy", np.array(load_latents(demo.LATENTS)[0][:, :, :1, :2, :2]))
    np.save(folder / "audio.npy", random_latents(2))
    (folder / "vae.safetensors").write_bytes(golden("small_ltx2_3").checkpoint.read_bytes())
    (folder / "audio.safetensors").write_bytes(audio_case("ltx2").checkpoint.read_bytes())
    (folder / "encoder.safetensors").write_bytes(audio_case("encoder").checkpoint.read_bytes())
    (folder / "clips.txt").write_text("s.npy\n")
    (folder / "clips.csv").write_text("path,output\ns.npy,s.npy\n")
    (folder / "tables.csv").write_text("path,output\ns.npy,table.mkv\n")
    (folder / "videos.csv").write_text("path,output\nvideo.mp4,vae.safetensors\n")
    write(folder / "video.mp4", numbered(1, (64, 64)), audio=make_audio(folder / "voice.wav", 0.2))
    save_images(folder / "frames", ["00000.png"], (64, 64))
    (folder / "hard.npy").hardlink_to(folder / "s.npy")
    for name, target in LINKS.items():
        (folder / name).symlink_to(folder / target)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


AUDIO = ["--audio-model", "audio.safetensors", "--audio-latents", "audio.npy"]
WAYS = [
    *(
        (decode, ["s.npy", "-o", name])
        for name in ("s.npy", "./S.NPY", "link.npy", "hard.npy", "{name}.npy", "link.mkv")
    ),
    (decode, ["s.npy", "-o", "s.npy", "--skip-existing"]),
    (decode, ["s.npy", "-o", "s.npy", "--dry-run"]),
    (decode, ["s.npy", "demo.npy", "-o", "{name}.npy"]),
    (decode, ["@clips.txt", "-o", "{name}.npy"]),
    (decode, ["@clips.txt", "-o", "{name}/../list.mkv"]),
    (decode, ["clips.csv"]),
    (decode, ["clips.csv", "-o", "./"]),
    (decode, ["tables.csv"]),
    (decode, ["s.npy", "-o", "video.mp4", "--audio", "video.mp4"]),
    (decode, ["s.npy", "-o", "latents.mkv", *AUDIO]),
    (decode, ["s.npy", "-o", "model.mkv", *AUDIO]),
    (decode, ["s.npy", "-o", "latents.wav", *AUDIO]),
    (decode, ["s.npy", "-o", "model.wav", *AUDIO]),
    (preview, ["demo.npy", "-o", "demo.npy"]),
    (preview, ["demo.npy", "-o", "preview.mkv"]),
    (encode, ["video.mp4", "-o", "vae.safetensors"]),
    (encode, ["video.mp4", "-o", "VAE.safetensors"]),
    (encode, ["video.mp4", "-o", "video.safetensors"]),
    (encode, ["frames", "-o", "image.safetensors"]),
    (encode, ["frames/%05d.png", "-o", "image.safetensors"]),
    (encode, ["videos.csv"]),
    (encode, ["video.mp4", "--audio-model", "encoder.safetensors", "-o", "encoder.safetensors"]),
]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("main", "arguments"), WAYS)
def test_no_output_of_a_command_is_an_input(folder, main, arguments, monkeypatch, capsys, loads):
    monkeypatch.chdir(folder)
    before = contents(folder)
    assert main([*arguments, "-m", str(demo.LATENT_RGB) if main is preview else "vae.safetensors"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is one of the inputs, which are never replaced; choose another output." in captured.err
    assert captured.err.count("\n") == 1
    assert contents(folder) == before
    assert not loads


def test_standard_streams_may_be_files_that_are_read(folder):
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", "-m", "vae.safetensors"]
    for arguments, streams, name in (
        (["-", "-o", "s.npy"], {"stdin": "rb"}, "s.npy"),
        (["s.npy", "-o", "-"], {"stdout": "ab"}, "standard output"),
    ):
        before = contents(folder)
        with open(folder / "s.npy", next(iter(streams.values()))) as file:
            given = {"stdin": subprocess.DEVNULL, **dict.fromkeys(streams, file)}
            done = subprocess.run([*command, *arguments], cwd=folder, stderr=subprocess.PIPE, check=False, **given)
        assert done.returncode == 1
        assert done.stderr.decode().startswith(f"error: {name}: is one of the inputs, ")
        assert contents(folder) == before


def test_the_audio_of_a_video_that_is_written_in_python_is_not_replaced(folder, monkeypatch):
    monkeypatch.chdir(folder)
    vae, before = VideoVAE.from_pretrained("vae.safetensors", encoder=False), contents(folder)
    Path("other.mp4").symlink_to("video.mp4")
    for name in ("video.mp4", Path("video.mp4"), "./VIDEO.mp4", "other.mp4"):
        with pytest.raises(WriterError, match="is one of the inputs"):
            VideoWriter(name, size=(64, 64), fps=24, audio="video.mp4")
        with pytest.raises(WriterError, match="is one of the inputs"):
            vae.decode_to_file(LATENTS, name, audio="video.mp4")
    os.unlink("other.mp4")
    assert contents(folder) == before
