"""What users pass by mistake, and what the system refuses, is one sentence: never an exception of Python itself."""

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from commands import convert, decode, encode, info, preview
from conftest import nobody
from mlx_ltx_vae import LTXVAEError, VideoVAE, VideoWriter, demo, load_latents, save_latents
from mlx_ltx_vae.errors import describe_error
from video_files import numbered, save_images, write

FRAMES = numbered(1, (64, 64))


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE, dtype="float32")


@pytest.fixture(scope="module")
def latents():
    return load_latents(demo.LATENTS)[0][:, :, :3, :2, :2].astype(mx.float32)


class Tensor:
    """One of another library in bfloat16: numpy makes no array of it."""

    shape, ndim, dtype = (1, 64, 3, 2, 2), 5, "torch.bfloat16"

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")


MISTAKES = {
    "path for latents": (lambda vae, latents: vae.decode("s.npy"), "load_latents"),
    "Path for latents": (lambda vae, latents: vae.decode(Path("s.npy")), "load_latents"),
    "no latent file": (lambda vae, latents: vae.decode_to_file("s.npy", "o.mp4"), "there is no such file"),
    "None for latents": (lambda vae, latents: vae.decode_to_file(None, "o.mp4"), "latents are NoneType"),
    "4 axes": (lambda vae, latents: vae.decode_to_file(latents[0], "o.mp4"), "expected five axes"),
    "no latents": (lambda vae, latents: vae.decode_to_file(iter([]), "o.mp4"), "no latents to decode"),
    "budget": (lambda vae, latents: vae.decode_to_file(iter([latents]), "o.mp4", memory_budget="1KB"), "is too small"),
    "batch": (lambda vae, latents: vae.decode_to_file([mx.repeat(latents, 2, 0)], "o.mp4"), "these latents are 2"),
    "tensor": (lambda vae, latents: vae.decode_to_file(Tensor(), "o.mp4"), "tensor.detach"),
    "output None": (lambda vae, latents: vae.decode_to_file(latents, None), "expected the path of a file"),
    "output NUL": (lambda vae, latents: vae.decode_to_file(latents, "a\0.mp4"), "embedded null"),
    "crf": (lambda vae, latents: vae.decode_to_file(latents, "o.mp4", crf="x"), "crf is 'x'; expected a number"),
    "codec": (lambda vae, latents: vae.decode_to_file(latents, "o.mp4", codec=5), "codec is 5; expected a name"),
    "swapped": (lambda vae, latents: save_latents(latents, "x"), "expected the path of a file"),
    "save None": (lambda vae, latents: save_latents("x.safetensors", None), "expected an array of numbers"),
    "save list": (lambda vae, latents: save_latents("x.safetensors", [1, 2]), "five axes"),
    "save tensor": (lambda vae, latents: save_latents("x.safetensors", Tensor()), "tensor.detach"),
    "load None": (lambda vae, latents: load_latents(None), "expected the path of a file"),
    "open None": (lambda vae, latents: VideoVAE.from_pretrained(None), "expected the path of a file"),
    "noise 5": (lambda vae, latents: vae.decode(latents, noise=5), "a sequence of arrays or None, not 5"),
    "noise [None]": (lambda vae, latents: vae.decode(latents, noise=[None]), "expected an array of numbers"),
    "decode tensor": (lambda vae, latents: vae.decode(Tensor()), "tensor.detach"),
    "decode tensors": (lambda vae, latents: vae.decode([Tensor()]), "tensor.detach"),
    "decode objects": (lambda vae, latents: vae.decode(np.full(latents.shape, None)), "latents are object"),
    "decode text": (lambda vae, latents: vae.decode(np.full(latents.shape, "a")), "expected float32"),
    "encode numbers": (lambda vae, latents: vae.encode([1, 2]), "expected floats"),
    "encode None": (lambda vae, latents: vae.encode([None]), "expected an array of numbers"),
    "encode tensor": (lambda vae, latents: vae.encode(Tensor()), "tensor.detach"),
    "plan None": (lambda vae, latents: vae.plan(None), "takes the shape of latents"),
    "plan parts": (lambda vae, latents: vae.plan((1, 64, 1.5, 2, 2)), "expected five whole numbers"),
    "size None": (lambda vae, latents: VideoWriter("w.mp4", size=None, fps=24), "the size of frames is"),
    "size of 3": (lambda vae, latents: VideoWriter("w.mp4", size=(8, 8, 3), fps=24), "the size of frames is"),
    "metadata": (lambda vae, latents: VideoWriter("w.mp4", size=(8, 8), fps=24, metadata=["a"]), "metadata is text"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_python_is_one_sentence(name, vae, latents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words = MISTAKES[name]
    with pytest.raises(LTXVAEError) as caught:
        call(vae, latents)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_latents_may_arrive_while_a_file_is_written(vae, latents, tmp_path):
    shown = []
    vae.decode_to_file(latents, tmp_path / "whole.npy")
    parts = (np.array(latents[:, :, frame : frame + 1]) for frame in range(3))
    vae.decode_to_file(parts, tmp_path / "parts.npy", progress=lambda done, total: shown.append(done))
    whole, found = (np.load(tmp_path / f"{name}.npy") for name in ("whole", "parts"))
    assert found.shape == whole.shape == (17, 64, 64, 3)
    assert np.abs(found.astype(int) - whole).max() <= 1
    assert shown[-1] == 17


def test_arrays_in_the_other_byte_order_are_the_same_numbers(vae, latents, tmp_path, capsys):
    values = np.array(latents)
    swapped = values.astype(">f4")
    expected = np.array(vae.decode(latents))
    for given in (swapped, [swapped], np.memmap(tmp_path / "m", ">f4", "w+", shape=swapped.shape)):
        if isinstance(given, np.memmap):
            given[:] = values
        np.testing.assert_array_equal(np.array(vae.decode(given)), expected)
    np.save(tmp_path / "a.npy", swapped)
    assert decode([f"{tmp_path}/a.npy", *VAE, "-o", f"{tmp_path}/out.npy", "-q", "--dtype", "float32"]) == 0
    levels = np.clip(np.rint((expected[0].transpose(1, 2, 3, 0) + 1) * 127.5), 0, 255)
    assert np.abs(np.load(tmp_path / "out.npy") - levels).max() <= 1
    save_latents(tmp_path / "a.safetensors", swapped)
    np.testing.assert_array_equal(np.array(load_latents(tmp_path / "a.safetensors")[0]), values)
    deep = FRAMES.astype(np.uint16) * 257
    for frames, other in ((deep, deep.astype(">u2")), (values[:, :3, :1].repeat(32, 3).repeat(32, 4), None)):
        other = frames.astype(">f4") if other is None else other
        np.testing.assert_array_equal(np.array(vae.encode(other)), np.array(vae.encode(frames)))


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder with files of every kind that nobody may search, and one whose names can be listed only."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o777)
    for name in ("closed", "listed"):
        Path(name).mkdir()
        for file in (demo.VAE, demo.LATENTS):
            Path(name, file.name).write_bytes(file.read_bytes())
        write(Path(name, "video.mkv"), FRAMES)
        Path(name).chmod({"closed": 0, "listed": 0o444}[name])
    save_images(Path("images"), ["00000.png"])
    Path("images").chmod(0o444)
    return tmp_path


LATENTS, VAE = str(demo.LATENTS), ["-m", str(demo.VAE)]
MODELS = ["closed", "closed/vae.safetensors", "closed:x", "listed"]
OUTPUTS = ["closed/o.mp4", "closed/o.npy", "closed/", "closed/%d.png", "listed/x/"]
REFUSED = [
    *((decode, [LATENTS, "-m", name, "-o", "o.mp4"]) for name in MODELS),
    *((decode, [LATENTS, *VAE, "-o", name]) for name in OUTPUTS),
    *((decode, [LATENTS, *VAE, "-o", OUTPUTS[0], option]) for option in ("--skip-existing", "-n", "--dry-run")),
    (decode, [LATENTS, *VAE, "-o", "closed/", "--skip-existing"]),
    (decode, [LATENTS, *VAE, "-o", "closed/o.png", "--frames", "5:6"]),
    (decode, ["closed/latents.safetensors", *VAE, "-o", "o.mp4"]),
    (decode, [LATENTS, *VAE, "-o", "o.mp4", "--audio", "closed/video.mkv"]),
    (decode, ["@closed/clips.txt", *VAE, "-o", "o/"]),
    (decode, ["closed/clips.csv", *VAE, "-o", "o/"]),
    (preview, [LATENTS, "-m", "closed", "-o", "o.png"]),
    (preview, [LATENTS, "-m", str(demo.LATENT_RGB), "-o", "closed/o.png"]),
    (encode, ["closed/video.mkv", *VAE, "-o", "o.safetensors"]),
    (encode, ["closed/%d.png", *VAE, "-o", "o.safetensors"]),
    (encode, ["images/%05d.png", *VAE, "-o", "o.safetensors"]),
    (encode, ["closed/video.mkv", *VAE, "-o", "closed/o.safetensors", "--skip-existing"]),
    *((info, [name]) for name in ("closed", "closed/latents.safetensors", "closed/video.mkv", "closed:x", "listed")),
    (convert, ["closed", "-o", "o"]),
    (convert, [str(demo.VAE), "-o", "closed/o"]),
]


def test_a_folder_that_may_not_be_searched_is_one_sentence_and_stops_no_other_input(closed, capsys):
    for main, arguments in REFUSED:
        with nobody():
            assert main(arguments) == 1, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert "Permission denied)" in line or "is missing between" in line
        assert "cannot be read or written" not in line
    Path("out").mkdir(mode=0o777)
    Path("out").chmod(0o777)
    with nobody():
        code = decode(["closed/other.npy", LATENTS, *VAE, "-o", "out/", "--dry-run"])
    captured = capsys.readouterr()
    assert code == 1
    assert captured.err.startswith("error: closed/other.npy: cannot be read (Permission denied).\n")
    assert "Inputs: 1 planned, 0 skipped, 1 failed" in captured.out


@pytest.mark.parametrize("name", ["~.safetensors", "~", "~root.safetensors"])
def test_a_name_may_begin_with_a_tilde_behind_a_folder(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path(f"./{name}").write_bytes(demo.LATENTS.read_bytes())
    assert info([f"./{name}"]) == 0
    assert "1, 64, 10, 8, 12" in capsys.readouterr().out
    assert info(["~no-such-user/a.safetensors"]) == 1
    error = "error: ~no-such-user/a.safetensors: there is no such file or folder; check the path.\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "a.npy"), "a.npy: cannot be read or written (Permission denied)."),
        (OSError(28, "No space left on device"), "a file: cannot be read or written (No space left on device)."),
        (FileNotFoundError(2, "No such file", b"a", None, "b"), "a and b: cannot be read or written (No such file)."),
        (OSError(), "a file: cannot be read or written (the system does not say why)."),
        (MemoryError(), "the memory of this machine is exhausted; "),
        (UserWarning("It is odd."), "It is odd (a warning, which -W or PYTHONWARNINGS makes an error)."),
        (KeyError("x"), "internal error: 'x'; run again with --debug and report it."),
        (RuntimeError(), "internal error: no message; "),
    ],
)
def test_errors_of_the_system_are_sentences_without_the_names_of_classes(error, line):
    assert describe_error(error).startswith(line)
    assert type(error).__name__ not in describe_error(error)
