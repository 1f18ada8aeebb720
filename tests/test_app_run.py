"""`mlx_ltx_vae run` and `integrations.install`, with stand-ins of the apps."""

import importlib
import json
import os
import subprocess
import sys
import zipapp
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from app_packages import APPS, MODULES, network_arrays, write_apps
from checkpoint_files import open_checkpoint
from commands import mlx_ltx_vae as main
from mlx_ltx_vae import Keyframes, LTXVAEError, VideoVAE, integrations
from tolerances import tolerance

ROOTS = {name.partition(".")[0] for name in MODULES}
CORE = "ltx_core_mlx.model.video_vae"
LATENTS = np.random.default_rng(1).normal(size=(1, 8, 2, 2, 2)).astype(np.float32)


@pytest.fixture
def apps(tmp_path, monkeypatch):
    """`apps(**changes)` writes the stand-ins into the working directory; modules of earlier tests are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield partial(write_apps, tmp_path)
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
        del sys.modules[name]


@pytest.fixture
def network(weights, tmp_path):
    """`network("ltx2_3", "decoder")`: the file of a network in the names and the layout of the apps."""

    def write(case, name):
        path = str(tmp_path / f"{case}-{name}.safetensors")
        mx.save_safetensors(path, network_arrays(weights(case), name))
        return path

    return write


def diffusion_config(golden, case="ltx2_5_keyframes"):
    """The configuration as the app's decoder has it."""
    stated = golden(case).manifest["vae_config"]["decoder"]
    return SimpleNamespace(**{"t_embed_hidden": stated["t_emb_dim"], "patch_size": 4, "out_channels": 3, **stated})


CALLS = {
    "Blaizzy/mlx-video": """
        from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder
        pixels = LTX2VideoDecoder(file).decode_tiled(latents, tiling_config=None, tiling_mode="auto", debug=False)
    """,
    "james-see/mlx-video-with-audio": """
        from mlx_video.models.ltx.video_vae.decoder import LTX2VideoDecoder
        pixels = LTX2VideoDecoder(file)(latents)
    """,
    "dgrauet/ltx-2-mlx": """
        from ltx_core_mlx.model.video_vae.video_vae import VideoDecoder
        pixels = VideoDecoder(file).decode(latents, seed=7)
    """,
    "dmlsrc/LTX-2-MLX": """
        from LTX_2_MLX.model.video_vae.native_decoder import NativeConv3dVideoDecoder
        from LTX_2_MLX.pipeline import decode_streaming
        decoder = NativeConv3dVideoDecoder(file)
        pixels = mx.concatenate(list(decode_streaming(latents, decoder, None, show_progress=False)), axis=2)
    """,
    "Acelogic/LTX-2-MLX": """
        from LTX_2_MLX.model.video_vae.simple_decoder import SimpleVideoDecoder, decode_latent
        from LTX_2_MLX.model.video_vae.tiling import decode_tiled
        decoder = SimpleVideoDecoder(file)
        assert decoder(latents.astype(mx.bfloat16)).dtype == mx.float32
        pixels = mx.concatenate(list(decode_tiled(latents, decoder, None, show_progress=False)), axis=2)
        levels = decode_latent(latents, decoder, temporal_chunk_size=2)
        assert mx.array_equal(levels, (mx.clip((pixels[0].transpose(1, 2, 3, 0) + 1) / 2, 0, 1) * 255).astype(mx.uint8))
        assert mx.array_equal(decoder(latents), pixels)
    """,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("app", CALLS)
def test_an_app_runs_twice_in_one_process_with_equal_results(apps, network, golden, tmp_path, app):
    assert CALLS.keys() == APPS.keys()
    apps()
    np.save("latents.npy", LATENTS)
    lines = [line.strip() for line in CALLS[app].strip().splitlines()]
    script = ["import sys, json, mlx.core as mx", "file, output = sys.argv[1:]", "latents = mx.load('latents.npy')"]
    script += [*lines, "mx.save(output, pixels)", "json.dump([sys.argv[0], sys.path[0], __name__], open('seen', 'w'))"]
    (tmp_path / "generate.py").write_text("\n".join([*script, "sys.exit(3)"]))
    argv, path = list(sys.argv), list(sys.path)
    case = "ltx2" if app.startswith("Acelogic") else "ltx2_3"  # which always pads by reflection
    file = network(case, "decoder")
    for output in ("first.npy", "second.npy"):
        assert main(["run", "--", "generate.py", file, output]) == 3
    assert json.loads((tmp_path / "seen").read_text()) == ["generate.py", str(tmp_path), "__main__"]
    assert (sys.argv, sys.path) == (argv, path)
    expected = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False).decode(mx.array(LATENTS))
    first, second = np.load("first.npy"), np.load("second.npy")
    assert np.array_equal(first, second)
    assert np.array_equal(first, np.array(expected))
    for name in [name for name in sys.modules if name in MODULES]:  # what was imported is the app's own again
        for entry in (entry for entry in APPS[app] if entry.module == name):
            place = getattr(sys.modules[name], entry.owner, None) if entry.owner else sys.modules[name]
            assert not hasattr(getattr(place, entry.name), "original")


def test_imported_modules_are_replaced_by_any_name_and_an_inner_installation_gives_back_the_outer(
    apps, network, capsys
):
    apps()
    pipeline = importlib.import_module("LTX_2_MLX.pipeline")
    decoders = importlib.import_module("LTX_2_MLX.model.video_vae.native_decoder")
    pipeline.stream = own = pipeline.decode_streaming  # as `import decode_streaming as stream` does
    core = importlib.import_module(f"{CORE}.video_vae")
    with integrations.install() as installed:
        assert len(installed.replaced["dmlsrc/LTX-2-MLX"]) == 2
        decoder = decoders.NativeConv3dVideoDecoder(network("ltx2_3", "decoder"))
        chunks = list(pipeline.stream(mx.array(LATENTS), decoder, show_progress=False))
        assert sum(chunk.shape[2] for chunk in chunks) == 9
        outer = pipeline.stream, core.VideoDecoder.decode
        with integrations.install():
            assert pipeline.stream is outer[0]
            assert pipeline.stream.original is own
        assert (pipeline.stream, core.VideoDecoder.decode) == outer
        assert pipeline.stream.original is own
    assert pipeline.stream is pipeline.decode_streaming is own
    assert not hasattr(core.VideoDecoder.decode, "original")
    assert capsys.readouterr().err == ""


def test_a_module_and_a_command_are_programs_too(apps, tmp_path, monkeypatch, capfd):
    apps()
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit('no more')\n")
    assert main(["run", "--memory-budget", "8GB", "-m", "tool", "--memory-budget", "1"]) == 1
    said = capfd.readouterr()
    assert said.out == "['--memory-budget', '1']\n"
    assert said.err.splitlines()[0] == "mlx_ltx_vae: tool imported no decoder that is known (" + ", ".join(APPS) + ")."
    assert said.err.splitlines()[1:] == ["no more"]
    command = tmp_path / "bin" / "app"
    command.parent.mkdir()
    command.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[0])\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    assert main(["run", "--", "app"]) == 0
    assert capfd.readouterr().out == f"{command}\n"
    command.write_text("#!/opt/other/bin/python3.12\n")
    for name in ("app", str(command)):
        assert main(["run", name]) == 1
        error = "belongs to another Python environment (/opt/other/bin); install mlx_ltx_vae there"
        assert error in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere-to-be-found"], "nowhere-to-be-found: is neither a script nor a command of this Python"),
        (["nowhere.py"], "error: nowhere.py: there is no such script."),
        (["-m", "nowhere.at.all"], "nowhere.at.all: is no module of "),
        (["-m", "importlib.metadata.nowhere"], "importlib.metadata.nowhere: is no module of "),
        (["-m", "ltx_pipelines_mlx"], "ltx_pipelines_mlx: is no module of "),
        (["-m", ".generate"], ".generate: is no module of "),
        (["-m", ".."], "..: is no module of "),
        (["sh"], "is not a Python program; give the script or the module that it starts"),
    ],
)
def test_what_is_no_python_program_is_one_sentence(apps, capfd, words, message):
    assert main(["run", "--", *words]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


def test_an_exception_of_the_program_has_its_traceback_and_the_process_is_a_plain_one(apps, tmp_path):
    (tmp_path / "fails.py").write_text(
        "import signal\n"
        "from mlx_ltx_vae.startup import is_command\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and not is_command()\n"
        "raise KeyError('of the app')\n"
    )
    command = [sys.executable, "-m", "mlx_ltx_vae", "run", "--", "fails.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'of the app'"
    assert done.stderr.count("File ") == 1, "no frames of this package"


@pytest.mark.parametrize("words", [["python"], ["python3", "-m"], ["uv", "run"], ["uv", "run", "python3.11"]])
def test_a_program_may_have_its_launcher_in_front(apps, tmp_path, capfd, words):
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', sys.argv[1:])\n")
    assert main(["run", "--", *words, "hello" if words[-1] == "-m" else "hello.py", "-x"]) == 0
    assert capfd.readouterr().out == "hello ['-x']\n"


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "code"), [("SIGHUP", 129), ("SIGTERM", 143)])
def test_a_terminated_program_leaves_no_unfinished_file(apps, network, tmp_path, name, code):
    apps()
    (tmp_path / "slow.py").write_text(
        "import os, signal, numpy as np\nfrom mlx_ltx_vae import VideoWriter\n"
        "with VideoWriter('clip.mp4', size=(64, 64), fps=24) as out:\n"
        "    out.write(np.zeros((9, 64, 64, 3), np.uint8))\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    signal.pause()\n"
    )
    before = set(os.listdir(tmp_path))
    done = subprocess.run([sys.executable, "-m", "mlx_ltx_vae", "run", "--", "slow.py"], capture_output=True, text=True)
    assert done.returncode == code
    assert set(os.listdir(tmp_path)) - before <= {"__pycache__"}


def test_latents_are_saved_by_date_and_number_with_rate_audio_and_keyframes(apps, network, golden, tmp_path):
    apps()
    folder = tmp_path / "saved"
    folder.mkdir()
    kept = folder / f"{date.today():%Y-%m-%d}-001.safetensors"
    kept.write_bytes(b"a file of before")
    latents, audio = mx.array(LATENTS), mx.ones((1, 8, 4, 16))
    with integrations.install(save_latents=str(folder)):
        core = importlib.import_module(f"{CORE}.video_vae")
        blocks = importlib.import_module("ltx_pipelines_mlx.utils.blocks")
        decoder = core.VideoDecoder(network("ltx2_3", "decoder"))
        assert mx.array_equal(blocks.AudioDecoder()(audio), audio + 1)
        blocks.VideoDecoder(decoder).decode_and_stream(latents, str(tmp_path / "clip.mp4"), frame_rate=25.0, seed=3)
        decoder.decode(latents[:, :, :1].astype(mx.bfloat16))
        blocks.AudioDecoder()(audio)
    assert kept.read_bytes() == b"a file of before"
    names = sorted(path.name.removeprefix(f"{date.today():%Y-%m-%d}-") for path in folder.iterdir())
    assert names == ["001.safetensors", "002.safetensors", "003.safetensors", "004.safetensors"]
    with (folder / kept.name.replace("001", "002")).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    stated = {"fps": "25", "num_frames": "9", "height": "64", "width": "64", "normalized": "true"}
    stated["vae_fingerprint"] = open_checkpoint(golden("ltx2_3").checkpoint).latent_space.fingerprint
    stated["generation"] = "LTX-2.3"  # or LTX-2.5, whose latent space is the same
    assert stated.items() <= header["__metadata__"].items()
    saved = load_file(folder / kept.name.replace("001", "002"))
    assert np.array_equal(saved["latents"], LATENTS)
    assert np.array_equal(saved["audio_latents"], np.ones((1, 8, 4, 16), np.float32))
    assert load_file(folder / kept.name.replace("001", "004")).keys() == {"audio_latents"}


def test_the_block_prints_no_estimate_and_says_that_keyframes_are_left_out(apps, network, tmp_path, capfd):
    apps()
    with integrations.install():
        core = importlib.import_module(f"{CORE}.video_vae")
        blocks = importlib.import_module("ltx_pipelines_mlx.utils.blocks")
        block = blocks.VideoDecoder(core.VideoDecoder(network("ltx2_3", "decoder")))
        with pytest.warns(UserWarning, match="takes no keyframes, and the app leaves them out"):
            block.decode_and_stream(mx.array(LATENTS), str(tmp_path / "clip.mp4"), keyframes="some")
        assert block.verbose
    assert capfd.readouterr().err == ""


def test_methods_of_subclasses_that_decode_otherwise_stay_the_apps(apps, network, capsys):
    apps()
    with integrations.install():
        core = importlib.import_module(f"{CORE}.video_vae")

        class Other(core.VideoDecoder):
            def tiled_decode(self, latent, tiling_config=None):
                yield "a chunk"

        class Stranger:
            tiled_decode = Other.tiled_decode

        Other(network("ltx2_3", "decoder")).decode_and_stream(None, "clip.mp4", frame_rate=24)
        core.VideoDecoder.decode_and_stream(Stranger(), None, "clip.mp4", frame_rate=24)
    assert capsys.readouterr().out == "the app's own plumbing wrote a chunk\n" * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize(("with_keyframes", "is_padded"), [(True, True), (True, False), (False, True)])
def test_the_diffusion_decoder_draws_the_noise_of_the_app(apps, network, golden, capsys, with_keyframes, is_padded):
    """Noise from `seed + 30000` on the canvas of the video, and of the planes from the second half of the split key."""
    apps()
    case = "ltx2_5_keyframes"
    least = golden(case).manifest["vae_config"]["decoder"]["stage_kernels"][0]
    grid = [max(3, least[0]), max(3, least[1]), max(3, least[2])]
    latents = mx.random.normal((1, 8, *grid), key=mx.random.key(5))
    stills = mx.random.normal((1, 8, 2, *grid[1:]), key=mx.random.key(6))
    if is_padded:  # a latent smaller than the least, on whose canvas the noise is
        latents, stills = latents[:, :, :-1, :-1], stills[:, :, :, :-1]
    frames, height, width = 8 * (grid[0] - 1) + 1, 32 * grid[1], 32 * grid[2]
    key = mx.random.key(7 + 30000)
    noise = [mx.random.normal((1, 3, frames, height, width), key=key)]
    options, given = {}, {}
    if with_keyframes:
        noise.append(mx.random.normal((1, 3, 2, height, width), key=mx.random.split(key)[1]))
        options = {"keyframes": Keyframes(stills, [3, 9])}
        given = {"keyframes": SimpleNamespace(latents=stills, pixel_frame_indices=(3, 9), clip_start_frame=0)}
    vae = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False)
    expected = vae.decode(latents, noise=noise, steps=1, **options)
    with integrations.install(save_latents="saved"):
        decoders = importlib.import_module(f"{CORE}.diffusion_decoder.decoder")
        decoder = decoders.NADiffusionDecoder(network(case, "decoder"), diffusion_config(golden, case))
        found = decoder.decode(latents, seed=7, **given)
        assert "pixels near the left and right edges differ from the app's own" in capsys.readouterr().err
        chunks = list(decoder.tiled_decode(latents, "tiles", seed=7, **given))
        with pytest.raises(AssertionError, match="the app's own decode"):
            decoder.decode(latents, tap=print)
    assert mx.abs(found - expected).max().item() < tolerance(1e-4)
    saved = load_file(min(Path("saved").iterdir()))
    assert np.array_equal(saved["latents"], latents)
    if with_keyframes:
        assert np.array_equal(saved["keyframe_latents"], stills)
        assert saved["keyframe_frame_indices"].tolist() == [3, 9]
    streamed = mx.concatenate(chunks, axis=2)
    assert streamed.shape == found.shape == expected.shape
    assert mx.abs(streamed - found).max().item() < tolerance(1e-4)


def test_the_diffusion_decoder_of_mlx_video_draws_the_noise_of_the_app(apps, network, golden, capsys):
    """One draw of MLX's global generator after its seed, which goes on as after the app's own decode."""
    apps()
    case = "ltx2_5_keyframes"
    least = golden(case).manifest["vae_config"]["decoder"]["stage_kernels"][0]
    grid = [max(3, length) for length in least]
    latents = mx.random.normal((1, 8, *grid), key=mx.random.key(5))
    mx.random.seed(7)
    noise = mx.random.normal((1, 3, 8 * (grid[0] - 1) + 1, 32 * grid[1], 32 * grid[2]))
    next_draw = mx.random.normal((3,))
    vae = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False)
    expected = vae.decode(latents, noise=[noise], steps=1)
    with integrations.install(save_latents="saved"):
        module = importlib.import_module("mlx_video.models.ltx_2.diffusion_vae.decoder")
        decoder = module.DiffusionVideoDecoder(network(case, "decoder"), diffusion_config(golden, case))
        decoded = decoder(latents, seed=7, spatial_tiles=2)
        assert mx.array_equal(mx.random.normal((3,)), next_draw)
        half = decoder(latents.astype(mx.bfloat16), seed=7)
        capsys.readouterr()
        with pytest.raises(AssertionError, match="the app's own decode"):
            decoder(latents[:, :, :2], seed=7)
        assert "the app decodes clips of fewer than 3 latent frames in its own way" in capsys.readouterr().err
    assert (decoded.shape, decoded.dtype, half.dtype) == (expected.shape, mx.float32, mx.float32)
    assert mx.abs(decoded - expected).max().item() < tolerance(1e-4)
    assert np.array_equal(load_file(min(Path("saved").iterdir()))["latents"], latents)


def test_an_hdr_video_of_ltx_2_mlx_keeps_its_rate_and_its_keyframes(
    apps, network, golden, tmp_path, monkeypatch, capfd
):
    """As its HDRICLoraPipeline does: it reads `type_emb`, and decodes while it writes, in float32."""
    apps()
    case = "ltx2_5_keyframes"
    grid = golden(case).manifest["vae_config"]["decoder"]["stage_kernels"][0]
    grid = [max(3, length) for length in grid]
    latents = mx.random.normal((1, 8, *grid), key=mx.random.key(5))
    stills = mx.random.normal((1, 8, 1, *grid[1:]), key=mx.random.key(6))
    keyframes = SimpleNamespace(latents=stills, pixel_frame_indices=(3,), clip_start_frame=0)
    with integrations.install(save_latents="saved"):
        decoders = importlib.import_module(f"{CORE}.diffusion_decoder.decoder")
        blocks = importlib.import_module("ltx_pipelines_mlx.utils.blocks")
        hdr = importlib.import_module("ltx_pipelines_mlx.utils.hdr_media")
        decoder = decoders.NADiffusionDecoder(network(case, "decoder"), diffusion_config(golden, case))
        block = blocks.VideoDecoder(blocks._DiffusionVideoDecoder(decoder), "diffusion")
        for _ in range(2):
            assert not mx.all(block.load()._decoder.type_emb == 0).item()
            chunks = block.iter_frames(latents, seed=7, keyframes=keyframes)
            assert hdr.encode_hdr_outputs(chunks, str(tmp_path / "clip.npy"), 30, None) == 30
        expected = decoder.decode(latents, seed=7, keyframes=keyframes)
        monkeypatch.setattr(VideoVAE, "stream", lambda *_, **__: 1 / 0)
        with pytest.raises(AssertionError, match="the app's own decode"):
            hdr.encode_hdr_outputs(block.iter_frames(latents[:, :, :-1]), str(tmp_path / "rescued.npy"), fps=30)
    frames = np.load(tmp_path / "clip.npy")
    expected = np.array((mx.clip(expected[0].transpose(1, 2, 3, 0), -1, 1) + 1) / 2)
    assert frames.shape == expected.shape
    assert np.abs(frames - expected).max() < tolerance(1e-4)
    for path in (min(Path("saved").iterdir()), max(Path("saved").iterdir())):
        with path.open("rb") as file:
            assert json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]["fps"] == "30"


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_encodes_are_those_of_the_checkpoint_in_the_dtype_of_mlx(apps, network, golden, dtype):
    apps()
    pixels = mx.clip(mx.random.normal((1, 3, 9, 64, 64), key=mx.random.key(1)), -1, 1).astype(dtype)
    expected = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, decoder=False).encode(pixels)
    with integrations.install():
        core = importlib.import_module(f"{CORE}.video_vae")
        encoder = core.VideoEncoder(network("ltx2_3", "encoder"))
        found, tiled = encoder.encode(pixels), encoder.tiled_encode(pixels, "tiles")
    assert found.dtype == mx.float32  # weights are
    assert mx.array_equal(found, expected)
    assert mx.array_equal(tiled, found)


def test_unknown_options_are_ignored_if_off_and_refused_if_not(apps, network):
    apps()
    latents = mx.array(LATENTS)
    with integrations.install():
        core = importlib.import_module(f"{CORE}.video_vae")
        decoder = core.VideoDecoder(network("ltx2_3", "decoder"))
        plain = decoder.decode(latents)
        for options in ({"seed": 5}, {"fps": 30}, {"sharpen": False, "grain": 0, "lut": None}, {"verbose": True}):
            assert mx.array_equal(decoder.decode(latents, **options), plain)
        assert decoder.decode(latents, output_dtype="float16").dtype == mx.float16
        with pytest.raises(TypeError, match="sharpen"):  # of the app's own function
            decoder.decode(latents, sharpen=2)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("decode(self, latent, *,", "decode(self, latent, prompt, *,"), "decode needs prompt, which mlx_ltx_vae"),
        (("tiled_decode(self, latent", "tiles(self, latent"), "it has no ltx_core_mlx.model.video_vae.video_vae:Video"),
        (("class VideoDecoder(", "class Decoder("), f"it has no {CORE}.video_vae:VideoDecoder.decode"),
        (("    def decode(self, ", "    @staticmethod\n    def decode("), "VideoDecoder.decode is not a method"),
        (
            ("    def decode(self, ", "    decode = mx.exp\n\n    def another(self, "),
            "VideoDecoder.decode is not a method",
        ),
        (("decode(self, latent, *, _materialize_stages=False", "decode(self, *args"), "decode names no parameters"),
        (("_decode(self, latent, tiling_config=None", "_decode(self, tiling_config, latent"), "config before latent"),
    ],
)
def test_a_class_that_moved_stays_the_apps_and_is_named(apps, capfd, change, said):
    """All of it: never is one of its functions replaced and another not."""
    apps(video_vae=change)
    with integrations.install("dgrauet/ltx-2-mlx") as installed:
        core = importlib.import_module(f"{CORE}.video_vae")
        decoder = getattr(core, "VideoDecoder", None) or core.Decoder
        assert not any(hasattr(each, "original") for each in vars(decoder).values())
        assert hasattr(core.VideoEncoder.encode, "original")
        assert installed.moved
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("mlx_ltx_vae: dgrauet/ltx-2-mlx: ") and said in line
    assert line.endswith("VideoDecoder stays the app's own.")


def test_new_names_and_new_optional_parameters_change_nothing(apps, network, capfd):
    after = "def decode(self, z, seed=0, quality=None, *,"
    apps(video_vae=("def decode(self, latent, *,", after))
    with integrations.install() as installed:
        core = importlib.import_module(f"{CORE}.video_vae")
        decoder = core.VideoDecoder(network("ltx2_3", "decoder"))
        plain = decoder.decode(z=mx.array(LATENTS))
        assert mx.array_equal(decoder.decode(mx.array(LATENTS), 3), plain)
        with pytest.raises(AssertionError, match="the app's own decode"):
            decoder.decode(mx.array(LATENTS), quality="high")
        assert installed.moved == [f"{CORE}.video_vae:VideoDecoder.decode also takes z, seed, quality"]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("VideoDecoder.decode also takes quality; calls that use it stay the app's own.")


def test_an_app_that_is_not_known_is_refused():
    with pytest.raises(LTXVAEError, match="'mlx-video' is not a known app"):
        integrations.install("mlx-video")


def test_a_program_is_the_main_module_until_its_process_ends(apps, tmp_path):
    """An absolute `__file__`, as Python sets it, and names that threads and exit handlers find after the last line."""
    apps()
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "served.py").write_text(
        "import atexit, os, pickle, sys, threading\n"
        "sys.path.append('.')\n"
        "from LTX_2_MLX.pipeline import decode_streaming\n"
        "class Request: pass\n"
        "def serve():\n"
        "    threading.main_thread().join()\n"
        "    pickle.dumps(Request())\n"
        "    print(hasattr(decode_streaming, 'original'), sys.argv[1:], flush=True)\n"
        "threading.Thread(target=serve).start()\n"
        "atexit.register(lambda: print(pickle.dumps(Request) and 'exit'))\n"
        "os.chdir('/')\n"
        "print(__file__, sys.argv, __builtins__.__name__)\n"
    )
    command = [sys.executable, "-m", "mlx_ltx_vae", "run", "--", "programs/served.py", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{tmp_path}/programs/served.py ['programs/served.py', 'a b'] builtins",
        "True ['a b']",
        "exit",
    ]
    line = "mlx_ltx_vae: programs/served.py decoded nothing here; its own decoder ran, if any did.\n"
    assert done.stderr == line


def test_folders_and_zip_files_are_programs(apps, tmp_path, capfd):
    apps()
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text("import sys, beside\nprint(__spec__.name, sys.argv, beside.WORD)\n")
    (tmp_path / "tool" / "beside.py").write_text("WORD = 'beside'\n")
    zipapp.create_archive(tmp_path / "tool", tmp_path / "tool.pyz")
    for name in ("tool", "tool.pyz"):
        assert main(["run", name, "x"]) == 0
        assert capfd.readouterr().out == f"__main__ ['{name}', 'x'] beside\n"
        del sys.modules["beside"]


def test_a_module_that_a_program_lacks_is_named_as_python_names_it(apps, tmp_path):
    apps()
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import nowhere_to_be_found\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_to_be_found'"):
        main(["run", "-m", "lacking.generate"])
