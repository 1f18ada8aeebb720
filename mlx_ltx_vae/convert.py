"""`python -m mlx_ltx_vae.convert`: converts a checkpoint to a folder that MLX loads faster."""

from .commands.entry import entry_point

main = entry_point("mlx_ltx_vae.commands.convert_command")

if __name__ == "__main__":
    raise SystemExit(main())
