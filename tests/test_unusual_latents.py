"""Latents that no model makes, and videos of one color: one notice, by the rule of `info`, whichever way they go."""

import json
import re
import warnings
from contextlib import nullcontext

import mlx.core as mx
import numpy as np
import pytest

from commands import decode, info, preview
from mlx_ltx_vae import FrameChunk, PreviewVAE, VideoVAE, demo, integrations, load_latents

SHAPE = (1, 8, 3, 4, 4)
NORMAL = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
CHANNEL = np.random.default_rng(1).normal(size=(1, 8, 1, 1, 1)).astype(np.float32)
#: Latents, and whether most of their channels have a standard deviation that is far from 1.
LATENTS = {
    "usual": (NORMAL, False),
    "large": (71 * NORMAL, True),
    "small": (NORMAL / 5, True),
    "zeros": (0 * NORMAL, True),
    "constant": (np.broadcast_to(CHANNEL, SHAPE).copy(), True),
    "half of the channels": (NORMAL * np.array([1, 9] * 4, np.float32).reshape(1, 8, 1, 1, 1), False),
    "a corner": (NORMAL[:, :, :1] / 5, False),  # too few values to tell
    "a constant corner": (0 * NORMAL[:, :, :1], True),
    "one cell": (NORMAL[:, :, :1, :1, :1], False),
}
SAID = "(most channels have a standard deviation far from 1: perhaps they are not normalized|every value is 0: the gen)"
WAYS = {
    "array": lambda vae, latents, folder: vae.decode(latents),
    "uint8": lambda vae, latents, folder: vae.decode_uint8(latents),
    "callback": lambda vae, latents, folder: vae.decode(latents, on_frames_ready=lambda *_: None),
    "stream": lambda vae, latents, folder: list(vae.stream(latents)),
    "excerpt": lambda vae, latents, folder: vae.decode(latents, vae.plan(latents.shape, frames=(0, 1))),
    "rows": lambda vae, latents, folder: vae.decode(latents, vae.plan(latents.shape, order="rows")),
    "file": lambda vae, latents, folder: vae.decode_to_file(latents, folder / "a.npy"),
    "arriving": lambda vae, latents, folder: vae.decode(latents[:, :, i : i + 1] for i in range(latents.shape[2])),
    "numpy": lambda vae, latents, folder: vae.decode(np.array(latents)),
    "decode_tiled": lambda vae, latents, folder: integrations.decode_tiled(None, latents),
    "decode_streaming": lambda vae, latents, folder: list(
        integrations.decode_streaming(latents, vae.decoder, show_progress=False)
    ),
}


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)


def noticed(is_unusual):
    return pytest.warns(UserWarning, match=f"^latents: {SAID}") if is_unusual else nullcontext([])


@pytest.mark.quick(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_decode_notices_what_info_notices(vae, way, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_ltx_vae.integrations.dropins.vae_of", lambda decoder: vae)
    for latents, is_unusual in (LATENTS["usual"], LATENTS["small"], LATENTS["a constant corner"]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with noticed(is_unusual) as found:
                WAYS[way](vae, mx.array(latents), tmp_path)
        assert len(found) == is_unusual


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", LATENTS)
def test_the_commands_notice_what_info_notices(golden, name, tmp_path, capsys):
    latents, is_unusual = LATENTS[name]
    np.save(tmp_path / "clip.npy", latents)
    assert info([str(tmp_path / "clip.npy")]) == 0
    assert ("perhaps not normalized, or a plain, still clip" in capsys.readouterr().out) is is_unusual
    command = [str(tmp_path / "clip.npy"), "-m", str(golden("small_ltx2_3").checkpoint), "-o", str(tmp_path / "a.npy")]
    assert decode(command) == 0
    assert len(re.findall(f"warning: {tmp_path}/clip.npy: {SAID}", capsys.readouterr().err)) == is_unusual


def test_previews_notice_it_too(tmp_path, capsys):
    latents = load_latents(demo.LATENTS)[0].astype(mx.float32)
    for values, is_unusual, name in ((latents, False, "a.png"), (0 * latents, True, "b.png")):
        np.save(tmp_path / "clip.npy", np.array(values))
        assert preview([str(tmp_path / "clip.npy"), "-m", str(demo.LATENT_RGB), "-o", str(tmp_path / name)]) == 0
        assert len(re.findall(SAID, capsys.readouterr().err)) == is_unusual
        vae = PreviewVAE.from_pretrained(demo.LATENT_RGB)
        with noticed(is_unusual) as found:
            vae.decode(values)
            for frame in range(values.shape[2]):
                vae.push(values[:, :, frame : frame + 1])
            vae.flush()
        assert len(found) == 2 * is_unusual


def test_unnormalized_latents_are_noticed_in_arrays_too(vae):
    raw = mx.array(NORMAL) * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vae.decode(raw, unnormalized=True)
        vae.decode(mx.array(NORMAL))
    said = "^latents: the channels have the statistics of {} latents; if the picture is wrong, {} unnormalized=True"
    for latents in (raw, iter([raw])):
        with pytest.warns(UserWarning, match=said.format("unnormalized", "add")):
            vae.decode(latents)
    for latents in (mx.array(NORMAL), iter([mx.array(NORMAL)])):
        with pytest.warns(UserWarning, match=said.format("normalized", "leave out")):
            vae.decode(latents, unnormalized=True)


def test_arriving_latents_are_read_once_and_nothing_is_kept(vae):
    taken = []

    def parts():
        for frame in range(3):
            taken.append(frame)
            yield mx.array(NORMAL[:, :, frame : frame + 1])

    vae.decode(parts())
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "uint16"])
@pytest.mark.parametrize(("spread", "is_plain"), [(0, True), (2, True), (4, False), (255, False)])
def test_frames_of_one_color_within_two_levels_are_plain(dtype, spread, is_plain):
    """Levels of 255, of which the floats and the 16 bits are made; each frame has a color of its own."""
    levels = np.broadcast_to(
        np.array([[0, 100, 200], [30, 0, 0]], np.float32)[None, :, None, None], (1, 2, 4, 6, 3)
    ).copy()
    levels[:, 1, 2, 3, 1] += spread
    if dtype == "uint8":
        frames = mx.array(levels.astype(np.uint8))
    elif dtype == "uint16":
        frames = mx.array((levels * 257).astype(np.uint16))
    else:
        frames = mx.array(levels / 127.5 - 1).astype(getattr(mx, dtype))
    assert FrameChunk(0, frames).is_plain() is is_plain


def test_white_beyond_white_is_plain():
    assert FrameChunk(0, 1 + mx.random.uniform(shape=(1, 2, 4, 6, 3))).is_plain()


@pytest.mark.quick(1)
@pytest.mark.parametrize("is_plain", [False, True])
def test_the_last_line_says_that_every_frame_is_one_color(golden, tmp_path, capsys, monkeypatch, is_plain):
    path = golden("small_ltx2_3").checkpoint
    vae = VideoVAE.from_pretrained(path, encoder=False)
    if is_plain:  # black, which is no error of the device
        vae.decoder.conv_out.conv.weight *= 0
        vae.decoder.conv_out.conv.bias = mx.full(vae.decoder.conv_out.conv.bias.shape, -1.0)
    monkeypatch.setattr(VideoVAE, "from_pretrained", lambda *_, **__: vae)
    np.save(tmp_path / "clip.npy", NORMAL)
    command = [str(tmp_path / "clip.npy"), "-m", str(path), "-y", "-o", str(tmp_path / "a.mkv")]
    assert decode(command) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert ("; every frame is one color; peak MLX memory" in line) is is_plain
    assert decode([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["one_color"] is is_plain
    assert vae.decode_to_file(mx.array(NORMAL), tmp_path / "b.npy").as_dict()["one_color"] is is_plain
