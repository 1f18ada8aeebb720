"""Clips drawn by NumPy from a seed: the pictures the demo VAE learns from.

    frames = make_clip(seed=7, num_frames=25, height=160, width=160)   # uint8 (T, H, W, 3)
    frames = demo_clip()                                               # the one that ships

A clip is one scene, or two with a cut between them. A scene is a world in
which a camera pans and zooms: dusk landscapes with a lettered sign, cities at
night, moving shapes over gradients, stripes and soft noise. Every edge is
anti-aliased. One world unit is one pixel at zoom 1, so a larger picture shows
more of the world, not a coarser one.

Seeds below `HELD_OUT` are for training; those from `HELD_OUT` on, and the demo
clip, are never trained on.
"""

import math

import numpy as np

HELD_OUT = 1_000_000
DEMO_SEED = HELD_OUT + 77
DEMO_SIZE = (256, 384)
EDGE = 2.0  # pixels over which an edge fades
DEMO_FRAMES = 73

# Letters as strokes "x0y0x1y1" on a grid of 4 x 6, y downwards.
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

# Sky from top to horizon (three colours), then hills from far to near (three).
LANDSCAPES = [
    ["2b2d5e", "b5597c", "f9b268", "7d5a86", "4c3f6b", "231f3a"],
    ["3f7fc4", "8fc1e8", "f4e6c8", "7fa8a4", "4f8a6b", "2c5a43"],
    ["1d2f5c", "5d6fae", "f2a6a0", "6a6c9c", "3e4a78", "1c2747"],
    ["f08a5d", "f6b26b", "ffe3a3", "c7796b", "8c4a5a", "4a2545"],
    ["0f3b4c", "2f8f8b", "d8e8b0", "3f8a80", "1f5e60", "0d3338"],
    ["6a8caf", "b9c7d6", "f1ece4", "96a5ad", "66787f", "3a474d"],
]
PAINTS = ["f25f5c", "ffe066", "50b8b4", "247ba0", "f79d65", "9b5de5", "f8f4e3", "70c1b3", "ef476f", "2d3047", "8ac926"]
NIGHTS = [["0b1030", "2a2a68", "a0507a"], ["0a1a2a", "12435a", "3f8f8f"], ["140f2d", "45217c", "d0587e"]]


def colour(text):
    """'rrggbb' -> float32 (3,) in [0, 1]."""
    return np.array([int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)], np.float32)


def paint(image, alpha, value):
    """Blend ``value`` (3,) or (H, W, 3) over ``image`` (H, W, 3), in place."""
    image += np.clip(alpha, 0, 1)[..., None] * (value - image)


def cover(depth):
    """How much of a pixel is covered that lies ``depth`` pixels inside an edge."""
    return np.clip(0.5 + depth / EDGE, 0, 1)


def ramp(stops, u):
    """Colours (n, 3) interpolated along ``u`` in [0, 1] -> (..., 3)."""
    stops = np.asarray(stops)
    where = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(u, where, stops[:, i]) for i in range(3)], -1).astype(np.float32)


class SoftNoise:
    """Periodic smooth noise in [-1, 1] over world coordinates."""

    def __init__(self, rng, cells=16):
        self.grid = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)

    def __call__(self, x, y):
        """Values at ``x`` (1, W) and ``y`` (H, 1), in cells -> (H, W)."""
        n = len(self.grid)
        x0, y0 = np.floor(x), np.floor(y)
        u, v = x - x0, y - y0
        u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
        i, j = x0.astype(int)[0] % n, y0.astype(int)[:, 0] % n
        rows = self.grid[j] + v * (self.grid[(j + 1) % n] - self.grid[j])
        return rows[:, i] + u * (rows[:, (i + 1) % n] - rows[:, i])


class Camera:
    """A view of the world that pans, sways and zooms smoothly."""

    def __init__(self, rng, speed=1.0, centre=(0, 0), zoom=1.0):
        angle = rng.uniform(-0.5, 0.5) + math.pi * rng.integers(2)
        pace = speed * rng.uniform(0.1, 1.3)
        self.centre, self.zoom = centre, zoom
        self.velocity = (pace * math.cos(angle), 0.6 * pace * math.sin(angle))
        self.growth = rng.choice([0.0, 0.0, 1.0]) * rng.uniform(-0.004, 0.004)
        self.sway = rng.uniform(0, 4), rng.uniform(0, math.tau)

    def view(self, frame, height, width, parallax=1.0):
        """World coordinates of the pixels: x (1, W), y (H, 1), and the zoom."""
        zoom = self.zoom * math.exp(self.growth * frame * parallax)
        cx = self.centre[0] + self.velocity[0] * frame
        cy = self.centre[1] + self.velocity[1] * frame + self.sway[0] * math.sin(frame * 0.07 + self.sway[1])
        x = (np.arange(width, dtype=np.float32) - width / 2 + 0.5)[None] / zoom + cx * parallax
        y = (np.arange(height, dtype=np.float32) - height / 2 + 0.5)[:, None] / zoom + cy * min(1, parallax + 0.3)
        return x, y, zoom


def window(x, y, cx, cy, radius):
    """Slices of the pixels within ``radius`` of a point, or None."""
    i0, i1 = np.searchsorted(y[:, 0], (cy - radius, cy + radius))
    j0, j1 = np.searchsorted(x[0], (cx - radius, cx + radius))
    return (slice(i0, i1), slice(j0, j1)) if i0 < i1 and j0 < j1 else None


def distance(kind, u, v, size):
    """Signed distance to the outline of a shape at (u, v), world units."""
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
    """One filled shape; ``second`` shades it, or alternates in ``stripes``."""
    x, y, zoom = view
    place = window(x, y, *at, 1.6 * size + 4 / zoom + 8 * (shadow > 0))
    if place is None:
        return
    rows, columns = place
    dx, dy = x[:, columns] - at[0], y[rows] - at[1]
    c, s = math.cos(angle), math.sin(angle)
    u, v = c * dx + s * dy, c * dy - s * dx
    patch = image[rows, columns]
    if shadow:
        offset = 0.12 * size
        under = distance(kind, u - c * offset - s * offset, v - c * offset + s * offset, size)
        paint(patch, shadow * np.clip(0.5 - under / (0.3 * size + 4), 0, 1), np.zeros(3, np.float32))
    if second is not None:
        mix = cover(zoom * stripes / math.tau * np.sin(u / stripes * math.tau)) if stripes else 0.5 + 0.5 * u / size
        fill = fill + np.clip(mix, 0, 1)[..., None] * (second - fill)
    paint(patch, cover(-zoom * distance(kind, u, v, size)), fill)


def draw_box(image, view, left, top, right, bottom, fill):
    """An upright rectangle in world coordinates."""
    x, y, zoom = view
    across, down = cover(zoom * np.minimum(x - left, right - x)), cover(zoom * np.minimum(y - top, bottom - y))
    paint(image, across * down, fill)


def draw_text(image, view, text, at, unit, fill, weight=0.55):
    """``text`` centred at a point; a letter is 4 x 6 units."""
    x, y, zoom = view
    left, top = at[0] - (5.6 * len(text) - 1.6) * unit / 2, at[1] - 3 * unit
    for index, letter in enumerate(text):
        origin = left + 5.6 * unit * index
        place = window(x, y, origin + 2 * unit, top + 3 * unit, 4.2 * unit)
        if letter not in STROKES or place is None:
            continue
        u, v = (x[:, place[1]] - origin) / unit, (y[place[0]] - top) / unit
        best = None
        for x0, y0, x1, y1 in (map(int, stroke) for stroke in STROKES[letter].split()):
            dx, dy = x1 - x0, y1 - y0
            along = np.clip(((u - x0) * dx + (v - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            gap = (u - x0 - along * dx) ** 2 + (v - y0 - along * dy) ** 2
            best = gap if best is None else np.minimum(best, gap)
        paint(image[place], cover(zoom * unit * (weight - np.sqrt(best))), fill)


def random_word(rng, longest=6):
    letters = list(STROKES)
    return "".join(letters[i] for i in rng.integers(len(letters), size=rng.integers(2, longest)))


class Landscape:
    """Sky, sun, clouds, three ranges of hills, trees, a sign, balloons."""

    def __init__(self, rng, camera=None, palette=None, text=None):
        centre = (rng.uniform(-400, 400), rng.uniform(-70, 80))
        self.camera = camera or Camera(rng, 1.0, centre, math.exp(rng.uniform(-0.1, 0.6)))
        stops = [colour(c) for c in LANDSCAPES[rng.integers(len(LANDSCAPES)) if palette is None else palette]]
        self.sky, self.hills = stops[:3], stops[3:]
        here = self.camera.centre[0]
        self.sun = here * 0.05 + rng.uniform(-110, 110), rng.uniform(-60, 0), rng.uniform(14, 30)
        self.sun_colour = ramp([self.sky[2], np.ones(3)], 0.6)
        self.clouds, self.cover = SoftNoise(rng), rng.uniform(0.0, 0.75)
        self.waves = [
            [(rng.uniform(4, 22) / k, rng.uniform(0.006, 0.012) * k, rng.uniform(0, math.tau)) for k in (1, 2.3, 4.1)]
            for _ in range(3)
        ]
        self.trees = [(here + offset, rng.uniform(14, 34)) for offset in rng.uniform(-380, 380, rng.integers(3, 18))]
        self.text = text or random_word(rng)
        self.sign = here + rng.uniform(-60, 60), rng.uniform(3.0, 6.0)
        self.board = [colour(PAINTS[i]) for i in rng.permutation(len(PAINTS))[:2]]
        self.balloons = [
            (
                here * 0.7 + rng.uniform(-200, 200),
                rng.uniform(-90, 40),
                rng.uniform(10, 28),
                rng.uniform(-0.6, 0.6),
                [colour(PAINTS[i]) for i in rng.permutation(len(PAINTS))[:2]],
            )
            for _ in range(rng.integers(1, 6))
        ]

    def ridge(self, layer, x):
        """Height y of a range of hills over ``x``."""
        return (10, 38, 72)[layer] - sum(a * np.sin(f * x + p) for a, f, p in self.waves[layer])

    def draw(self, frame, height, width):
        view = x, y, zoom = self.camera.view(frame, height, width, 0.05)
        image = np.repeat(ramp(self.sky, (y[:, 0] + 130) / 170)[:, None], width, 1)
        sx, sy, radius = self.sun
        gap = np.sqrt((x - sx) ** 2 + (y - sy) ** 2)
        paint(image, 0.55 * np.exp(-np.maximum(gap - radius, 0) / 45), self.sun_colour)
        paint(image, cover(zoom * (radius - gap)), self.sun_colour)
        x, y, zoom = self.camera.view(frame, height, width, 0.15)
        cloud = self.clouds(x / 80 + 0.005 * frame, y / 26) + 0.3 * self.clouds(x / 41, y / 17 + 5)
        paint(image, self.cover * np.clip(cloud * 1.2 - 0.1, 0, 1), ramp(self.sky[1:], 0.9) * 0.5 + 0.5)
        for layer, parallax in enumerate((0.3, 0.55, 1.0)):
            if layer == 2:
                self.draw_balloons(image, frame)
            view = x, y, zoom = self.camera.view(frame, height, width, parallax)
            below = y - self.ridge(layer, x)
            shade = np.clip(below / 110, 0, 1)[..., None]
            if layer == 2:
                self.draw_trees(image, view)
            paint(image, cover(zoom * below), self.hills[layer] * (1.12 - 0.35 * shade))
        self.draw_sign(image, view)
        return image

    def draw_balloons(self, image, frame):
        view = self.camera.view(frame, *image.shape[:2], 0.7)
        for bx, by, size, speed, (first, second) in self.balloons:
            at = bx + speed * frame, by + 4 * math.sin(0.06 * frame + bx)
            draw_shape(image, view, "box", (at[0], at[1] + 1.55 * size), 0.24 * size, 0, self.hills[2])
            draw_shape(image, view, "disc", at, size, 0.0, first, second, stripes=size)

    def draw_trees(self, image, view):
        for tx, size in self.trees:
            base = float(self.ridge(2, tx)) + 6
            for step in range(3):
                at = tx, base - size * (0.45 + 0.38 * step)
                draw_shape(image, view, "triangle", at, size * (0.72 - 0.16 * step), math.pi / 2, self.hills[2] * 0.85)

    def draw_sign(self, image, view):
        sx, unit = self.sign
        half, base = (5.6 * len(self.text) + 3) * unit / 2, float(self.ridge(2, sx)) + 10
        for post in (-0.7, 0.7):
            at = sx + post * half
            draw_box(image, view, at - unit * 0.7, base - 9 * unit, at + unit * 0.7, base + 30, self.hills[2] * 0.7)
        top, bottom = base - 17 * unit, base - 6 * unit
        draw_box(image, view, sx - half - unit, top - unit, sx + half + unit, bottom + unit, self.board[1])
        draw_box(image, view, sx - half, top, sx + half, bottom, self.board[0])
        ink = colour("fdf6e3") if self.board[0].mean() < 0.5 else colour("22223b")
        draw_text(image, view, self.text, (sx, (top + bottom) / 2), unit, ink)


class City:
    """Rows of buildings with lit windows under a moon, a neon sign, traffic."""

    def __init__(self, rng, camera=None, palette=None, text=None):
        centre = (rng.uniform(-300, 300), rng.uniform(-50, 60))
        self.camera = camera or Camera(rng, 0.8, centre, math.exp(rng.uniform(-0.1, 0.6)))
        stops = [colour(c) for c in NIGHTS[rng.integers(len(NIGHTS)) if palette is None else palette]]
        self.sky, here = stops, self.camera.centre[0]
        self.moon = here * 0.05 + rng.uniform(-100, 100), rng.uniform(-90, -30), rng.uniform(12, 24)
        self.rows = []
        for parallax in (0.4, 0.75):
            row, x = [], here * parallax - 420
            while x < here * parallax + 420:
                wide = rng.uniform(64, 110)
                lit = rng.uniform(size=(12, 3)) < 0.45
                row.append((x, wide, rng.uniform(-70, 40) + 40 * (parallax - 0.4), rng.uniform(0.8, 1.2), lit))
                x += wide * rng.uniform(0.95, 1.3)
            self.rows.append((parallax, row))
        self.lamp = ramp([colour("d9a860"), colour("c98a5a")], rng.uniform())
        self.text, self.neon = text or random_word(rng), colour(PAINTS[rng.choice([0, 1, 2, 4, 8, 10])])
        self.sign = here + rng.uniform(-80, 80), rng.uniform(10, 40), rng.uniform(3.5, 6.5)
        self.cars = [
            (rng.uniform(-300, 300), rng.choice([-1, 1]) * rng.uniform(0.5, 1.5), PAINTS[rng.integers(len(PAINTS))])
            for _ in range(rng.integers(2, 7))
        ]

    def draw(self, frame, height, width):
        view = x, y, zoom = self.camera.view(frame, height, width, 0.05)
        image = np.repeat(ramp(self.sky, (y[:, 0] + 130) / 220)[:, None], width, 1)
        mx, my, radius = self.moon
        gap = np.sqrt((x - mx) ** 2 + (y - my) ** 2)
        paint(image, 0.3 * np.exp(-np.maximum(gap - radius, 0) / 30), colour("fff3d6"))
        paint(image, cover(zoom * (radius - gap)), colour("fff3d6"))
        for parallax, row in self.rows:
            view = x, y, zoom = self.camera.view(frame, height, width, parallax)
            for left, wide, top, tone, lit in row:
                if left > x[0, -1] or left + wide < x[0, 0]:
                    continue
                wall = ramp([self.sky[1], self.sky[0]], parallax) * tone * 0.8
                draw_box(image, view, left, top, left + wide, 400, wall)
                self.draw_windows(image, view, left, wide, top, lit, wall)
        view = self.camera.view(frame, height, width, 1.0)
        draw_box(image, view, -9999, 88, 9999, 999, self.sky[0] * 0.6)
        here = self.camera.centre[0]
        for start, speed, body in self.cars:
            at = here + (start + speed * frame + 300) % 600 - 300, 100 + 9 * (speed > 0)
            draw_shape(image, view, "bar", at, 15, 0, colour(body), colour(body) * 0.6)
            draw_shape(image, view, "disc", (at[0] + 12 * np.sign(speed), at[1]), 3.5, 0, colour("fff3b0"))
        sx, sy, unit = self.sign
        half = (5.6 * len(self.text) + 2) * unit / 2
        draw_box(image, view, sx - half, sy - 5 * unit, sx + half, sy + 5 * unit, self.sky[0] * 0.7)
        draw_text(image, view, self.text, (sx, sy), unit, self.neon)
        return image

    def draw_windows(self, image, view, left, wide, top, lit, wall):
        """A grid of 12 x 3 windows, drawn at once on the building's pixels."""
        x, y, zoom = view
        step = wide / 3.4
        i0, i1 = np.searchsorted(y[:, 0], (top + step * 0.4, top + step * 12.4))
        j0, j1 = np.searchsorted(x[0], (left + step * 0.2, left + step * 3.2))
        if i0 >= i1 or j0 >= j1:
            return
        u, v = (x[:, j0:j1] - left) / step - 0.2, (y[i0:i1] - top) / step - 0.4
        on = lit[np.clip(v[:, 0].astype(int), 0, 11)][:, np.clip(u[0].astype(int), 0, 2)]
        near = cover(zoom * step * (0.27 - np.abs(u % 1 - 0.5))) * cover(zoom * step * (0.3 - np.abs(v % 1 - 0.5)))
        paint(image[i0:i1, j0:j1], near, np.where(on[..., None], self.lamp, wall * 0.85))


class Shapes:
    """Turning shapes over a gradient with soft noise, stripes or checks."""

    def __init__(self, rng, camera=None, palette=None, text=None, count=None):
        centre = (rng.uniform(-100, 100), rng.uniform(-100, 100))
        self.camera = camera or Camera(rng, 0.9, centre, math.exp(rng.uniform(-0.1, 0.5)))
        paints = [0.8 * colour(PAINTS[i]) + 0.1 for i in (rng.permutation(len(PAINTS)) if palette is None else palette)]
        mixes = rng.uniform(0.3, 0.9, 3)
        toned = [p * t + (1 - t) * rng.uniform(0.15, 0.9) for p, t in zip(paints[:3], mixes, strict=True)]
        self.ground, self.angle = toned, rng.uniform(0, math.tau)
        self.noise, self.cell = SoftNoise(rng), rng.uniform(36, 90)
        self.depth = rng.uniform(0, 0.5)
        self.pattern, self.period = rng.integers(4), rng.uniform(36, 90)
        self.strength = rng.uniform(0.05, 0.25)
        kinds = ["disc", "box", "triangle", "ring", "bar"]
        self.shapes = []
        for _ in range(rng.integers(2, 7) if count is None else count):
            first, second = (paints[i] for i in rng.integers(3, len(paints), 2))
            size = math.exp(rng.uniform(2.7, 4.0))
            style = rng.integers(3)
            self.shapes.append(
                {
                    "kind": kinds[rng.integers(5)],
                    "start": np.array([centre[0], centre[1]]) + rng.uniform(-1, 1, 2) * (190, 130),
                    "velocity": rng.normal(0, 0.6, 2),
                    "orbit": (rng.uniform(0, 25), rng.uniform(-0.05, 0.05), rng.uniform(0, math.tau)),
                    "turn": (rng.uniform(0, math.tau), rng.normal(0, 0.02)),
                    "look": (size, first, None if style == 0 else second, size if style == 2 else 0.0),
                    "shadow": rng.choice([0.0, 0.35]),
                }
            )
        self.text = text or (random_word(rng) if rng.uniform() < 0.6 else "")
        self.text_at = np.array(centre) + rng.uniform(-60, 60, 2), rng.uniform(4.5, 8), rng.normal(0, 0.3, 2)
        self.ink = paints[-1]

    def draw(self, frame, height, width):
        view = x, y, zoom = self.camera.view(frame, height, width)
        along = math.cos(self.angle) * x + math.sin(self.angle) * y
        image = ramp(self.ground, 0.5 + along / 380)
        light = self.depth * self.noise(x / self.cell + 0.01 * frame, y / self.cell)
        wave, slope = math.tau / self.period, self.period * zoom / 14
        if self.pattern == 1:
            light = light + self.strength * np.clip(slope * np.sin(along * wave + 0.05 * frame), -1, 1)
        elif self.pattern == 2:
            light = light + self.strength * np.clip(slope * np.sin(x * wave) * np.sin(y * wave), -1, 1)
        elif self.pattern == 3:
            light = light + self.strength * np.sin(np.sqrt(x * x + y * y + 1) * wave - 0.12 * frame)
        image *= (1 + 0.6 * light)[..., None]
        np.clip(image, 0, 1, out=image)
        for s in self.shapes:
            radius, rate, phase = s["orbit"]
            at = s["start"] + s["velocity"] * frame
            at = at[0] + radius * math.cos(rate * frame + phase), at[1] + radius * math.sin(rate * frame + phase)
            size, first, second, stripes = s["look"]
            angle = s["turn"][0] + s["turn"][1] * frame
            draw_shape(image, view, s["kind"], at, size, angle, first, second, stripes, s["shadow"])
        place, unit, drift = self.text_at
        draw_text(image, view, self.text, place + drift * frame, unit, self.ink)
        return image


def render(scenes, num_frames, height, width):
    """Draw ``scenes``, a list of (first frame, scene) -> uint8 (T, H, W, 3)."""
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    for frame in range(num_frames):
        start, scene = [entry for entry in scenes if entry[0] <= frame][-1]
        image = scene.draw(frame - start, height, width)
        frames[frame] = np.round(np.clip(image, 0, 1) * 255)
    return frames


def make_clip(seed, num_frames, height, width):
    """A random clip -> uint8 (T, H, W, 3); one in six has a cut."""
    rng = np.random.default_rng(seed)

    def scene():
        return (Landscape, Landscape, City, Shapes, Shapes)[rng.integers(5)](rng)

    scenes = [(0, scene())]
    if num_frames > 2 and rng.uniform() < 1 / 6:
        scenes.append((int(rng.integers(1, num_frames)), scene()))
    return render(scenes, num_frames, height, width)


def demo_clip(num_frames=DEMO_FRAMES, height=DEMO_SIZE[0], width=DEMO_SIZE[1]):
    """The clip that ships: a dusk landscape with a sign, then a cut to a city."""
    rng = np.random.default_rng(DEMO_SEED)
    first, second = Camera(rng), Camera(rng)
    first.centre, first.zoom, first.velocity, first.growth, first.sway = (-60, -6), 1.1, (0.8, 0.0), 0.0008, (2, 0)
    second.centre, second.zoom, second.velocity, second.growth, second.sway = (0, 14), 1.3, (-0.6, 0.0), 0.0, (2, 0)
    landscape, city = Landscape(rng, first, 0, "MLX"), City(rng, second, 2, "LTX")
    landscape.sign, landscape.trees = (first.centre[0] + 62, 7.0), [(-160, 52), (-118, 38), (98, 44)]
    landscape.board = [colour("3d5a80"), colour("c98f6a")]
    landscape.sun, places = (-130, -14, 26), ((-105, -62, 28), (125, -78, 20))
    landscape.balloons = [(*at, *rest[3:]) for at, rest in zip(places, landscape.balloons, strict=False)]
    city.sign = 0, 20, 6.5
    cut = 1 + 8 * (num_frames // 13)  # where a latent frame begins
    return render([(0, landscape), (cut, city)], num_frames, height, width)
