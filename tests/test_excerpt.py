"""Some frames of a clip: as in the whole decode, from no more latent frames than they depend on."""

import json
import math

import mlx.core as mx
import numpy as np
import pytest

from commands import decode as main
from mlx_ltx_vae import PlanError, VideoVAE, save_latents
from mlx_ltx_vae.planning.clip import make_excerpt, receptive_field
from mlx_ltx_vae.shapes import LatentShape
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from tolerances import tolerance
from video_files import frame_times, run_ffmpeg

TOLERANCE = tolerance(2e-5)
FRAMES = 66  # latent


@pytest.fixture
def clip(golden, tmp_path):
    """(latent file, checkpoint, latents) of a VAE that takes noise."""
    latents = mx.random.normal((1, 8, 20, 1, 1), key=mx.random.key(2))
    save_latents(tmp_path / "clip.safetensors", latents, fps=24)
    return tmp_path / "clip.safetensors", golden("small_ltxv_0_9_1").checkpoint, latents


def assert_same(vae, latents, whole, frames, **options):
    """Some frames are those of the whole decode, from fewer latent frames."""
    plan = vae.plan(latents.shape, frames=frames, **options)
    assert plan.latent_shape.frames < latents.shape[2]
    chunks = list(vae.stream(latents, plan))
    assert chunks[0].start == frames[0]
    assert all(chunk.frames.size for chunk in chunks), "the decode ends with the last of them"
    pixels = mx.concatenate([chunk.pixels for chunk in chunks], axis=2)
    assert plan.num_frames == pixels.shape[2] == frames[1] - frames[0]
    assert mx.abs(pixels - whole[:, :, frames[0] : frames[1]]).max().item() < TOLERANCE, (frames, options)


OTHERS = ["ltxv_0_9_0", "ltxv_0_9_1", "ltxv_0_9_5", "ltx2", "ltx2_3", "ltx2_3_causal", "conv_16x16x4"]


@pytest.mark.parametrize(
    ("name", "length"), [("small_ltx2_3", 20), *(pytest.param(name, FRAMES, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_frames_are_those_of_the_whole_decode_from_fewer_latents(golden, name, length):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = mx.random.normal((1, vae.config.latent_channels, length, 2, 2), key=mx.random.key(2))
    whole = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    last = whole.shape[2]
    for frames in ((0, 1), (last // 2, last // 2 + 1), (last - 9, last)):
        assert_same(vae, latents, whole, frames)
    spec = vae.decoder.spec  # what the first latent frames add is less than a rounding error
    before, scale = receptive_field(spec).frames_before, spec.scale.time
    for frame in range(400, 400 + 2 * scale):
        excerpt = make_excerpt(spec, LatentShape(1, 8, 200, 2, 2), 8 * 200, (frame, frame + 1))
        first_seen = math.ceil(math.ceil(frame / scale) - before)
        assert first_seen - 1 <= excerpt.latents.start <= first_seen
        assert frame == excerpt.latents.start * scale + excerpt.skipped


def test_frames_are_the_same_in_every_order_and_mode(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 20, 2, 2), key=mx.random.key(2))
    whole, frames = vae.decode(latents, vae.plan(latents.shape, mode="single")), (93, 102)
    for options in ({"order": "rows"}, {"mode": "single"}):
        assert_same(vae, latents, whole, frames, **options)
    tiles = {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(64, 32))}
    assert_same(vae, latents, vae.decode(latents, vae.plan(latents.shape, **tiles)), frames, **tiles)


def test_the_first_frames_end_the_decode_and_take_less_of_it(golden):
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    shape = (1, 8, FRAMES, 2, 2)
    assert vae.plan(shape, frames=(0, 9)).latent_shape.frames == vae.plan(shape).lookahead + 1
    assert vae.plan(shape, frames=(480, 481)).latent_shape.frames < 30
    assert "frames   480 to 480 of 521, from the latent frames 4" in str(vae.plan(shape, frames=(480, 481)))


def test_frames_that_cannot_be_decoded_alone_are_refused(golden):
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    shape = (1, 8, 4, 2, 2)
    for frames in ((0, 26), (5, 5), (-1, 5)):
        with pytest.raises(PlanError, match="are not in the video, which has 25; give the first"):
            vae.plan(shape, frames=frames)
    with pytest.raises(PlanError, match="tiles in time .*; use tiles in space only"):
        tiling = TilingConfig(temporal_config=TemporalTilingConfig(16, 8))
        vae.plan(shape, frames=(0, 9), mode="tiled", tiling=tiling)
    plan = vae.plan(shape, frames=(0, 9))
    with pytest.raises(PlanError, match="whole latents; pass them as one array"):
        vae.stream(iter([mx.zeros(shape)]), plan)
    with pytest.raises(PlanError, match=r"made for latents of shape \(1, 8, 4, 2, 2\)"):
        vae.stream(mx.zeros((1, 8, 3, 2, 2)), plan)


def test_the_command_decodes_frames_of_a_file_with_their_noise(clip, tmp_path, capsys):
    path, checkpoint, latents = clip
    command = [str(path), "-m", str(checkpoint), "-y", "-o", str(tmp_path / "out.npy")]
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    whole = vae.decode_uint8(latents, vae.plan(latents.shape, mode="single"))

    def run(*options):
        assert main([*command, "--json", *options]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["frames"] == report["plan"]["frames"]
        return np.load(tmp_path / "out.npy")

    for options, expected in [
        (["--frames", "120:123"], whole[120:123]),
        (["--frames", "147:"], whole[147:]),
        (["--frames", "-6:"], whole[-6:]),
        (["--frames", "-30:-27"], whole[-30:-27]),
        (["--frames", "0:0.2s", "--fps", "50"], whole[:10]),  # those that begin within it
        (["--frames", "0.19s", "--fps", "50"], whole[:10]),
        (["--frames", "2.4s:2.46s", "--fps", "50"], whole[120:123]),
        (["--frames", "-0.12s:", "--fps", "50"], whole[-6:]),
        (["--frames", "147:-1s", "--fps", "3"], whole[147:150]),
    ]:
        frames = run(*options)
        assert frames.shape == expected.shape
        assert np.abs(frames.astype(int) - expected).max() <= 1
    for options, found in [
        (["--frames", "140:240"], "of the frames 140:240 only 13 are decoded"),
        (["--frames", "152:240"], "of the frames 152:240 only 1 is decoded"),
        (["--frames", ":7s", "--fps", "50"], "of the frames 0:350 only 153 are decoded"),
    ]:
        assert main([*command, *options, "--dry-run", "-q"]) == 0
        assert capsys.readouterr().err == f"warning: {path}: the video has 153 frames, so {found}.\n"
    for options in (["--frames", "140:153"], ["--frames", "140:"], ["--frames", "0:3.06s", "--fps", "50"]):
        assert main([*command, *options, "--dry-run", "-q"]) == 0
        assert capsys.readouterr().err == ""
    assert main([*command, "--frames", "120:123", "--dry-run"]) == 0
    assert "video    3 frames of 32x32" in capsys.readouterr().out
    assert main([*command, "--frames", "600:"]) == 1
    assert f"{path}: the video has 153 frames, and none of 600:; choose frames within 0:153." in capsys.readouterr().err


@pytest.mark.parametrize("options", [(".mkv", "--codec", "ffv1"), (".mp4", "--crf", "0")])
def test_parts_of_a_clip_that_ffmpeg_joins_are_the_whole_frame_for_frame(golden, tmp_path, options):
    """The commands of docs/scaling.md, with codecs without losses."""
    ending, *codec = options
    whole, first, second, joined = (tmp_path / f"{name}{ending}" for name in ("whole", "first", "second", "joined"))
    latents = tmp_path / "clip.safetensors"
    save_latents(latents, mx.random.normal((1, 8, 6, 1, 2), key=mx.random.key(2)), fps=24)
    command = [str(latents), "-m", str(golden("small_ltx2_3").checkpoint), "-q", *codec]
    for output, *frames in ((whole,), (first, "--frames", ":19"), (second, "--frames", "19:")):
        assert main([*command, *frames, "-o", str(output)]) == 0
    (tmp_path / "parts.txt").write_text(f"file {first.name}\nfile {second.name}\n")
    run_ffmpeg("-f", "concat", "-i", tmp_path / "parts.txt", "-c", "copy", joined)
    times = zip(frame_times(joined), frame_times(whole), strict=True)
    assert max(abs(time - whole_time) for time, whole_time in times) <= 0.001  # .mkv has milliseconds
    frames = (run_ffmpeg("-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-") for path in (whole, joined))
    pixels, joined_pixels = (np.frombuffer(data, np.uint8).reshape(41, 32, 64, 3) for data in frames)
    assert np.array_equal(pixels, joined_pixels)
