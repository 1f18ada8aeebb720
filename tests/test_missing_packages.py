"""Packages that only a part of the features needs, where they cannot be imported."""

import subprocess
import sys

import pytest

WITHOUT_FFMPEG = """
import sys
sys.modules["imageio_ffmpeg"] = None  # so that importing it raises an ImportError
import mlx_ltx_vae.planning.planner
assert not [name for name in sys.modules if name.startswith("mlx_ltx_vae.video.")]
from mlx_ltx_vae import VideoVAE, WriterError, demo, load_latents
latents = load_latents(demo.LATENTS)[0][:, :, :2, :3, :3]
vae = VideoVAE.from_pretrained(demo.VAE)
print(vae.plan(latents.shape).num_frames, vae.decode(latents).shape[2], vae.encode(vae.decode(latents)).shape[2])
try:
    vae.decode_to_file(latents, sys.argv[1])
except WriterError as error:
    print(error)
"""

WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from benchmarks.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run_code(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_plans_and_networks_need_no_ffmpeg_and_videos_say_so(tmp_path):
    done = run_code(WITHOUT_FFMPEG, str(tmp_path / "a.mp4"))
    assert done.returncode == 0, done.stderr
    counts, message = done.stdout.splitlines()
    assert counts == "9 9 2"
    assert message.startswith("ffmpeg cannot be started (import of imageio_ffmpeg halted")
    assert message.endswith("install imageio-ffmpeg, which brings it.")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_only_pictures_among_the_measurements_need_matplotlib():
    done = run_code(WITHOUT_MATPLOTLIB, "plan-table")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1280x704" in done.stdout
    done = run_code(WITHOUT_MATPLOTLIB, "pictures")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: pictures cannot be drawn (")
    assert line.endswith('run: pip install "mlx_ltx_vae[dev]".')
