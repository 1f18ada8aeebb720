"""Descriptions of checkpoints, from the headers of their files and their configuration. No tensor is read."""

from functools import partial
from itertools import zip_longest
from typing import Any

from ..audio_vae import plan_checkpoint
from ..checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.files import StoredNetwork
from ..checkpoint.locate import Location, locate, recognize
from ..errors import CheckpointError, PlanError, excerpt, printable
from ..models.base import NETWORKS, SOUND, Description
from ..planning.clip import lookahead, receptive_field
from ..planning.plan import DecodePlan, Mode
from ..planning.planner import plan_decode
from ..shapes import Grid, format_size
from ..units import format_bytes, format_count
from .report import Report

#: (F, H, W) of videos that people make.
_USUAL_VIDEOS = ((121, 512, 768), (121, 704, 1280), (121, 1088, 1920))
_SECONDS = (5, 20, 300)  # of sound that is planned
_COLUMN_WIDTH = 44


def inspect_checkpoint(checkpoint: Checkpoint, audio: Report | None = None) -> Report:
    """Describe a checkpoint, and what decoding with it takes on this machine. `audio` is what it has beside pictures.

    In JSON, `configuration` is "stated" by the file or "inferred" from its tensors; `scale` is pixels per latent cell;
    a network that does not exist is null, `dtypes` counts its parameters stored in each dtype, and `weight_layout` is
    the axis order of its stored convolution weights; `receptive_field` is in latent frames and cells beyond a pixel's
    own, null where it is unlimited; it and `lookahead` are null without a decoder in the configuration. Each of `plans`
    is a plan as `decode --dry-run --json` prints it, with `single_pass_peak_bytes`, null where a single pass is not
    possible.
    """
    report, description = Report("checkpoint"), checkpoint.family.describe(checkpoint.config)
    _add_file(report, checkpoint, description)
    _add_decoder(report, checkpoint, description)
    _add_networks(report, checkpoint, description)
    _add_plans(report, checkpoint)
    if audio is not None:
        report.add("", "")
        report.include("audio", audio)
    return report


def _add_file(report: Report, checkpoint: Checkpoint, description: Description) -> None:
    paths = {info.path for archive in checkpoint.archives for info in archive.tensors.values()}
    file_bytes = sum(path.stat().st_size for path in paths)
    vae_bytes = sum(stored.num_bytes for stored in checkpoint.networks.values())
    total, used = format_bytes(file_bytes), format_bytes(vae_bytes)
    report.add(
        "file",
        f"{printable(checkpoint.name)}, {total}" + (f", of which the VAE takes {used}" if total != used else ""),
        name=checkpoint.name,
        file_bytes=file_bytes,
        vae_bytes=vae_bytes,
    )
    source = f"a {excerpt(checkpoint.class_name)}" if checkpoint.class_name else "as its configuration says"
    if checkpoint.is_inferred:
        source = "inferred from its tensors: it has no configuration"
    config = checkpoint.config
    report.add(
        "VAE",
        ", ".join([config.generation, *[description.generation] * bool(description.generation), source]),
        generation=config.generation,
        configuration="inferred" if checkpoint.is_inferred else "stated",
        **{"class": checkpoint.class_name},
    )
    time, height, width = config.scale
    cell = f"a cell is {time} frames of {format_size(width, height)} pixels"
    more = f", {description.latents}" if description.latents else ""
    report.add("latents", f"{config.latent_channels} channels; {cell}{more}", **description.entries)


def _add_decoder(report: Report, checkpoint: Checkpoint, description: Description) -> None:
    if "decoder" not in description.networks:
        report.add("", receptive_field=None, lookahead=None)
        return
    spec = checkpoint.spec("decoder")
    field, count = receptive_field(spec), lookahead(spec)
    before, after, cells = field
    frames = "to each side" if before == after else f"back and {after:g} ahead"
    seen = "the whole frame" if cells is None else f"{cells:g} latent cells to each side"
    report.add("decoder", *[description.decoder] * bool(description.decoder))
    report.add("sees", f"{before:g} latent frames {frames} in time, {seen} in space", receptive_field=field._asdict())
    report.add("first", f"frame after {format_count(count, 'latent frame')}", lookahead=count)


def _add_networks(report: Report, checkpoint: Checkpoint, description: Description) -> None:
    networks = checkpoint.networks
    missing = "".join(f" (no {name} here)" for name in NETWORKS if name not in networks)
    layers, storage = [], []
    entries: dict[str, dict[str, Any] | None] = dict.fromkeys(NETWORKS)
    for name, stored in networks.items():
        described = description.networks[name]
        layers.append([f"{name}{missing}"])
        for layer, before, after in described.layers:
            channels = str(before) if before == after else f"{before} -> {after}"
            layers[-1].append(f"{layer:29}{channels:>12}")
        storage.append([*_sizes(stored), f"weights ({stored.layout.value})"])
        entries[name] = {**described.entries, **_describe(stored)}
    report.add("", "", **entries)
    report.add("blocks", *_side_by_side(layers))
    report.add("", "")
    report.add("stored", *_side_by_side(storage))


def _describe(stored: StoredNetwork) -> dict[str, Any]:
    return {
        "parameters": stored.parameters_by_dtype.total(),
        "dtypes": dict(stored.parameters_by_dtype),
        "bytes": stored.num_bytes,
        "weight_layout": stored.layout.value,
    }


def _sizes(stored: StoredNetwork) -> tuple[str, str]:
    parameters = stored.parameters_by_dtype
    dtypes = " and ".join(dtype for dtype, _ in parameters.most_common())
    return f"{parameters.total():,} parameters", f"{format_bytes(stored.num_bytes)} of {dtypes}"


def _side_by_side(columns: list[list[str]]) -> list[str]:
    return ["".join(f"{cell:{_COLUMN_WIDTH}}" for cell in row) for row in zip_longest(*columns, fillvalue="")]


def _add_plans(report: Report, checkpoint: Checkpoint) -> None:
    """How usual videos would be decoded on this machine, each with its single pass if that is possible."""
    if "decoder" not in checkpoint.networks:
        report.add("", plans=[])
        return
    rows, entries = [f"{'video':12}{'frames':>6}   {'mode':20}{'peak':>9}{'as a single pass':>20}"], []
    for plan, single in [_plan(checkpoint, video) for video in _USUAL_VIDEOS]:
        mode = plan.mode.value if plan.mode is Mode.SINGLE else f"{plan.mode.value}, by {plan.order.value}"
        single_bytes = None if single is None else single.peak_bytes
        single_peak = "not possible" if single_bytes is None else format_bytes(single_bytes)
        size, peak = format_size(*plan.frame_size), format_bytes(plan.peak_bytes)
        rows.append(f"{size:12}{plan.num_frames:6}   {mode:20}{peak:>9}{single_peak:>20}")
        entries.append({**plan.as_dict(), "single_pass_peak_bytes": single_bytes})
    rows.append(f"planned for this machine, in {checkpoint.networks['decoder'].dtype}")
    report.add("", "")
    report.add("decode", *rows, plans=entries)


def _plan(checkpoint: Checkpoint, video: Grid) -> tuple[DecodePlan, DecodePlan | None]:
    """For the smallest video of at least this (F, H, W): how it is decoded here, and its single pass if possible."""
    config = checkpoint.config
    shape = (1, config.latent_channels, *config.scale.covering_latent_grid(video))
    plan = partial(plan_decode, checkpoint.spec("decoder"), shape, checkpoint.machine("decoder", None))
    try:
        single = plan(mode="single")
    except PlanError:
        single = None
    return plan(), single


def find_audio(source: str | Location) -> Report | None:
    """The report of the audio networks of a path, or of a location that has been opened; None if it has none."""
    try:
        location = source if isinstance(source, Location) else locate(source, SOUND)
        if not any(found.networks for found in recognize(location.archives, SOUND)[1]):
            return None
    except CheckpointError:
        return None
    return inspect_audio(open_checkpoint(location, medium=SOUND))


def inspect_audio(checkpoint: Checkpoint) -> Report:
    """Describe a checkpoint that was opened for sound. In JSON, a network that does not exist is null."""
    report, entries = Report("audio checkpoint"), checkpoint.family.describe(checkpoint.config).entries
    rate, per_second = entries["sample_rate"], entries["latents_per_second"]
    source = "inferred from its tensors" if checkpoint.is_inferred else "as its configuration says"
    report.add("file", printable(checkpoint.name), name=checkpoint.name)
    report.add(
        "sound",
        f"{checkpoint.config.generation}, {source}" + (f", {rate} Hz" if rate else ""),
        generation=checkpoint.config.generation,
        configuration="inferred" if checkpoint.is_inferred else "stated",
    )
    bins = f"{entries['latent_channels']} channels of {entries['latent_bins']} bins"
    report.add("latents", f"{bins}, {per_second:g} per second", **entries)
    networks = {name: checkpoint.networks.get(name) for name in SOUND.networks}
    for name, stored in networks.items():
        report.add(name, ", ".join(_sizes(stored)) if stored else "none", **{name: stored and _describe(stored)})
    plans = []
    if networks["decoder"] and networks["vocoder"]:
        plans = [plan_checkpoint(checkpoint, round(seconds * per_second), dtype=None) for seconds in _SECONDS]
    for plan in plans:
        first = f"first sample after {plan.lookahead} latents"
        report.add("decode", f"{plan.seconds:.0f} s: {plan.mode.value}, peak {format_bytes(plan.peak_bytes)}, {first}")
    report.add("", plans=[plan.as_dict() for plan in plans])
    return report
