"""Carries plans out: latents to frames, and frames to latents."""
