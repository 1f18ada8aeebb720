"""A drop-in that fails: the latents are in a file, a line says so, and the app's own function ends the generation."""

import importlib
import os
import re
import subprocess
import sys
import warnings
import wave
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from app_packages import MODULES
from mlx_ltx_vae import VideoVAE, integrations
from mlx_ltx_vae.integrations.settings import current
from test_app_run import CORE, LATENTS, apps, network  # noqa: F401 (fixtures)
from tolerances import tolerance

MLX_VIDEO = "mlx_video.models.ltx_2.video_vae.decoder"
RAISE = '        raise AssertionError("the app\'s own decode")'
DECODE, STREAM = (
    f"    def {name}:\n{RAISE}"
    for name in ("decode(self, latent, *, _materialize_stages=False)", "tiled_decode(self, latent, tiling_config=None)")
)
# Decodes of an app that work: one returns whether its weights are there.
OWN_DECODE = (
    DECODE,
    "    def decode(self, latent, *, preset=None, _materialize_stages=False):\n"
    "        return 'own', mx.isfinite(self.conv_in['conv']['weight']).all().item()",
)
OWN_STREAM = (STREAM, STREAM.replace(RAISE, "        yield from (mx.full((1, 3, n, 64, 64), 7.0) for n in (1, 4, 4))"))


def saved_in(text):
    """The file of the latents that a line names."""
    return Path(re.search(r"its latents are in (\S+\.safetensors)", text)[1])


@pytest.fixture
def core(apps, network):  # noqa: F811
    def load(change):
        apps(video_vae=change)
        module = importlib.import_module(f"{CORE}.video_vae")
        return module.VideoDecoder(network("ltx2_3", "decoder"))

    return load


def test_an_error_ends_in_the_apps_own_decode_with_its_own_weights(core, capsys, monkeypatch):
    decoder = core(OWN_DECODE)
    monkeypatch.setattr(VideoVAE, "stream", lambda *_, **__: 1 / 0)
    with integrations.install():
        assert decoder.decode(mx.array(LATENTS)) == ("own", True)
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("mlx_ltx_vae: ") and line.endswith("; the app's own decode runs.")
    path = saved_in(line)
    assert path.parent == Path.cwd()
    assert np.array_equal(load_file(path)["latents"], LATENTS)


def test_an_optional_parameter_that_is_not_known_keeps_the_method_the_apps(core, capsys):
    with integrations.install():
        decoder = core(OWN_DECODE)
        assert decoder.decode(mx.array(LATENTS), preset="slow") == ("own", True)
        assert decoder.decode(mx.array(LATENTS)).shape == (1, 3, 9, 64, 64)
        assert decoder.decode(mx.array(LATENTS), preset="slow") == ("own", True)
    *_, line = capsys.readouterr().err.splitlines()
    assert "VideoDecoder.decode also takes preset; calls that use it stay the app's own." in line
    assert list(Path.cwd().glob("*latents*")) == []


def test_frames_that_the_app_has_are_not_given_again(core, capsys, monkeypatch):
    decoder, stream = core(OWN_STREAM), VideoVAE.stream

    def broken(self, *arguments, **options):
        chunks = stream(self, *arguments, **options)
        yield next(chunks)
        raise RuntimeError("broken")

    monkeypatch.setattr(VideoVAE, "stream", broken)
    with integrations.install():
        frames = mx.concatenate(list(decoder.tiled_decode(mx.array(LATENTS), None)), axis=2)
    assert frames.shape == (1, 3, 9, 64, 64)
    assert mx.all(frames[:, :, 1:] == 7).item() and not mx.any(frames[:, :, :1] == 7).item()
    assert "the app's own tiled_decode runs." in capsys.readouterr().err


def test_a_callback_gets_every_frame_once_and_its_own_error_ends_the_decode(apps, network, monkeypatch):  # noqa: F811
    own = """
        for start, count in ((0, 1), (1, 4), (5, 4)):
            on_frames_ready(mx.full((1, 3, count, 64, 64), 7.0), start)
        return "own"
"""
    head = "                     on_frames_ready=None):\n"
    monkeypatch.setitem(MODULES, MLX_VIDEO, MODULES[MLX_VIDEO].replace(f"{head}{RAISE}", head + own))
    apps()
    module = importlib.import_module(MLX_VIDEO)
    decoder, stream, starts = module.LTX2VideoDecoder(network("ltx2_3", "decoder")), VideoVAE.stream, []

    def broken(self, *arguments, **options):
        chunks = stream(self, *arguments, **options)
        yield next(chunks)
        raise RuntimeError("broken")

    def fail(*_):
        raise ValueError("the app's")

    with integrations.install():
        with pytest.raises(ValueError, match="the app's"):
            decoder.decode_tiled(mx.array(LATENTS), on_frames_ready=fail)
        monkeypatch.setattr(VideoVAE, "stream", broken)
        decoder = module.LTX2VideoDecoder(network("ltx2_3", "decoder"))
        result = decoder.decode_tiled(
            mx.array(LATENTS), on_frames_ready=lambda frames, start: starts.append((start, frames.shape[2]))
        )
    assert result == "own"
    assert sum(count for _, count in starts) == 9
    assert [start for start, _ in starts] == [sum(count for _, count in starts[:i]) for i in range(len(starts))]


def test_an_error_after_a_decode_ends_in_the_apps_own_decode_with_its_own_weights(core, capsys, monkeypatch, golden):
    decoder = core(OWN_DECODE)
    with integrations.install():
        pixels = decoder.decode(mx.array(LATENTS))
        with monkeypatch.context() as patch:
            patch.setattr(VideoVAE, "stream", lambda *_, **__: 1 / 0)
            assert decoder.decode(mx.array(LATENTS)) == ("own", True)
        assert mx.array_equal(decoder.decode(mx.array(LATENTS)), pixels)
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    latents = mx.array(load_file(saved_in(capsys.readouterr().err))["latents"])
    assert mx.abs(vae.decode(latents) - pixels).max().item() < tolerance(1e-5)


def test_warnings_of_a_decode_are_lines_and_end_nothing(core, capsys, monkeypatch):
    monkeypatch.setenv("LTX2_VAE_DECODE_BUDGET_GB", "0.001")
    with integrations.install():
        decoder = core(OWN_DECODE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert decoder.decode(mx.array(LATENTS)).shape == (1, 3, 9, 64, 64)
    assert re.search(r"mlx_ltx_vae: a memory budget of .* is too small.*; this is taken\.", capsys.readouterr().err)


def test_options_nest_and_what_is_not_given_stays(core, tmp_path):
    with integrations.install(save_latents=tmp_path / "a", memory_budget="1GB"):
        inner = integrations.install()
        assert (current().memory_budget, str(current().folder)) == ("1GB", str(tmp_path / "a"))
        outer = integrations.install(memory_budget="2GB")
        assert (current().memory_budget, str(current().folder)) == ("2GB", str(tmp_path / "a"))
        inner.remove()
        assert current().memory_budget == "2GB"
        outer.remove()
        assert current().memory_budget == "1GB"
        decoder = core(OWN_DECODE)
        assert hasattr(type(decoder).decode, "original")
    assert current().memory_budget is None
    assert not hasattr(type(decoder).decode, "original")


def test_the_folder_is_that_of_the_start_and_previews_are_no_files(core, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    with integrations.install(save_latents="kept"):
        decoder = core(OWN_DECODE)
        monkeypatch.chdir(tmp_path / "elsewhere")
        for _ in range(3):
            decoder.decode(mx.array(LATENTS[:, :, :1]))
        decoder.decode(mx.array(LATENTS))
        assert len(os.listdir(tmp_path / "kept")) == 1
        decoder.decode(mx.array(LATENTS[:, :, :1]))
    assert len(os.listdir(tmp_path / "kept")) == 2  # a still that no video follows
    assert os.listdir(tmp_path / "elsewhere") == []


def test_run_says_what_was_decoded(apps, network, tmp_path, capfd):  # noqa: F811
    apps()
    file = network("ltx2_3", "decoder")
    (tmp_path / "program.py").write_text(
        "import sys, mlx.core as mx\n"
        "from ltx_core_mlx.model.video_vae.video_vae import VideoDecoder\n"
        f"decoder = VideoDecoder({file!r})\n"
        "for _ in range(int(sys.argv[1])): decoder.decode(mx.random.normal((1, 8, 2, 2, 2)))\n"
    )
    for count, text in ((2, "2 decodes ran here, with the latents in "), (0, "program.py decoded nothing here; ")):
        words = [sys.executable, "-m", "mlx_ltx_vae", "run", "--save-latents", "kept", "--", "program.py", str(count)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert text in done.stderr.splitlines()[-1]


def test_installing_imports_no_decoder():
    code = (
        "import sys\nfrom mlx_ltx_vae import integrations\nintegrations.install().remove()\n"
        "print([name for name in sys.modules if name in ('mlx.core', 'mlx_ltx_vae.vae', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_lines_about_sound_name_no_options_that_an_app_does_not_have(core, capsys, tmp_path):
    with wave.open(str(tmp_path / "voice.wav"), "wb") as voice:
        voice.setparams((2, 2, 16000, 0, "NONE", ""))
        voice.writeframes(bytes(4 * 32000))
    decoder = core(OWN_DECODE)
    with warnings.catch_warnings(), integrations.install():
        warnings.simplefilter("error")
        decoder.decode_and_stream(
            mx.array(LATENTS), str(tmp_path / "clip.mp4"), frame_rate=24, audio_path=str(tmp_path / "voice.wav")
        )
    _, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"mlx_ltx_vae: \S+clip.mp4: the video takes 0.\d\d s and its audio 2.00 s.", line)
