"""Nodes for ComfyUI that decode and encode LTX video latents with MLX."""

from comfy_api.latest import ComfyExtension, io

from .nodes import NODES


class LTXVideoVAEExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES


async def comfy_entrypoint() -> ComfyExtension:
    return LTXVideoVAEExtension()
