"""Programs under `mlx_ltx_vae run`: how they end, and the launchers in front of them."""

import os
import re
import subprocess
import sys

import pytest

from commands import mlx_ltx_vae as main
from test_app_run import apps, network  # noqa: F401 (fixtures)

RUN = [sys.executable, "-m", "mlx_ltx_vae", "run", "--"]


def test_a_traceback_of_the_program_has_only_its_own_lines(apps, network, tmp_path):  # noqa: F811
    """As Python prints it, also for an error of a callback, which a drop-in calls, and with the exit code of Python."""
    apps()
    (tmp_path / "helper.py").write_text("def fail(*_):\n    raise KeyError('of the app')\n")
    (tmp_path / "plain.py").write_text("from helper import fail\ntry:\n    1 / 0\nexcept ValueError:\n    pass\n")
    (tmp_path / "callback.py").write_text(
        "import sys, mlx.core as mx\n"
        "from helper import fail\n"
        "from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder\n"
        "LTX2VideoDecoder(sys.argv[1]).decode_tiled(mx.zeros((1, 8, 2, 2, 2)) + 1, on_frames_ready=fail)\n"
    )
    file = network("ltx2_3", "decoder")
    plain, callback = (
        subprocess.run([*RUN, name, file], capture_output=True, text=True, check=False)
        for name in ("plain.py", "callback.py")
    )
    python = subprocess.run([sys.executable, "plain.py"], capture_output=True, text=True, check=False)
    line, *rest = plain.stderr.splitlines()
    assert line.startswith("mlx_ltx_vae: plain.py imported no decoder")
    assert (plain.returncode, rest) == (python.returncode, python.stderr.splitlines())
    assert callback.returncode == 1
    lines = [line for line in callback.stderr.splitlines() if line.startswith("  File ")]
    places = [(os.path.basename(line.split('"')[1]), line.rpartition(", ")[2]) for line in lines]
    assert places == [("callback.py", "in <module>"), ("helper.py", "in fail")]


@pytest.mark.quick(3)
@pytest.mark.parametrize("launcher", [["python"], [sys.executable], ["uv", "run"], ["uv", "run", "python"]])
@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"]])
def test_a_launcher_of_this_environment_is_left_out(apps, tmp_path, launcher, program):  # noqa: F811
    (tmp_path / "program.py").write_text("import sys\nprint('mlx_ltx_vae' in sys.modules, sys.argv[1:])\n")
    done = subprocess.run([*RUN, *launcher, *program, "--seed", "1"], capture_output=True, text=True, check=True)
    assert done.stdout == "True ['--seed', '1']\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("python -u -X dev program.py 1", "run python -u -X dev -m mlx_ltx_vae run -- program.py 1."),
        ("python -c pass", "python: starts no script and no module"),
        (
            "{other}/python3 program.py",
            "install mlx_ltx_vae there; run {other}/python3 -m mlx_ltx_vae run -- program.py.",
        ),
        ("uv run --extra cpu program.py", "run uv run --extra cpu --with {here} mlx_ltx_vae run -- program.py."),
        ("uv run ltx-2-mlx generate", "run uv run --with {here} mlx_ltx_vae run -- ltx-2-mlx generate."),
        (
            "uvx ltx-2-mlx@0.2 generate",
            "run uvx --from ltx-2-mlx@0.2 --with {here} mlx_ltx_vae run -- ltx-2-mlx generate.",
        ),
        ("uvx --from pack tool", "run uvx --from pack --with {here} mlx_ltx_vae run -- tool."),
        ("env A=1 python program.py", "or write it in front: env ... mlx_ltx_vae run -- PROGRAM."),
    ],
)
def test_another_launcher_is_refused_with_the_line_that_works(apps, tmp_path, capfd, words, message):  # noqa: F811
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    (other / "python3").symlink_to(sys.executable)
    (tmp_path / "program.py").touch()
    assert main(["run", "--", *words.format(other=other).split()]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    words = re.escape(message).replace(r"\{other\}", re.escape(str(other))).replace(r"\{here\}", r"\S+")
    assert re.search(words, line)


def test_a_project_with_an_environment_of_its_own_is_noticed(apps, tmp_path, capfd):  # noqa: F811
    (tmp_path / "program.py").touch()
    (tmp_path / "pyproject.toml").touch()
    assert main(["run", "uv", "run", "program.py"]) == 0
    (tmp_path / ".venv").mkdir()
    assert main(["run", "uv", "run", "program.py"]) == 1
    assert "starts program.py in an environment of its own" in capfd.readouterr().err
