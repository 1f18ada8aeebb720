"""What the tests of several ranks run under `mlx.launch`: a case per argument, and rank 0 writes what came out."""

import io
import json
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_ltx_vae import Keyframes, VideoVAE, save_latents
from mlx_ltx_vae.decode import main as main_of_decode
from mlx_ltx_vae.distributed import Ranks
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.pipeline.decode import DecodeStream
from toy_networks import TOYS


def open_vae(source):
    """A checkpoint, or a toy network by its name."""
    if source not in TOYS:
        return VideoVAE.from_pretrained(source)
    return VideoVAE(None, None, TOYS[source]())


def latents_of(vae, frames=3, height=5, width=2, batch=1):
    shape = (batch, vae.decoder.spec.in_channels, frames, height, width)
    return mx.random.normal(shape, key=mx.random.key(0))


def pixels_of(vae, frames=3, height=5, width=2):
    scale = vae.config.scale
    shape = (1, 3, 1 + (frames - 1) * scale.time, height * scale.height, width * scale.width)
    return mx.random.uniform(-1, 1, shape, key=mx.random.key(0))


def decode(vae, group=None, **shape):
    latents = latents_of(vae, **shape)
    stream = vae.stream(latents, group=group)
    frames = mx.concatenate([chunk.frames for chunk in stream], axis=1)
    return np.array(frames), stream.sent_bytes


def decode_with_keyframes(vae, group=None, **shape):
    latents = latents_of(vae, **shape)
    stills = mx.random.normal((*latents.shape[:2], 3, *latents.shape[3:]), key=mx.random.key(1))
    stream = vae.stream(latents, keyframes=Keyframes(stills, [3, 0, 30]), group=group)
    frames = mx.concatenate([chunk.frames for chunk in stream], axis=1)
    return np.array(frames), stream.sent_bytes


def decode_for_the_first(vae, group=None, **shape):
    """As `decode`, but nobody looks at the frames of the other ranks, which take chunks and drop them."""
    if group is None or group.rank() == 0:
        return decode(vae, group, **shape)
    for _ in vae.stream(latents_of(vae, **shape), group=group):
        pass
    return np.zeros(1), 1


def decode_arriving(vae, group=None, **shape):
    latents = latents_of(vae, **shape)
    stream = vae.stream((latents[:, :, at : at + 1] for at in range(latents.shape[2])), group=group)
    assert stream.sent_bytes == 0
    frames = mx.concatenate([chunk.frames for chunk in stream], axis=1)
    return np.array(frames), stream.sent_bytes


def decode_joined(vae, group=None, **shape):
    latents = latents_of(vae, **shape)
    stream = vae.stream_joined([latents, -latents], carry=9, blend=4, group=group)
    frames = mx.concatenate([chunk.frames for chunk in stream], axis=1)
    return np.array(frames), stream.sent_bytes


def encode(vae, group=None, **shape):
    return np.array(vae.encode(pixels_of(vae, **shape), group=group)), 0


def encode_stream(vae, group=None, **shape):
    stream = vae.encode_stream([pixels_of(vae, **shape)], group=group)
    latents = mx.concatenate(list(stream), axis=2)
    return np.array(latents), stream.sent_bytes


def raised(function):
    """The class and the text of the error that a function raises on this rank."""
    try:
        function()
    except LTXVAEError as error:
        return type(error).__name__, str(error)
    return None


def errors(group, checkpoint):
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    latents = latents_of(vae)
    own_plan = vae.plan(latents.shape, ranks=group.size(), chunk=1 + group.rank())

    def fail_on(rank):
        if group.rank() == rank:
            raise LTXVAEError("no such file")
        return rank

    return {
        "fails": raised(lambda: Ranks(group).together(lambda: fail_on(1))),
        "works": Ranks(group).together(lambda: fail_on(99)),
        "same": raised(lambda: Ranks(group).check_same(lambda: {"the latents": [1, 2]})),
        "plans": raised(lambda: vae.stream(latents, own_plan, group=group)),
        "differ": raised(
            lambda: Ranks(group).check_same(lambda: {"the checkpoints": 5, "the latents": [1, group.rank()]})
        ),
    }


def batch(group, checkpoint):
    """What the command does with a file of three videos, where each rank has a disk of its own.

    Returns:
        The outputs of this rank, how often its networks were run and what they called of `mx.distributed`, the same of
        a second run that skips what exists, and what the first rank printed.
    """
    calls, running, steps, printed = Counter(), [], [], io.StringIO()

    def counting(name, function):
        def call(*arguments, **options):
            calls.update([name] if running else [])
            return function(*arguments, **options)

        return call

    def advance(stream, step=DecodeStream.__next__):
        steps.append(stream)
        running.append(True)
        try:
            return step(stream)
        finally:
            running.pop()

    for name in ("all_gather", "all_max", "all_min", "all_sum", "send", "recv", "recv_like"):
        setattr(mx.distributed, name, counting(name, getattr(mx.distributed, name)))
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    before, DecodeStream.__next__ = DecodeStream.__next__, advance
    try:
        with tempfile.TemporaryDirectory() as disk, redirect_stdout(printed):
            save_latents(f"{disk}/clip.safetensors", latents_of(vae, frames=2, height=3, batch=3))
            command = [f"{disk}/clip.safetensors", "-m", checkpoint, "-o", f"{disk}/out.npy", "--json"]
            code = main_of_decode(command)
            first = len(steps)
            again = main_of_decode([*command, "--skip-existing"])
            outputs = sorted(path.name for path in Path(disk).glob("out*"))
    finally:
        DecodeStream.__next__ = before
    return {
        "codes": [code, again],
        "outputs": outputs,
        "steps": [first, len(steps) - first],
        "in_network": calls,
        "reports": [json.loads(line) for line in printed.getvalue().splitlines()],
    }


def main(folder, cases):
    group = mx.distributed.init()
    for index, (function, checkpoint, shape) in enumerate(cases):
        if function in ("errors", "batch"):
            made = errors(group, checkpoint) if function == "errors" else batch(group, checkpoint)
            result = Ranks(group).gather(made)
            if group.rank() == 0:
                (folder / f"{index}.json").write_text(json.dumps(result))
            continue
        vae = open_vae(checkpoint)
        result, sent = globals()[function](vae, group, **shape)
        alike = Ranks(group).gather([sent, float(np.abs(result).sum())])
        if group.rank() == 0:
            np.savez(
                folder / f"{index}.npz", result=result, sent=[each[0] for each in alike], sums=[s for _, s in alike]
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
