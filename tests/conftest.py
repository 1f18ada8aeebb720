"""Fixtures shared by all tests: golden cases and the synthetic checkpoints that belong to them."""

import gc
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from safetensors.numpy import load_file

#: Every convolutional generation and variant, at widths small enough for every test run.
CONV_CASES = [
    "ltxv_0_9_0",
    "ltxv_0_9_1",
    "ltxv_0_9_5",
    "ltx2",
    "ltx2_3",
    "ltx2_3_causal",
    "ltx2_3_reflect",
    "ltx2_3_replicate",
    "conv_16x16x4",
    "pruna",
]

#: Those of them that have an encoder.
ENCODER_CASES = [name for name in CONV_CASES if name != "ltx2_3_causal"]

FIXTURES = Path(__file__).parent / "fixtures"
sys.path.insert(0, str(FIXTURES))
pytest_plugins = ["comfyui_cases", "diffusion_cases"]
# Set before MLX is first used: golden data and tolerances are for float32 products that are not rounded to TF32.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
# Hundreds of tests start processes, which without it compile the package every time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # pytest rewrites the modules of the tests, which takes each process seconds
# As on macOS, where multiprocessing starts a second process of Python for what it shares: here and, by a sitecustomize,
# in all processes that tests start.
multiprocessing.set_start_method("spawn", force=True)  # a worker of pytest-xdist has a sitecustomize too
path = [f"{Path(__file__).parent}/spawn", os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
# No command of a test changes the files of whoever runs the tests.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="mlx-ltx-vae-tests-")
# On Linux without OpenBLAS every command would say so.
os.environ["PYTHONWARNINGS"] = "ignore:MLX computes with the reference BLAS"
# What a shell starts in the background ignores Ctrl-C and Ctrl-\, and some tests press them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup sets it: the commands of the tests shall not ignore it
    signal.signal(signal.SIGHUP, lambda *_: None)

import mlx.core as mx  # noqa: E402

if os.environ.get("EMULATE_METAL"):  # so that what macOS runners run can fail before
    from metal_emulation import emulated

    emulation = emulated()
    emulation.__enter__()

import fast_checkpoint  # noqa: E402  (scripts beside the golden data, not packages)
import synthetic_checkpoint  # noqa: E402

# The same examples in every run, however long they take. To look for others: pytest --hypothesis-profile default
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")


def pytest_collection_finish() -> None:
    """Leave the tests out of garbage collections, which take a fifth of a second otherwise."""
    gc.freeze()


@pytest.fixture(autouse=True)
def random_numbers() -> None:
    """The same numbers in every run where a test gives no key."""
    mx.random.seed(0)


@pytest.hookimpl(tryfirst=True)  # before the tests that -m leaves out are
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test but the first ones, of which its mark `quick` says how many."""
    counts: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("quick"):
            test = item.nodeid.partition("[")[0]
            counts[test] += 1
            if counts[test] > mark.args[0]:
                item.add_marker("slow")


def active_memory() -> int:
    """The bytes that MLX's arrays hold when nothing is under way."""
    mx.synchronize()
    return mx.get_active_memory()


@pytest.fixture(autouse=True)
def collected_memory(request: pytest.FixtureRequest) -> None:
    """Tests of memory and of open files begin without objects of earlier ones, which may be collected meanwhile.

    Nor do they reuse the buffers of earlier tests, which may be nearly twice as large as an array.
    """
    names = (request.node.name, *request.function.__code__.co_names)
    if any(word in name for name in names for word in ("memory", "peak", "open_files")):
        gc.collect()
        mx.clear_cache()


@dataclass(frozen=True)
class GoldenCase:
    """One case of the golden data: what goes in, what must come out, and the checkpoint that does it."""

    name: str
    manifest: dict[str, Any]
    checkpoint: Path
    arrays: dict[str, np.ndarray]

    def check(self, name: str) -> dict[str, Any]:
        """The entry of the manifest's checks with this name."""
        return next(check for check in self.manifest["checks"] if check["name"] == name)

    def noise(self, check: dict[str, Any]) -> list[np.ndarray] | str:
        """What to pass as `noise=`: the stored draws in order, or "zeros"."""
        names = check.get("noise")
        return [self.arrays[name] for name in names] if names else "zeros"

    def select(self, result: np.ndarray, check: dict[str, Any]) -> np.ndarray:
        """The part of a full result that the golden data stores."""
        return synthetic_checkpoint.select(result, check)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Makes every write past `limit` bytes of a file fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read and write everything, and becomes somebody else in the block."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def link_kernels(folder: Path) -> None:
    """Commands whose TMPDIR is this folder find the kernels that MLX has compiled for the CPU, which takes seconds."""
    kernels = Path(tempfile.gettempdir(), "mlx")
    kernels.mkdir(exist_ok=True)
    (folder / "mlx").symlink_to(kernels)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenCase]:
    """`golden("ltx2_3")`: the case, its checkpoint written once per session in the original layout.

    `golden("small_ltx2_3")`: without golden data, a network like it for tests in which that one only takes time.
    Of the checkpoints of published widths, which have up to 2 GB, only the last stays on the disk.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    cases: dict[str, GoldenCase] = {}

    def make(name: str) -> GoldenCase:
        if name not in cases:
            for other in [other for other in cases if name.startswith("full_width") and other.startswith("full_width")]:
                cases.pop(other).checkpoint.unlink()
            original = name.removeprefix("small_")
            manifest = json.loads((FIXTURES / f"{original}.json").read_text())
            if name != original:
                make_small(manifest)
            path = folder / f"{name}.safetensors"
            script = synthetic_checkpoint
            if "layouts" in manifest:
                script = fast_checkpoint
            if "original" in manifest.get("layouts", {}):
                manifest["vae_config"] = manifest["layouts"]["original"]["metadata"]["config"]["vae"]
            script.write_checkpoint(manifest, path)
            stored = FIXTURES / f"{name}.safetensors"
            arrays = load_file(stored) | script.make_inputs(manifest) if stored.exists() else {}
            cases[name] = GoldenCase(name, manifest, path, arrays)
        return cases[name]

    return make


def make_small(manifest: dict[str, Any]) -> None:
    """Leave one residual block where there are several in a row."""
    del manifest["fingerprint"]
    config = manifest["vae_config"]
    for blocks in (config["encoder_blocks"], config["decoder_blocks"]):
        for _, options in blocks:
            if isinstance(options, dict) and "num_layers" in options:
                options["num_layers"] = 1
    others = re.compile(r"res_blocks\.[1-9]")
    manifest["weights"] = {name: shape for name, shape in manifest["weights"].items() if not others.search(name)}


@pytest.fixture(scope="session")
def weights(golden: Callable[[str], GoldenCase]) -> Callable[[str], dict[str, np.ndarray]]:
    """`weights("ltx2_3")`: the tensors of the golden checkpoint."""
    return lambda name: load_file(golden(name).checkpoint)


@pytest.fixture
def before_loads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """`before_loads(call)`: the call is made with the name of each network before its weights are read."""
    from mlx_ltx_vae.checkpoint import loading  # after the environment is set

    def add(call: Callable[[str], object]) -> None:
        load = loading.load_network

        def call_and_load(checkpoint, name, *arguments):
            call(name)
            return load(checkpoint, name, *arguments)

        monkeypatch.setattr(loading, "load_network", call_and_load)

    return add


@pytest.fixture
def loads(before_loads: Callable[[Callable[[str], object]], None]) -> list[str]:
    """A list of the names of the networks whose weights are read."""
    names: list[str] = []
    before_loads(names.append)
    return names


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`hub_cache("ltx-2.3", file)`: a link to the file is that model's in the cache of the hub. There is no network.

    `is_audio` means the audio VAE with this name, and `number` one of its sources. A repository without a named file
    gets a dict of files by name.
    Commands in other processes have the same cache.
    """
    from mlx_ltx_vae.model_table import Kind, find_model

    cache = tmp_path / "hub"
    for name, value in (("HF_HUB_CACHE", str(cache)), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)

    def add(name: str, files: Path | dict[str, Path], *, is_audio: bool = False, number: int = 0) -> Path:
        model = find_model(name, [kind for kind in Kind if (kind is Kind.AUDIO) is is_audio])
        assert model is not None
        repo, _, file_name = model.sources[number].partition(":")
        files = files if isinstance(files, dict) else {file_name: files}
        repository = cache / f"models--{repo.replace('/', '--')}"
        snapshot = repository / "snapshots" / ("0" * 40)
        for inner, source in files.items():
            (snapshot / inner).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / inner).symlink_to(source)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text("0" * 40)
        return snapshot

    return add


@pytest.fixture(scope="session")
def audio_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`audio_case("ltx2_3")`: the golden case of audio, its checkpoint written once per session."""
    import audio_cases

    folder = tmp_path_factory.mktemp("audio")
    return cache(lambda name: audio_cases.make_case(name, folder))


@pytest.fixture(scope="session")
def audio_vae(audio_case: Callable[[str], Any]) -> Callable[[str], Any]:
    """`audio_vae("ltx2_3")`: the `AudioVAE` of a golden case."""
    from mlx_ltx_vae import AudioVAE

    return cache(lambda name: AudioVAE.from_pretrained(audio_case(name).checkpoint))
