"""Damages files at random, gives them to the package, and reports whatever is not a clean error.

    python tests/fuzz.py 20000            # as many inputs, from seed 0 on
    python tests/fuzz.py 1 --seed 1234    # one input again, with its traceback; --keep FOLDER keeps its files

A clean error is a `LTXVAEError` with one line of at most 300 characters. It comes within two seconds of processor time,
and after at most four times the file's size and 64 MB of new memory (measured on Linux only).

Lists are given to the commands, too: what they print has no control characters and no name of a Python class, and
nothing appears outside `out/`.
"""

import argparse
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "fixtures")]

import mlx.core as mx

from checkpoint_files import open_checkpoint
from commands import decode, encode, info
from fuzz_corpus import CHANNELS, HERE, Special, samples, small_config, small_weights
from fuzz_mutations import Damage
from latent_files import open_latents
from mlx_ltx_vae import LTXVAEError, PlanError, VideoVAE, load_keyframes
from mlx_ltx_vae.checkpoint.weight_files import read_json
from mlx_ltx_vae.commands.items import read_inputs
from mlx_ltx_vae.inspect import format_report, inspect
from mlx_ltx_vae.networks.video_vae.names import is_diffusers_config
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import DEFAULT_SCALE
from mlx_ltx_vae.video import ExrReader
from vae_configs import decoder_spec, encoder_spec, parse_vae_config, read_diffusers_config

SECONDS = 2  # of processor time, so that a busy machine is no hang
_WAITING_SECONDS = 60  # for what blocks without using the processor
_MEMORY_FACTOR, _MEMORY_CONSTANT = 4, 64e6
_MAX_MESSAGE = 300
_MAX_COMMAND = 900  # an error about a file of torch has the command that converts it
_VAE = "vae-of-the-fuzzer.safetensors"
_CLASS = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Interrupt)\b|NoneType|internal error")  # of what is not explained


class Hang(BaseException):
    """Raised by a timer; not an `Exception`, which a reader may catch."""


class Finding(NamedTuple):
    """What was wrong with one input: the seed that makes it, and a name that is the same for the same fault."""

    seed: int
    sample: str
    kind: str
    detail: str


def fuzz(seed: int, folder: Path) -> Finding | None:
    """Damage one sample and read it in every way that fits its kind. None if all was well."""
    sample = samples()[seed % len(samples())]
    files = Damage(seed).apply(sample)
    size = sum(len(content) for content in files.values() if isinstance(content, bytes))
    write_files(folder, files)
    try:
        for name, target in TARGETS[sample.kind].items():
            if problem := _problem(target, folder / sample.named, size):
                return Finding(seed, sample.name, f"{name}: {problem[0]}", problem[1])
        return None
    finally:
        shutil.rmtree(folder)
        folder.mkdir()


def write_files(folder: Path, files: Mapping[str, bytes | Special]) -> None:
    """Write files, and what is none."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content.replace(HERE, os.fsencode(folder)))
        elif content is Special.PIPE:
            os.mkfifo(path)
        elif content is Special.ENDLESS:
            path.symlink_to("/dev/zero")
        else:
            with path.open("wb") as file:
                file.truncate(6 * 10**9)


def write_vae(folder: Path) -> None:
    """A checkpoint that `info` is given with latents."""
    from safetensors.numpy import save_file

    config = small_config("ltx2_3")
    save_file(small_weights(config), folder / _VAE, {"config": json.dumps({"vae": config})})


def _problem(target, path: Path, size: int) -> tuple[str, str] | None:
    """What is wrong with the way in which `target(path)` ends, and the details."""
    try:
        with _time_limit(), _peak_memory() as grown:
            try:
                target(path)
            except LTXVAEError as error:
                return _unclean(error, path)
    except Hang:
        return "hangs", traceback.format_exc()
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "mlx_ltx_vae" in frame.filename]
        place = f"{Path(frames[-1].filename).name}, {frames[-1].name}" if frames else str(error).partition(":")[0]
        return f"{type(error).__name__} in {place}", traceback.format_exc()
    if grown() > _MEMORY_FACTOR * size + _MEMORY_CONSTANT:
        return "takes too much memory", f"{grown() / 1e6:.0f} MB for {size} bytes"
    return None


def _unclean(error: LTXVAEError, path: Path) -> tuple[str, str] | None:
    text = str(error).replace(path.name or "/", "").replace(str(path.parent), "")  # which commands escape
    if _has_memory_error(error):
        return "allocates before it refuses", text
    if not text.isprintable():
        return "a message with control characters", repr(text)
    if _CLASS.search(text):
        return "a message with the name of a class", text
    if len(text) > (_MAX_COMMAND if "python -c" in text else _MAX_MESSAGE):
        return f"a message of more than {_MAX_MESSAGE} characters", f"{len(text)}: {text[:1000]}"
    return None


def _has_memory_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _WAITING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _peak_memory() -> Iterator[object]:
    """A function that returns by how many bytes the process was larger at its largest; 0 where that is unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _resident("VmRSS")
    except OSError:
        yield lambda: 0
        return
    yield lambda: _resident("VmHWM") - before


def _resident(entry: str) -> int:
    return 1000 * int(re.search(rf"{entry}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def _read_keyframes(path: Path) -> None:
    load_keyframes(path)
    open_latents(path).find_keyframes()


def _read_latents_for_a_vae(path: Path) -> None:
    statistics = (mx.zeros(CHANNELS), mx.ones(CHANNELS))
    file = open_latents(path, latent_channels=CHANNELS, scale=DEFAULT_SCALE)
    file.read(statistics=statistics if file.normalized is False else None)


def _inspect(path: Path) -> None:
    report = inspect(str(path))
    json.loads(json.dumps(report, allow_nan=False))


@cache
def _weights() -> dict:
    return {name: mx.array(array) for name, array in small_weights(small_config("ltx2_3", 3)).items()}


def _parse_config(path: Path) -> None:
    raw = read_json(path)
    if is_diffusers_config(raw):
        raw = read_diffusers_config(raw, str(path)).raw_config
    config = parse_vae_config(raw, str(path))
    if config.encoder:
        encoder_spec(config)
    if config.decoder:
        with suppress(PlanError):  # a large network does not fit
            str(
                plan_decode(
                    decoder_spec(config), (1, config.latent_channels, 2, 2, 2), options=PlanOptions(memory_budget="8GB")
                )
            )


def _read_list(path: Path) -> None:
    name = str(path)
    read_inputs([name if name.endswith(".csv") else f"@{name}"], of_videos=True)


def _run(main: Callable[[list[str]], int], *arguments: str) -> None:
    """Run a command, which must print nothing that a terminal obeys."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(list(arguments))
    printed = out.getvalue() + errors.getvalue()
    assert printed.replace("\n", "").isprintable(), f"printed control characters: {printed!r}"
    assert not any(line.startswith("9") for line in printed.splitlines()), f"printed a name in two lines: {printed!r}"
    assert code in (0, 1), code
    assert "--debug" in arguments or not _CLASS.search(printed), f"printed the name of a class: {printed!r}"


def _info(path: Path) -> None:
    _run(info, str(path))


def _entries(folder: Path) -> dict[str, int]:
    found = (path for path in folder.rglob("*") if "out" not in path.relative_to(folder).parts)
    return {str(path): path.lstat().st_mtime_ns for path in found if not path.is_dir()}


def _run_list(path: Path, main: Callable[[list[str]], int], output: str, *options: str) -> None:
    """Give a list to a command, which must write nothing outside `out/`, which has links to other places."""
    folder = path.parent
    (folder / "out").mkdir(exist_ok=True)
    for name, target in (("link", folder), *((f"{name}.npy", folder / "x.npy") for name in ("link", "link-0"))):
        if not (folder / "out" / name).is_symlink():
            (folder / "out" / name).symlink_to(target)
    before = _entries(folder.parent)
    named = str(path) if path.suffix == ".csv" else f"@{path}"
    _run(main, named, "-m", str(folder.parent / _VAE), "-o", f"{folder}/out/{output}", *options)
    assert _entries(folder.parent) == before, f"wrote outside: {folder / 'out'}"


def _read_light(path: Path) -> None:
    with ExrReader(path, space="srgb_linear") as frames:
        list(frames)


def _encode_light(path: Path) -> None:
    vae = path.parents[0 if path.is_dir() else 1] / _VAE
    _run(encode, str(path), "-m", str(vae), "--hdr", "srgb_linear", "-y", "-o", f"{vae.parent}/light.safetensors")


TARGETS = {
    "latents": {
        "read": lambda path: open_latents(path).read(),
        "read keyframes": _read_keyframes,
        "read for a VAE": _read_latents_for_a_vae,
        "info": _inspect,
        "info for a VAE": lambda path: format_report(inspect(str(path), vae=str(path.parents[1] / _VAE))),
        "printed": _info,
    },
    "checkpoint": {"open": open_checkpoint, "info": _inspect, "load": VideoVAE.from_pretrained, "printed": _info},
    "configuration": {
        "parse": _parse_config,
        "from_weights": lambda path: VideoVAE.from_weights(_weights(), read_json(path)),
    },
    "light": {"read": _read_light, "encode": _encode_light},
    "list": {"read": _read_list},
    "run": {
        "read": _read_list,
        "dry run": lambda path: _run_list(path, decode, "", "--dry-run"),
        "decode": lambda path: _run_list(path, decode, "{name}.npy"),
        "decode again": lambda path: _run_list(path, decode, "{name}.npy", "--skip-existing", "--debug"),
        "encode": lambda path: _run_list(path, encode, ""),
    },
}


def main() -> int:
    """Run the command; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FOLDER")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.keep:
        write_files(Path(arguments.keep), Damage(arguments.seed).apply(samples()[arguments.seed % len(samples())]))
    found: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        write_vae(Path(folder))
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            inner = Path(folder, "damaged")
            inner.mkdir(exist_ok=True)
            if finding := fuzz(seed, inner):
                found.append(finding)
    for kind, count in Counter(finding.kind for finding in found).most_common():
        first = next(finding for finding in found if finding.kind == kind)
        detail = f"\n{first.detail}" if arguments.count < 20 else ""
        print(f"{count:6}  {kind}  (seed {first.seed}, {first.sample}){detail}")
    print(f"{len(found)} of {arguments.count} inputs did not end cleanly")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
