"""Nodes for ComfyUI that decode and encode LTX video latents with MLX."""

import importlib.util
import logging

from comfy_api.latest import ComfyExtension, io

#: ComfyUI serves the help pages in it.
WEB_DIRECTORY = "web"
NEEDED = ("mlx", "mlx_ltx_vae")

missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    logging.warning(
        "LTX VAE (MLX) has no nodes: %s must be installed; run `python -m pip install mlx_ltx_vae` with this Python.",
        " and ".join(missing),
    )
    NODES: list[type[io.ComfyNode]] = []
else:
    from .nodes import NODES


class LTXVideoVAEExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES


async def comfy_entrypoint() -> ComfyExtension:
    return LTXVideoVAEExtension()
