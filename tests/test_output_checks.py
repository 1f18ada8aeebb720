"""A decode whose output is useless raises, whichever way its frames are taken."""

from contextlib import nullcontext

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from audio_cases import random_latents
from commands import decode as decode_command
from commands import preview as preview_command
from conftest import active_memory
from mlx_ltx_vae import AudioVAE, DecodeError, PreviewVAE, VideoVAE, demo, integrations
from mlx_ltx_vae.networks.latent_rgb.family import LatentRGBConfig, LatentRGBDecoder
from mlx_ltx_vae.networks.preview_vae.config import PreviewConfig
from mlx_ltx_vae.networks.preview_vae.networks import PreviewDecoder
from mlx_ltx_vae.pipeline import audio, decode, encode
from mlx_ltx_vae.pipeline.output_check import OutputCheck
from mlx_ltx_vae.video.audio import write_wav


def latents_of(frames, channels=8):
    return mx.random.normal((1, channels, frames, 2, 3), key=mx.random.key(0))


def vae_with(conv_out, path):
    """A VAE whose last convolution has NaN in its bias, or returns its bias alone."""
    vae = VideoVAE.from_pretrained(path, encoder=False)
    conv = vae.decoder.conv_out.conv
    if conv_out == "NaN":
        conv.bias = mx.full(conv.bias.shape, mx.nan)
    else:
        conv.weight = mx.zeros_like(conv.weight)
    return vae


#: How many latent frames a clip has, and the options of its plan.
CLIPS = {
    "one frame": (1, {}),
    "single pass": (2, {"mode": "single"}),
    "excerpt": (3, {"frames": (10, 11)}),
    "stream": (2, {"chunk": 1}),
    "rows": (2, {"order": "rows"}),
}
WAYS = {
    "array": lambda vae, latents, plan, folder: vae.decode(latents, plan),
    "uint8": lambda vae, latents, plan, folder: vae.decode_uint8(latents, plan),
    "callback": lambda vae, latents, plan, folder: vae.decode(latents, plan, on_frames_ready=lambda *_: None),
    "stream": lambda vae, latents, plan, folder: list(vae.stream(latents, plan)),
    "file": lambda vae, latents, plan, folder: vae.decode_to_file(latents, folder / "a.mkv", plan, codec="ffv1"),
}
#: Ways that take no plan.
PLANLESS_WAYS = {
    "array": lambda vae, latents, folder: vae.decode(latents),
    "arriving": lambda vae, latents, folder: vae.decode(latents[:, :, i : i + 1] for i in range(latents.shape[2])),
    "decode_tiled": lambda vae, latents, folder: integrations.decode_tiled(None, latents),
    "decode_whole": lambda vae, latents, folder: integrations.decode_whole(None, latents),
    "decode_streaming": lambda vae, latents, folder: list(
        integrations.decode_streaming(latents, vae.decoder, show_progress=False)
    ),
    "decode_and_stream": lambda vae, latents, folder: integrations.decode_and_stream(
        None, latents, str(folder / "a.mp4"), frame_rate=24
    ),
}
SAID = {"NaN": r"not finite: NaN weights in decoder\.conv_out\.conv\.bias", "flat": "one flat patch everywhere"}


@pytest.mark.quick(4)
@pytest.mark.parametrize("conv_out", SAID)
@pytest.mark.parametrize("way", WAYS)
def test_useless_output_raises_in_every_mode(golden, tmp_path, conv_out, way):
    vae = vae_with(conv_out, golden("small_ltx2_3").checkpoint)
    for frames, options in CLIPS.values():
        latents = latents_of(frames)
        with pytest.raises(DecodeError, match=SAID[conv_out]):
            WAYS[way](vae, latents, vae.plan(latents.shape, **options), tmp_path)
    assert all(path.name.startswith("a.latents") for path in tmp_path.iterdir())


@pytest.mark.quick(4)
@pytest.mark.parametrize("conv_out", SAID)
@pytest.mark.parametrize("way", PLANLESS_WAYS)
def test_useless_output_raises_without_a_plan_and_in_drop_ins(golden, tmp_path, monkeypatch, conv_out, way):
    vae = vae_with(conv_out, golden("small_ltx2_3").checkpoint)
    monkeypatch.setattr("mlx_ltx_vae.integrations.dropins.vae_of", lambda decoder: vae)
    for frames in (1, 2):
        with pytest.raises(DecodeError, match=SAID[conv_out]):
            PLANLESS_WAYS[way](vae, latents_of(frames), tmp_path)
    assert all(path.name.startswith("a.latents") for path in tmp_path.iterdir())


@pytest.mark.parametrize("conv_out", SAID)
def test_useless_output_of_the_command_is_an_error_without_a_file(golden, tmp_path, monkeypatch, capsys, conv_out):
    path = golden("small_ltx2_3").checkpoint
    vae = vae_with(conv_out, path)
    monkeypatch.setattr(VideoVAE, "from_pretrained", lambda *_, **__: vae)
    np.save(tmp_path / "one.npy", np.array(latents_of(1)))
    for options in ([], ["--mode", "single"]):
        command = [tmp_path / "one.npy", "-m", path, "-o", tmp_path / "one.png", *options]
        assert decode_command(list(map(str, command))) == 1
        assert "the decoded pixels are " in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["one.npy"]


def preview_vae(kind, fault=None):
    """A tiny autoencoder or a projection whose last weights are NaN, or zeros, or random."""
    config = PreviewConfig((16, 12, 8, 8), 8, None, 6) if kind == "taehv" else LatentRGBConfig(6, 4)
    decoder = PreviewDecoder(config) if kind == "taehv" else LatentRGBDecoder(config)
    last = decoder.layers[-1] if kind == "taehv" else decoder.to_rgb
    last.weight = last.weight * {"NaN": mx.nan, "flat": 0}.get(fault, 1)
    last.bias = mx.full(last.bias.shape, 0.5)
    return PreviewVAE(config, None, decoder)


def push(vae, latents):
    vae.push(latents)
    vae.flush()


PREVIEWS = {
    "array": lambda vae, latents: vae.decode(latents),
    "uint8": lambda vae, latents: vae.decode_uint8(latents),
    "callback": lambda vae, latents: vae.decode(latents, on_frames_ready=lambda *_: None),
    "stream": lambda vae, latents: list(vae.stream(latents)),
    "rows": lambda vae, latents: vae.decode(latents, vae.plan(latents.shape, order="rows")),
    "push": push,
    "stills": lambda vae, latents: vae.decode_stills(latents),
    "small stills": lambda vae, latents: vae.decode_stills(latents, small=True),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("fault", SAID)
@pytest.mark.parametrize("kind", ["taehv", "projection"])
def test_useless_previews_raise(kind, fault, frames):
    said = "not finite: NaN weights" if fault == "NaN" else SAID[fault]
    vae = preview_vae(kind, fault)
    for way in PREVIEWS.values():
        with pytest.raises(DecodeError, match=said):
            way(vae, latents_of(frames, 6))


@pytest.mark.parametrize("kind", ["taehv", "projection"])
def test_previews_of_plain_latents_may_be_plain(kind):
    plain = mx.broadcast_to(latents_of(3, 6)[:, :, :, :1, :1], (1, 6, 3, 2, 3))
    for vae in (preview_vae(kind), preview_vae(kind, "flat")):
        for way in PREVIEWS.values():
            way(vae, plain)
    frames = vae.decode_uint8(plain)
    assert np.ptp(frames, axis=(1, 2)).max() == 0


def test_useless_previews_of_the_command_are_an_error_without_a_file(tmp_path, capsys):
    weights, metadata = mx.load(str(demo.LATENT_RGB), return_metadata=True)
    weights = {name: 0 * weight + (0 if name.endswith("weight") else 0.5) for name, weight in weights.items()}
    model = tmp_path / "model.safetensors"
    mx.save_safetensors(str(model), weights, metadata)
    for output in ("a.mp4", "a.png"):
        assert preview_command([str(demo.LATENTS), "-m", str(model), "-o", str(tmp_path / output)]) == 1
        assert SAID["flat"] in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_audio_that_is_not_finite_raises(audio_case, tmp_path):
    vae = AudioVAE.from_pretrained(audio_case("ltx2").checkpoint, encoder=False)
    vae.vocoder.update(tree_map(lambda weight: weight * mx.nan, vae.vocoder.parameters()))
    for length in (1, 5):
        latents = random_latents(length)
        plan = vae.plan(length, samples=(10, 20))
        for way in (
            lambda: vae.decode(latents),  # noqa: B023
            lambda: vae.decode(latents, plan),  # noqa: B023
            lambda: list(vae.stream(latents)),  # noqa: B023
            lambda: write_wav(tmp_path / "a.wav", vae.stream(latents)),  # noqa: B023
        ):
            with pytest.raises(DecodeError, match="are NaN or infinite"):
                way()
    assert all(path.name.startswith("a.latents") for path in tmp_path.iterdir())


@pytest.mark.parametrize("frames", [1, 2])
def test_every_run_that_ends_well_confirms_the_device(golden, audio_vae, monkeypatch, frames):
    confirmed = []
    for module in (decode, audio, encode):
        monkeypatch.setattr(module, "confirm_device", lambda: confirmed.append(True))
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    latents = latents_of(frames)
    waveform = np.random.default_rng(0).uniform(-1, 1, (1, 2, 4000)).astype(np.float32)
    for run in (
        lambda: vae.decode(latents),
        lambda: vae.decode(latents, vae.plan(latents.shape, mode="single")),
        lambda: vae.decode(latents, vae.plan(latents.shape, frames=(0, 1))),
        lambda: vae.decode_uint8(latents),
        lambda: vae.encode(mx.zeros((1, 3, 8 * frames - 7, 64, 64))),
        lambda: audio_vae("ltx2").decode(random_latents(frames)),
        lambda: audio_vae("encoder").encode(waveform, 16000),
    ):
        confirmed.clear()
        run()
        assert len(confirmed) == 1


@pytest.mark.parametrize(
    ("pieces", "is_flat"),
    [
        ([[[1]]], False),  # one patch, of which nothing is known
        ([[[1]], [[2]]], False),
        ([[[1]], [[1]], [[2]]], False),
        ([[[1, 1]], [[2, 2]]], False),
        ([[[1]], [[1]]], True),
        ([[[1, 1]], [[1, 1]]], True),
        ([[[1, 2]]], False),
        ([[[1, 1]]], True),
        ([[[1], [2]]], False),
        ([[[1], [1]]], True),
        ([[[1, 1], [2, 2]]], False),
        ([[[1, 2], [1, 2]]], False),
    ],
)
@pytest.mark.parametrize("patch_size", [1, 4])
def test_a_frame_is_flat_if_all_its_patches_are_the_same_in_whatever_pieces_it_comes(pieces, is_flat, patch_size):
    """Patches by their numbers, in rows, of each piece of 20 frames."""
    patches = 0.1 * mx.random.uniform(shape=(3, 1, 20, patch_size, patch_size, 3), key=mx.random.key(0))

    def draw(rows):
        return mx.concatenate([mx.concatenate([patches[i] for i in row], axis=3) for row in rows], axis=2)

    check = OutputCheck(patch_size, lambda: mx.zeros(20, mx.bool_), explain=lambda: "", find_cause=lambda: None)
    for piece in pieces:
        check.update(draw(piece), 0)
    with pytest.raises(DecodeError, match="one flat patch everywhere") if is_flat else nullcontext():
        check.close()


def test_a_check_keeps_no_frames():
    check = OutputCheck(4, lambda: mx.zeros(8, mx.bool_), explain=lambda: "", find_cause=lambda: None)
    piece = mx.random.uniform(shape=(1, 8, 128, 128, 3), key=mx.random.key(0))
    mx.eval(piece)
    size, before = piece.nbytes, active_memory()
    check.update(piece, 0)
    del piece
    assert active_memory() - before < -0.9 * size
