"""What is published of examples/comfyui, and the stand-ins for ComfyUI's modules against a clone of ComfyUI."""

import ast
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mlx_ltx_vae
from comfyui_cases import LATENTS, PACK, STAND_IN, frames_of, latent
from scripts.build_comfyui_pack import build
from test_examples import imported_names, stable_names

FIRST = "c3ff2a4413dd"  # `VideoVAE.plan` has `audio`


def test_the_pack_depends_on_the_package_only():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((PACK / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == (PACK / "requirements.txt").read_text().splitlines() == ["mlx>=0.32.3"]
    assert "comfyui" not in project["project"]["name"].lower()
    assert set(project["tool"]["comfy"]) >= {"PublisherId", "DisplayName", "Icon", "requires-comfyui"}
    assert {"Operating System :: MacOS", "Environment :: GPU :: Apple Metal"} <= set(project["project"]["classifiers"])
    with Image.open(PACK / "icon.png") as icon:
        assert icon.size == (400, 400)  # the largest that the registry takes


def check_readme(pack):
    """It says how to install this repository, and nothing that needs a clone of the package."""
    text = (pack / "README.md").read_text()
    of_clone = (PACK / "README.md").read_text()
    for words in ("pip install .", "scripts/", "examples/comfyui", "a clone of", "## Develop"):
        assert words not in text
    assert "scripts/" not in (pack / "pyproject.toml").read_text()
    for words in (
        "git clone https://github.com/me/ltx-vae-mlx\n",
        "-r ltx-vae-mlx/requirements.txt",
        "ComfyUI-Manager",
    ):
        assert words in text
    assert [line for line in text.split("\n") if line.startswith("#")] == [
        "# LTX VAE (MLX) for ComfyUI",
        "## Install",
        "## Use",
    ]
    before, after = of_clone.partition("## Install")[0], of_clone.partition("## Use\n")[2].partition("## Develop")[0]
    assert text.startswith(before)
    assert text.endswith(after.rstrip() + "\n")
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert images
    assert all((pack / image).is_file() for image in images)
    category = re.search(r'CATEGORY = "(.*)"', (pack / "host.py").read_text())[1]
    assert ", ".join(f"*{name}*" for name in category.split("/")) in text


@pytest.mark.parametrize("package", ["mlx_ltx_vae", "mlx_ltx_vae @ git+https://github.com/me/mlx_ltx_vae@c0ffee"])
def test_the_pack_is_built_as_a_repository_of_its_own(tmp_path, monkeypatch, caplog, package):
    """The requirement, the dependency and the advice where it is missing are what pip finds at that time."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    build(tmp_path / "pack", package, "https://github.com/me/ltx-vae-mlx")
    if package == "mlx_ltx_vae":  # the version here, and not the next minor one, in which names may change
        first, second, third = re.match(r"(\d+)\.(\d+)\.(\w+)", mlx_ltx_vae.__version__).groups()
        package = f"mlx_ltx_vae>={first}.{second}.{third},<{first}.{int(second) + 1}"
    names = {path.name for path in (tmp_path / "pack").iterdir()}
    assert names >= {"__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md", "web", "locales"}
    assert "__pycache__" not in names
    assert (tmp_path / "pack" / "LICENSE").read_text() == (PACK.parents[1] / "LICENSE").read_text()
    known = tomllib.loads((tmp_path / "pack" / "pyproject.toml").read_text())
    requirements = (tmp_path / "pack" / "requirements.txt").read_text().splitlines()
    assert known["project"]["dependencies"] == requirements == [package, "mlx>=0.32.3"]
    assert known["project"]["urls"]["Repository"] == "https://github.com/me/ltx-vae-mlx"
    assert known["tool"]["comfy"]["Icon"] == "https://raw.githubusercontent.com/me/ltx-vae-mlx/main/icon.png"
    check_readme(tmp_path / "pack")
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    pack = tmp_path / "pack" / "__init__.py"
    with caplog.at_level("WARNING"):
        exec(compile(pack.read_text(), pack, "exec"), {"__name__": "pack", "__package__": "pack"})
    (record,) = caplog.records
    assert record.getMessage().endswith(f': run `python -m pip install "{package}"` with this Python.')
    for name in [name for name in sys.modules if name.partition(".")[0] in ("comfy_api", "torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FileExistsError):
        build(tmp_path / "pack", package, "")


def members(tree, prefix=""):
    """The classes and functions of a module, and the fields of its classes, by their dotted names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, "class"
            yield from members(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
            defaults = [ast.unparse(each) for each in arguments.defaults]
            more = [each.arg for each in (arguments.vararg, arguments.kwarg) if each]
            only = {
                each.arg: default and ast.unparse(default)
                for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            }
            yield prefix + node.name, (type(node).__name__, names, defaults, more, only)
        elif prefix and isinstance(node, ast.AnnAssign):
            yield prefix + node.target.id, node.value and ast.unparse(node.value)


def test_the_stand_ins_have_the_signatures_of_a_checkout():
    checkout = os.environ.get("COMFYUI_CHECKOUT")
    if not checkout:
        pytest.skip("COMFYUI_CHECKOUT names no clone of ComfyUI")
    compared = 0
    for file in STAND_IN.rglob("*.py"):
        path = Path(checkout) / file.relative_to(STAND_IN)
        if file.name == "torch.py":
            continue
        theirs = dict(members(ast.parse(path.read_text())))
        for name, ours in members(ast.parse(file.read_text())):
            assert theirs.get(name) == ours, f"{path}: {name}"
            compared += 1
    assert compared > 60
    assert '"--disable-metadata"' in (Path(checkout) / "comfy" / "cli_args.py").read_text()


def earlier_packs():
    """Yield the Python files by name of each committed pack that imported only what was stable then, newest first.

    `FIRST` is the first commit whose pack this package must still run.
    """
    git = ["git", "-C", str(PACK.parents[1])]
    line = [*git, "log", "-20", "--format=%H", f"{FIRST}^..", "--", "examples/comfyui"]
    log = subprocess.run(line, capture_output=True, text=True)
    for commit in log.stdout.split():
        line = [*git, "archive", commit, "examples/comfyui", "docs/python.md"]
        archive = subprocess.run(line, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            texts = {name: tar.extractfile(name).read() for name in tar.getnames() if name.endswith((".py", ".md"))}
        files = {Path(name).name: text for name, text in texts.items() if name.endswith(".py")}
        stable = stable_names(texts["docs/python.md"].decode())
        if set().union(*(imported_names(text.decode(), stable) for text in files.values())) <= stable:
            yield files


@pytest.fixture(scope="module")
def pack_folder(tmp_path_factory):
    """The newest of these packs that is not the one here."""
    current = {path.name: path.read_bytes() for path in PACK.glob("*.py")}
    try:
        pack = next((files for files in earlier_packs() if files != current), None)
    except OSError as error:
        pytest.skip(f"git cannot be started ({error})")
    if pack is None:
        pytest.skip("the history here has no earlier pack with stable imports")
    folder = tmp_path_factory.mktemp("earlier")
    for name, text in pack.items():
        (folder / name).write_bytes(text)
    return folder


def test_the_pack_of_an_earlier_commit_runs_with_this_package(comfy, execute, vae):
    for node in comfy.nodes:
        assert node.define_schema().inputs or node.__name__ == "LTXDemoLatents"
    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy), codec="ffv1").get_stream_source()
    expected = vae.decode_uint8(LATENTS)
    np.testing.assert_array_equal(frames_of(video), expected)
    images = execute("LTXDecodeFramesMLX", latent=latent(comfy))
    np.testing.assert_allclose(images.array * 255, expected, atol=0.51)
    encoded = execute("LTXEncodeMLX", frames=images)["samples"].array
    np.testing.assert_allclose(
        encoded, np.array(vae.encode(images.array.transpose(3, 0, 1, 2)[None] * 2 - 1)), atol=1e-4
    )
    preview = execute(
        "LTXPreviewMLX", latent=latent(comfy, np.zeros((1, 64, 1, 2, 3), np.float32)), decoder="demo preview"
    )
    assert preview.args[0].shape[0] == 1
