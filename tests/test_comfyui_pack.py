"""What is published of examples/comfyui, and the stand-ins for ComfyUI's modules against a clone of ComfyUI."""

import ast
import os
from pathlib import Path

import pytest
from PIL import Image

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
STAND_IN = Path(__file__).parent / "comfyui"


def test_the_pack_depends_on_the_package_only():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((PACK / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == (PACK / "requirements.txt").read_text().split()
    assert "comfyui" not in project["project"]["name"].lower()
    assert set(project["tool"]["comfy"]) >= {"PublisherId", "DisplayName", "Icon", "requires-comfyui"}
    assert {"Operating System :: MacOS", "Environment :: GPU :: Apple Metal"} <= set(project["project"]["classifiers"])
    with Image.open(PACK / "icon.png") as icon:
        assert icon.size == (400, 400)  # the largest that the registry takes


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
