"""What users write type-checks: the README, docs/python.md and the examples; and typos do not."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_ltx_vae
import typed_app

ROOT = Path(__file__).parents[1]
TYPOS = """
from mlx_ltx_vae import VideoVAE
vae = VideoVAE.from_pretrained("vae", dtype="float23")
plan = vae.plan((1, 128, 3, 4, 5), mode="exakt")
frames = vae.decode_uint8(vae.encode([]), sed=1)
pixels = vae.decode(vae.encode([]), like="difusers")
none = vae.decode(vae.encode([]), on_frames_ready=print) + 1
"""


@pytest.fixture
def files(tmp_path):
    """The Python of the pages, each in a file of its own, the examples, and a file of typos."""
    written = []
    for page in ("README.md", "docs/python.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        written.append(tmp_path / f"{Path(page).stem.lower()}_blocks.py")
        written[-1].write_text("\n".join(blocks))
    examples = (ROOT / "examples" / f"{name}.py" for name in ("generation_app", "encode_folder", "replace_tiler"))
    for source in (*examples, ROOT / "tests" / "typed_app.py"):
        written.append(tmp_path / source.name)
        shutil.copy(source, written[-1])
    (tmp_path / "typos.py").write_text(TYPOS)
    return [*map(str, written), str(tmp_path / "typos.py")]


def check(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    return done.stdout


def assert_only_typos(lines, files):
    found = {(Path(name).name, int(number)) for name, number in lines}
    assert {name for name, _ in found} == {"typos.py"}, found
    assert {number for _, number in found} == {3, 4, 5, 6, 7}


@pytest.mark.slow
def test_mypy_finds_typos_and_nothing_else(files, tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\ncheck_untyped_defs = true\nignore_missing_imports = true\n")
    out = check([sys.executable, "-m", "mypy", "--config-file", str(config), *files], ROOT)
    assert_only_typos(re.findall(r"^(.*?\.py):(\d+): error", out, re.MULTILINE), files)


@pytest.mark.slow
def test_pyright_finds_typos_and_nothing_else(files, tmp_path):
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')  # as pyright itself
    out = check([sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, *files], tmp_path)
    assert_only_typos(re.findall(r"^\s*(.*?\.py):(\d+):\d+ - error", out, re.MULTILINE), files)


@pytest.mark.slow
def test_the_app_of_every_public_name_runs(tmp_path, capsys):
    (imported,) = (node for node in ast.parse(Path(typed_app.__file__).read_text()).body
                   if isinstance(node, ast.ImportFrom) and node.module == "mlx_ltx_vae")  # fmt: skip
    assert {name.name for name in imported.names} == set(dir(mlx_ltx_vae))
    assert typed_app.main(tmp_path) == 0
    assert capsys.readouterr().out.startswith("custom: 8 frames 9 DecodeStream(not started)\n")
