"""Build the repository of the node pack from examples/comfyui, as the job of a release does.

    python scripts/build_comfyui_pack.py FOLDER --package mlx_ltx_vae --repository https://github.com/OWNER/NAME

FOLDER, which must not exist, gets `__init__.py`, `pyproject.toml`, LICENSE and all else at its root. PACKAGE is how pip
finds mlx_ltx_vae: by its name once that is published, to which the script adds this version and the next minor one as
bounds, and by a git address before. The README says how to install the
pack from its repository instead of a clone of the package.
"""

import argparse
import re
import shutil
from pathlib import Path

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
REQUIRED = "mlx>="  # the first dependency of the pack in a clone, whose package is the clone itself
_SCRIPT_NOTE = "# scripts/build_comfyui_pack.py adds mlx_ltx_vae, and fills in the addresses.\n"

_INSTALL = """\
## Install

On a Mac with Apple Silicon, in one of these ways:

- **ComfyUI-Manager**: *Custom Nodes Manager*, search for LTX VAE (MLX), *Install*.
- **By hand**, with the Python that runs ComfyUI:

      cd ComfyUI/custom_nodes
      git clone {repository}
      python -m pip install -r {name}/requirements.txt

Then restart ComfyUI. If the package is missing, ComfyUI's log has the line that installs it. On Linux also install a
backend of MLX: `python -m pip install "mlx[cpu]"` or `"mlx[cuda13]"`. Tested with ComfyUI 0.33.0 on Linux's CPU
backend, not on a Mac yet.

The nodes are in the menu *Add Node* under *model*, *latent*, *ltxv*; a double click on the canvas and a name find them,
too.

## Use
"""


def fill_in(file: Path, before: str, after: str) -> None:
    """Replace a text that a file has once."""
    text = file.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise SystemExit(f"{file}: expected {before!r} once.")
    file.write_text(text.replace(before, after), encoding="utf-8")


def add_bounds(package: str) -> str:
    """Return the requirement of a published package: within its minor version, names of docs/python.md are stable."""
    if package != "mlx_ltx_vae":
        return package
    project = (PACK.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    version = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)[0]
    major, minor, *_ = version.split(".")
    return f"{package}>={version},<{major}.{int(minor) + 1}"


def build(folder: Path, package: str, repository: str) -> None:
    """Copy the pack, and write where its package comes from and where it is published."""
    package = add_bounds(package)
    shutil.copytree(PACK, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    fill_in(folder / "__init__.py", 'PACKAGE = ""', f'PACKAGE = "{package}"')
    fill_in(folder / "requirements.txt", REQUIRED, f"{package}\n{REQUIRED}")
    fill_in(folder / "pyproject.toml", f'["{REQUIRED}', f'["{package}", "{REQUIRED}')
    fill_in(folder / "pyproject.toml", 'Repository = ""', f'Repository = "{repository}"')
    fill_in(folder / "pyproject.toml", _SCRIPT_NOTE, "")
    write_readme(folder / "README.md", repository)
    icon = f"{repository.replace('://github.com', '://raw.githubusercontent.com')}/main/icon.png"
    fill_in(folder / "pyproject.toml", 'Icon = ""', f'Icon = "{icon}"')


def write_readme(file: Path, repository: str) -> None:
    """Replace how a clone of the package is installed and developed by how the pack is installed."""
    before, rest = file.read_text(encoding="utf-8").split("## Install\n")
    use = rest.partition("## Use\n")[2].partition("## Develop\n")[0]
    name = repository.rstrip("/").rpartition("/")[2]
    install = _INSTALL.format(repository=repository, name=name)
    file.write_text(f"{before}{install}{use.rstrip()}\n", encoding="utf-8")


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Build the repository of the node pack.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package", required=True, help="how pip finds mlx_ltx_vae")
    parser.add_argument("--repository", required=True, help="the address of the pack's repository")
    build(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
