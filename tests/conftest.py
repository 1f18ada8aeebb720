"""Fixtures shared by all tests: golden cases and the synthetic checkpoints that belong to them."""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
]

#: Those of them that have an encoder.
ENCODER_CASES = [name for name in CONV_CASES if name != "ltx2_3_causal"]

FIXTURES = Path(__file__).parent / "fixtures"
sys.path.insert(0, str(FIXTURES))
# Set before MLX is first used: golden data and tolerances are for float32 products that are not rounded to TF32.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
# What a shell starts in the background ignores Ctrl-C and Ctrl-\, and some tests press them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

import mlx.core as mx  # noqa: E402

import synthetic_checkpoint  # noqa: E402  (a script beside the golden data, not a package)

# The same examples in every run. To look for others: pytest --hypothesis-profile default
hypothesis.settings.register_profile("seeded", derandomize=True)
hypothesis.settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def random_numbers() -> None:
    """The same numbers in every run where a test gives no key."""
    mx.random.seed(0)


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


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenCase]:
    """`golden("ltx2_3")`: the case, its checkpoint written once per session in the original layout."""
    folder = tmp_path_factory.mktemp("checkpoints")
    cases: dict[str, GoldenCase] = {}

    def make(name: str) -> GoldenCase:
        if name not in cases:
            manifest = json.loads((FIXTURES / f"{name}.json").read_text())
            path = folder / f"{name}.safetensors"
            synthetic_checkpoint.write_checkpoint(manifest, path)
            arrays = load_file(FIXTURES / f"{name}.safetensors") | synthetic_checkpoint.make_inputs(manifest)
            cases[name] = GoldenCase(name, manifest, path, arrays)
        return cases[name]

    return make


@pytest.fixture(scope="session")
def weights(golden: Callable[[str], GoldenCase]) -> Callable[[str], dict[str, np.ndarray]]:
    """`weights("ltx2_3")`: the tensors of the golden checkpoint."""
    return lambda name: load_file(golden(name).checkpoint)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list with an entry for each load of a VAE."""
    from mlx_ltx_vae import VideoVAE  # after the environment is set

    calls: list[Any] = []
    load = VideoVAE.from_pretrained

    def counted(*arguments, **options):
        calls.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(VideoVAE, "from_pretrained", counted)
    return calls
