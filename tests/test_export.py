"""Exported decodes: the folder, and the programs of examples/exported, which run it without this package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from commands import decode, info, mlx_ltx_vae, preview
from conftest import CONV_CASES
from mlx_ltx_vae import AudioVAE, CheckpointError, LatentsError, LTXVAEError, PlanError, VideoVAE, demo
from mlx_ltx_vae.backend import function_file
from mlx_ltx_vae.backend.device import computing_for
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.pipeline.export import Functions
from tolerances import ON_CPU, tolerance

PROGRAMS = Path(__file__).parents[1] / "examples" / "exported"
MLX = Path(mx.__file__).parent
GRID = (2, 3)  # rows and columns of latents; reflection needs two
LENGTHS = (1, 2, 9)  # latent frames: fewer than the warm-up, and more
LONG = 40  # latent frames, of a network of each kind
TOLERANCE = 1e-5  # in float32
PREVIEWS = ["taehv_ltx2", "taehv_ltx2_wide"]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory):
    """The program in C++, built against the wheel of MLX."""
    if shutil.which("g++") is None or not (MLX / "lib" / "libmlx.so").exists():
        pytest.skip("building the program needs g++ and MLX's wheel for Linux")
    program = tmp_path_factory.mktemp("cpp") / "run"
    libraries = [f"-L{MLX}/lib", "-lmlx", f"-Wl,-rpath,{MLX}/lib"]
    line = ["g++", "-std=c++20", PROGRAMS / "run.cpp", f"-I{MLX}/include", *libraries, "-o", program]
    subprocess.run([*map(str, line)], check=True)
    return [str(program)]


PYTHON = [sys.executable, str(PROGRAMS / "run.py")]


def load(golden, case):
    return VideoVAE.from_pretrained(golden(case).checkpoint, dtype="float32", encoder=False)


def size_of(vae, grid=GRID):
    return grid[1] * vae.config.scale.width, grid[0] * vae.config.scale.height


def make_latents(vae, length, grid=GRID):
    shape = (1, vae.config.latent_channels, length, *grid)
    return np.random.default_rng(length).standard_normal(shape, np.float32)


def run(program, folder, latents, *options, **environment):
    """The exit code, the bytes on standard output, and standard error."""
    path = Path(folder).parent / "given.safetensors"
    save_file({"latents": latents}, path)
    line = [*program, str(folder), str(path), *options]
    done = subprocess.run(line, capture_output=True, cwd="/", env={**os.environ, **environment}, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


def run_floats(program, folder, latents, shape):
    code, output, error = run(program, folder, latents, "--float")
    assert code == 0, error
    return np.frombuffer(output, np.float32).reshape(-1, *shape[3:], 3).transpose(3, 0, 1, 2)[None]


def assert_same_frames(vae, folder, programs, lengths):
    for length in lengths:
        latents = make_latents(vae, length)
        expected = np.array(vae.decode(latents))
        for program in programs:
            frames = run_floats(program, folder, latents, expected.shape)
            assert frames.shape == expected.shape
            assert np.abs(frames - expected).max() <= tolerance(TOLERANCE), (program, length)


@pytest.fixture(scope="module")
def small(golden, tmp_path_factory):
    """A VAE that takes little time, and its export."""
    vae, folder = load(golden, "small_ltx2_3"), tmp_path_factory.mktemp("small") / "exported"
    vae.export(folder, size_of(vae))
    return vae, folder


@pytest.fixture
def changed(small, tmp_path):
    """A function that returns a copy of the folder with other entries in decode.json."""

    def change(**entries):
        folder = tmp_path / "changed"
        shutil.copytree(small[1], folder)
        content = json.loads((folder / "decode.json").read_text())
        (folder / "decode.json").write_text(json.dumps(content | entries))
        return folder

    return change


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("program", ["python", "cpp"])
def test_programs_give_the_frames_of_a_decode_for_any_length(small, program, request):
    vae, folder = small
    line = PYTHON if program == "python" else request.getfixturevalue("cpp")
    assert_same_frames(vae, folder, [line], (1, 3, 20))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CONV_CASES, *PREVIEWS])
def test_programs_give_the_frames_of_a_decode_for_every_network(golden, tmp_path, cpp, case):
    vae, folder = load(golden, case), tmp_path / "exported"
    vae.export(folder, size_of(vae))
    lengths = (*LENGTHS, LONG) if case in ("ltx2_3", "taehv_ltx2") else LENGTHS
    assert_same_frames(vae, folder, [PYTHON, cpp], lengths)


@pytest.mark.slow
def test_a_network_with_noise_and_a_timestep_is_exported_for_them(golden, tmp_path):
    vae, options = load(golden, "small_ltxv_0_9_1"), {"seed": 7, "timestep": 0.1, "noise_scale": 0.2}
    vae.export(tmp_path / "exported", size_of(vae), **options)
    latents = make_latents(vae, 4)
    expected, other = np.array(vae.decode(latents, **options)), np.array(vae.decode(latents))
    frames = run_floats(PYTHON, tmp_path / "exported", latents, expected.shape)
    assert np.abs(frames - expected).max() <= tolerance(TOLERANCE) < np.abs(frames - other).max()


@pytest.mark.quick(1)
@pytest.mark.parametrize("program", ["python", "cpp"])
def test_frames_are_8_bit_rgb_unless_floats_are_requested(small, program, request):
    vae, folder = small
    line = PYTHON if program == "python" else request.getfixturevalue("cpp")
    latents = make_latents(vae, 2)
    code, output, error = run(line, folder, latents[0])
    assert code == 0, error
    levels = np.frombuffer(output, np.uint8).astype(int)
    assert np.abs(levels - vae.decode_uint8(latents).flatten()).max() <= (0 if ON_CPU else 1)


@pytest.mark.quick(1)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_functions_for_metal_give_the_frames_of_its_formulation(golden, tmp_path, monkeypatch, dtype):
    """They run here, where there is no GPU, as if they were of a CPU. Without a dtype, operands are float16."""
    monkeypatch.setattr(function_file, "_GPU", function_file._CPU)
    path = tmp_path / "vae.safetensors"
    weights = {name: mx.array(array) for name, array in load_file(golden("small_ltx2_3").checkpoint).items()}
    metadata = {"config": json.dumps({"vae": golden("small_ltx2_3").manifest["vae_config"]})}
    mx.save_safetensors(str(path), {name: array.astype(mx.bfloat16) for name, array in weights.items()}, metadata)
    with computing_for(Backend.METAL):
        vae = VideoVAE.from_pretrained(path, dtype=dtype, encoder=False)
        vae.export(tmp_path / "exported", size_of(vae))
        latents = make_latents(vae, 9)
        expected = np.array(vae.decode(latents).astype(mx.float32))
    assert json.loads((tmp_path / "exported" / "decode.json").read_text())["backend"] == "metal"
    stored = mx.load(str(tmp_path / "exported" / "weights.safetensors"))
    assert stored["conv_in.conv.weight"].dtype == (mx.float16 if dtype is None else mx.float32)
    frames = run_floats(PYTHON, tmp_path / "exported", latents, expected.shape)
    assert np.abs(frames - expected).max() <= (tolerance(TOLERANCE) if dtype else 0.02)
    other = np.array(VideoVAE.from_pretrained(path, dtype="float32", encoder=False).decode(latents))
    assert np.abs(frames - other).max() > 0


@pytest.mark.parametrize("name", ["run.py", "run.cpp", "Decode.swift"])
def test_programs_are_short_and_use_nothing_of_the_package(name):
    lines = (PROGRAMS / name).read_text().splitlines()
    assert len(lines) < 120
    assert not any("import" in line and "mlx_ltx_vae" in line for line in lines)


# --- the folder -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_export_is_the_same_bytes_every_time(small, golden, tmp_path):
    _, folder = small
    code = "import sys; from mlx_ltx_vae import VideoVAE\n"
    code += "VideoVAE.from_pretrained(sys.argv[1], dtype='float32').export(sys.argv[2], (96, 64))"
    line = [sys.executable, "-c", code, str(golden("small_ltx2_3").checkpoint), str(tmp_path / "again")]
    subprocess.run(line, check=True)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_calls_name_files_and_weights_that_are_there(small):
    _, folder = small
    content, weights = json.loads((folder / "decode.json").read_text()), load_file(folder / "weights.safetensors")
    numbers = {call["function"] for call in content["calls"]}
    assert {f"{number}.mlxfn" for number in numbers} == {path.name for path in folder.glob("*.mlxfn")}
    made = {name for call in content["calls"] for name in call["outputs"]} | {"latents", "index"}
    assert {name for call in content["calls"] for name in call["inputs"]} <= made | weights.keys()
    used = {number for numbers in content["steps"] + content["ends"] for number in numbers}
    assert used == set(range(len(content["calls"])))
    assert len(content["steps"]) == len(content["ends"])


def test_functions_hold_no_weights(small):
    _, folder = small
    sizes = [path.stat().st_size for path in folder.glob("*.mlxfn")]
    largest = max(array.nbytes for array in load_file(folder / "weights.safetensors").values())
    assert max(sizes) < 50_000 < largest


@pytest.mark.slow
def test_weights_can_be_those_of_another_size(small, golden, tmp_path):
    vae, folder = small
    exported = vae.export(tmp_path / "wide", size_of(vae, (2, 4)), weights=False)
    assert exported.weight_bytes == 0 and not (tmp_path / "wide" / "weights.safetensors").exists()
    latents = make_latents(vae, 2, (2, 4))
    code, _, error = run(PYTHON, tmp_path / "wide", latents)
    assert code == 1 and "weights.safetensors: is missing; copy it" in error
    shutil.copy(folder / "weights.safetensors", tmp_path / "wide")
    expected = np.array(vae.decode(latents))
    frames = run_floats(PYTHON, tmp_path / "wide", latents, expected.shape)
    assert np.abs(frames - expected).max() <= tolerance(TOLERANCE)


def test_a_failed_export_leaves_nothing_and_the_vae_decodes_as_before(golden, tmp_path, monkeypatch):
    vae = load(golden, "small_ltxv_0_9_1")
    latents = make_latents(vae, 2)
    expected = vae.decode(latents)
    write, calls = mx.export_function, []

    def fail(*arguments):
        calls.append(arguments)
        write(*arguments)
        if len(calls) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(mx, "export_function", fail)
    with pytest.raises(KeyboardInterrupt):
        vae.export(tmp_path / "exported", size_of(vae))
    assert list(tmp_path.iterdir()) == []
    assert mx.array_equal(vae.decode(latents), expected)


def test_the_command_exports(golden, tmp_path, capsys):
    line = ["-m", str(golden("small_ltx2_3").checkpoint), "-o", str(tmp_path / "exported"), "--size", "64x96"]
    assert mlx_ltx_vae(["export", *line, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["width"], report["height"]) == (64, 96)
    assert report["functions"] == len(list((tmp_path / "exported").glob("*.mlxfn")))
    assert report["weight_bytes"] <= (tmp_path / "exported" / "weights.safetensors").stat().st_size
    assert mlx_ltx_vae(["export", *line]) == 1
    assert "already exists and is not an empty folder" in capsys.readouterr().err


def test_an_export_is_no_vae_and_commands_say_what_it_is(small, changed, tmp_path, capsys):
    folder = small[1]
    np.save(tmp_path / "clip.npy", np.zeros((1, 8, 1, 2, 2), np.float32))
    for source in (folder, f"{folder}/", folder / "weights.safetensors", f"{folder}:weights.safetensors"):
        for command in (decode, preview):
            assert command([str(tmp_path / "clip.npy"), "-m", str(source), "-o", str(tmp_path / "out.mp4")]) == 1
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.endswith("is an exported decode, which is no VAE; give the VAE that was exported.")
        with pytest.raises(CheckpointError, match=r"is an exported decode"):
            AudioVAE.from_pretrained(source)
    content = json.loads((folder / "decode.json").read_text())
    for source in (folder, folder / "decode.json", folder / "weights.safetensors"):
        assert info([str(source)]) == 0
        text = capsys.readouterr().out
        assert f"kind: exported decode\nname: {source.name}\ngeneration: {content['generation']}\n" in text
        assert f"frames: {content['frames'][0]}, {content['frames'][1]}\n" in text
    for entries in ({"calls": 1, "frames": {"a": [1]}, "generation": "\x1b[2J"}, {"frames": None}):
        assert info([str(changed(**entries))]) == 0
        assert "\x1b" not in capsys.readouterr().out
        shutil.rmtree(tmp_path / "changed")
    for text in ("[" * 100_000, "3", "nothing", '{"format": 1}'):
        (tmp_path / "decode.json").write_text(text)
        assert info([str(tmp_path / "decode.json")]) == 1
        assert "exported" not in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["-m", "-o", "--size"])
def test_the_command_says_what_is_missing(tmp_path, capsys, missing):
    options = {"-m": str(demo.VAE), "-o": str(tmp_path / "exported"), "--size": "32x64"}
    del options[missing]
    with pytest.raises(SystemExit) as ended:
        mlx_ltx_vae(["export", *(word for option in options.items() for word in option)])
    assert ended.value.code == 2
    assert f"{missing} " in capsys.readouterr().err


MAKE = """
import sys
from pathlib import Path
import mlx.core as mx
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.convolution.conv3d import prepare
from mlx_ltx_vae.published import PublishedVAE
folder, programs = sys.argv[1:]
latents = mx.random.normal((1, 128, 20, 4, 6))
mx.eval(latents)

def make_vae():
    published = PublishedVAE.find("ltx-2.3", base_channels=32)
    decoder = published.family.make(published.config, "decoder", Statistics(mx.zeros(128), mx.ones(128)))
    prepare(decoder, keeps_dtype=True)
    return VideoVAE(published.config, None, decoder)

"""
EXPORT = "make_vae().export(folder, (192, 128))"
STREAM = """
vae = make_vae()
mx.reset_peak_memory()
plan = vae.plan(latents.shape, mode="exact", order="time", chunk=1)
for chunk in vae.stream(latents, plan):
    chunk.to_uint8()
print(mx.get_peak_memory(), plan.memory.active)
"""
RUN = """
sys.path.insert(0, programs)
from run import Decode, to_bytes
decode = Decode(Path(folder))
for frames in decode.frames(latents):
    to_bytes(frames, False)
print(mx.get_peak_memory())
"""


@pytest.mark.slow
def test_a_program_takes_the_memory_of_the_stream(tmp_path):
    """At a quarter of the published width, each in a process of its own."""

    def execute(code):
        line = [sys.executable, "-c", MAKE + code, str(tmp_path / "exported"), str(PROGRAMS)]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    execute(EXPORT)
    program_peak, stream_peak, planned_peak = map(int, (execute(RUN) + execute(STREAM)).split())
    assert program_peak <= 1.25 * stream_peak
    assert program_peak <= planned_peak <= 1.5 * program_peak


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("program", ["python", "cpp"])
def test_programs_refuse_what_they_cannot_run(small, changed, program, request):
    vae, folder = small
    line = PYTHON if program == "python" else request.getfixturevalue("cpp")
    newer, latents = changed(mlx="1000.0.0"), make_latents(vae, 1)
    for other, given, words in (
        (newer, latents, "is of MLX 1000.0.0"),
        (folder, make_latents(vae, 1, (3, 3)), "this export is for"),
        (folder, latents[:, :, :0], "this export is for"),
    ):
        code, output, error = run(line, other, given)
        assert (code, output) == (1, b"")
        assert words in error and len(error.splitlines()) == 1
    (newer / "decode.json").unlink()
    code, _, error = run(line, newer, latents)
    assert code == 1 and "has no decode.json" in error


@pytest.mark.quick(1)
@pytest.mark.parametrize("program", ["python", "cpp"])
def test_programs_refuse_the_weights_of_another_checkpoint(small, changed, program, request):
    line = PYTHON if program == "python" else request.getfixturevalue("cpp")
    code, output, error = run(line, changed(fingerprint="0"), make_latents(small[0], 1))
    assert (code, output) == (1, b"")
    assert "has the weights of another checkpoint" in error


def test_a_budget_that_is_too_small_names_the_largest_size(small, tmp_path):
    vae, _ = small
    with pytest.raises(PlanError, match="the largest size of this shape that works by time is ") as refused:
        vae.export(tmp_path / "exported", (1536, 1024), memory_budget=30_000_000)
    width, height = map(int, str(refused.value).rstrip(".").rpartition(" ")[2].split("x"))
    assert vae.plan((1, 8, 64, height // 32, width // 32), order="time", mode="exact", memory_budget=30_000_000)
    assert not (tmp_path / "exported").exists()
    with pytest.raises(PlanError, match="too small"):
        vae.export(tmp_path / "exported", (64, 64), memory_budget=1_000_000)


def test_sizes_that_are_not_whole_cells_are_refused(small, tmp_path):
    with pytest.raises(LatentsError, match="multiple of 32"):
        small[0].export(tmp_path / "exported", "100x64")
    with pytest.raises(LatentsError, match="width and a height"):
        small[0].export(tmp_path / "exported", (96, 64, 1))


def test_a_decoder_that_denoises_is_refused(golden, tmp_path):
    with pytest.raises(PlanError, match="denoises"):
        load(golden, "ltx2_5_diffusion").export(tmp_path / "exported", (96, 64))


def test_every_primitive_of_a_function_for_a_gpu_names_it(tmp_path):
    def function(x, weight):
        parts = mx.split(mx.conv2d(x, weight), 2, axis=-1)
        noise = mx.random.normal(parts[0].shape, key=mx.array([1, 2], mx.uint32))
        return [mx.concatenate(parts, axis=-1), parts[0] * noise + mx.arange(5), mx.fast.rms_norm(x, None, 1e-5)]

    arguments = [mx.zeros((1, 5, 5, 10)), mx.zeros((10, 1, 1, 10))]
    entries = []
    mx.export_function(entries.append, function, *arguments)
    count = sum(entry["type"] == "primitive" for entry in entries)
    functions = Functions(tmp_path)
    on_cpu = functions.trace(function, arguments)
    with computing_for(Backend.METAL):
        on_gpu = functions.trace(function, arguments)
    assert len(on_cpu) == len(on_gpu)
    differences = [pair for pair in zip(on_cpu, on_gpu, strict=True) if pair[0] != pair[1]]
    assert differences == [(0, 1)] * count


def test_an_unknown_format_of_functions_is_refused(small, tmp_path, monkeypatch):
    write = mx.export_function

    def cut_off(path, function, *arguments):
        write(path, function, *arguments)
        Path(path).write_bytes(Path(path).read_bytes()[:60])

    monkeypatch.setattr(mx, "export_function", cut_off)
    with pytest.raises(LTXVAEError, match="format that is not known"):
        Functions(tmp_path).trace(lambda x: [x + 1], [mx.zeros(3)])
