"""The pack of examples/comfyui with stand-ins for ComfyUI's modules. scripts/try_comfyui.py runs the real ones."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_ltx_vae import VideoReader, VideoVAE

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
STAND_IN = Path(__file__).parent / "comfyui"
LATENTS = np.random.default_rng(0).normal(size=(1, 8, 3, 2, 3)).astype(np.float32)
FRAMES, SIZE = 17, (96, 64)


@pytest.fixture(scope="module")
def checkpoint(golden):
    return golden("small_ltx2_3").checkpoint


@pytest.fixture(scope="module")
def pack_folder():
    return PACK


@pytest.fixture(scope="module")
def comfy(tmp_path_factory, checkpoint, pack_folder):
    """The pack, loaded as ComfyUI does, and modules of ComfyUI, with a VAE among the models."""
    sys.path.insert(0, str(STAND_IN))
    try:
        spec = importlib.util.spec_from_file_location("ltx_mlx", pack_folder / "__init__.py")
        pack = importlib.util.module_from_spec(spec)
        sys.modules["ltx_mlx"] = pack
        spec.loader.exec_module(pack)
        own = {"ltx_mlx", *(path.stem for path in STAND_IN.iterdir())}
        modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in own}
    finally:
        sys.path.remove(str(STAND_IN))
    base = tmp_path_factory.mktemp("comfyui")
    vae = base / "models" / "vae" / "ltx"
    vae.mkdir(parents=True)
    (vae / "small.safetensors").symlink_to(checkpoint)
    modules["folder_paths"].base_path = str(base)
    yield SimpleNamespace(
        pack=pack,
        nodes=modules["ltx_mlx.nodes"].NODES,
        host=modules["ltx_mlx.host"],
        latents=modules["ltx_mlx.latents"],
        management=modules["comfy.model_management"],
        bars=modules["comfy.utils"],
        texts=modules["server"].texts,
        networks=modules["ltx_mlx.networks"],
        args=modules["comfy.cli_args"].args,
        torch=modules["torch"],
        io=modules["comfy_api.latest"].io,
        video=modules["comfy_api.latest"].InputImpl.VideoFromFile,
        base=base,
        temp=base / "temp",
        output=base / "output",
    )
    modules["ltx_mlx.host"].mlx_thread.close()
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]


@pytest.fixture
def vae(checkpoint):
    return VideoVAE.from_pretrained(checkpoint)


@pytest.fixture
def execute(comfy):
    """Executes a node as ComfyUI does, with the defaults of its schema."""
    nodes = {node.define_schema().node_id: node for node in asyncio.run(asyncio.run(entrypoint(comfy)).get_node_list())}

    def execute(name, hidden=None, **given):
        if isinstance(given.get("options"), dict):
            given["options"] = execute("LTXDecoderOptionsMLX", **given["options"])
        schema = nodes[name].define_schema()
        widgets = {each.id: each.default for each in schema.inputs if getattr(each, "default", None) is not None}
        known = {each.id: each for each in schema.inputs}
        inputs = ({"vae": "vae/ltx/small.safetensors"} if "vae" in known else {}) | widgets | given
        assert set(inputs) <= set(known) and {each.id for each in schema.inputs if not each.optional} <= set(inputs)
        assert all(value in known[key].options for key, value in inputs.items() if hasattr(known[key], "options"))
        values = {"prompt": None, "extra_pnginfo": None, "unique_id": "7"} | (hidden or {})
        asked = {each.name for each in schema.hidden}
        node = type("Clone", (nodes[name],), {"hidden": SimpleNamespace(**{key: values[key] for key in asked})})
        if schema.is_input_list:
            inputs = {key: value if isinstance(value, list) else [value] for key, value in inputs.items()}
        output = node.execute(**inputs)
        assert len(output.args) == len(schema.outputs)
        for made, given in zip(schema.outputs, output.args, strict=True):
            assert isinstance(given, list) == made.is_output_list
        return output if output.ui is not None else output.args[0]

    comfy.host.networks.free()
    comfy.management.calls.clear()
    comfy.bars.updates.clear()
    comfy.texts.clear()
    return execute


async def entrypoint(comfy):
    return await comfy.pack.comfy_entrypoint()


def latent(comfy, array=LATENTS):
    return {"samples": comfy.torch.Tensor(array)}


def pair(comfy, video, audio):
    """Latents of a video and of its audio, as ComfyUI keeps them together."""
    from comfy.nested_tensor import NestedTensor

    return {"samples": NestedTensor([comfy.torch.Tensor(video), comfy.torch.Tensor(audio)])}


def frames_of(video, multiple=32):
    with VideoReader(video, multiple=multiple) as reader:
        return np.concatenate(list(reader))


def freed(comfy):
    """The bytes that ComfyUI was asked to free."""
    return [call[2] for call in comfy.management.calls if call[0] == "free"]
