"""Training data of the demo VAE: a pool of procedural clips, and batches of random crops of them."""

import multiprocessing
import sys

import numpy as np
import torch

import procedural_clips

POOL_SHAPE = (25, 192, 192)  # frames, height, width of a training clip
CROPS = [  # ((batch, frames, side), relative frequency)
    ((4, 17, 96), 6),
    ((8, 17, 64), 2),
    ((4, 9, 128), 3),
    ((3, 25, 96), 2),
    ((2, 49, 96), 2),
    ((2, 9, 192), 3),
    ((2, 17, 128), 2),
    ((6, 1, 128), 1),
]


def pool_clip(seed):
    """Draw a training clip, uint8 (T, H, W, 3)."""
    return procedural_clips.make_clip(seed, *POOL_SHAPE)


def load_pool(path, count):
    """Training clips, uint8 (n, T, H, W, 3), drawn once and stored in a file."""
    if not path.exists():
        print(f"drawing {count} clips into {path}", file=sys.stderr, flush=True)
        pool = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.uint8, (count, *POOL_SHAPE, 3))
        with multiprocessing.Pool() as workers:
            for index, clip in enumerate(workers.imap(pool_clip, range(count), chunksize=8)):
                pool[index] = clip
        path.with_suffix(".part").rename(path)
    return np.load(path)


def to_pixels(frames):
    """uint8 (B, T, H, W, 3) -> pixels (B, 3, T, H, W) in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def random_crop(pool, rng, frames, side):
    """Return a random crop of a clip, uint8 (frames, side, side, 3). Short clips are played back and forth."""
    y, x = (int(rng.integers(size - side + 1)) for size in POOL_SHAPE[1:])
    crop = pool[rng.integers(len(pool)), :, y : y + side, x : x + side]
    crop = np.concatenate([crop, crop[-2::-1]])[:: rng.choice([1, 1, -1])]
    start = int(rng.integers(max(POOL_SHAPE[0], frames) - frames + 1))
    crop = crop[start : start + frames, :, :: rng.choice([1, -1])]
    return crop[..., rng.permutation(3)] if rng.uniform() < 0.3 else crop


def draw_batch(pool, rng):
    """Draw a batch of random pixels (B, 3, T, H, W), mirrored, reversed or recolored; one clip in five has a cut."""
    weights = np.array([weight for _, weight in CROPS])
    (batch, frames, side), _ = CROPS[rng.choice(len(CROPS), p=weights / weights.sum())]
    crops = [random_crop(pool, rng, frames, side) for _ in range(batch)]
    for index in range(batch):
        if frames > 1 and rng.uniform() < 0.2:
            cut = int(rng.integers(1, frames))
            crops[index] = np.concatenate([crops[index][:cut], random_crop(pool, rng, frames - cut, side)])
    return to_pixels(np.stack(crops))
