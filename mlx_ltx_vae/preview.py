"""`python -m mlx_ltx_vae.preview`: shows what is in latents, in seconds."""

from .startup import entry_point

main = entry_point("preview")

if __name__ == "__main__":
    raise SystemExit(main())
