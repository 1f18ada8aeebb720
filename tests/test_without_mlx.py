"""Where MLX cannot be imported: plans can still be made, and everything else says what to install."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

PLAN = """
import sys
sys.modules["mlx"] = None  # so that importing it, or a module of it, raises an ImportError
import mlx_ltx_vae.networks.specs, mlx_ltx_vae.tiling.layout
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.networks.video_vae.config import parse_vae_config
from mlx_ltx_vae.networks.video_vae.config import GENERATIONS
from mlx_ltx_vae.networks.video_vae.config import decoder_spec
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.tiling import TilingConfig
spec = decoder_spec(parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3"))
for options in ({}, {"mode": "tiled", "tiling": TilingConfig.default()}):
    plan = plan_decode(spec, (1, 128, 16, 16, 24), Machine(Backend.METAL, 2, 10**11), PlanOptions(**options))
    print(plan.num_frames)
assert not [name for name in sys.modules if name.startswith("mlx.")]
for module, name in (("mlx_ltx_vae", "VideoVAE"), ("mlx_ltx_vae.tiling", "decode_with_tiling")):
    try:
        exec(f"from {module} import {name}")
    except ImportError as error:
        print(error)
"""
REMEDY = "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or"


def test_plans_need_no_mlx_and_what_needs_it_says_so():
    done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *frames, first, second = done.stdout.splitlines()
    assert frames == ["121", "121"]
    assert first.startswith(REMEDY) and second.startswith(REMEDY)


@pytest.fixture
def without_backend(tmp_path):
    """Runs Python where MLX is installed without a backend, as by `pip install .` on Linux."""
    (tmp_path / "mlx.py").write_text("raise ImportError('libmlx.so: cannot open shared object file')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    def run(*arguments):
        command, environment = [sys.executable, *arguments], os.environ | {"PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run


@pytest.mark.parametrize(
    "command", [["mlx_ltx_vae.decode", "--demo"], ["mlx_ltx_vae", "bench", "--generation", "0.9.1"]]
)
def test_a_command_says_what_to_install(without_backend, command):
    done = without_backend("-m", *command)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {REMEDY}")


def test_a_program_that_needs_mlx_says_what_to_install(without_backend, tmp_path):
    (tmp_path / "app.py").write_text("import mlx.core")
    done = without_backend("-m", "mlx_ltx_vae", "run", "--", str(tmp_path / "app.py"))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {REMEDY}")
    (tmp_path / "app.py").write_text("import no_such_module")
    done = without_backend("-m", "mlx_ltx_vae", "run", "--", str(tmp_path / "app.py"))
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_wrong_usage_needs_no_backend(without_backend):
    done = without_backend("-m", "mlx_ltx_vae.decode", "--oder", "rows")
    assert done.returncode == 2 and "did you mean --order" in done.stderr


HELP = """
import sys
from mlx_ltx_vae.__main__ import main
from mlx_ltx_vae.commands import COMMANDS, options
options.STEP_OPTIONS = (options.StepOption("--ramp", "toy_step:make_ramp", "STRENGTH", "brighten frames"),)
for words in (*([name] for name in COMMANDS), []):
    for option in ("--help", "--version"):
        try:
            main([*words, option])
        except SystemExit as end:
            assert not end.code, (words, option)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("mlx", "numpy", "imageio", "PIL", "tqdm")))
"""


def test_a_step_that_needs_mlx_says_what_to_install(without_backend):
    code = (
        "from mlx_ltx_vae.commands import options\n"
        "from mlx_ltx_vae.decode import main\n"
        "step = options.StepOption('--ramp', 'mlx_ltx_vae.pipeline.frames:make_ramp', 'STRENGTH', 'brighten')\n"
        "options.STEP_OPTIONS = (step,)\n"
        "main(['--demo', '--ramp', '1'])\n"
    )
    done = without_backend("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {REMEDY}")


def test_help_and_version_import_nothing_that_takes_long(without_backend):
    done = without_backend("-c", HELP)
    assert done.returncode == 0, done.stderr
    *printed, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert sum(line.startswith("usage: ") for line in printed) == 10
    assert any("--ramp STRENGTH" in line for line in printed)
    assert printed.count(f"mlx_ltx_vae {version('mlx_ltx_vae')}") == 10
