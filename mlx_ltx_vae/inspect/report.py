"""What a file is, stated once and shown as text and as JSON."""

from typing import Any

LABEL_WIDTH = 9


class Report:
    """What a file is: `print(report)` shows it, and `as_dict` returns it as a JSON object."""

    def __init__(self, kind: str) -> None:
        self._lines: list[str] = []
        self._values: dict[str, Any] = {"kind": kind}

    def add(self, label: str, *lines: str, **values: Any) -> None:
        """Add lines, with a label in front of the first, and values, JSON-serializable, by their keys."""
        self._lines += [f"{'' if index else label:{LABEL_WIDTH}}{line}".rstrip() for index, line in enumerate(lines)]
        self._values |= values

    def include(self, key: str, report: "Report | None") -> None:
        """Add the lines of another report, and its object under a key: null without one."""
        self._lines += [] if report is None else report._lines
        self._values[key] = None if report is None else report._values

    def as_dict(self) -> dict[str, Any]:
        return self._values

    def __str__(self) -> str:
        return "\n".join(self._lines)
