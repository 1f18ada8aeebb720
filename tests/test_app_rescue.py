"""A drop-in that fails: the latents are in a file, a line says so, and the app's own function ends the generation."""

import gc
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import warnings
import wave
import weakref
from datetime import date
from pathlib import Path
from threading import Barrier, Thread

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from app_packages import MODULES
from mlx_ltx_vae import LTXVAEError, VideoVAE, integrations
from mlx_ltx_vae.integrations import saving
from mlx_ltx_vae.integrations.settings import current
from mlx_ltx_vae.pipeline.output import DecodeOutput
from test_app_run import CORE, LATENTS, apps, network  # noqa: F401 (fixtures)
from test_device_errors import TOO_LARGE
from test_device_errors import fail as fail_on_device  # noqa: F401 (fixture)
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
        vae = weakref.ref(integrations.vae_of(decoder))
        del decoder
        gc.collect()
        assert vae() is None  # it is not kept for the still
    assert len(os.listdir(tmp_path / "kept")) == 2  # a still that no video follows
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.fixture
def run(apps, network, tmp_path, monkeypatch):  # noqa: F811
    """`run(lines)` runs a program, in which `decoder` is mlx-video's, and returns its exit code and lines."""
    apps()
    file = network("ltx2_3", "decoder")

    def run_lines(*lines, options=("--save-latents", "kept"), is_installed=True):
        program = ["import os, signal, subprocess, sys", "import mlx.core as mx"]
        program += [f"from {MLX_VIDEO} import LTX2VideoDecoder"] * is_installed
        program += [f"decoder = LTX2VideoDecoder({file!r})"] * is_installed
        program += ["latents = mx.random.normal((1, 8, 2, 2, 2))"]
        (tmp_path / "program.py").write_text("\n".join([*program, *lines]))
        words = [sys.executable, "-m", "mlx_ltx_vae", "run", *options, "--", "program.py"]
        done = subprocess.run(words, capture_output=True, text=True)
        return done.returncode, done.stderr.splitlines()

    return run_lines


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            ["decoder(latents); fps = 24", "decoder(latents)"],
            "mlx_ltx_vae: 2 decodes ran here, with the latents in {folder} (2 files).",
        ),
        (["fps = 24", "decoder(latents)", "os.unlink(os.path.join('kept', os.listdir('kept')[0]))"],
         "mlx_ltx_vae: 1 decode ran here; no latents were saved in {folder}."),
        ([], "mlx_ltx_vae: program.py decoded nothing here; its own decoder ran, if any did; no latents were saved in "
         "{folder}."),
        (["try: decoder.decode_tiled(latents, preset='slow')", "except TypeError: pass"], "program.py decoded nothing"),
    ],
)  # fmt: skip
def test_run_says_what_was_decoded_and_counts_the_files(run, tmp_path, lines, text):
    code, said = run(*lines)
    assert code == 0
    assert text.format(folder=tmp_path / "kept") in said[-1]


@pytest.mark.slow
def test_run_says_what_lies_in_a_folder_that_is_full(run):
    code, said = run(
        "import mlx_ltx_vae.integrations.saving as saving",
        "def refuse(*_, **__): raise OSError(28, 'No space left on device')",
        "saving.save_latents = refuse",
        "decoder(latents)",
    )
    assert code == 0
    assert said[-2].startswith("mlx_ltx_vae: the latents are not saved: ")
    assert said[-1].startswith("mlx_ltx_vae: 1 decode ran here; no latents were saved in ")


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_in_a_decode_ends_with_what_lies_in_the_folder(run, tmp_path, name):
    number = signal.Signals[name]
    code, said = run(
        "fps = 25",
        f"decoder.decode_tiled(latents, on_frames_ready=lambda *_: os.kill(os.getpid(), signal.{name}))",
    )
    assert code == (-number if name == "SIGINT" else 128 + number)
    line = next(line for line in said if line.startswith("mlx_ltx_vae: "))
    assert line == (
        f"mlx_ltx_vae: 1 decode began here and did not end, with the latents in {tmp_path / 'kept'} (1 file)."
    )
    assert name == "SIGINT" or said == [line]
    ((tensors, metadata),) = saved_files()
    assert tensors["latents"].shape == (1, 8, 2, 2, 2) and metadata["fps"] == "25"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("lines", "is_named"),
    [
        (["subprocess.run([sys.executable, '-c', 'print(1)'])"], True),
        (["subprocess.run('python3 -c 1', shell=True)"], True),
        (["os.system('python3 -c 1')"], True),
        (
            [
                "import multiprocessing",
                "if __name__ == '__main__':",
                "    process = multiprocessing.get_context('spawn').Process(target=print)",
                "    process.start()",
                "    process.join()",
            ],
            True,
        ),
        (["subprocess.run(['true', 'pythonic'])"], False),
        (["subprocess.run([sys.executable, '-c', '1'])", "fps = 24", "decoder(latents)"], False),
    ],
)
def test_python_processes_of_a_program_that_decodes_nothing_here_are_named(run, tmp_path, lines, is_named):
    code, said = run(*lines)
    assert code == 0
    hint = f"integrations.install(save_latents='{tmp_path / 'kept'}')."
    assert [line for line in said if "started Python processes" in line] == ([said[-2]] if is_named else [])
    assert not is_named or said[-2].endswith(hint)


def test_installing_imports_no_decoder():
    code = (
        "import sys\nfrom mlx_ltx_vae import integrations\nintegrations.install().remove()\n"
        "print([name for name in sys.modules if name in ('mlx.core', 'mlx_ltx_vae.vae', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_lines_about_audio_name_no_options_that_an_app_does_not_have(core, capsys, tmp_path):
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


def saved_files(folder="kept"):
    """The tensors and the metadata of the files in a folder, in order."""
    contents = []
    for path in sorted(Path(folder).iterdir()):
        header = path.read_bytes()
        header = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
        contents.append((load_file(path), header.get("__metadata__", {})))
    return contents


CORE_STREAM = "decode_and_stream(self, latent, output_path, *, frame_rate, audio_path=None, seed=0)"
BLOCK_STREAM = (
    "decode_and_stream(self, video_latent, output_path, frame_rate=24.0, audio_path=None, *, seed=0, keyframes=None)"
)
VIDEO_VAE, BLOCKS = f"{CORE}.video_vae", "ltx_pipelines_mlx.utils.blocks"
PASSED = "audio_path=audio_path, seed=seed"


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            [
                (VIDEO_VAE, CORE_STREAM, CORE_STREAM.replace("seed=0", "tone")),
                (BLOCKS, PASSED, "audio_path=audio_path, tone=1"),
            ],
            id="a new required keyword",
        ),
        pytest.param(
            [
                (VIDEO_VAE, CORE_STREAM, CORE_STREAM.replace("seed=0", "seed=0, tone=None")),
                (BLOCKS, PASSED, f"{PASSED}, tone=1"),
            ],
            id="a new optional keyword",
        ),
        pytest.param([(VIDEO_VAE, "class VideoDecoder(", "class ConvDecoder(")], id="a renamed class"),
        pytest.param([(VIDEO_VAE, "tiled_decode", "decode_tiles")], id="a renamed method"),
        pytest.param([(VIDEO_VAE, "", "")], id="a moved module"),
        pytest.param(
            [
                (BLOCKS, BLOCK_STREAM, "decode_and_stream(self, tone, video_latent, output_path, *, frame_rate, seed)"),
                (BLOCKS, "audio_path=audio_path, ", ""),
                (BLOCKS, "if self.verbose", "if tone is None"),
            ],
            id="a new first argument of the block",
        ),
        pytest.param([(BLOCKS, "class VideoDecoder", "class VideoBlock")], id="a renamed block"),
    ],
)
def test_a_changed_function_loses_neither_the_picture_nor_the_rate(apps, network, monkeypatch, capsys, changes):  # noqa: F811
    """Of two functions that get the latents one is changed, and the other saves them, once."""
    for module in (VIDEO_VAE, BLOCKS):
        monkeypatch.setitem(MODULES, module, MODULES[module].replace(RAISE.strip(), "return []"))
    place = VIDEO_VAE
    for module, before, after in changes:
        assert before in MODULES[module]
        monkeypatch.setitem(MODULES, module, MODULES[module].replace(before, after))
        if not before:
            place = f"{CORE}.conv_vae"
            monkeypatch.setitem(MODULES, place, MODULES[module])
    apps()
    latents, audio = mx.array(LATENTS), mx.ones((1, 8, 4, 16))
    with integrations.install(save_latents="kept"):
        module, blocks = importlib.import_module(place), importlib.import_module(BLOCKS)
        decoder = getattr(module, "VideoDecoder", None) or module.ConvDecoder
        block = getattr(blocks, "VideoDecoder", None) or blocks.VideoBlock
        blocks.AudioDecoder()(audio_latent=audio)
        arguments = ["high", latents] if "self, tone" in str(changes) else [latents]
        block(decoder(network("ltx2_3", "decoder"))).decode_and_stream(*arguments, "clip.mp4", frame_rate=25.0, seed=3)
    ((tensors, metadata),) = saved_files()
    assert np.array_equal(tensors["latents"], LATENTS)
    assert np.array_equal(tensors["audio_latents"], np.ones((1, 8, 4, 16), np.float32))
    assert metadata["fps"] == "25"
    assert "without" not in capsys.readouterr().err


@pytest.mark.parametrize("app", ["mlx_video", "LTX_2_MLX"])
def test_a_changed_function_of_an_app_with_one_class_saves_what_it_gets(apps, network, monkeypatch, app):  # noqa: F811
    name, method, keyword = {
        "mlx_video": (MLX_VIDEO, "decode_tiled", "on_frames_ready=None"),
        "LTX_2_MLX": ("LTX_2_MLX.model.video_vae.native_decoder", "__call__", "causal=None"),
    }[app]
    own = MODULES[name].replace(keyword, f"{keyword}, *, tone").replace(RAISE.strip(), "return 'own'")
    monkeypatch.setitem(MODULES, name, own)
    apps()
    module = importlib.import_module(name)
    with integrations.install(save_latents="kept"):
        decoder = getattr(module, "LTX2VideoDecoder", None) or module.NativeConv3dVideoDecoder
        assert getattr(decoder(network("ltx2_3", "decoder")), method)(mx.array(LATENTS), tone=1) == "own"
    ((tensors, _),) = saved_files()
    assert np.array_equal(tensors["latents"], LATENTS)
    assert not hasattr(getattr(decoder, method), "original")


def test_audio_whose_picture_no_known_function_gets_is_named(apps, monkeypatch, capsys):  # noqa: F811
    apps()
    with integrations.install(save_latents="kept"):
        importlib.import_module(BLOCKS).AudioDecoder()(mx.ones((1, 8, 4, 16)))
    ((tensors, _),) = saved_files()
    assert tensors.keys() == {"audio_latents"}
    assert "safetensors: holds the audio alone; no function that is known here got" in capsys.readouterr().err


GENERATE = """
import weakref
import mlx.core as mx
from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder


class Transformer:
    pass


def generate_video(file, latents, fps=24.0, output_path="fox.mp4"):
    options = locals()
    video = decode(LTX2VideoDecoder(file), latents)
    assert options["output_path"] is output_path
    return video


def decode(decoder, latents):
    fps, transformer = "not a rate", Transformer()
    alive = weakref.ref(transformer)
    video = decoder.decode_tiled(latents)
    del transformer
    assert alive() is None
    return video
"""


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("fps", "stated"), [(30, "30"), (23.976, "24000/1001"), (None, None), (0, None), ("fast", None), (True, None)]
)
def test_the_rate_is_that_of_the_function_which_calls_the_decoder(apps, network, capsys, monkeypatch, fps, stated):  # noqa: F811
    """As mlx-video's `generate_video`, which hands only latents to its decoder; and no variable lives longer for it."""
    monkeypatch.setitem(MODULES, "mlx_video.generate", GENERATE)
    apps()
    with integrations.install(save_latents="kept"):
        generate = importlib.import_module("mlx_video.generate")
        generate.generate_video(network("ltx2_3", "decoder"), mx.array(LATENTS), fps)
    ((tensors, metadata),) = saved_files()
    assert np.array_equal(tensors["latents"], LATENTS)
    assert metadata.get("fps") == stated
    said = "holds the latents, without the frame rate, which the app does not state (give --fps to decode)."
    assert (said in capsys.readouterr().err) == (stated is None)


def test_the_rate_of_a_function_is_its_own_default_if_a_call_has_none(apps, network, monkeypatch):  # noqa: F811
    change = (BLOCK_STREAM, BLOCK_STREAM.replace("24.0", "50.0"))
    apps(blocks=change)
    with integrations.install(save_latents="kept"):
        module, blocks = importlib.import_module(VIDEO_VAE), importlib.import_module(BLOCKS)
        block = blocks.VideoDecoder(module.VideoDecoder(network("ltx2_3", "decoder")))
        block.decode_and_stream(mx.array(LATENTS), "clip.mp4")
    ((_, metadata),) = saved_files()
    assert metadata["fps"] == "50"


@pytest.mark.quick(4)
@pytest.mark.parametrize("folder", [None, "kept"])
@pytest.mark.parametrize("method", ["decode", "tiled_decode", "decode_and_stream", "block"])
def test_latents_of_a_decode_that_fails_are_saved_once(apps, network, capsys, monkeypatch, folder, method):  # noqa: F811
    monkeypatch.setitem(MODULES, VIDEO_VAE, MODULES[VIDEO_VAE].replace(RAISE.strip(), "return iter(())"))
    apps()

    def refuse(*_, **__):
        raise LTXVAEError("a.mp4: the disk is full.")

    with integrations.install(save_latents=folder):
        module, blocks = importlib.import_module(VIDEO_VAE), importlib.import_module(BLOCKS)
        decoder = module.VideoDecoder(network("ltx2_3", "decoder"))
        monkeypatch.setattr(VideoVAE, "stream", refuse)
        monkeypatch.setattr(DecodeOutput, "write", refuse)
        if method in ("decode", "tiled_decode"):
            list(getattr(decoder, method)(mx.array(LATENTS)))
        else:
            target = decoder if method == "decode_and_stream" else blocks.VideoDecoder(decoder, verbose=False)
            target.decode_and_stream(mx.array(LATENTS), "a.mp4", frame_rate=25.0)
    (path,) = Path.cwd().rglob("*latents*.safetensors" if folder is None else "20*.safetensors")
    assert len(list(Path.cwd().rglob("*.safetensors"))) == 2, "and the network"
    assert np.array_equal(load_file(path)["latents"], LATENTS)
    error = capsys.readouterr().err
    assert error.count("its latents are in") == 1 and saved_in(error) == path


def test_two_programs_may_save_in_one_folder_at_once(apps, network, monkeypatch):  # noqa: F811
    """The second one does not replace the file of the first, not even where it adds the VAE to its own."""
    apps()
    first = Path("kept", f"{date.today():%Y-%m-%d}-001.safetensors")
    save = saving.save_latents

    def save_late(path, *arguments, **options):
        if not first.exists():
            first.write_bytes(b"of another program")
        return save(path, *arguments, **options)

    monkeypatch.setattr(saving, "save_latents", save_late)
    with integrations.install(save_latents="kept"):
        module, blocks = importlib.import_module(VIDEO_VAE), importlib.import_module(BLOCKS)
        block = blocks.VideoDecoder(module.VideoDecoder(network("ltx2_3", "decoder")))
        block.decode_and_stream(mx.array(LATENTS), "clip.mp4")
    assert first.read_bytes() == b"of another program"
    (other,) = set(Path("kept").iterdir()) - {first}
    assert np.array_equal(load_file(other)["latents"], LATENTS)
    assert b"vae_fingerprint" in other.read_bytes()


@pytest.mark.quick(3)
@pytest.mark.parametrize("after", range(6))
def test_a_device_without_memory_is_named_wherever_weights_and_latents_are_read(core, fail_on_device, capsys, after):  # noqa: F811
    decoder = core(OWN_DECODE)
    with integrations.install(save_latents="kept"):
        fail_on_device(TOO_LARGE[0], after)
        assert decoder.decode(mx.array(LATENTS) * 1)[0] == "own"
    error = capsys.readouterr().err
    assert "the device ran out of memory" in error
    assert "internal error" not in error and "cannot be read" not in error and "METAL" not in error


def test_audio_that_a_file_cannot_hold_costs_no_picture(core, capsys):
    with integrations.install(save_latents="kept"):
        decoder = core(OWN_DECODE)
        importlib.import_module(BLOCKS).AudioDecoder()(mx.ones((1, 8, 4, 16), mx.complex64))
        decoder.decode(mx.array(LATENTS))
    ((tensors, _),) = saved_files()
    assert tensors.keys() == {"latents"}
    assert "and without audio (" in capsys.readouterr().err


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["decode", "tiled_decode", "decode_and_stream", "block"])
@pytest.mark.parametrize("problem", ["NaN", "disk"])
def test_latents_that_cannot_be_saved_are_said_so_once(apps, network, capsys, monkeypatch, method, problem):  # noqa: F811
    monkeypatch.setitem(MODULES, VIDEO_VAE, MODULES[VIDEO_VAE].replace(RAISE.strip(), "return iter(())"))
    apps()
    latents = mx.array(LATENTS)

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    if problem == "NaN":
        latents[0, 0, 0, 0, 0] = mx.nan
    else:
        for module in ("integrations.saving", "latents.writer"):
            monkeypatch.setattr(f"mlx_ltx_vae.{module}.save_latents", refuse)
        monkeypatch.setattr(VideoVAE, "stream", lambda *_, **__: 1 / 0)
        monkeypatch.setattr(DecodeOutput, "write", lambda *_, **__: 1 / 0)
    with integrations.install(save_latents="kept"):
        module, blocks = importlib.import_module(VIDEO_VAE), importlib.import_module(BLOCKS)
        decoder = module.VideoDecoder(network("ltx2_3", "decoder"))
        for _ in range(2):
            if method in ("decode", "tiled_decode"):
                list(getattr(decoder, method)(latents))
            else:
                target = decoder if method == "decode_and_stream" else blocks.VideoDecoder(decoder, verbose=False)
                target.decode_and_stream(latents, "a.mp4", frame_rate=25.0)
    error = capsys.readouterr().err
    assert error.count("not saved") == error.count("mlx_ltx_vae: the latents are not saved: ") == 2
    assert error.count("the app's own ") == 2 and "; ;" not in error
    assert os.listdir("kept") == [] and list(Path.cwd().glob("*latents*")) == []


def test_latents_that_a_later_attempt_saves_are_named(apps, network, capsys, monkeypatch):  # noqa: F811
    apps()
    save, attempts = saving.save_latents, []

    def refuse_first(*arguments, **options):
        attempts.append(arguments)
        if len(attempts) == 1:
            raise OSError(28, "No space left on device")
        return save(*arguments, **options)

    monkeypatch.setattr(saving, "save_latents", refuse_first)
    with integrations.install(save_latents="kept"):
        module, blocks = importlib.import_module(VIDEO_VAE), importlib.import_module(BLOCKS)
        block = blocks.VideoDecoder(module.VideoDecoder(network("ltx2_3", "decoder")), verbose=False)
        block.decode_and_stream(mx.array(LATENTS), "clip.mp4")
    (path,) = Path("kept").iterdir()
    first, second, *_ = [line for line in capsys.readouterr().err.splitlines() if "latents" in line]
    assert "the latents are not saved: " in first
    assert second.endswith(f"{path.name}: holds the latents, which a later attempt saved.")


def test_decodes_in_threads_get_a_name_each(core, tmp_path, capsys, monkeypatch):
    save, barrier = saving.save_latents, Barrier(3, timeout=20)

    def save_together(path, *arguments, overwrite, **options):
        if not overwrite:
            barrier.wait()  # each thread has chosen a name
        return save(path, *arguments, overwrite=overwrite, **options)

    monkeypatch.setattr(saving, "save_latents", save_together)
    decoder, clips = core(OWN_DECODE), [mx.array(LATENTS + number) for number in range(3)]
    mx.eval(decoder.parameters(), clips)
    with integrations.install(save_latents="kept"):
        threads = [Thread(target=decoder.decode, args=[clip]) for clip in clips]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = [f"{date.today():%Y-%m-%d}-{number:03}.safetensors" for number in (1, 2, 3)]
    assert sorted(os.listdir("kept")) == names
    saved = sorted(float(load_file(Path("kept", name))["latents"].flat[0] - LATENTS.flat[0]) for name in names)
    assert np.allclose(saved, [0, 1, 2], atol=1e-5)
    assert "taken" not in capsys.readouterr().err
