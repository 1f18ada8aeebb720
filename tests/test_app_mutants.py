"""Apps that differ from the table: each program ends with its video and its exit code, and a line says what ran."""

import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from app_packages import APPS, MODULES, forget_counts
from commands import mlx_ltx_vae as main
from mlx_ltx_vae import VideoVAE
from test_app_run import LATENTS, apps, diffusion_config, network  # noqa: F401 (fixtures)

#: What the apps' own functions make: one number, which depends on all large weights, in the shape of a video.
OWN = """
import sys
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten


def number(network):
    network = getattr(network, "_decoder", network)
    arrays = [array for name, array in tree_flatten(network.parameters()) if array.ndim > 1]
    return sum(mx.abs(array.astype(mx.float32)).mean().item() for array in arrays) / len(arrays)


def own(values):
    network = next(values[name] for name in ("self", "decoder_fn", "decoder") if name in values)
    first = next(value for value in values.values() if isinstance(value, mx.array))
    batch, channels, frames, height, width = first.shape
    grid = (8 * frames - 7, 32 * height, 32 * width)
    if channels == 3:  # an encode
        return mx.full((batch, 8, (frames - 1) // 8 + 1, height // 32, width // 32), number(network))
    pixels = mx.full((batch, 3, *grid), number(network))
    if "output_path" in values:
        with open(values["output_path"], "wb") as file:
            np.save(file, np.array(pixels))
        return values["output_path"]
    if sys._getframe(1).f_code.co_name in ("tiled_decode", "decode_streaming") or "decoder_fn" in values:
        return iter([pixels[:, :, :1], pixels[:, :, 1:]])
    return pixels
"""
PROGRAM = """
import json, sys
from types import SimpleNamespace
import mlx.core as mx
import numpy as np
from own_results import number
from {module} import {name} as target

latents, file = mx.array(np.load("latents.npy")), {file!r}
config = SimpleNamespace(**json.load(open("config.json")))
{make}
before = number(network)
result = {call}
if result is None or isinstance(result, str):  # a file
    content = open("clip.mp4", "rb").read()
    result = np.load("clip.mp4") if content.startswith(b"\\x93NUMPY") else np.arange(len(content))
elif not isinstance(result, mx.array):
    result = np.array(mx.concatenate(list(result), axis=2))
np.savez("result.npz", result=np.array(result).astype(np.float32), before=before)
sys.exit(3)
"""

#: Arguments of a call after the first one, by the names of required parameters.
REQUIRED = {"decoder_fn": "network", "decoder": "network", "output_path": "'clip.mp4'", "frame_rate": "25.0"}
REQUIRED |= {"tiling_config": "None"}
WRAPPED = "from ltx_core_mlx.model.video_vae.diffusion_decoder.decoder import NADiffusionDecoder\n"
FOLDER = "LTX_2_MLX.model.video_vae"
NETWORKS = {
    f"{FOLDER}.tiling": f"from {FOLDER}.native_decoder import *\nnetwork = NativeConv3dVideoDecoder(file)",
    f"{FOLDER}.simple_decoder": f"from {FOLDER}.simple_decoder import *\nnetwork = SimpleVideoDecoder(file)",
}
MAKERS = {
    "NADiffusionDecoder": "network = target(file, config)",
    "DiffusionVideoDecoder": "network = target(file, config)",
    "_DiffusionVideoDecoder": WRAPPED + "network = target(NADiffusionDecoder(file, config))",
    "VideoEncoder": "network, latents = target(file), mx.zeros((1, 3, 9, 64, 64)) + 0.5",
}

#: What each mutant says, and whether its own function runs.
MUTANTS = {
    "reversed": (r"1 (de|en)code ran here", False),
    "renamed module": (r"decoded nothing here|imported no decoder", True),
    "renamed class": (r"it has no |decoded nothing here|imported no decoder", True),
    "renamed function": (r"it has no |decoded nothing here|imported no decoder", True),
    "optional": (r"also takes preset; calls that use it stay the app's own", True),
    "first": (r"takes mode before|decoded nothing", True),
    "required": (r"needs prompt, which mlx_ltx_vae does not know", True),
    "error": (r"the app's own \w+ runs\.", True),
}
ENTRIES = [entry for entries in APPS.values() for entry in entries if not entry.is_around]


def mutate(code, entry, mutant):
    """The code of a module and the call of a function, after a change of the function."""
    class_code = re.search(rf"class {entry.owner}\b.*?(?=\nclass |\Z)", code, re.DOTALL)[0] if entry.owner else code
    definition = re.search(rf"def {entry.name}\((.*?)\):", class_code, re.DOTALL)
    words = [word for word in re.split(r",\s*", definition[1]) if word not in ("self", "*")]
    required = [word for word in words if "=" not in word]
    optional = [word for word in words if "=" in word]
    arguments = ["latents", *(f"{word}={REQUIRED[word]}" for word in required[1:])]
    name = entry.name
    if mutant == "reversed":
        required, optional = [required[0], *reversed(required[1:])], optional[::-1]
    elif mutant == "optional":
        optional, arguments = [*optional, "preset='fast'"], [*arguments, "preset='slow'"]
    elif mutant == "first":
        required, arguments = ["mode", *required], ["'a mode'", *arguments]
    elif mutant == "required":
        required, arguments = [*required, "prompt"], [*arguments, "prompt='a fox'"]
    elif mutant == "renamed function":
        name = "renamed" if name != "__call__" else "renamed_call"
    words = (["self"] if entry.owner else []) + required + optional
    changed = class_code.replace(definition[0], f"def {name}({', '.join(words)}):")
    call = f"target({', '.join(arguments)})" if not entry.owner else f"network.{name}({', '.join(arguments)})"
    return code.replace(class_code, changed), (entry.owner or name), call


@pytest.mark.quick(12)
@pytest.mark.parametrize(
    ("entry", "mutant"),
    [
        pytest.param(
            entry,
            mutant,
            id=f"{entry.module.rpartition('.')[2]}:{entry.path}-{mutant}",
            marks=[] if mutant in ("error", "optional") else pytest.mark.slow,
        )
        for entry in ENTRIES
        for mutant in MUTANTS
        if entry.owner or mutant != "renamed class"
    ],
)
def test_a_mutant_is_replaced_or_says_so_and_ends_with_its_video(
    apps,  # noqa: F811
    network,  # noqa: F811
    golden,
    tmp_path,
    monkeypatch,
    capfd,
    entry,
    mutant,
):

    forget_counts()
    code, name, call = mutate(MODULES[entry.module], entry, mutant)
    module, make = entry.module, MAKERS.get(entry.owner, "network = target(file)")
    make = NETWORKS.get(entry.module, make) if not entry.owner else make
    monkeypatch.setitem(MODULES, entry.module, code)
    plumbing = r"for chunk in self\.tiled_decode\(latent, None\):\n.*?\n"
    for path in MODULES:
        text = re.sub(plumbing, "return own(locals())\n", MODULES[path])
        text = re.sub(r'raise AssertionError\("the app\'s own \w+"\)', "return own(locals())", text)
        monkeypatch.setitem(MODULES, path, f"from own_results import own\n{text}")
    if mutant == "renamed module":
        module = f"{entry.module}_renamed"
        monkeypatch.setitem(MODULES, module, MODULES[entry.module])
        make = make.replace(f"from {entry.module} ", f"from {module} ")
    if mutant == "renamed class":
        name = "Renamed"
        renamed = re.sub(rf"class {entry.owner}\b", "class Renamed", MODULES[entry.module])
        monkeypatch.setitem(MODULES, entry.module, renamed)
    if mutant == "error":
        for method in ("plan", "plan_encode", "decode_to_file"):
            monkeypatch.setattr(VideoVAE, method, lambda *_, **__: 1 / 0)
    apps()
    case = "ltx2_5_keyframes" if "Diffusion" in entry.owner else "ltx2" if "simple" in entry.module else "ltx2_3"
    file = network(case, "encoder" if entry.owner == "VideoEncoder" else "decoder")
    latents = np.array(mx.random.normal((1, 8, 3, 3, 3), key=mx.random.key(2))) if case.endswith("frames") else LATENTS
    config = vars(diffusion_config(golden)) if case.endswith("frames") else {}
    np.save("latents.npy", latents)
    Path("config.json").write_text(json.dumps(config))
    Path("own_results.py").write_text(OWN)
    Path("program.py").write_text(PROGRAM.format(module=module, name=name, file=file, make=make, call=call))
    options = ["--save-latents", "kept"] if mutant != "error" else []
    assert main(["run", *options, "--", "program.py"]) == 3
    said, is_own = MUTANTS[mutant]
    errors = capfd.readouterr().err
    assert re.search(said, errors), errors
    saved = np.load("result.npz")
    result, before = saved["result"], float(saved["before"])
    assert np.isfinite(result).all()
    assert (np.ptp(result) == 0) == is_own
    if is_own:
        assert result.flat[0] == pytest.approx(before, rel=1e-6)
    files = list(Path("kept").glob("*"))  # a renamed function gets latents where no other one does
    assert len(files) == (mutant != "error" and "renamed" not in mutant and not entry.is_encode)
    assert all(np.array_equal(np.array(mx.load(str(file))["latents"]), latents) for file in files)
    if mutant == "error" and "encode" not in entry.dropin:
        (rescued,) = Path.cwd().glob("*latents*.safetensors")
        assert np.array_equal(np.array(mx.load(str(rescued))["latents"]), latents)
