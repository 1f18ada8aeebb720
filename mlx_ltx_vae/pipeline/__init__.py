"""Executes plans: latents to frames, and frames to latents."""
