"""Names of files with control characters, and with characters that change how text is shown, are printed escaped."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from commands import convert, decode, encode, info
from many_files import VAE, names, run
from mlx_ltx_vae import demo, load_latents, save_latents
from video_files import noise, write

# Clears the screen; C1; the direction of text and isolates; line separators; invisible: soft hyphen, tag, zero width.
HOSTILE = "a\x1b[2J\x9b\u202e\u2066\u2069\u2028\u2029\x85\xad\U000e0041\u200b\x7f\t\r\nInputs: 9 done"
SHOWN = r"a\x1b[2J\x9b\u202e\u2066\u2069\u2028\u2029\x85\xad\U000e0041\u200b\x7f\t\r\nInputs: 9 done"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    latents, _ = load_latents(demo.LATENTS)
    for name in (f"{HOSTILE}.safetensors", "b.safetensors"):
        save_latents(name, latents[:, :, :1, :2, :2], fps=24)
    shutil.copy(demo.VAE, f"{HOSTILE}-vae.safetensors")
    return tmp_path


def printed(capsys, main, *arguments, code=0):
    """The lines on both streams, which have no control characters."""
    try:
        assert run(main, *arguments) == code
    except SystemExit as ended:
        assert ended.code == code
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert text.replace("\n", "").isprintable()
    lines = captured.out.splitlines() + captured.err.splitlines()
    assert not [line for line in lines if line.startswith("Inputs: 9")]
    return lines


def test_results_of_inputs_show_names_escaped(folder, capsys):
    inputs = [f"{HOSTILE}.safetensors", "b.safetensors", *VAE, "-o", f"{HOSTILE}/"]
    line, *_ = printed(capsys, decode, *inputs, "--dry-run")
    assert line.startswith(f"{SHOWN}.safetensors -> {SHOWN}/{SHOWN}.mp4: 1 frame of 64x64, ")
    line, *_ = printed(capsys, decode, *inputs)
    assert line.startswith(f"{SHOWN}.safetensors -> {SHOWN}/{SHOWN}.mp4: 1 frame, ")
    line, *_ = printed(capsys, decode, *inputs, "--skip-existing")
    assert line == f"{SHOWN}.safetensors: skipped, found {SHOWN}/{SHOWN}.mp4"
    line, *_ = printed(capsys, decode, *inputs, "-q", code=1)
    assert line.startswith("error: ")
    (line,) = printed(capsys, decode, inputs[0], *VAE, "-o", f"{HOSTILE}/{HOSTILE}.mp4", "--skip-existing")
    assert "skipped, found" in line
    assert names(HOSTILE) == [f"{HOSTILE}.mp4", "b.mp4"]
    (line,) = printed(capsys, decode, *inputs, "--skip-existing", "--json")
    assert json.loads(line)["items"][0]["source"] == inputs[0]


def test_lists_and_tables_show_names_escaped_and_once(folder, capsys):
    Path("clips.csv").write_text(f'path,output\n"no{HOSTILE}.npy",\nb.safetensors,"../{HOSTILE}.mp4"\n')
    (line,) = printed(capsys, decode, "clips.csv", *VAE, "-o", "out/", code=1)
    assert "is not inside the folder out" in line
    Path("clips.csv").write_text("path\nno\x1bsuch.npy\nno\x1bsuch either.npy\n")
    for main in (decode, encode):
        _, first, *_ = printed(capsys, main, "clips.csv", *VAE, "-o", "out/", code=1)
        assert first.startswith("error: no\\x1bsuch.npy: ")
        assert first.count("such.npy") == 1
    lines = printed(capsys, decode, "clips.csv", *VAE, "-o", "out/", "--debug", code=1)
    assert any("Traceback" in line for line in lines)


def test_videos_show_names_escaped(folder, capsys):
    write(Path(f"{HOSTILE}.mkv"), noise(1, (64, 64)))
    inputs = [f"{HOSTILE}.mkv", "no\x1bsuch.mkv", "--demo", "-o", f"{HOSTILE}/"]
    assert f"{SHOWN}.mkv -> " in printed(capsys, encode, *inputs, code=1)[0]
    for option in ("--skip-existing", "--dry-run"):
        assert printed(capsys, encode, *inputs, option, code=1)[0].startswith(f"{SHOWN}.mkv")


def test_reports_show_names_escaped(folder, capsys):
    vae = f"{HOSTILE}-vae.safetensors"
    assert printed(capsys, info, vae)[3] == f"name: {SHOWN}-vae.safetensors"
    Path("b.safetensors").rename("漢字 é\x1b.safetensors")
    assert printed(capsys, info, "漢字 é\x1b.safetensors")[3] == r"name: 漢字 é\x1b.safetensors"
    lines = printed(capsys, info, f"{HOSTILE}.safetensors", "-m", vae)
    assert lines[3] == f"name: {SHOWN}.safetensors"
    assert f"  vae: {SHOWN}-vae.safetensors" in lines
    assert printed(capsys, convert, vae, "-o", f"{HOSTILE}-out")[0].startswith(f"{folder}/{SHOWN}-out: encoder and ")
    card = Path(f"{HOSTILE}-out", "README.md").read_text()
    assert f"`{SHOWN}-vae.safetensors`" in card
    printed(capsys, convert, "--verify", vae, f"{HOSTILE}-out")
    printed(capsys, convert, vae, "-o", f"{HOSTILE}-out", code=1)
    printed(capsys, decode, f"{HOSTILE}.safetensors", *VAE, "-o", f"{HOSTILE}.avi", code=2)


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_names_that_are_no_text_are_shown_escaped(folder, capsys):
    name = "\udcff\udc80.safetensors"
    Path("b.safetensors").rename(name)
    assert printed(capsys, info, name)[3] == r"name: \udcff\udc80.safetensors"
