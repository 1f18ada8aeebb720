"""What is published of examples/comfyui, and the stand-ins for ComfyUI's modules against a clone of ComfyUI."""

import ast
import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts.build_comfyui_pack import build

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
STAND_IN = Path(__file__).parent / "comfyui"


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


@pytest.mark.parametrize(
    "package", ["mlx_ltx_vae==0.1.0", "mlx_ltx_vae @ git+https://github.com/me/mlx_ltx_vae@c0ffee"]
)
def test_the_pack_is_built_as_a_repository_of_its_own(tmp_path, monkeypatch, caplog, package):
    """The requirement, the dependency and the advice where it is missing are what pip finds at that time."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    build(tmp_path / "pack", package, "https://github.com/me/ltx-vae-mlx")
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
