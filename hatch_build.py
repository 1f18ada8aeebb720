"""Build hook of hatchling: the README and the addresses, for places where relative links lead nowhere.

[tool.hatch.metadata.hooks.custom]
repository = "https://github.com/OWNER/mlx_ltx_vae"
"""

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # where the tests import this module, which need no hatchling
    MetadataHookInterface = object  # type: ignore[assignment, misc]

# Code, which stays; or what is before a target in this repository, in Markdown or HTML, and the target.
_LINK = re.compile(
    r"""```.*?```|`[^`\n]*`|(?P<before>!\[[^\]]*\]\(|\]\(|<img\s[^>]*?src="|<a\s[^>]*?href=")"""
    r"""(?P<target>(?![a-z][a-z0-9+.-]*:|//)[^)"\s]+)""",
    re.DOTALL,
)


def with_absolute_links(text: str, repository: str, page: str = "README.md") -> str:
    """Markdown of a page with links to the files of a repository on GitHub; "" for no address, and no change."""

    def absolute(match: re.Match[str]) -> str:
        before, target = match["before"], match["target"]
        if target is None:
            return match[0]
        kind = "raw" if before.startswith(("!", "<img")) else "blob"
        path = f"{page}{target}" if target.startswith("#") else target.removeprefix("./")
        return f"{before}{repository.rstrip('/')}/{kind}/main/{path}"

    return _LINK.sub(absolute, text) if repository else text


def with_address(text: str, repository: str) -> str:
    """The text with the address for `<this repository>`, as in `git clone`; "" for no address, and no change."""
    return text.replace("<this repository>", repository) if repository else text


def addresses(repository: str) -> dict[str, str]:
    """The links that an index shows beside the README."""
    blob = f"{repository.rstrip('/')}/blob/main"
    pages = {"Documentation": f"{blob}/docs/README.md", "Changelog": f"{blob}/CHANGELOG.md"}
    return {"Repository": repository, **pages, "Issues": f"{repository.rstrip('/')}/issues"} if repository else {}


class CustomMetadataHook(MetadataHookInterface):
    """Completes the metadata that `pyproject.toml` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_address(with_absolute_links(text, repository), repository),
        }
        metadata["urls"] = addresses(repository)
