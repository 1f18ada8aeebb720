"""Build the repository of the node pack from examples/comfyui, as the job of a release does.

    python scripts/build_comfyui_pack.py FOLDER --package "mlx_ltx_vae>=0.1.0" --repository https://github.com/OWNER/NAME

FOLDER, which must not exist, gets `__init__.py`, `pyproject.toml`, LICENSE and all else at its root. PACKAGE is how pip
finds mlx_ltx_vae: by its name once that is published, and by a git address before.
"""

import argparse
import shutil
from pathlib import Path

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
REQUIRED = "mlx>="  # the first dependency of the pack in a clone, whose package is the clone itself


def fill_in(file: Path, before: str, after: str) -> None:
    """Replace a text that a file has once."""
    text = file.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise SystemExit(f"{file}: expected {before!r} once.")
    file.write_text(text.replace(before, after), encoding="utf-8")


def build(folder: Path, package: str, repository: str) -> None:
    """Copy the pack, and write where its package comes from and where it is published."""
    shutil.copytree(PACK, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    fill_in(folder / "__init__.py", 'PACKAGE = ""', f'PACKAGE = "{package}"')
    fill_in(folder / "requirements.txt", REQUIRED, f"{package}\n{REQUIRED}")
    fill_in(folder / "pyproject.toml", f'["{REQUIRED}', f'["{package}", "{REQUIRED}')
    fill_in(folder / "pyproject.toml", 'Repository = ""', f'Repository = "{repository}"')
    icon = f"{repository.replace('://github.com', '://raw.githubusercontent.com')}/main/icon.png"
    fill_in(folder / "pyproject.toml", 'Icon = ""', f'Icon = "{icon}"')


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Build the repository of the node pack.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package", required=True, help="how pip finds mlx_ltx_vae")
    parser.add_argument("--repository", required=True, help="the address of the pack's repository")
    build(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
