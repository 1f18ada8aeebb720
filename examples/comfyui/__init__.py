"""Nodes for ComfyUI that decode and encode LTX video latents with MLX."""

import logging

from comfy_api.latest import ComfyExtension, io

#: How pip finds mlx_ltx_vae; written when the pack is built for its own repository. "": by a clone of the package.
PACKAGE = ""
#: ComfyUI serves the help pages in it.
WEB_DIRECTORY = "web"

NODES: list[type[io.ComfyNode]] = []
try:
    import mlx.core  # noqa: F401

    import mlx_ltx_vae  # noqa: F401
except ImportError as error:
    install = f'run `python -m pip install "{PACKAGE}"`' if PACKAGE else "run `python -m pip install .` in its clone"
    logging.warning("LTX VAE (MLX) has no nodes (%s): %s with this Python.", error, install)
else:
    from . import nodes

    NODES += nodes.NODES


class LTXVideoVAEExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES


async def comfy_entrypoint() -> ComfyExtension:
    return LTXVideoVAEExtension()
