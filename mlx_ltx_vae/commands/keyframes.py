"""The keyframes of a decode: which ones go with a latent file."""

import warnings
from collections.abc import Sequence

from ..errors import ItemsError, LatentsError
from ..latents import LatentsFile
from ..latents.keyframes import KEYFRAME_NAMES, KeyframesFile, open_keyframes
from ..models.specs import NetworkSpec
from .items import are_many


def check_keyframes_option(given: str | None, sources: Sequence[str]) -> None:
    """Refuse a file of keyframes for several inputs, as arguments name them."""
    if given and are_many(sources):
        raise ItemsError("--keyframes goes with one input; decode each on its own, or store them in its latent file")


def find_keyframes(given: str | None, clip: LatentsFile, decoder: NetworkSpec) -> KeyframesFile | None:
    """The keyframes of a file that is given, or those in the latent file; None if there are none.

    A warning if the decoder takes none. A `LatentsError` for bad ones.
    """
    source = given or clip.info.source
    if given is None and not clip.has_keyframes:
        return None
    if decoder.variant is None:
        text = "its keyframes are ignored, as this VAE takes none; the diffusion decoder of LTX-2.5 does."
        warnings.warn(f"{source}: {text}", stacklevel=2)
        return None
    if given is None:
        return clip.find_keyframes()
    file = open_keyframes(given)
    if file is None:
        raise LatentsError(f"{given}: has no keyframes; name a file with the tensors {' and '.join(KEYFRAME_NAMES)}.")
    file.check(clip.shape)
    return file
