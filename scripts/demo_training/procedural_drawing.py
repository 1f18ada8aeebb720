"""Drawing with NumPy: anti-aliased shapes and text in world coordinates, seen by a moving camera.

An image is float32 (H, W, 3) in [0, 1]. A view is the world coordinates of its pixels, x (1, W) and y (H, 1), and the
zoom. One world unit is one pixel at zoom 1, so a larger image shows more of the world instead of more detail.
"""

import math

import numpy as np

EDGE_WIDTH = 2.0  # pixels over which an edge fades

# Letters as strokes "x0y0x1y1" on a grid of 4 x 6, y pointing down.
STROKES = {
    "A": "0620 2046 1434",
    "B": "0006 0030 3041 4142 4233 0333 3344 4445 4536 3606",
    "C": "4010 1001 0105 0516 1646",
    "D": "0006 0020 2042 4244 4426 2606",
    "E": "0006 0040 0333 0646",
    "F": "0006 0040 0333",
    "G": "4010 1001 0105 0516 1646 4643 4323",
    "H": "0006 4046 0343",
    "I": "2026",
    "K": "0006 4003 0346",
    "L": "0006 0646",
    "M": "0600 0023 2340 4046",
    "N": "0600 0046 4640",
    "O": "1030 3041 4145 4536 3616 1605 0501 0110",
    "P": "0600 0030 3041 4142 4233 3303",
    "R": "0600 0030 3041 4142 4233 3303 2346",
    "S": "4010 1001 0102 0213 1333 3344 4445 4536 3606",
    "T": "0040 2026",
    "U": "0005 0516 1636 3645 4540",
    "V": "0026 2640",
    "W": "0016 1623 2336 3640",
    "X": "0046 4006",
    "Y": "0023 4023 2326",
    "Z": "0040 4006 0646",
}


def color(text):
    """Return the color "rrggbb" as float32 (3,) in [0, 1]."""
    return np.array([int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)], np.float32)


def paint(image, alpha, value):
    """Blend `value`, (3,) or (H, W, 3), over `image` (H, W, 3) in place, with weights `alpha` (H, W)."""
    image += np.clip(alpha, 0, 1)[..., None] * (value - image)


def cover(depth):
    """Return the covered fraction of a pixel that is `depth` pixels inside an edge."""
    return np.clip(0.5 + depth / EDGE_WIDTH, 0, 1)


def ramp(stops, u):
    """Return the colors `stops` (n, 3), interpolated at `u` (...) in [0, 1]: float32 (..., 3)."""
    stops = np.asarray(stops)
    positions = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(u, positions, stops[:, i]) for i in range(3)], -1).astype(np.float32)


class SoftNoise:
    """Smooth periodic noise in [-1, 1]."""

    def __init__(self, rng, cells=16):
        self.grid = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)

    def __call__(self, x, y):
        """Return the noise (H, W) at `x` (1, W) and `y` (H, 1), in cells."""
        n = len(self.grid)
        x0, y0 = np.floor(x), np.floor(y)
        u, v = x - x0, y - y0
        u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
        i, j = x0.astype(int)[0] % n, y0.astype(int)[:, 0] % n
        rows = self.grid[j] + v * (self.grid[(j + 1) % n] - self.grid[j])
        return rows[:, i] + u * (rows[:, (i + 1) % n] - rows[:, i])


class Camera:
    """A camera that pans, sways and zooms smoothly."""

    def __init__(self, rng, speed=1.0, center=(0, 0), zoom=1.0):
        angle = rng.uniform(-0.5, 0.5) + math.pi * rng.integers(2)
        speed *= rng.uniform(0.1, 1.3)
        self.center, self.zoom = center, zoom
        self.velocity = (speed * math.cos(angle), 0.6 * speed * math.sin(angle))
        self.growth = rng.choice([0.0, 0.0, 1.0]) * rng.uniform(-0.004, 0.004)
        self.sway = rng.uniform(0, 4), rng.uniform(0, math.tau)

    def view(self, frame, height, width, parallax=1.0):
        """Return the view at a frame: x (1, W), y (H, 1) and the zoom. Distant layers have a parallax below 1."""
        zoom = self.zoom * math.exp(self.growth * frame * parallax)
        cx = self.center[0] + self.velocity[0] * frame
        cy = self.center[1] + self.velocity[1] * frame + self.sway[0] * math.sin(frame * 0.07 + self.sway[1])
        x = (np.arange(width, dtype=np.float32) - width / 2 + 0.5)[None] / zoom + cx * parallax
        y = (np.arange(height, dtype=np.float32) - height / 2 + 0.5)[:, None] / zoom + cy * min(1, parallax + 0.3)
        return x, y, zoom


def pixels_around(x, y, cx, cy, radius):
    """Row and column slices of the pixels within `radius` of a point; None if there are none."""
    i0, i1 = np.searchsorted(y[:, 0], (cy - radius, cy + radius))
    j0, j1 = np.searchsorted(x[0], (cx - radius, cx + radius))
    return (slice(i0, i1), slice(j0, j1)) if i0 < i1 and j0 < j1 else None


def distance(kind, u, v, size):
    """Return the signed distance from (u, v) to the outline of a shape, in world units, negative inside."""
    if kind == "disc":
        return np.hypot(u, v) - size
    if kind == "ring":
        return np.abs(np.hypot(u, v) - 0.75 * size) - 0.25 * size
    if kind == "triangle":
        sides = [math.sin(a) * u - math.cos(a) * v for a in (math.pi / 2 + k * math.tau / 3 for k in range(3))]
        return np.maximum(np.maximum(*sides[:2]), sides[2]) - 0.5 * size
    stretch = {"box": (0.8, 0.8), "bar": (1.0, 0.35)}[kind]
    du, dv = np.abs(u) - stretch[0] * size * 0.8, np.abs(v) - stretch[1] * size * 0.8
    return np.hypot(np.maximum(du, 0), np.maximum(dv, 0)) + np.minimum(np.maximum(du, dv), 0) - 0.12 * size


def draw_shape(image, view, kind, at, size, angle, fill, second=None, stripes=0.0, shadow=0.0):
    """Draw a shape filled with `fill`, which fades to `second` or alternates with it in stripes."""
    x, y, zoom = view
    area = pixels_around(x, y, *at, 1.6 * size + 4 / zoom + 8 * (shadow > 0))
    if area is None:
        return
    rows, columns = area
    dx, dy = x[:, columns] - at[0], y[rows] - at[1]
    c, s = math.cos(angle), math.sin(angle)
    u, v = c * dx + s * dy, c * dy - s * dx
    patch = image[rows, columns]
    if shadow:
        offset = 0.12 * size
        gap = distance(kind, u - c * offset - s * offset, v - c * offset + s * offset, size)
        paint(patch, shadow * np.clip(0.5 - gap / (0.3 * size + 4), 0, 1), np.zeros(3, np.float32))
    if second is not None:
        mix = cover(zoom * stripes / math.tau * np.sin(u / stripes * math.tau)) if stripes else 0.5 + 0.5 * u / size
        fill = fill + np.clip(mix, 0, 1)[..., None] * (second - fill)
    paint(patch, cover(-zoom * distance(kind, u, v, size)), fill)


def draw_box(image, view, left, top, right, bottom, fill):
    """Draw an upright rectangle."""
    x, y, zoom = view
    across, down = cover(zoom * np.minimum(x - left, right - x)), cover(zoom * np.minimum(y - top, bottom - y))
    paint(image, across * down, fill)


def draw_text(image, view, text, at, unit, fill):
    """Draw text centered at a point. A letter is 4 x 6 units."""
    x, y, zoom = view
    left, top = at[0] - (5.6 * len(text) - 1.6) * unit / 2, at[1] - 3 * unit
    for index, letter in enumerate(text):
        origin = left + 5.6 * unit * index
        area = pixels_around(x, y, origin + 2 * unit, top + 3 * unit, 4.2 * unit)
        if letter not in STROKES or area is None:
            continue
        u, v = (x[:, area[1]] - origin) / unit, (y[area[0]] - top) / unit
        nearest = None  # squared distance to the nearest stroke
        for x0, y0, x1, y1 in (map(int, stroke) for stroke in STROKES[letter].split()):
            dx, dy = x1 - x0, y1 - y0
            along = np.clip(((u - x0) * dx + (v - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            gap = (u - x0 - along * dx) ** 2 + (v - y0 - along * dy) ** 2
            nearest = gap if nearest is None else np.minimum(nearest, gap)
        paint(image[area], cover(zoom * unit * (0.55 - np.sqrt(nearest))), fill)


def random_word(rng):
    """2 to 5 random letters."""
    letters = list(STROKES)
    return "".join(letters[i] for i in rng.integers(len(letters), size=rng.integers(2, 6)))
