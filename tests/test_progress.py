"""The progress bar, on a terminal and by the clock."""

import io
import re
import subprocess
import sys
import time

import mlx.core as mx
import pytest
from tqdm import tqdm

from mlx_ltx_vae import VideoVAE, save_latents
from mlx_ltx_vae.decode import main as decode
from mlx_ltx_vae.pipeline import progress
from mlx_ltx_vae.pipeline.progress import FrameBar
from terminals import run_on_terminal

NAME = "a-long-name-of-a-clip-that-does-not-fit.mp4"


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        (40, r"a-lo….mp4 17/17 [\d.]+/s 00:00 left"),
        (80, r"a-long-na…t-fit.mp4 █+ 17/17 frames, [\d.]+ frames/s, 00:00 left"),
    ],
)
def test_a_terminal_shows_the_file_the_phase_and_what_is_left(golden, tmp_path, columns, last):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    arguments = [tmp_path / "clip.safetensors", "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / NAME]
    code, _, shown = run_on_terminal(columns, "mlx_ltx_vae.decode", *arguments)
    assert code == 0
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert max(map(len, lines)) <= columns
    name = last.split(" ")[0]
    phases = [line.strip() for line in lines]
    assert re.fullmatch(f"{name}: reading weights", phases[0])
    assert re.fullmatch(f"{name}: decoding", phases[1])
    assert re.fullmatch(last, phases[-1])


def test_standard_error_that_is_a_file_has_a_line_now_and_then(golden, tmp_path, capsys, monkeypatch):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    command = [str(tmp_path / "clip.safetensors"), "-m", str(golden("small_ltx2_3").checkpoint), "--chunk", "1", "-o"]
    assert decode([*command, str(tmp_path / "a.npy")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0)
    assert decode([*command, str(tmp_path / "b.npy")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert all(re.fullmatch(r"b\.npy: \d+ of 17 frames done", line) for line in lines)
    assert lines[-1] == "b.npy: 17 of 17 frames done"
    for quiet in ("-q", "--json"):
        assert decode([*command, str(tmp_path / "c.npy"), quiet]) == 0
        assert capsys.readouterr().err == ""


def test_what_is_left_is_estimated_from_the_first_frames_on(monkeypatch):
    now = time.time()
    out = io.StringIO()
    with FrameBar(total=73, file=out, ncols=80, miniters=1) as bar:
        monkeypatch.setattr(bar, "_time", lambda: now)
        bar.start("clip.mp4", "reading weights")
        for seconds, frames in ((100, 1), (4, 8), (4, 8)):
            now += seconds
            bar.update(frames)
    assert re.search(r"clip\.mp4 .* 17/73 frames, 2 frames/s, 00:28 left\s*$", out.getvalue())


LOCK = """
import sys
from multiprocessing import resource_tracker
from mlx_ltx_vae.decode import main
code = main()
from tqdm import tqdm  # as downloads use it
bar = tqdm([], disable=True)
print(code, resource_tracker._resource_tracker._pid)
"""


def test_a_command_starts_no_second_python_for_the_lock_of_its_bars(golden, tmp_path):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1)))
    decode = [tmp_path / "clip.safetensors", "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / "a.npy", "-q"]
    done = subprocess.run([sys.executable, "-c", LOCK, *decode], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 None\n", "")


def test_an_app_keeps_the_lock_of_its_bars(golden, monkeypatch, capsys):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    for chosen in (object(), None):  # one that must not be used, and none yet
        monkeypatch.delattr(tqdm, "_lock", raising=False)
        if chosen is not None:
            monkeypatch.setattr(tqdm, "_lock", chosen, raising=False)
        vae.decode(mx.zeros((1, 8, 1, 2, 2)), progress=True)
        assert "1/1 frames" in capsys.readouterr().err
        assert vars(tqdm).get("_lock") is chosen
