"""What an index such as PyPI shows of the package, with a made-up address."""

import re
from types import SimpleNamespace

import pytest

from hatch_build import CustomMetadataHook, with_absolute_links
from test_readme import ROOT

ADDRESS = "https://github.example/someone/vae"


def made(repository):
    metadata = {}
    CustomMetadataHook.update(SimpleNamespace(root=str(ROOT), config={"repository": repository}), metadata)
    return metadata


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", f"[a]({ADDRESS}/blob/main/docs/a.md#b)"),
        ("![a](docs/a.png)", f"![a]({ADDRESS}/raw/main/docs/a.png)"),
        ("[a](./LICENSE), [b](../x)", f"[a]({ADDRESS}/blob/main/LICENSE), [b]({ADDRESS}/blob/main/../x)"),
        ("[a](#b)", f"[a]({ADDRESS}/blob/main/README.md#b)"),
        (
            "[![a](a.svg)](docs/a.md)",
            f"[![a]({ADDRESS}/raw/main/a.svg)]({ADDRESS}/blob/main/docs/a.md)",
        ),
        ("[![a](https://x/a.svg)](a.md)", f"[![a](https://x/a.svg)]({ADDRESS}/blob/main/a.md)"),
        ('<img width="9" src="docs/a.gif">', f'<img width="9" src="{ADDRESS}/raw/main/docs/a.gif">'),
        ('<a href="docs/a.md">', f'<a href="{ADDRESS}/blob/main/docs/a.md">'),
        ("[a](https://x.example/y), [b](mailto:c@d.example), `f[0](1, 2)`", None),
    ],
)
def test_links_to_files_become_absolute_and_others_stay(text, expected):
    assert with_absolute_links(text, ADDRESS) == (expected or text)
    assert with_absolute_links(f"{text}\n{text}", ADDRESS + "/") == "\n".join([expected or text] * 2)


def test_all_links_of_the_readme_lead_to_the_address_or_elsewhere():
    before = (ROOT / "README.md").read_text()
    text = made(ADDRESS)["readme"]["text"]
    own = re.findall(rf"\({re.escape(ADDRESS)}/(blob|raw)/main/([^)#]+)", text)
    assert len(own) >= 15 and all((ROOT / path).exists() for _, path in own)
    assert {path.rpartition(".")[2] for kind, path in own if kind == "raw"} <= {"gif", "png"}
    assert not re.findall(r"\]\((?!https?://)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    text = text.replace(f"{ADDRESS}/blob/main/", "").replace(f"{ADDRESS}/raw/main/", "")
    assert f"git clone {ADDRESS} mlx_ltx_vae" in text
    assert text.replace(f"git clone {ADDRESS}", "git clone <this repository>") == before


def test_the_clone_command_has_the_address_once_it_is_set():
    """The pages on GitHub are not built: who sets the address in `pyproject.toml` writes it into them too."""
    (address,) = re.findall(r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"git clone {address or '<this repository>'} " in (ROOT / page).read_text()


def test_pages_of_the_project_are_named_beside_it():
    urls = made(ADDRESS)["urls"]
    assert urls["Repository"] == ADDRESS and urls["Issues"] == f"{ADDRESS}/issues"
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].removeprefix(f"{ADDRESS}/blob/main/")).is_file()


def test_without_an_address_the_readme_is_as_it_is():
    assert made("") == {
        "readme": {"content-type": "text/markdown", "text": (ROOT / "README.md").read_text()},
        "urls": {},
    }
