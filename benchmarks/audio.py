"""How fast audio is decoded, in how much memory, and which share of the work and the time of a video's decode it is."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from benchmarks.measuring import Case, Decode, Job, Run, load_case_latents, median, table, timed
from mlx_ltx_vae.audio_vae import AudioVAE
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.networks.audio.family import AUDIO_VAE
from mlx_ltx_vae.networks.base import AUDIO, Decoder, Statistics
from mlx_ltx_vae.networks.convolution.conv3d import prepare
from mlx_ltx_vae.networks.specs import NetworkSpec
from mlx_ltx_vae.pipeline.audio import join_specs
from mlx_ltx_vae.units import format_bytes, format_seconds

SECONDS = (20, 300)
_VIDEO, _FPS = (512, 768), 24  # rows and columns of the video that the share is of
_SHARE_SECONDS, _SHARE_LATENT_FRAMES = 4, 3  # of audio and of pictures, whose share is measured


def audio_table(model: str, lengths: tuple[int, ...] = SECONDS) -> str:
    """Return a table of decodes of random latents, for audio of some lengths in seconds."""
    vae = AudioVAE.from_pretrained(model, encoder=False).load()
    rows = [
        f"{Path(model).name}: {vae!r}",
        f"{'audio':>8}{'time':>10}{'audio per second':>18}{'peak':>12}{'planned':>12}",
    ]
    for seconds in lengths:
        length = round(seconds * vae.config.latents_per_second)
        latents = mx.random.normal((1, vae.config.channels, length, vae.config.bins), key=mx.random.key(0))
        plan = vae.plan(length)
        mx.eval(latents)
        mx.reset_peak_memory()
        start = time.perf_counter()
        for _ in vae.stream(latents, plan):
            pass
        taken, peak = time.perf_counter() - start, mx.get_peak_memory()
        speed = f"{plan.seconds / taken:.2f} s"
        memory = f"{format_bytes(peak):>12}{format_bytes(plan.peak_bytes):>12}"
        rows.append(f"{seconds:>6} s{format_seconds(taken):>10}{speed:>18}{memory}")
    return "\n".join(rows)


def work_share(model: str, vae: str) -> str:
    """Return the multiply-adds of a second of audio, and of a second of the video that it belongs to."""
    audio, video = open_checkpoint(model, medium=AUDIO), open_checkpoint(vae, encoder=False)
    rate = round(audio.family.describe(audio.config)["latents_per_second"])
    spec = join_specs(audio.spec("decoder"), audio.spec("vocoder"))
    audio_adds = spec.multiply_adds((10 * rate, 1, 1)) / 10
    scale = video.config.scale
    grid = (10 * _FPS // scale.time, _VIDEO[0] // scale.height, _VIDEO[1] // scale.width)
    pictures = video.spec("decoder").multiply_adds(grid) / 10
    return (
        f"a second of audio takes {audio_adds / 1e9:.0f} billion multiply-adds, and one of 768x512 at {_FPS} frames "
        f"per second {pictures / 1e9:.0f} billion: {100 * audio_adds / (audio_adds + pictures):.1f} % of the decode"
    )


def share_jobs(divisor: int) -> list[Job]:
    """Decodes of audio and of pictures by LTX-2.3 at the same fraction of its widths, with random weights."""
    height, width = _VIDEO
    frames = 1 + 8 * (_SHARE_LATENT_FRAMES - 1)
    case = Case(base_width=128 // divisor, width=width, height=height, frames=frames)
    return [Job(decode_audio, case, {"divisor": divisor}), Job(decode_pictures, case)]


def decode_audio(_: Case, *, divisor: int) -> dict[str, Any]:
    """Measure the processor and wall seconds of a second of audio, after a short decode."""
    vae = random_audio_vae(divisor)

    def decode(seconds: int) -> None:
        length = round(seconds * vae.config.latents_per_second)
        shape = (1, vae.config.channels, length, vae.config.bins)
        for _ in vae.stream(mx.random.normal(shape, key=mx.random.key(0))):
            pass

    decode(1)
    return _time(lambda: decode(_SHARE_SECONDS), _SHARE_SECONDS)


def decode_pictures(case: Case) -> dict[str, Any]:
    """Measure the processor and wall seconds of a second of pictures, after a decode of a small clip."""
    subject = Decode.from_case(case)
    small = load_case_latents(replace(case, width=64, height=64, frames=9), subject.vae)

    def decode(subject: Decode) -> None:
        for _ in subject.run():
            pass

    decode(replace(subject, latents=small, plan=subject.vae.plan(small.shape, mode="exact")))
    scale = subject.vae.config.scale
    return _time(lambda: decode(subject), subject.latents.shape[2] * scale.time / _FPS)


def _time(decode: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Seconds of each kind that a decode takes for one of the clip's."""
    return {name: taken / seconds for name, taken in timed(decode)[1].items()}


def share_table(divisor: int, results: list[list[Run]]) -> str:
    """Medians, and the audio's share of both, of runs of the same turn."""
    audio, pictures = results
    rows = []
    for key in ("processor_seconds", "seconds"):
        shares = sorted(a[key] / (a[key] + b[key]) for a, b in zip(audio, pictures, strict=True))
        rows.append(
            {
                "of a second of the clip": key.replace("_", " "),
                "audio": f"{median(audio, key):.2f}",
                "pictures": f"{median(pictures, key):.2f}",
                "share of audio": f"{statistics.median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%})",
            }
        )
    notes = [
        f"LTX-2.3 at 1/{divisor} of its widths, random weights, float32: {_SHARE_SECONDS} s of audio, and "
        f"{_SHARE_LATENT_FRAMES} latent frames of {_VIDEO[1]}x{_VIDEO[0]} at {_FPS} frames per second; {len(audio)} "
        "fresh processes each, in turns.",
    ]
    return table(rows, notes)


def random_audio_vae(divisor: int) -> AudioVAE:
    """LTX-2.3's audio VAE at a fraction of its widths, with the same random weights in every process."""
    config = AUDIO_VAE.published["ltx-2.3"](128 // divisor)
    ones = mx.ones((config.latent_channels,))
    statistics = Statistics(0 * ones, ones)
    decoder, vocoder = (AUDIO_VAE.make(config, name, statistics) for name in ("decoder", "vocoder"))
    mx.random.seed(0)
    for network in (decoder, vocoder):
        _randomize(network, network.spec)
    return AudioVAE(config, None, cast(Decoder, decoder), vocoder)


def _randomize(network: nn.Module, spec: NetworkSpec) -> None:
    weights = {name: mx.random.normal(shape) for name, shape in spec.weights.items()}
    fan_in = {name: weight.size / weight.shape[0] if weight.ndim > 1 else 100 for name, weight in weights.items()}
    network.load_weights([(name, weight * fan_in[name] ** -0.5) for name, weight in weights.items()])
    mx.eval(network.parameters())
    prepare(network, keeps_dtype=True)
