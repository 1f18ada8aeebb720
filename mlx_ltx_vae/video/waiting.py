"""How long ffmpeg is waited for: as long as it gives signs of life."""

from collections.abc import Callable

MAX_SILENCE = 60  # seconds without a sign of life, before it counts as dead
TICK = 1.0  # seconds between two looks for one


def lives_until(is_done: Callable[[], object], signs: Callable[[], object]) -> bool:
    """Call `is_done`, which waits for a tick at most, until it is true; false if the signs have stayed as they are.

    Ticks are counted rather than seconds: this process may have been stopped itself.
    """
    now, silence = None, 0
    while not is_done():
        before, now = now, signs()
        silence = silence + 1 if now == before else 0
        if silence * TICK >= MAX_SILENCE:
            return False
    return True


def silent() -> str:
    """What an error says of an ffmpeg that has given no sign of life."""
    return f"ffmpeg failed: it has not responded for {MAX_SILENCE} seconds."
