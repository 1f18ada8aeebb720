"""The exact stream of the LTX video decoder (LTX-2.3, and LTX-2.5's conv decoder) with MLX alone, to be ported.

    python exact_stream.py [CHECKPOINT.safetensors VECTORS.safetensors]

`ExactStream` takes one latent frame at a time and returns the frames that are final. They are the frames of a decode of
the whole clip, in memory that does not grow with it. The algorithm is described in docs/exact-stream.md. Run as a
program, it decodes the test vectors beside it, and compares frames and caches.

Arrays of a stream are (frames, height, width, channels). `None` stands for no frames.
"""

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

# What follows conv_in: residual blocks, and between them convolutions that upsample by (time, height, width).
UPSAMPLING = {1: (2, 2, 2), 3: (2, 2, 2), 5: (2, 1, 1), 7: (1, 2, 2)}
NUM_BLOCKS = 9
PATCH = 4  # pixels per side that the last convolution makes of each position
STEP = 2  # frames that a stage takes at a time; the result does not depend on it, and memory does


def join(first, second):
    """Return frames after other frames, where each of them may be `None`."""
    if first is None or second is None:
        return second if first is None else first
    return mx.concatenate([first, second])


def activate(x):
    """Return SiLU of the pixel norm, which divides each position by the root mean square of its channels."""
    if x is None:
        return None
    x = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-8)
    return x * mx.sigmoid(x)


class Conv:
    """Convolution of 3x3x3 in a stream. It keeps the last two frames that it saw."""

    def __init__(self, weights, name):
        weight = weights[f"{name}.conv.weight"].astype(mx.float32)
        is_torch = weight.shape[1:4] != (3, 3, 3)  # (O, I, T, H, W) instead of (O, T, H, W, I)
        self.weight = mx.contiguous(weight.transpose(0, 2, 3, 4, 1) if is_torch else weight)
        self.bias = weights[f"{name}.conv.bias"].astype(mx.float32)
        self.kept = None

    def push(self, x):
        """Return the results for frames whose next frame has arrived."""
        if x is None:
            return None
        joined = join(x[:1] if self.kept is None else self.kept, x)  # the clip's first frame is repeated before it
        self.kept = mx.contiguous(joined[-2:])  # a copy, since a slice would keep all of `joined` in memory
        return self.convolve(joined) if len(joined) > 2 else None

    def flush(self):
        """Return the result for the last frame, which is repeated after it."""
        kept, self.kept = self.kept, None
        return self.convolve(join(kept, kept[-1:]))

    def convolve(self, frames):
        """Return n results of n + 2 frames, as the sum of three convolutions in 2D, padded with zeros in space."""
        count = len(frames) - 2
        taps = (mx.conv2d(frames[k : k + count], self.weight[:, k], padding=1) for k in range(3))
        return sum(taps) + self.bias


class ResidualBlock:
    """x + conv2(activate(conv1(activate(x)))). It keeps x until the convolutions have results for these frames."""

    def __init__(self, weights, name):
        self.convs = [Conv(weights, f"{name}.conv1"), Conv(weights, f"{name}.conv2")]
        self.skip = None

    def push(self, x):
        self.skip = join(self.skip, x)
        return self.add(self.convs[1].push(activate(self.convs[0].push(activate(x)))))

    def flush(self):
        yield self.add(self.convs[1].push(activate(self.convs[0].flush())))
        yield self.add(self.convs[1].flush())

    def add(self, result):
        if result is None:
            return None
        count = len(result)
        result = result + self.skip[:count]
        self.skip = mx.contiguous(self.skip[count:]) if len(self.skip) > count else None
        return result

    @property
    def arrays(self):
        return [array for array in (self.convs[0].kept, self.convs[1].kept, self.skip) if array is not None]


class Upsampling:
    """Convolution whose channels, in the order (channels, time, height, width), become `factors` positions."""

    order = (0, 4, 1, 5, 2, 6, 3)  # of the axes frames, height, width, channels, and three factors

    def __init__(self, weights, name, factors):
        self.convs, self.factors = [Conv(weights, name)], factors
        self.drops_first = factors[0] == 2  # of the first two frames of the clip, the first is not part of the result

    def push(self, x):
        return self.rearrange(self.convs[0].push(x))

    def flush(self):
        yield self.rearrange(self.convs[0].flush())

    def rearrange(self, x):
        if x is None:
            return None
        (count, height, width, channels), (t, p, q) = x.shape, self.factors
        x = x.reshape(count, height, width, channels // (t * p * q), t, p, q).transpose(self.order)
        x = x.reshape(count * t, height * p, width * q, -1)
        if self.drops_first:
            x, self.drops_first = x[1:], False
        return x

    @property
    def arrays(self):
        return [conv.kept for conv in self.convs if conv.kept is not None]


class Last(Upsampling):
    """The last convolution, after an activation. Its channels are patches of pixels: (color, width, height)."""

    order = (0, 4, 1, 6, 2, 5, 3)

    def push(self, x):
        return super().push(activate(x))


class ExactStream:
    """Decode of one clip. `weights` have the published names, with or without "vae.", and either layout of kernels."""

    def __init__(self, weights):
        weights = {name.removeprefix("vae."): array for name, array in weights.items()}
        statistics = (weights[f"per_channel_statistics.{name}-of-means"] for name in ("mean", "std"))
        self.mean, self.std = (array.astype(mx.float32) for array in statistics)
        self.stages = [Upsampling(weights, "decoder.conv_in", (1, 1, 1))]
        for index in range(NUM_BLOCKS):
            name, number = f"decoder.up_blocks.{index}", 0
            if index in UPSAMPLING:
                self.stages.append(Upsampling(weights, f"{name}.conv", UPSAMPLING[index]))
            while f"{name}.res_blocks.{number}.conv1.conv.weight" in weights:
                self.stages.append(ResidualBlock(weights, f"{name}.res_blocks.{number}"))
                number += 1
        self.stages.append(Last(weights, "decoder.conv_out", (1, PATCH, PATCH)))

    def push(self, latent):
        """Yield the frames (n, H, W, 3), about in [-1, 1], that a normalized latent frame (C, h, w) makes final."""
        yield from self.run(0, (latent.transpose(1, 2, 0).astype(mx.float32) * self.std + self.mean)[None])

    def flush(self):
        """Yield the remaining frames at the end of the clip: each stage ends after the one before it."""
        for index, stage in enumerate(self.stages):
            for result in stage.flush():
                yield from self.run(index + 1, result)

    def run(self, index, x):
        """Run frames through the stages from `index` on, a few at a time, each evaluated before the next."""
        if x is None or index == len(self.stages):
            yield from [] if x is None else [x]
            return
        for start in range(0, len(x), STEP):
            result = self.stages[index].push(x[start : start + STEP])
            mx.eval(self.stages[index].arrays, [] if result is None else result)
            yield from self.run(index + 1, result)


def main():
    folder = Path(__file__).parent
    paths = sys.argv[1:] or [folder / "checkpoint.safetensors", folder / "vectors.safetensors"]
    weights, vectors = (mx.load(str(path)) for path in paths)
    stream, frames, errors = ExactStream(weights), [], {}

    def compare(name, array):
        if name in vectors and array is not None:
            assert array.shape == vectors[name].shape, (name, array.shape, vectors[name].shape)
            errors[name] = float(np.abs(np.array(array) - np.array(vectors[name])).max())

    latents = vectors["latents"][0]  # (1, C, F', H', W')
    for number in range(latents.shape[1]):
        frames += stream.push(latents[:, number])
        for index, stage in enumerate(stream.stages):
            for conv_index, conv in enumerate(stage.convs):
                compare(f"caches.{number + 1}.{index}.{conv_index}", conv.kept)
    frames = mx.concatenate(frames + list(stream.flush()))
    compare("frames", frames[vectors["frame_numbers"]])
    compare("means", frames.mean(axis=(1, 2)))
    assert errors.keys() == vectors.keys() - {"latents", "frame_numbers"}, "the caches differ"
    print(f"{len(frames)} frames and {len(errors) - 2} caches: the largest difference is {max(errors.values()):.1e}")


if __name__ == "__main__":
    main()
