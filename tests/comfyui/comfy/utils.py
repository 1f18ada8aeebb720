import math
import threading

from .model_management import throw_exception_if_processing_interrupted

updates = []


class ProgressBar:
    def __init__(self, total, node_id=None):
        self.total, self.node_id = total, node_id

    def update_absolute(self, value, total=None, preview=None):
        """As with main.py's hook, which raises where ComfyUI is interrupted."""
        throw_exception_if_processing_interrupted()
        updates.append((self.node_id, value, total, preview, threading.current_thread().name))


def unpack_latents(combined_latent, latent_shapes):
    if len(latent_shapes) == 1:
        return [combined_latent]
    cuts = [math.prod(shape[1:]) for shape in latent_shapes]
    starts = [sum(cuts[:at]) for at in range(len(cuts))]
    parts = [combined_latent[:, :, start : start + cut] for start, cut in zip(starts, cuts, strict=True)]
    return [part.reshape(shape) for part, shape in zip(parts, latent_shapes, strict=True)]
