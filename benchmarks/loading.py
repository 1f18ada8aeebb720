"""How long a checkpoint takes to load, and how much memory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from benchmarks.measuring import (
    Case,
    Job,
    Run,
    count_weight_bytes,
    make_random_network,
    median,
    open_case,
    table,
    timed,
)
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.mlx_utils import load_safetensors, named_parameters
from mlx_ltx_vae.networks.diffusion_decoder.config import raw_ltx_2_5
from mlx_ltx_vae.networks.video_vae.config import GENERATIONS, VAEConfig
from mlx_ltx_vae.units import MB


def write_checkpoint(case: Case, path: Path, *, encoder: bool = False) -> None:
    """Write the random decoder of a case, or both networks of a convolutional one, as the original files store them."""
    config = open_case(case).config
    if isinstance(config, VAEConfig):
        widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
        layers = GENERATIONS.get(config.generation, GENERATIONS["LTX-2.3"])  # also LTX-2.5's
        raw = {**layers, **widths}
    else:
        raw, encoder = raw_ltx_2_5(case.base_width), False
    networks = ["decoder", "encoder"] if encoder else ["decoder"]
    weights = {
        f"vae.{network}.{name}": array
        for network in networks
        for name, array in original_weights(case, network).items()
    }
    ones = mx.ones((config.latent_channels,))
    statistics = {"mean-of-means": 0 * ones, "std-of-means": ones}
    weights |= {f"vae.per_channel_statistics.{name}": array for name, array in statistics.items()}
    contiguous = {name: mx.contiguous(array) for name, array in weights.items()}
    mx.save_safetensors(str(path), contiguous, {"config": json.dumps({"vae": raw})})


def original_weights(case: Case, network: str) -> dict[str, mx.array]:
    """Return the random weights of a case's network, named and laid out (O, I, D, H, W) as in the original files."""
    weights = named_parameters(make_random_network(case, network))
    return {name: array.transpose(0, 4, 1, 2, 3) if array.ndim == 5 else array for name, array in weights.items()}


@contextmanager
def loading_jobs(model: str | None, base_width: int) -> Iterator[list[Job]]:
    """Jobs that load a checkpoint file, or else one of random weights, which exists in this block."""
    with TemporaryDirectory() as folder:
        case = Case(model=model or f"{folder}/vae.safetensors", base_width=base_width)
        if model is None:
            write_checkpoint(replace(case, model=None), Path(folder) / "vae.safetensors")
            mx.clear_cache()
        yield [Job(read, case), Job(load, case), Job(load, replace(case, dtype="bfloat16"))]


def read(case: Case) -> dict[str, Any]:
    """Read every tensor of a file, one by one, and keep them."""

    def evaluate_all() -> dict[str, mx.array]:
        arrays = load_safetensors(Path(case.model or ""))
        for array in arrays.values():
            mx.eval(array)
        return arrays

    arrays, seconds = timed(evaluate_all)
    weights_bytes = sum(array.nbytes for array in arrays.values())
    return {**seconds, "peak_bytes": mx.get_peak_memory(), "weights_bytes": weights_bytes}


def load(case: Case) -> dict[str, Any]:
    """Load the decoder of a checkpoint."""
    vae, seconds = timed(lambda: VideoVAE.from_pretrained(case.model or "", dtype=case.dtype, encoder=False).load())
    return {**seconds, "peak_bytes": mx.get_peak_memory(), "weights_bytes": count_weight_bytes(vae)}


def loading_table(results: list[list[Run]]) -> str:
    """Medians of seconds, and the largest peaks."""
    rows = [
        {
            "": runs[0]["task"],
            "dtype": runs[0]["dtype"] or "",
            "seconds": f"{median(runs, 'seconds'):.2f}",
            "CPU seconds": f"{median(runs, 'processor_seconds'):.2f}",
            "peak MB": f"{max(run['peak_bytes'] for run in runs) / MB:.0f}",
            "weights MB": f"{runs[0]['weights_bytes'] / MB:.0f}",
        }
        for runs in results
    ]
    return table(
        rows, ["The peak includes the weights. The file is in the system's cache if it was written or read before."]
    )
