"""Several ranks on this machine, started by `mlx.launch`: one video in row bands gives what one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distributed_ranks
from mlx_ltx_vae import VideoVAE

HERE = Path(__file__).parent
TOLERANCE = 1e-5  # of float32 on any number of ranks

#: Every padding mode, causal and not, with noise, with attention; the second size has a band of one row.
CASES = [
    ("decode", "ltx2_3", {}),
    ("decode", "ltx2_3", {"height": 3, "frames": 2, "batch": 2}),
    ("decode", "ltx2", {}),
    ("decode", "ltx2_3_reflect", {"height": 3}),
    ("decode", "ltx2_3_replicate", {}),
    ("decode", "ltx2_3_causal", {"height": 4}),
    ("decode", "ltxv_0_9_1", {}),
    ("decode", "conv_16x16x4", {}),
    ("encode", "ltx2_3", {}),
    ("encode", "ltxv_0_9_1", {"height": 3}),
    ("encode", "ltx2_3_reflect", {"height": 4}),
    ("encode", "conv_16x16x4", {}),
]


def launch(ranks, *arguments, timeout=300):
    """Run a Python script or module on some ranks; returns what it printed."""
    command = [Path(sys.executable).with_name("mlx.launch"), "-n", str(ranks), "--backend", "ring", "--"]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [*command, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=HERE.parent,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout, done.stderr


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def outcomes(request, golden, tmp_path_factory):
    """What all cases give on some ranks; one launch, since starting takes longest."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    cases = [(function, str(golden(name).checkpoint), shape) for function, name, shape in CASES]
    printed = launch(request.param, HERE / "distributed_ranks.py", folder, json.dumps([*cases, ("errors", None, None)]))
    return request.param, folder, "".join(printed)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_bands_give_what_one_process_gives(outcomes, golden, index):
    ranks, folder, printed = outcomes
    assert (folder / f"{index}.npz").exists(), printed
    outcome = np.load(folder / f"{index}.npz")
    function, name, shape = CASES[index]
    vae = VideoVAE.from_pretrained(golden(name).checkpoint)
    expected, _ = getattr(distributed_ranks, function)(vae, **shape)
    assert (outcome["result"].shape, outcome["result"].dtype) == (expected.shape, expected.dtype)
    assert np.abs(outcome["result"] - expected).max() < TOLERANCE
    assert np.ptp(outcome["sums"]) == 0, "all ranks get the same"
    if function == "decode":
        assert (outcome["sent"] > 0).all() and len(outcome["sent"]) == ranks


def test_an_error_of_one_rank_is_raised_on_all(outcomes):
    ranks, folder, printed = outcomes
    assert (folder / f"{len(CASES)}.json").exists(), printed
    by_rank = json.loads((folder / f"{len(CASES)}.json").read_text())
    assert len(by_rank) == ranks
    for rank, seen in enumerate(by_rank):
        own = ["LTXVAEError", "no such file"]
        assert seen["fails"] == (own if rank == 1 else ["DistributedError", "rank 1: no such file"])
        assert (seen["works"], seen["same"]) == (99, None)
        kind, text = seen["differ"]
        assert kind == "DistributedError"
        assert text.startswith("the latents differ between rank 0 and rank 1" if rank < 2 else "the latents differ")
