"""Linear projection from latents to small pictures, for previews."""
