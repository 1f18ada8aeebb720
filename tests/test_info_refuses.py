"""`info` passes exactly what a decode opens: broken checkpoints of every family have one verdict in all commands."""

import json

import mlx.core as mx
import numpy as np
import pytest

from audio_cases import make_case
from checkpoint_files import AUDIO, PICTURES, open_checkpoint, read_all
from commands import decode, encode, info
from mlx_ltx_vae import AudioVAE, CheckpointError, PreviewVAE, VideoVAE, demo

CASES = {"ltx2_3": VideoVAE, "ltx2_5_diffusion": VideoVAE, "taehv_ltx2": PreviewVAE, "audio": AudioVAE}


def quantize(array):
    return mx.quantize(array, group_size=32, bits=4)


def lose(tensors, name):
    del tensors[name]


def add(tensors, name):
    tensors[f"{name.rpartition('.')[0]}.gain"] = mx.ones(3)


def reshape(tensors, name):
    tensors[name] = tensors[name].reshape(2, -1)


def narrow(tensors, name):
    tensors[name] = tensors[name][..., 1:]


def store_integers(tensors, name):
    tensors[name] = mx.zeros(tensors[name].shape, mx.uint32)


def store_float64(tensors, name):
    tensors[name] = mx.zeros(tensors[name].shape, mx.int64)


def quantize_in_part(tensors, name):
    weight, scales, _ = quantize(tensors[name])
    tensors |= {name: weight, f"{name.removesuffix('weight')}scales": scales}


def quantize_another_width(tensors, name):
    weight, scales, biases = quantize(mx.concatenate([tensors[name], tensors[name]], axis=-1))
    stem = name.removesuffix("weight")
    tensors |= {name: weight, f"{stem}scales": scales, f"{stem}biases": biases}


def rename(tensors, name):
    tensors[f"other.{name}"] = tensors.pop(name)


def lose_statistics(tensors, name):
    for key in [key for key in tensors if "per_channel_statistics.std" in key]:
        del tensors[key]


def nothing(tensors, name):
    pass


BREAKS = [
    lose, add, reshape, narrow, store_integers, store_float64, quantize_in_part, quantize_another_width, rename,
    lose_statistics, nothing,
]  # fmt: skip


def verdict(command, *arguments):
    return command([str(argument) for argument in arguments])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "network", "states_config"),
    [
        ("ltx2_3", "decoder", True),
        ("ltx2_3", "decoder", False),
        ("ltx2_3", "encoder", True),
        ("ltx2_5_diffusion", "decoder", True),
        ("taehv_ltx2", "decoder", False),
        ("taehv_ltx2", "encoder", False),
        ("audio", "decoder", True),
    ],
)
def test_info_refuses_what_a_decode_refuses(golden, tmp_path, capsys, name, network, states_config):
    medium = AUDIO if name == "audio" else PICTURES
    source = make_case("ltx2_3", tmp_path).checkpoint if medium is AUDIO else golden(name).checkpoint
    original, random = open_checkpoint(source, medium=medium), np.random.default_rng(58)
    whole = read_all(original)
    keys = sorted(key for key in whole if key.startswith(f"{network}.") and key.endswith(".weight"))
    keys = [key for key in keys if whole[key].ndim > 1 and whole[key].shape[-1] % 32 == 0]
    config = {"config": json.dumps({"vae": original.raw_config})} if states_config else {}
    verdicts = set()
    for change in BREAKS:
        tensors = dict(whole)
        change(tensors, keys[random.integers(len(keys))])
        path = tmp_path / f"{change.__name__}.safetensors"
        mx.save_safetensors(str(path), tensors, config)
        try:
            CASES[name].from_pretrained(path, encoder=False)
            expected = 0
        except CheckpointError:
            expected = 1
        result = verdict(info, path, "--json")
        out, err = capsys.readouterr()
        assert (err.count("error: "), bool(out)) == (result, not result)
        passes = result == 0 and json.loads(out)["decoder"] is not None  # a file may have an encoder alone
        assert passes == (expected == 0), (change.__name__, err)
        if passes and change not in (nothing, lose_statistics) and network == "encoder":
            assert json.loads(out)["encoder"] is None
        verdicts.add(expected)
    assert 0 in verdicts
    assert 1 in verdicts or network == "encoder"


@pytest.mark.parametrize("change", [lose, add, reshape, nothing])
def test_the_commands_agree_before_they_compute(tmp_path, capsys, change):
    """A dry run of a decode, and an encode, with one broken network."""
    original = open_checkpoint(demo.VAE)
    for network in ("decoder", "encoder"):
        tensors = read_all(original)
        change(tensors, next(key for key in tensors if key.startswith(f"{network}.") and ".res_blocks.0.conv1" in key))
        path = tmp_path / f"{network}.safetensors"
        mx.save_safetensors(str(path), tensors, {"config": json.dumps({"vae": original.raw_config})})
        is_broken = change is not nothing
        results = [
            verdict(decode, demo.LATENTS, "-m", path, "--dry-run"),
            verdict(info, path),
            verdict(encode, tmp_path / "no.mp4", "-m", path, "-o", tmp_path / "x.safetensors"),
        ]
        fails = int(is_broken and network == "decoder")
        assert results == [fails, fails, 1]
        assert ("It can decode, and not encode." in capsys.readouterr().err) == (is_broken and network == "encoder")
