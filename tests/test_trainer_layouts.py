"""Latent files for trainers: tensors, metadata, containers and names as the trainers' own programs write them.

`scripts/try_trainers.py` reads such files by the trainers' own loaders.
"""

import io
import os
import pickle
import re
import shutil
import zipfile
from fractions import Fraction

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from commands import decode, encode
from many_files import run
from mlx_ltx_vae import PlanError, VideoVAE, WriterError, demo, load_latents
from video_files import write

RATE = Fraction(24000, 1001)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of clips with captions, as data sets have them, and the latents that `encode` gives of each."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "clips").mkdir()
    random, expected = np.random.default_rng(0), {}
    vae = VideoVAE.from_pretrained(demo.VAE, decoder=False)
    for name in ("c1", "c2", "c10"):
        frames = random.integers(0, 255, (9, 64, 96, 3), dtype=np.uint8)
        write(folder / "clips" / f"{name}.mkv", frames, "24000/1001", codec="ffv1")
        (folder / "clips" / f"{name}.txt").write_text(f"a caption of {name}")
        expected[name] = np.array(vae.encode(frames)[0].astype(mx.float32))
    return folder / "clips", expected


def read_tensors(path):
    with safe_open(path, "numpy") as file:
        return mx.load(str(path)), file.metadata()


def read_torch(path):
    """What `torch.save` wrote, read by its documented format: a zip file with a pickle, and a storage for each tensor.

    Only the globals of a tensor are known.
    """
    with zipfile.ZipFile(path) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        assert archive.testzip() is None
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        root = pickled.removesuffix("data.pkl")
        assert archive.read(f"{root}version").strip() == b"3"

        def rebuild(storage, offset, shape, strides, requires_grad, hooks):
            (kind, storage_type, key, device, size) = storage
            assert (kind, storage_type, device, offset, requires_grad, hooks) == (
                "storage",
                "BFloat16Storage",
                "cpu",
                0,
                False,
                {},
            )
            assert size == np.prod(shape) and strides == (*np.cumprod(shape[:0:-1])[::-1], 1)
            bits = np.frombuffer(archive.read(f"{root}data/{key}"), "<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(shape)

        known = {
            ("torch._utils", "_rebuild_tensor_v2"): rebuild,
            ("torch", "BFloat16Storage"): "BFloat16Storage",
            ("collections", "OrderedDict"): dict,
        }

        class Reader(pickle.Unpickler):
            def find_class(self, module, name):
                return known[module, name]

            def persistent_load(self, pid):
                return pid

        return Reader(io.BytesIO(archive.read(pickled))).load()


def encode_all(made, tmp_path, layout, *arguments):
    clips, expected = made
    assert run(encode, clips, "--demo", "--layout", layout, "-o", f"{tmp_path}/", "-q", *arguments) == 0
    return expected


def test_ltx_trainer_mlx_reads_numbered_safetensors_in_float32(made, tmp_path):
    expected = encode_all(made, tmp_path, "ltx-trainer-mlx")
    assert sorted(os.listdir(tmp_path)) == [f"latent_{number:04d}.safetensors" for number in range(3)]
    for number, name in enumerate(["c1", "c10", "c2"]):  # by paths, as the trainer numbers the captions
        tensors, _ = read_tensors(tmp_path / f"latent_{number:04d}.safetensors")
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} == {
            "latents": ((64, 2, 2, 3), mx.float32),
            **dict.fromkeys(("num_frames", "height", "width"), ((1,), mx.int32)),
            "fps": ((1,), mx.float32),
        }
        assert [tensors[key].item() for key in ("num_frames", "height", "width")] == [2, 2, 3]
        assert tensors["fps"].item() == np.float32(24000 / 1001)
        np.testing.assert_array_equal(np.array(tensors["latents"]), expected[name])


def test_ltx_trainer_reads_a_file_of_torch_for_each_clip(made, tmp_path):
    expected = encode_all(made, tmp_path, "ltx-trainer")
    assert sorted(os.listdir(tmp_path)) == ["c1.pt", "c10.pt", "c2.pt"]
    for name in expected:
        clip = read_torch(tmp_path / f"{name}.pt")
        assert {key: clip[key] for key in ("num_frames", "height", "width", "fps")} == {
            "num_frames": 2,
            "height": 2,
            "width": 3,
            "fps": 24000 / 1001,
        }
        np.testing.assert_array_equal(clip["latents"], expected[name])


def test_musubi_tuner_reads_size_and_frames_from_the_names(made, tmp_path):
    expected = encode_all(made, tmp_path, "musubi-tuner", "--size", "96x64", "--frames", "9")
    for name in expected:
        tensors, metadata = read_tensors(tmp_path / f"{name}_00000-009_0096x0064_ltx2.safetensors")
        assert list(tensors) == ["latents_2x2x3_bfloat16"]
        (latents,) = tensors.values()
        assert latents.dtype == mx.bfloat16
        np.testing.assert_array_equal(np.array(latents.astype(mx.float32)), expected[name])
        stated = {key: metadata[key] for key in ("architecture", "width", "height", "format_version", "frame_count")}
        assert list(stated.values()) == ["ltx2_v1", "96", "64", "1.0.1", "9"]
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", ["musubi-tuner", "ltx-trainer-mlx"])
def test_decode_reads_safetensors_of_trainers_back(made, tmp_path, layout):
    expected = encode_all(made, tmp_path / "l", layout, "--size", "96x64", "--frames", "9")
    (path,) = [path for path in (tmp_path / "l").iterdir() if re.match("c10_|latent_0001", path.name)]
    latents, info = load_latents(path)
    np.testing.assert_array_equal(np.array(latents[0].astype(mx.float32)), expected["c10"])
    assert info.fps == RATE
    out = tmp_path / "out.npy"
    assert run(decode, path, "-m", demo.VAE, "-o", out, "-q") == 0
    assert np.load(out).shape == (9, 64, 96, 3)


def test_files_of_musubi_tuner_state_the_size_of_their_source(tmp_path):
    """Which is not that of the latents: its own files have 1080 lines where 34 latent rows are 1088."""
    metadata = {"architecture": "ltx2_v1", "width": "1920", "height": "1080", "frame_count": "12", "target_fps": "25.0"}
    tensors = {"latents_3x34x60_bfloat16": mx.zeros((2, 3, 34, 60), mx.bfloat16), "video_loss_mask": mx.ones((1, 3))}
    mx.save_safetensors(str(tmp_path / "a.safetensors"), tensors, metadata)
    latents, info = load_latents(tmp_path / "a.safetensors")
    assert latents.shape == (1, 2, 3, 34, 60)
    assert (info.fps, info.source_frames, info.width) == (25, 12, None)


def test_a_video_that_shifts_the_numbers_of_the_captions_is_refused(made, tmp_path, capsys):
    clips = tmp_path / "clips"
    shutil.copytree(made[0], clips)
    (clips / "c1b.gif").write_bytes(b"GIF89a")
    assert run(encode, clips, "--demo", "--layout", "ltx-trainer-mlx", "-o", f"{tmp_path}/out/") == 1
    assert "c1b.gif: ltx-trainer-mlx numbers the videos of a folder that end in .mp4" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def wrong_usage(capsys, *arguments):
    with pytest.raises(SystemExit, match="2"):
        run(encode, *arguments)
    return capsys.readouterr().err


def test_names_that_a_trainer_does_not_read_are_refused(made, capsys):
    clip = made[0] / "c1.mkv"
    for layout, name, message in (
        ("ltx-trainer", "a.safetensors", "ltx-trainer reads files whose names end in .pt"),
        ("ltx-trainer-mlx", "a.latent", "names end in .safetensors"),
        ("musubi-tuner", "folder/", "add --size WxH and --frames N"),
    ):
        assert message in wrong_usage(capsys, clip, "--demo", "--layout", layout, "-o", name)
    sized = ["--layout", "musubi-tuner", "--size", "96x64", "--frames"]
    assert "encode 9" in wrong_usage(capsys, clip, "--demo", *sized, "12", "-o", "folder/")
    message = wrong_usage(capsys, clip, "--demo", *sized, "9", "-o", "a_ltx2.safetensors")
    assert "clip_00000-097_0768x0512_ltx2.safetensors" in message


def test_a_clip_shorter_than_its_name_says_fails_alone(made, tmp_path, capsys):
    random = np.random.default_rng(1)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "long.mkv", random.integers(0, 255, (17, 64, 96, 3), dtype=np.uint8), 24, codec="ffv1")
    write(tmp_path / "in" / "short.mkv", random.integers(0, 255, (9, 64, 96, 3), dtype=np.uint8), 24, codec="ffv1")
    arguments = [tmp_path / "in", "--demo", "--layout", "musubi-tuner", "--size", "96x64", "--frames", "17"]
    assert run(encode, *arguments, "-o", f"{tmp_path}/out/", "-q") == 1
    assert "states 17 frames of 96x64, and the clip has 9 frames of 96x64" in capsys.readouterr().err
    assert os.listdir(tmp_path / "out") == ["long_00000-017_0096x0064_ltx2.safetensors"]


def test_windows_and_audio_are_no_part_of_a_layout(made, tmp_path):
    vae, clip = VideoVAE.from_pretrained(demo.VAE, decoder=False), made[0] / "c1.mkv"
    with pytest.raises(PlanError, match="not a film of windows; leave out windows="):
        vae.prepare_encode(clip, tmp_path / "a.pt", layout="ltx-trainer", windows=9, carry=1)
    with pytest.raises(PlanError, match="expected ltx-trainer-mlx, ltx-trainer, musubi-tuner"):
        vae.prepare_encode(clip, tmp_path / "a.pt", layout="kohya")
    with pytest.raises(WriterError, match=r"end in \.pt"):
        vae.prepare_encode(clip, tmp_path / "a.safetensors", layout="ltx-trainer")
    with vae.prepare_encode(clip, tmp_path / "a.pt", layout="ltx-trainer") as prepared:
        prepared.run()
    np.testing.assert_array_equal(read_torch(tmp_path / "a.pt")["latents"], made[1]["c1"])
