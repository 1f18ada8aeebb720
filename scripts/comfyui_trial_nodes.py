"""Nodes for scripts/try_comfyui.py, which copies this file into ComfyUI's folder: what takes gigabytes otherwise."""

import sys

import comfy.model_management
import comfy.supported_models
import torch
from comfy.model_patcher import ModelPatcher
from comfy_api.latest import ComfyExtension, io, ui

SMALL = {
    "image_model": "ltxv",
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "cross_attention_dim": 64,
    "caption_channels": 64,
}


class TrialModel(io.ComfyNode):
    """A model of LTX-Video with random weights of one small layer, and what it is conditioned by."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        outputs = [io.Model.Output(), io.Conditioning.Output()]
        return io.Schema("TrialModel", inputs=[], outputs=outputs)

    @classmethod
    def execute(cls) -> io.NodeOutput:
        torch.manual_seed(0)
        model = comfy.supported_models.LTXV(dict(SMALL)).get_model({}, "")
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        device = comfy.model_management.get_torch_device()
        conditions = {"frame_rate": 24.0, "attention_mask": torch.ones(1, 4)}
        conditioning = [[torch.randn(1, 4, SMALL["caption_channels"]), conditions]]
        return io.NodeOutput(ModelPatcher(model.float(), device, device), conditioning)


class TrialNetworks(io.ComfyNode):
    """Says how many networks the pack keeps."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema("TrialNetworks", inputs=[], outputs=[], is_output_node=True)

    @classmethod
    def fingerprint_inputs(cls) -> float:
        return float("nan")  # always another one

    @classmethod
    def execute(cls) -> io.NodeOutput:
        (host,) = [module for name, module in sys.modules.items() if name.endswith("ltx_mlx.host")]
        return io.NodeOutput(ui=ui.PreviewText(str(len(host.networks._loaded))))


class TrialExtension(ComfyExtension):
    """The nodes of this file, as ComfyUI asks for them."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TrialModel, TrialNetworks]


async def comfy_entrypoint() -> ComfyExtension:
    return TrialExtension()
