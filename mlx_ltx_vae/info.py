"""`python -m mlx_ltx_vae.info`: describes a checkpoint or a latent file."""

from .commands.entry import entry_point

main = entry_point("mlx_ltx_vae.commands.info_command")

if __name__ == "__main__":
    raise SystemExit(main())
