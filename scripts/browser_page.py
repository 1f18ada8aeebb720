"""What the pages of both browsers have."""

import time
from abc import ABC, abstractmethod
from typing import Any

SECONDS = 60  # that a browser may take for what it is asked


class BrowserPage(ABC):
    """Page in a browser."""

    @abstractmethod
    def eval(self, expression: str) -> Any:
        """Return the JSON-serializable value of an expression."""

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.eval(expression):
            assert time.monotonic() < end, f"not true after {SECONDS} s: {expression}"
            time.sleep(0.05)
