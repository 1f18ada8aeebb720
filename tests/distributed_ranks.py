"""What the tests of several ranks run under `mlx.launch`. Rank 0 writes what all ranks have returned."""

import io
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import mlx.core as mx

from commands import decode as main_of_decode
from mlx_ltx_vae import DecodeStream, LTXVAEError, VideoVAE, save_latents
from mlx_ltx_vae.distributed import Ranks


def latents_of(vae, frames=3, height=5, width=2, batch=1):
    shape = (batch, vae.decoder.spec.in_channels, frames, height, width)
    return mx.random.normal(shape, key=mx.random.key(0))


def raised(function):
    """The class and the text of the error that a function raises on this rank."""
    try:
        function()
    except LTXVAEError as error:
        return type(error).__name__, str(error)
    return None


def errors(group):
    def fail_on(rank):
        if group.rank() == rank:
            raise LTXVAEError("no such file")
        return rank

    return {
        "fails": raised(lambda: Ranks(group).together(lambda: fail_on(1))),
        "works": Ranks(group).together(lambda: fail_on(99)),
        "same": raised(lambda: Ranks(group).check_inputs([("a.npy", "a.mp4")])),
        "differ": raised(lambda: Ranks(group).check_inputs([("a.npy", f"{min(group.rank(), 1)}.mp4")])),
    }


def inputs(checkpoint):
    """What the command does with three files, where each rank has a disk of its own.

    Returns:
        The exit code and the outputs of this rank, what its networks called of `mx.distributed`, and what it printed.
    """
    calls, running, printed = Counter(), [], io.StringIO()

    def counting(name, function):
        def call(*arguments, **options):
            calls.update([name] if running else [])
            return function(*arguments, **options)

        return call

    def advance(stream, step=DecodeStream.__next__):
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
            os.chdir(disk)
            sources = [f"{number}.safetensors" for number in range(3)]
            for source in sources:
                save_latents(source, latents_of(vae, frames=2, height=3))
            code = main_of_decode([*sources, "-m", checkpoint, "-o", "{name}.npy", "--json"])
            outputs = sorted(path.name for path in Path(disk).glob("*.npy"))
            os.chdir("/")
    finally:
        DecodeStream.__next__ = before
    return {
        "code": code,
        "outputs": outputs,
        "in_network": calls,
        "reports": [json.loads(line) for line in printed.getvalue().splitlines()],
    }


if __name__ == "__main__":
    path, checkpoint = sys.argv[1:]
    group = mx.distributed.init()
    results = Ranks(group).gather({"errors": errors(group), "inputs": inputs(checkpoint)})
    if group.rank() == 0:
        Path(path).write_text(json.dumps(results))
