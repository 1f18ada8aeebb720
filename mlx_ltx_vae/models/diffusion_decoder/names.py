"""The names of the tensors of a VAE with a diffusion decoder in published checkpoints."""

from ..base import Found, Shapes
from ..video_vae import names as of_conv_vae

#: A tensor that every diffusion decoder has, and no other decoder.
_MARK = "conv_in_x_t.weight"
_STEMS = ("det_stages.", "diff_blocks.")
_PREFIXES = ("vae.decoder.", "model.vae.decoder.", "first_stage_model.decoder.", "vae_decoder.", "decoder.", "")
# Tensors that are in published files, and that no decode reads: of a branch that predicts a coarse picture in training,
# and an embedding.
_UNUSED = ("coarse_", "type_emb")

# What diffusers calls the parts of these names.
_DIFFUSERS = {
    "t_embedder.timestep_embedder.linear_1.": "t_embedder.mlp.0.",
    "t_embedder.timestep_embedder.linear_2.": "t_embedder.mlp.2.",
    ".attn.norm_q.": ".attn.q_norm.",
    ".attn.norm_k.": ".attn.k_norm.",
    ".attn.to_out.0.": ".attn.proj.",
}


def find(shapes: Shapes) -> Found:
    """The `find` of the family: the diffusion decoder, and beside it the encoder of the conv VAE."""
    decoder = _find_decoder(shapes)
    if not decoder:
        return Found({})
    others = of_conv_vae.find(shapes)
    encoder = others.networks.get("encoder")
    return Found({"decoder": decoder} | ({"encoder": encoder} if encoder else {}), others.statistics)


def _find_decoder(shapes: Shapes) -> dict[str, str]:
    for prefix in _PREFIXES:
        if prefix + _MARK in shapes or any(name.startswith(tuple(prefix + stem for stem in _STEMS)) for name in shapes):
            inside = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
            return {
                _original_name(name): stored
                for name, stored in inside.items()
                if not name.startswith((*_UNUSED, "per_channel_statistics.", "latents_"))
            }
    return {}


def _original_name(name: str) -> str:
    for theirs, ours in _DIFFUSERS.items():
        name = name.replace(theirs, ours)
    return name
