"""Read files of `encode --layout` by the trainers' own loaders, from a clone of each: PYTHON scripts/try_trainers.py

    PYTHON scripts/try_trainers.py ltx-trainer CLONE          of Lightricks/LTX-2; PYTHON has torch and einops
    PYTHON scripts/try_trainers.py ltx-trainer-mlx CLONE      of dgrauet/ltx-2-mlx; PYTHON has MLX
    PYTHON scripts/try_trainers.py musubi-tuner CLONE         of AkaneTendo25/musubi-tuner, branch ltx-2; PYTHON has
                                                              torch, opencv-python, accelerate and safetensors

`encode` runs in the .venv of this repository. Captions are stand-ins; they are no part of the layouts.
"""

import importlib
import logging
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIZE, FRAMES, CLIPS = (96, 64), 17, ("c1", "c2", "c10")
LATENT_SHAPE = (64, 3, 2, 3)  # of the demo VAE
_MAKE_CLIPS = """
import numpy as np, sys
from mlx_ltx_vae import VideoWriter
for seed, path in enumerate(sys.argv[1:]):
    with VideoWriter(path, size=(96, 64), fps="24000/1001", codec="ffv1") as video:
        video.write(np.random.default_rng(seed).integers(0, 255, (17, 64, 96, 3), dtype=np.uint8))
"""


def encode(folder: Path, layout: str) -> Path:
    """Encode clips for a trainer, and return the folder of a data set with their latents."""
    (folder / "clips").mkdir()
    python, paths = str(ROOT / ".venv" / "bin" / "python"), [str(folder / "clips" / f"{name}.mkv") for name in CLIPS]
    subprocess.run([python, "-c", _MAKE_CLIPS, *paths], check=True, cwd=ROOT)
    target, size = folder / ".precomputed" / "latents", f"{SIZE[0]}x{SIZE[1]}"
    options = ["--demo", "--layout", layout, "--size", size, "--frames", str(FRAMES), "-o", f"{target}/"]
    subprocess.run([python, "-m", "mlx_ltx_vae", "encode", str(folder / "clips"), *options], check=True, cwd=ROOT)
    return target


def import_datasets(source: Path, package: str) -> Any:
    """Import a trainer's module of data sets without its package, which imports models."""
    stand_in = types.ModuleType(package)
    stand_in.__path__ = [str(source / package)]
    stand_in.logger = logging.getLogger(package)  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    return importlib.import_module(f"{package}.datasets")


def load_ltx_trainer(clone: Path, latents: Path) -> list[Any]:
    """Return the latents that the trainer loads."""
    import torch

    datasets = import_datasets(clone / "packages" / "ltx-trainer" / "src", "ltx_trainer")
    conditions = latents.with_name("conditions")
    conditions.mkdir()
    for path in latents.iterdir():
        torch.save({"video_prompt_embeds": torch.zeros(3)}, conditions / path.name)
    clips = datasets.PrecomputedDataset(str(latents.parents[1]))
    return [clips[index]["latent_conditions"]["latents"] for index in range(len(clips))]


def load_ltx_trainer_mlx(clone: Path, latents: Path) -> list[Any]:
    """Return the latents that the trainer loads."""
    import mlx.core as mx

    datasets = import_datasets(clone / "packages" / "ltx-trainer" / "src", "ltx_trainer_mlx")
    conditions = latents.with_name("conditions")
    conditions.mkdir()
    for path in latents.iterdir():
        name = path.name.replace("latent_", "condition_")
        mx.save_safetensors(str(conditions / name), {"video_prompt_embeds": mx.zeros(3)})
    clips = [datasets.PrecomputedDataset(str(latents.parents[1]))[index]["latent_conditions"] for index in range(3)]
    for clip in clips:  # as text_to_video.py reads them
        grid = tuple(int(mx.stack([clip[name]])[0].item()) for name in ("num_frames", "height", "width"))
        assert grid == LATENT_SHAPE[1:], grid
        assert abs(float(clip["fps"].item()) - 24000 / 1001) < 1e-4
    return [clip["latents"] for clip in clips]


def load_musubi_tuner(clone: Path, latents: Path) -> list[Any]:
    """Return the latents that the trainer loads, in one batch."""
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(clone / "src"))
    for name in CLIPS:
        embeddings = {"video_prompt_embeds_bfloat16": torch.zeros(4, 8, dtype=torch.bfloat16)}
        save_file(embeddings, str(latents / f"{name}_ltx2_te.safetensors"), {"caption1": "a caption"})
    dataset_class = importlib.import_module("musubi_tuner.dataset.image_video_dataset").VideoDataset
    import inspect

    parameters = list(inspect.signature(dataset_class.__init__).parameters.values())[1:]
    options = {item.name: None for item in parameters if item.default is item.empty}
    options |= {"resolution": SIZE, "caption_extension": ".txt", "batch_size": len(CLIPS), "num_repeats": 1}
    options |= {"enable_bucket": True, "bucket_no_upscale": False, "cache_directory": str(latents)}
    clips = dataset_class(**options, cache_only=True, architecture="ltx2", target_frames=[FRAMES])
    clips.prepare_for_training()
    return list(clips.batch_manager[0]["latents"]["latents"])


LOADERS: dict[str, Callable[[Path, Path], list[Any]]] = {
    "ltx-trainer": load_ltx_trainer,
    "ltx-trainer-mlx": load_ltx_trainer_mlx,
    "musubi-tuner": load_musubi_tuner,
}


def main() -> None:
    """Try one trainer."""
    layout, clone = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        latents = LOADERS[layout](Path(clone).resolve(), encode(Path(folder), layout))
    shapes = [tuple(array.shape) for array in latents]
    assert shapes == [LATENT_SHAPE] * len(CLIPS), shapes
    print(f"{layout}: {len(latents)} clips of {LATENT_SHAPE}, {latents[0].dtype}")


if __name__ == "__main__":
    main()
