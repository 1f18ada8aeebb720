"""`python -m mlx_ltx_vae.decode`: decodes latents to videos."""

from .startup import entry_point

main = entry_point("decode")

if __name__ == "__main__":
    raise SystemExit(main())
