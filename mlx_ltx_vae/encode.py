"""`python -m mlx_ltx_vae.encode`: encodes videos to latents."""

from .startup import entry_point

main = entry_point("encode")

if __name__ == "__main__":
    raise SystemExit(main())
