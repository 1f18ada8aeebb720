"""The reason of a failure, in what ffmpeg logs."""

import re
import signal
from collections.abc import Sequence

from ..errors import excerpt

_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# After the cause, ffmpeg logs its consequences, one line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Decoding error|Error (processing|submitting) packet"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
    r"|Failed to configure input pad|Error reinitializing filters|To ignore this|Failed to set value|Error parsing op"
)


def find_reason(lines: Sequence[str], return_code: int) -> str:
    """The last line that names a cause, without the addresses in front of it."""
    if return_code == -signal.SIGXFSZ:
        return "the file would be larger than the limit of this process (ulimit -f)"
    texts = [_ADDRESS.sub("", line).rstrip(".") for line in lines if line]
    causes = [text for text in texts if not _CONSEQUENCE.match(text)]
    if texts:
        return excerpt(causes[-1] if causes else texts[0], 1000)
    if return_code < 0:
        return f"it was ended by signal {-return_code}"
    return f"it returned {return_code} and logged nothing"
