"""An app that uses every public name: the type checkers read it, and a test runs it."""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_ltx_vae import (
    AudioChunk,
    AudioStream,
    AudioVAE,
    CheckpointError,
    DecodeCancelled,
    DecodeError,
    DecodePlan,
    DecodeReport,
    DecodeStream,
    DeviceError,
    DistributedError,
    EncodePlan,
    Film,
    Fit,
    FrameChunk,
    HDROptions,
    Keyframes,
    LatentsError,
    LatentsInfo,
    LatentUpsampler,
    LTXVAEError,
    PlanError,
    PreviewVAE,
    ReaderError,
    ScaleFactors,
    VAEConfig,
    VideoReader,
    VideoVAE,
    VideoWriter,
    WriterError,
    compress_still,
    demo,
    hdr,
    integrations,
    load_audio_latents,
    load_keyframes,
    load_latents,
    save_latents,
    tiling,
)


class FilmVAE(VideoVAE):
    """A subclass, which the constructors return."""

    def first_frame(self, latents: mx.array) -> np.ndarray:
        plan: DecodePlan = self.plan(latents.shape, frames=(0, 1))
        return self.decode_uint8(latents, plan)[0]


def decode(vae: VideoVAE, latents: mx.array, folder: Path) -> int:
    """Decode in all ways, and return the number of frames of a stream."""
    plan = vae.plan(latents.shape, memory_budget="50%", mode="exact", order="time")
    report: DecodeReport = vae.decode_to_file(latents, folder / "clip.mp4", plan=vae.plan(latents.shape, bit_depth=8),
                                              metadata={"title": "a film"}, pix_fmt="yuv444p", crf=20)  # fmt: skip
    size: tuple[int, int] = report.width, report.height
    light: mx.array = hdr.to_linear(mx.zeros((4, 4, 3)), "logc3", "acescg")
    assert hdr.to_hlg(light).shape == hdr.to_codes(light, "acescct").shape == (4, 4, 3)
    vae.decode_to_file(latents, folder / "hdr.npy", hdr=HDROptions("acescct", "pq"))
    vae.decode_to_file(latents, folder / "sdr.npy", hdr="logc3")
    count = 0
    with vae.stream(latents, plan) as stream:
        own: DecodeStream = stream
        for chunk in own:
            count += show(chunk)
    pixels = vae.decode(latents, memory_budget=plan.peak_bytes)
    assert pixels.shape[3:] == size[::-1], (pixels.shape, size)
    vae.decode(latents, on_frames_ready=lambda frames, start: None)
    film = Film([latents, latents], carry=1)
    joined: DecodeReport = vae.decode_to_file(film, folder / "film.npy")
    assert joined.frames == vae.plan(film).num_frames, joined
    tiles = tiling.TilingConfig.default()
    with integrations.telling_warnings(print):
        vae.decode(latents, vae.plan(latents.shape, mode="tiled", tiling=tiles))
    return count


def show(chunk: FrameChunk) -> int:
    levels: np.ndarray = chunk.to_uint8()
    return len(levels)


def encode(vae: VideoVAE, video: Path, out: Path) -> LatentsInfo:
    with VideoReader(video, size=(64, 64), fit=Fit.CROP, first_frame=0, max_frames=9) as frames:
        plan: EncodePlan = vae.plan_encode((9, 64, 64, 3))
        latents = mx.concatenate(list(vae.encode_stream(frames, plan)), axis=2)
        save_latents(out, latents, fps=frames.fps or 24, keyframes=Keyframes(latents[:, :, :1], [8]))
    still: np.ndarray = compress_still(np.zeros((64, 64, 3), np.uint8), crf=18)
    vae.encode(still[None])
    loaded, info = load_latents(out)
    stills: Keyframes | None = load_keyframes(out)
    vae.plan(loaded.shape, keyframes=stills)
    rate: Fraction | None = info.fps
    assert rate is not None
    assert loaded.shape == latents.shape
    return info


def preview(vae: PreviewVAE, latents: mx.array) -> mx.array | None:
    first = vae.push(latents[:, :, :1])
    vae.flush()
    return first


def hear(vae: AudioVAE, file: Path, audio: mx.array) -> int:
    latents = load_audio_latents(file, statistics=(vae.mean, vae.std))
    if latents is None:
        return 0
    plan: DecodePlan = vae.plan(latents.shape[2])
    stream: AudioStream = vae.stream(latents, plan)
    chunks: Iterator[AudioChunk] = stream
    length = sum(chunk.waveform.shape[-1] for chunk in chunks)
    encode_plan: EncodePlan = vae.plan_encode(1.0)
    vae.encode(audio, vae.sample_rate, encode_plan)
    return length


def write(frames: np.ndarray, path: Path) -> None:
    with VideoWriter(path, size=(frames.shape[2], frames.shape[1]), fps=24) as out:
        out.write(frames)


def describe(config: VAEConfig) -> str:
    scale: ScaleFactors = config.scale
    return f"{config.generation}: {scale.time} frames"


def enlarge(upsampler: LatentUpsampler, vae: VideoVAE, latents: mx.array) -> mx.array:
    plan: DecodePlan = upsampler.plan(latents.shape, memory_budget="4GB")
    return upsampler.upscale(latents, statistics=vae, plan=plan)


def main(folder: Path) -> int:
    try:
        vae = FilmVAE.from_pretrained(demo.VAE, dtype=mx.float32)
        latents = load_latents(demo.LATENTS)[0][:, :, :2, :3, :4]
        assert vae.first_frame(latents).shape == (96, 128, 3)
        assert isinstance(vae.config, VAEConfig), describe
        print(describe(vae.config), decode(vae, latents, folder), repr(vae.stream(latents)))
        print(encode(vae, folder / "clip.mp4", folder / "clip.safetensors"))
        tiny: PreviewVAE = PreviewVAE.from_pretrained(demo.LATENT_RGB)
        frames = preview(tiny, latents)
        write(np.zeros((9, 64, 64, 3), np.uint8), folder / "black.mp4")
        print(None if frames is None else frames.shape, hear, enlarge)
    except (CheckpointError, LatentsError, PlanError, ReaderError, WriterError) as error:
        print(f"cannot be done: {error}", file=sys.stderr)
        return 1
    except (DecodeError, DecodeCancelled, DeviceError, DistributedError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 2
    except LTXVAEError as error:
        raise SystemExit(str(error)) from error
    return 0
