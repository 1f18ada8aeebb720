"""The commands as functions: each takes its arguments, and returns the exit code."""

from mlx_ltx_vae.__main__ import main as mlx_ltx_vae
from mlx_ltx_vae.bench import main as bench
from mlx_ltx_vae.convert import main as convert
from mlx_ltx_vae.decode import main as decode
from mlx_ltx_vae.encode import main as encode
from mlx_ltx_vae.info import main as info
from mlx_ltx_vae.preview import main as preview

__all__ = ["bench", "convert", "decode", "encode", "info", "mlx_ltx_vae", "preview"]
