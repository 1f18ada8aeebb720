"""Exported decodes and encodes: the folder, and the programs of examples/exported, which run it without the package."""

import importlib.util
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
from conftest import CONV_CASES, ENCODER_CASES
from mlx_ltx_vae import AudioVAE, CheckpointError, LatentsError, LTXVAEError, PlanError, VideoVAE, demo
from mlx_ltx_vae.backend import function_file
from mlx_ltx_vae.backend.device import computing_for
from mlx_ltx_vae.backend.function_file import describe_function, find_reader, write_function
from mlx_ltx_vae.backend.machine import READERS, Backend, Machine, Reader
from mlx_ltx_vae.planning.planner import plan_export
from mlx_ltx_vae.published import PublishedVAE
from tolerances import ON_CPU, tolerance

PROGRAMS = Path(__file__).parents[1] / "examples" / "exported"
MLX = Path(mx.__file__).parent
GRID = (2, 3)  # rows and columns of latents; reflection needs two
LENGTHS = (1, 2, 9)  # latent frames: fewer than the warm-up, and more
LONG = 40  # latent frames, of a network of each kind
TOLERANCE = 1e-5  # in float32
PREVIEWS = ["taehv_ltx2", "taehv_ltx2_wide"]


def build(program, wheel):
    """The program in C++, built against a wheel of MLX. The libraries of older ones name each other only in Python."""
    if shutil.which("g++") is None or not (wheel / "lib" / "libmlx.so").exists():
        pytest.skip("building the program needs g++ and MLX's wheel for Linux")
    libraries = [f"-L{wheel}/lib", "-lmlx", f"-Wl,-rpath,{wheel}/lib", "-Wl,--allow-shlib-undefined"]
    line = ["g++", "-std=c++20", PROGRAMS / "run.cpp", f"-I{wheel}/include", *libraries, "-o", program]
    subprocess.run([*map(str, line)], check=True)
    return [str(program)]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cpp") / "run", MLX)


PYTHON = [sys.executable, str(PROGRAMS / "run.py")]


def load_program():
    spec = importlib.util.spec_from_file_location("exported_run", PROGRAMS / "run.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def load(golden, case, *, encoder=False):
    return VideoVAE.from_pretrained(golden(case).checkpoint, dtype="float32", encoder=encoder)


def size_of(vae, grid=GRID):
    return grid[1] * vae.config.scale.width, grid[0] * vae.config.scale.height


def make_latents(vae, length, grid=GRID):
    shape = (1, vae.config.latent_channels, length, *grid)
    return np.random.default_rng(length).standard_normal(shape, np.float32)


def make_frames(vae, length, grid=GRID):
    scale = vae.config.scale
    shape = (1 + (length - 1) * scale.time, grid[0] * scale.height, grid[1] * scale.width, 3)
    return np.random.default_rng(length).integers(0, 256, shape, np.uint8)


def run(program, folder, latents, *options, name="latents", **environment):
    """The exit code, the bytes on standard output, and standard error."""
    path = Path(folder).parent / "given.safetensors"
    save_file({name: latents}, path)
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


def assert_same_latents(vae, folder, lengths):
    output = folder.parent / "encoded.safetensors"
    for length in lengths:
        frames = make_frames(vae, length)
        code, _, error = run(PYTHON, folder, frames, "--encode", str(output), name="frames")
        assert code == 0, error
        latents, expected = load_file(output)["latents"], np.array(vae.encode(frames))
        assert latents.shape == expected.shape
        assert np.abs(latents - expected).max() <= tolerance(TOLERANCE), length


def test_an_exported_encoder_gives_the_latents_of_an_encode(golden, tmp_path):
    vae = load(golden, "small_ltx2_3", encoder=True)
    exported = vae.export(tmp_path / "exported", size_of(vae), encoder=True)
    assert "encodes of any length" in str(exported)
    with pytest.raises(CheckpointError, match=r"is an exported encode, which is no VAE"):
        VideoVAE.from_pretrained(tmp_path / "exported")
    assert_same_latents(vae, tmp_path / "exported", (1, 3))
    program, given = load_program(), make_frames(vae, 2)
    encode = program.Exported(tmp_path / "exported", "encode").encode
    for frames in (given[:5], given[:, :32], given.astype(np.float32), given[:0], given[0]):
        with pytest.raises(program.ExportError, match=r"this export is for uint8 \(1 \+ 8\*k, 64, 96, 3\)"):
            next(encode(mx.array(frames)))
    with pytest.raises(program.ExportError, match=r"has no decode.json"):
        program.Exported(tmp_path / "exported")


@pytest.mark.slow
@pytest.mark.parametrize("case", [*ENCODER_CASES, *PREVIEWS])
def test_every_exported_encoder_gives_the_latents_of_an_encode(golden, tmp_path, case):
    vae = load(golden, case, encoder=True)
    vae.export(tmp_path / "exported", size_of(vae), encoder=True)
    assert_same_latents(vae, tmp_path / "exported", LENGTHS)


@pytest.mark.parametrize("name", ["run.py", "run.cpp", "Decode.swift"])
def test_programs_are_short_and_use_nothing_of_the_package(name):
    lines = (PROGRAMS / name).read_text().splitlines()
    assert len(lines) < 190
    assert not any("import" in line and "mlx_ltx_vae" in line for line in lines)


# --- other versions of MLX ------------------------------------------------------------------------------------------

OLDER = ("0.30.6", "0.31.1", "0.31.2")  # in mlx-rs, in mlx-swift and mlx-c, and the oldest that the package takes
NEWEST = "newest"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the wheels are of MLX's CPU backend for Linux")
#: Runs decodes and encodes of several lengths: the folder with the inputs and results, run.py's, and the exports'.
RUN_ALL = """
import sys
from pathlib import Path
files, programs, decoder, encoder = map(Path, sys.argv[1:])
sys.path.insert(0, str(programs))
from run import Exported, load, mx
for path in files.glob("*.latents"):
    frames = mx.concatenate(list(Exported(decoder).decode(load(path.rename(f"{path}.safetensors"), "latents"))))
    mx.save_safetensors(f"{path}.decoded.safetensors", {"frames": frames})
for path in files.glob("*.frames"):
    frames = load(path.rename(f"{path}.safetensors"), "frames")
    latents = mx.concatenate(list(Exported(encoder, "encode").encode(frames)), axis=2)
    mx.save_safetensors(f"{path}.encoded.safetensors", {"latents": latents})
"""


@pytest.fixture(scope="module")
def python_with(tmp_path_factory):
    """`python_with("0.31.1")`: a Python that has this version of MLX and numpy, and nothing else."""
    folder = tmp_path_factory.mktemp("environments")

    def make(version):
        python = folder / version / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / version], check=True)
            needed = "mlx[cpu]" if version == NEWEST else f"mlx[cpu]=={version}"
            line = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", needed, "numpy"]
            done = subprocess.run([*map(str, line)], capture_output=True, text=True, check=False)
            if done.returncode:
                python.unlink()
                pytest.skip(f"{needed} cannot be installed from an index of packages: {done.stderr.strip()[-200:]}")
        return str(python)

    return make


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("version", [*OLDER, NEWEST])
@pytest.mark.parametrize("case", [*CONV_CASES, *PREVIEWS])
def test_other_versions_of_mlx_run_an_export_for_them(golden, tmp_path, python_with, version, case):
    python = python_with(version)
    has_encoder = case in (*ENCODER_CASES, *PREVIEWS)
    vae = load(golden, case, encoder=has_encoder)
    reader = "mlx" if version == NEWEST else "mlx-rs"
    vae.export(tmp_path / "decoder", size_of(vae), reader=reader)
    if has_encoder:
        vae.export(tmp_path / "encoder", size_of(vae), reader=reader, encoder=True)
    lengths = (1, 2, 9, 20)
    for length in lengths:
        save_file({"latents": make_latents(vae, length)}, tmp_path / f"{length}.latents")
        if has_encoder:
            save_file({"frames": make_frames(vae, length)}, tmp_path / f"{length}.frames")
    line = [python, "-c", RUN_ALL, tmp_path, PROGRAMS, tmp_path / "decoder", tmp_path / "encoder"]
    subprocess.run([*map(str, line)], check=True)
    for length in lengths:
        frames = load_file(tmp_path / f"{length}.latents.decoded.safetensors")["frames"]
        expected = np.array(vae.decode(make_latents(vae, length)))[0].transpose(1, 2, 3, 0)
        assert frames.shape == expected.shape
        assert np.abs(frames - expected).max() <= TOLERANCE
        if has_encoder:
            latents = load_file(tmp_path / f"{length}.frames.encoded.safetensors")["latents"]
            expected = np.array(vae.encode(make_frames(vae, length)))
            assert latents.shape == expected.shape
            assert np.abs(latents - expected).max() <= TOLERANCE


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("version", OLDER)
def test_older_versions_of_mlx_run_an_export_in_cpp_and_refuse_one_for_newer_ones(
    small, tmp_path, python_with, version
):
    vae, newer = small
    where = "import mlx.core as mx, pathlib; print(pathlib.Path(mx.__file__).parent)"
    wheel = subprocess.run([python_with(version), "-c", where], check=True, capture_output=True, text=True).stdout
    program = build(tmp_path / "run", Path(wheel.strip()))
    vae.export(tmp_path / "exported", size_of(vae), reader="mlx-c")
    assert_same_frames(vae, tmp_path / "exported", [program], (1, 9))
    for line in (program, [python_with(version), str(PROGRAMS / "run.py")]):
        code, output, error = run(line, newer, make_latents(vae, 1))
        assert (code, output) == (1, b"")
        assert "functions of format 2, and MLX" in error and "reads format 1" in error


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


def test_functions_for_an_older_mlx_lack_the_metadata_of_newer_ones(small, tmp_path):
    vae, folder = small
    if find_reader("mlx").file_format == 1:
        pytest.skip("the MLX that is installed here writes no metadata")
    exported = vae.export(tmp_path / "exported", size_of(vae), reader="mlx-swift")
    contents = [json.loads((path / "decode.json").read_text()) for path in (folder, tmp_path / "exported")]
    assert [content.pop("function_format") for content in contents] == [2, 1]
    assert [content.pop("mlx") for content in contents] == [mx.__version__, "0.31.1"]
    assert contents[0] == contents[1]
    assert exported.as_dict()["function_format"] == 1
    for path in folder.glob("*.mlxfn"):
        newer, older = path.read_bytes(), (tmp_path / "exported" / path.name).read_bytes()
        start = 8 + int.from_bytes(newer[:8], "little") + 5  # after the version, the number of functions and a flag
        assert newer[start : start + 8] == bytes(8)
        assert older == newer[:start] + newer[start + 8 :]


def test_an_unknown_reader_is_refused_before_anything_is_written(small, tmp_path):
    with pytest.raises(LTXVAEError, match=r"the reader 'mlx-swfit' is not known.*mlx-swift"):
        small[0].export(tmp_path / "exported", (96, 64), reader="mlx-swfit")
    assert not (tmp_path / "exported").exists()


def test_the_page_has_the_table_of_readers():
    page = (PROGRAMS.parents[1] / "docs" / "export.md").read_text()
    for name, reader in READERS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | {reader},"))
        bounded = {True: "yes", False: "no"}[reader.bounds_winograd]
        assert row.endswith(f"| {reader.file_format} | {bounded} |")


def test_a_plan_for_an_older_mlx_counts_the_scratch_memory_of_all_frames():
    """At the published widths, on Metal, where only newer ones bound it."""
    published = PublishedVAE.find("ltx-2.3")
    spec, scale = published.family.spec(published.config, "decoder"), published.config.scale
    peaks = {
        version: plan_export(
            spec, scale, Machine(Backend.METAL, 2, bounds_winograd=version.bounds_winograd), (768, 512), None
        ).memory.active
        for version in (Reader(0, 32, 2), Reader(0, 32, 1), READERS["mlx-rs"])
    }
    bounded, *others = peaks.values()
    assert others[0] == others[1] > 1.1 * bounded


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


def test_several_sizes_share_their_weights(golden, tmp_path, capsys):
    vae, folder = load(golden, "small_ltx2_3"), tmp_path / "new" / "exported"
    line = ["-m", str(golden("small_ltx2_3").checkpoint), "-o", str(folder), "--dtype", "float32"]
    assert mlx_ltx_vae(["export", *line, "--size", "96x64", "--size", "64x64", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)["exports"]
    assert [Path(report["output"]).name for report in reports] == ["96x64", "64x64"]
    assert {report["weights"] for report in reports} == {str(folder / "weights.safetensors")}
    assert sorted(path.name for path in folder.iterdir()) == ["64x64", "96x64", "weights.safetensors"]
    assert not [*folder.glob("*/*.safetensors")]
    latents = make_latents(vae, 2, (2, 2))
    expected = np.array(vae.decode(latents))
    frames = run_floats(PYTHON, folder / "64x64", latents, expected.shape)
    assert np.abs(frames - expected).max() <= tolerance(TOLERANCE)
    code, _, error = run(PYTHON, folder, latents)
    assert code == 1 and "exported: has no decode.json; name that of a size, 64x64, 96x64." in error
    for model in (folder, folder / "weights.safetensors"):
        with pytest.raises(CheckpointError, match=r"has the weights of an export, which is no VAE"):
            VideoVAE.from_pretrained(model)
    weights = folder / "weights.safetensors"
    before = weights.stat().st_mtime_ns, (folder / "64x64" / "decode.json").stat().st_mtime_ns
    assert mlx_ltx_vae(["export", *line, "--size", "64x64", "--size", "64x96"]) == 1
    assert "64x64: already exists; add -y to replace it, or -n to skip it." in capsys.readouterr().err
    assert mlx_ltx_vae(["export", *line, "--size", "64x64", "--size", "64x96", "-n"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{folder}/64x64: skipped") and "; shared weights of " in text
    assert before == (weights.stat().st_mtime_ns, (folder / "64x64" / "decode.json").stat().st_mtime_ns)


@pytest.mark.slow
def test_a_file_above_an_export_is_not_replaced_by_its_weights(golden, tmp_path, monkeypatch):
    vae = load(golden, "small_ltx2_3")
    (tmp_path / "weights.safetensors").write_bytes(b"of the user")
    exported = vae.export(tmp_path / "small", size_of(vae), shares_weights=True)
    assert exported.weights == str(tmp_path / "small" / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").read_bytes() == b"of the user"
    vae.export(tmp_path / "small", size_of(vae), shares_weights=True, overwrite=True)
    assert Path(exported.weights).exists()
    (tmp_path / "weights.safetensors").unlink()
    rename = Path.rename

    def refuse(path, target):
        if Path(target) == tmp_path / "weights.safetensors":
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(LTXVAEError, match=r"weights\.safetensors: cannot be written \(Permission denied"):
        vae.export(tmp_path / "small", size_of(vae), shares_weights=True, overwrite=True)


@pytest.mark.slow
def test_sizes_with_noise_of_their_own_have_weights_of_their_own(golden, tmp_path):
    vae = load(golden, "small_ltxv_0_9_1")
    exports = [vae.export(tmp_path / str(n), size_of(vae, (2, n)), shares_weights=True) for n in (2, 3)]
    assert [Path(exported.weights).parent for exported in exports] == [tmp_path, tmp_path / "3"]
    for number, exported in zip((2, 3), exports, strict=True):
        latents = make_latents(vae, 2, (2, number))
        expected = np.array(vae.decode(latents))
        frames = run_floats(PYTHON, exported.folder, latents, expected.shape)
        assert np.abs(frames - expected).max() <= tolerance(TOLERANCE)


@pytest.mark.slow
def test_weights_can_be_those_of_another_size(small, tmp_path, cpp):
    vae, folder = small
    shutil.copy(folder / "weights.safetensors", tmp_path)  # beside the folders of several sizes
    exported = vae.export(tmp_path / "wide", size_of(vae, (2, 4)), shares_weights=True)
    assert exported.weights == str(tmp_path / "weights.safetensors")
    assert not (tmp_path / "wide" / "weights.safetensors").exists()
    (tmp_path / "weights.safetensors").unlink()
    latents = make_latents(vae, 2, (2, 4))
    code, _, error = run(PYTHON, tmp_path / "wide", latents)
    assert code == 1 and "weights.safetensors: is missing; copy it" in error
    shutil.copy(folder / "weights.safetensors", tmp_path)
    expected = np.array(vae.decode(latents))
    for program in (PYTHON, cpp):
        frames = run_floats(program, tmp_path / "wide", latents, expected.shape)
        assert np.abs(frames - expected).max() <= tolerance(TOLERANCE)
    save_file({}, tmp_path / "wide" / "weights.safetensors")
    code, _, error = run(PYTHON, tmp_path / "wide", latents)
    assert code == 1 and "wide/weights.safetensors: has the weights of another checkpoint" in error


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


def test_each_function_is_written_once(golden, tmp_path, monkeypatch):
    vae = load(golden, "small_ltx2_3")
    write, targets = mx.export_function, []

    def record(target, *arguments):
        targets.append(target)
        write(target, *arguments)

    monkeypatch.setattr(mx, "export_function", record)
    exported = vae.export(tmp_path / "exported", size_of(vae))
    written = [target for target in targets if isinstance(target, str)]
    assert len(written) == len(set(written)) == exported.functions
    assert len(targets) < 4 * exported.functions  # the others are descriptions, of each different step one


def test_the_command_exports(golden, tmp_path, capsys):
    line = ["-m", str(golden("small_ltx2_3").checkpoint), "-o", str(tmp_path / "exported"), "--size", "64x96"]
    assert mlx_ltx_vae(["export", *line, "--for", "mlx-rs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["width"], report["height"]) == (64, 96)
    assert (report["mlx"], report["function_format"]) == ("0.30.6", 1)
    assert report["functions"] == len(list((tmp_path / "exported").glob("*.mlxfn")))
    assert report["weight_bytes"] <= (tmp_path / "exported" / "weights.safetensors").stat().st_size
    assert mlx_ltx_vae(["export", *line]) == 1
    assert "exported: already exists; add -y to replace it, or -n to skip it." in capsys.readouterr().err


def test_a_size_given_twice_is_one(tmp_path):
    line = ["-m", str(demo.VAE), "-o", str(tmp_path / "exported"), "-q"]
    assert mlx_ltx_vae(["export", *line, "--size", "32x32", "--size", "32x32"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    assert (tmp_path / "exported" / "weights.safetensors").exists()


def test_the_command_replaces_or_skips_an_export_and_nothing_else(golden, tmp_path, hub_cache, capsys):
    folder = tmp_path / "exported"
    line = ["-m", str(golden("small_ltx2_3").checkpoint), "-o", str(folder), "--size"]
    assert mlx_ltx_vae(["export", *line, "64x96", "-q"]) == 0
    (folder / "999.mlxfn").write_bytes(b"of a larger export")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert mlx_ltx_vae(["export", "-m", "ltx-2.3", "-o", str(folder), "--size", "64x64", "-n"]) == 0
    assert capsys.readouterr().out == f"{folder}: skipped, found an export\n"
    assert mlx_ltx_vae(["export", "-m", "ltx-2.3", "-o", str(folder), "--size", "64x64", "-n", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(folder), "skipped": True}
    assert mlx_ltx_vae(["export", "-m", "ltx-2.3", "-o", str(folder), "--size", "64x64"]) == 1
    assert "exported: already exists; add -y to replace it" in capsys.readouterr().err, "before the download"
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert mlx_ltx_vae(["export", *line, "64x64", "-y", "-q"]) == 0
    assert json.loads((folder / "decode.json").read_text())["frames"] == [64, 64]
    assert not (folder / "999.mlxfn").exists()
    for name, content in (("decode.json", "{}"), ("weights.safetensors", "a VAE of the user")):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / name).write_text(content)
    assert mlx_ltx_vae(["export", *line[:3], str(tmp_path / "other"), "--size", "64x64", "-y"]) == 1
    assert "other: already exists and is not an empty folder" in capsys.readouterr().err
    (folder / "notes.txt").write_text("mine")
    assert mlx_ltx_vae(["export", *line, "64x96", "-y"]) == 1
    assert "already exists and is not an empty folder" in capsys.readouterr().err
    assert json.loads((folder / "decode.json").read_text())["frames"] == [64, 64]


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        ("ltx-2.3", ["--size", "64x65"], "64x65 does not fit the latent grid"),
        ("ltx-2.3", ["--size", "768x512", "--size", "1280x704", "--memory-budget", "1GB"], "the least that works is"),
        ("ltx-2.3", ["--size", "768x512", "--memory-budget", "1GB", "--encoder"], "the least that works is"),
        ("ltx-2.5-diffusion", ["--size", "64x64"], "export LTX-2.5's conv decoder"),
    ],
)
def test_errors_of_a_plan_come_before_a_download(tmp_path, monkeypatch, hub_cache, capsys, model, options, problem):
    monkeypatch.setattr(sys.modules["mlx_ltx_vae.checkpoint.locate"], "_fetch_model", None)
    assert mlx_ltx_vae(["export", "-m", model, "-o", str(tmp_path / "exported"), *options]) == 1
    assert problem in capsys.readouterr().err


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
from run import Exported, to_bytes
mx.set_memory_limit(1)  # MLX waits for its thread before it allocates more, and not by chance
for frames in Exported(Path(folder)).decode(latents):
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
    other, latents = changed(function_format=3), make_latents(vae, 1)
    for export, given, words in (
        (other, latents, "functions of format 3, and MLX"),
        (folder, make_latents(vae, 1, (3, 3)), "this export is for"),
        (folder, latents[:, :, :0], "this export is for"),
    ):
        code, output, error = run(line, export, given)
        assert (code, output) == (1, b"")
        assert words in error and len(error.splitlines()) == 1
    (other / "decode.json").unlink()
    code, _, error = run(line, other, latents)
    assert code == 1 and "has no decode.json" in error


@pytest.mark.skipif(not ON_CPU, reason="a GPU runs them")
@pytest.mark.quick(1)
@pytest.mark.parametrize("program", ["python", "cpp"])
def test_programs_say_that_functions_are_for_another_device(small, tmp_path, program, request):
    vae, _ = small
    line = PYTHON if program == "python" else request.getfixturevalue("cpp")
    with computing_for(Backend.METAL):
        vae.export(tmp_path / "exported", size_of(vae))
    code, output, error = run(line, tmp_path / "exported", make_latents(vae, 1))
    assert (code, output) == (1, b"")
    assert "0.mlxfn" in error and "is for metal, which this MLX lacks" in error and len(error.splitlines()) == 1


def change(**entries):
    return lambda folder, content: content.update(entries)


def change_call(**entries):
    return lambda folder, content: content["calls"][0].update(entries)


def leave_out(name):
    return lambda folder, content: content.pop(name)


def cut(name, size):
    return lambda folder, content: (folder / name).write_bytes((folder / name).read_bytes()[:size])


DAMAGES = {
    "another format": (change(format=2), "has format 2"),
    "no format": (leave_out("format"), "damaged"),
    "no format of functions": (leave_out("function_format"), "damaged"),
    "no calls": (leave_out("calls"), "damaged"),
    "calls that are a number": (change(calls=3), "damaged"),
    "no call": (change(calls=[]), "damaged"),
    "no steps": (change(steps=[]), "damaged"),
    "no ends": (change(ends=[]), "damaged"),
    "a step that is no number": (change(steps=[["a"]]), "damaged"),
    "no size": (change(latents=None), "damaged"),
    "a size of two": (change(latents=[8, 2]), "damaged"),
    "no plan": (change(plan=None), "damaged"),
    "no inputs": (change_call(inputs=None), "damaged"),
    "unknown inputs": (change_call(inputs=["unknown"]), "damaged"),
    "fewer outputs": (change_call(outputs=[]), "damaged"),
    "an unknown function": (change_call(function=9999), "9999.mlxfn: is missing"),
    "another function": (change_call(function=5), "5.mlxfn: takes other arrays"),
    "a missing function": (lambda folder, _: (folder / "0.mlxfn").unlink(), "0.mlxfn: is missing"),
    "an empty function": (cut("0.mlxfn", 0), "0.mlxfn: is damaged"),
    "a cut function": (cut("0.mlxfn", 100), "0.mlxfn: is damaged"),
    "a function without its end": (cut("0.mlxfn", -20), "0.mlxfn: is damaged"),
    "empty weights": (cut("weights.safetensors", 0), "weights.safetensors: cannot be read"),
    "cut weights": (cut("weights.safetensors", 1000), "weights.safetensors: cannot be read"),
    "no weights": (lambda folder, _: (folder / "weights.safetensors").unlink(), "weights.safetensors: is missing"),
    "an empty description": ("", "damaged"),
    "a list": ("[]", "damaged"),
    "no text": ("\udcff", "damaged"),
    "a cut description": ('{"format": 1, "func', "damaged"),
}


def damaged(small, tmp_path, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(small[1], folder)
    content = json.loads((folder / "decode.json").read_text())
    text = damage
    if not isinstance(damage, str):
        damage(folder, content)
        text = json.dumps(content)
    (folder / "decode.json").write_text(text, errors="surrogateescape")
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_the_program_says_what_is_damaged_in_a_sentence(small, tmp_path, monkeypatch, name):
    damage, words = DAMAGES[name]
    folder = damaged(small, tmp_path, damage)
    program = load_program()
    save_file({"latents": make_latents(small[0], 2)}, tmp_path / "given.safetensors")
    monkeypatch.setattr(sys, "argv", ["run.py", str(folder), str(tmp_path / "given.safetensors")])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert words in ended.value.code and len(ended.value.code.splitlines()) == 1
    assert str(folder) in ended.value.code


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_the_program_in_cpp_says_what_is_damaged_in_a_sentence(small, tmp_path, cpp, name):
    folder = damaged(small, tmp_path, DAMAGES[name][0])
    code, output, error = run(cpp, folder, make_latents(small[0], 2))
    assert (code, output) == (1, b"")
    assert error.startswith("error: ") and len(error.splitlines()) == 1


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
    path = tmp_path / "function"
    contents = []
    for backend in (Backend.CPU, Backend.METAL):
        assert write_function(path, function, arguments, backend, 2) == path.stat().st_size
        contents.append(path.read_bytes())
    assert len(contents[0]) == len(contents[1])
    differences = [pair for pair in zip(*contents, strict=True) if pair[0] != pair[1]]
    assert differences == [(0, 1)] * count


def test_functions_are_described_alike_if_their_files_are_alike(tmp_path):
    def factor(value):
        return lambda x: [x * mx.array(value) + 1]

    descriptions, contents = [], []
    for value in (0.1, 0.1, 0.1 + 1e-8, [[0.0] * 2000 + [1.0]], [[0.0] * 1999 + [1.0, 0.0]]):
        descriptions.append(describe_function(factor(value), [mx.zeros((3, 1))]))
        write_function(tmp_path / "function", factor(value), [mx.zeros((3, 1))], Backend.CPU, 2)
        contents.append((tmp_path / "function").read_bytes())
    pairs = [(one, other) for one in range(5) for other in range(one)]
    alike = [descriptions[one] == descriptions[other] for one, other in pairs]
    assert alike == [contents[one] == contents[other] for one, other in pairs]
    assert 0 < sum(alike) < len(pairs)


def test_an_unknown_format_of_functions_is_refused(small, tmp_path, monkeypatch):
    write = mx.export_function

    def cut_off(path, function, *arguments):
        write(path, function, *arguments)
        Path(path).write_bytes(Path(path).read_bytes()[:60])

    monkeypatch.setattr(mx, "export_function", cut_off)
    with pytest.raises(LTXVAEError, match="format that is not known"):
        write_function(tmp_path / "function", lambda x: [x + 1], [mx.zeros(3)], Backend.CPU, 2)
