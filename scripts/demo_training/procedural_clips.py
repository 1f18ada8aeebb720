"""Clips drawn by NumPy from a seed, for training and testing the demo VAE.

    frames = make_clip(seed=7, num_frames=25, height=160, width=160)   # uint8 (T, H, W, 3)
    frames = demo_clip()                                               # the clip in the package

A clip is one scene, or two scenes with a cut between them. The scenes are dusk landscapes with a lettered sign, cities
at night, and moving shapes over gradients, stripes and soft noise. A camera pans and zooms over each scene.

Seeds below `HELD_OUT` are for training. Seeds from `HELD_OUT` on and the demo clip are never trained on.
"""

import math

import numpy as np

from procedural_drawing import (
    Camera,
    SoftNoise,
    color,
    cover,
    draw_box,
    draw_shape,
    draw_text,
    paint,
    ramp,
    random_word,
)

HELD_OUT = 1_000_000
DEMO_SEED = HELD_OUT + 77
DEMO_SIZE = (256, 384)
DEMO_FRAMES = 73

# Three colors of the sky from top to horizon, then three of the hills from far to near.
LANDSCAPES = [
    ["2b2d5e", "b5597c", "f9b268", "7d5a86", "4c3f6b", "231f3a"],
    ["3f7fc4", "8fc1e8", "f4e6c8", "7fa8a4", "4f8a6b", "2c5a43"],
    ["1d2f5c", "5d6fae", "f2a6a0", "6a6c9c", "3e4a78", "1c2747"],
    ["f08a5d", "f6b26b", "ffe3a3", "c7796b", "8c4a5a", "4a2545"],
    ["0f3b4c", "2f8f8b", "d8e8b0", "3f8a80", "1f5e60", "0d3338"],
    ["6a8caf", "b9c7d6", "f1ece4", "96a5ad", "66787f", "3a474d"],
]
# Colors of objects.
PAINTS = ["f25f5c", "ffe066", "50b8b4", "247ba0", "f79d65", "9b5de5", "f8f4e3", "70c1b3", "ef476f", "2d3047", "8ac926"]
# Three colors of a night sky from top to horizon.
NIGHTS = [["0b1030", "2a2a68", "a0507a"], ["0a1a2a", "12435a", "3f8f8f"], ["140f2d", "45217c", "d0587e"]]


class Landscape:
    """Sky, sun, clouds, three ranges of hills, trees, a sign, balloons."""

    def __init__(self, rng, camera=None, palette=None, text=None):
        center = (rng.uniform(-400, 400), rng.uniform(-70, 80))
        self.camera = camera or Camera(rng, 1.0, center, math.exp(rng.uniform(-0.1, 0.6)))
        stops = [color(c) for c in LANDSCAPES[rng.integers(len(LANDSCAPES)) if palette is None else palette]]
        self.sky, self.hills = stops[:3], stops[3:]
        center_x = self.camera.center[0]
        self.sun = center_x * 0.05 + rng.uniform(-110, 110), rng.uniform(-60, 0), rng.uniform(14, 30)
        self.sun_color = ramp([self.sky[2], np.ones(3)], 0.6)
        self.clouds, self.cover = SoftNoise(rng), rng.uniform(0.0, 0.75)
        self.waves = [
            [(rng.uniform(4, 22) / k, rng.uniform(0.006, 0.012) * k, rng.uniform(0, math.tau)) for k in (1, 2.3, 4.1)]
            for _ in range(3)
        ]
        self.trees = [
            (center_x + offset, rng.uniform(14, 34)) for offset in rng.uniform(-380, 380, rng.integers(3, 18))
        ]
        self.text = text or random_word(rng)
        self.sign = center_x + rng.uniform(-60, 60), rng.uniform(3.0, 6.0)
        self.board = [color(PAINTS[i]) for i in rng.permutation(len(PAINTS))[:2]]
        self.balloons = [
            (
                center_x * 0.7 + rng.uniform(-200, 200),
                rng.uniform(-90, 40),
                rng.uniform(10, 28),
                rng.uniform(-0.6, 0.6),
                [color(PAINTS[i]) for i in rng.permutation(len(PAINTS))[:2]],
            )
            for _ in range(rng.integers(1, 6))
        ]

    def ridge(self, layer, x):
        """Return the y of a range of hills at `x`."""
        return (10, 38, 72)[layer] - sum(a * np.sin(f * x + p) for a, f, p in self.waves[layer])

    def draw(self, frame, height, width):
        """Draw the image (H, W, 3) of a frame."""
        x, y, zoom = self.camera.view(frame, height, width, 0.05)
        image = np.repeat(ramp(self.sky, (y[:, 0] + 130) / 170)[:, None], width, 1)
        sx, sy, radius = self.sun
        gap = np.sqrt((x - sx) ** 2 + (y - sy) ** 2)
        paint(image, 0.55 * np.exp(-np.maximum(gap - radius, 0) / 45), self.sun_color)
        paint(image, cover(zoom * (radius - gap)), self.sun_color)
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
        half_width, base = (5.6 * len(self.text) + 3) * unit / 2, float(self.ridge(2, sx)) + 10
        for post in (-0.7, 0.7):
            at = sx + post * half_width
            draw_box(image, view, at - unit * 0.7, base - 9 * unit, at + unit * 0.7, base + 30, self.hills[2] * 0.7)
        top, bottom = base - 17 * unit, base - 6 * unit
        draw_box(image, view, sx - half_width - unit, top - unit, sx + half_width + unit, bottom + unit, self.board[1])
        draw_box(image, view, sx - half_width, top, sx + half_width, bottom, self.board[0])
        ink = color("fdf6e3") if self.board[0].mean() < 0.5 else color("22223b")
        draw_text(image, view, self.text, (sx, (top + bottom) / 2), unit, ink)


class City:
    """A moon, rows of buildings with lit windows, a neon sign, traffic."""

    def __init__(self, rng, camera=None, palette=None, text=None):
        center = (rng.uniform(-300, 300), rng.uniform(-50, 60))
        self.camera = camera or Camera(rng, 0.8, center, math.exp(rng.uniform(-0.1, 0.6)))
        stops = [color(c) for c in NIGHTS[rng.integers(len(NIGHTS)) if palette is None else palette]]
        self.sky, center_x = stops, self.camera.center[0]
        self.moon = center_x * 0.05 + rng.uniform(-100, 100), rng.uniform(-90, -30), rng.uniform(12, 24)
        self.rows = []
        for parallax in (0.4, 0.75):
            row, x = [], center_x * parallax - 420
            while x < center_x * parallax + 420:
                wide = rng.uniform(64, 110)
                lit = rng.uniform(size=(12, 3)) < 0.45
                row.append((x, wide, rng.uniform(-70, 40) + 40 * (parallax - 0.4), rng.uniform(0.8, 1.2), lit))
                x += wide * rng.uniform(0.95, 1.3)
            self.rows.append((parallax, row))
        self.lamp = ramp([color("d9a860"), color("c98a5a")], rng.uniform())
        self.text, self.neon = text or random_word(rng), color(PAINTS[rng.choice([0, 1, 2, 4, 8, 10])])
        self.sign = center_x + rng.uniform(-80, 80), rng.uniform(10, 40), rng.uniform(3.5, 6.5)
        self.cars = [
            (rng.uniform(-300, 300), rng.choice([-1, 1]) * rng.uniform(0.5, 1.5), PAINTS[rng.integers(len(PAINTS))])
            for _ in range(rng.integers(2, 7))
        ]

    def draw(self, frame, height, width):
        """Draw the image (H, W, 3) of a frame."""
        x, y, zoom = self.camera.view(frame, height, width, 0.05)
        image = np.repeat(ramp(self.sky, (y[:, 0] + 130) / 220)[:, None], width, 1)
        mx, my, radius = self.moon
        gap = np.sqrt((x - mx) ** 2 + (y - my) ** 2)
        paint(image, 0.3 * np.exp(-np.maximum(gap - radius, 0) / 30), color("fff3d6"))
        paint(image, cover(zoom * (radius - gap)), color("fff3d6"))
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
        center_x = self.camera.center[0]
        for start, speed, body in self.cars:
            at = center_x + (start + speed * frame + 300) % 600 - 300, 100 + 9 * (speed > 0)
            draw_shape(image, view, "bar", at, 15, 0, color(body), color(body) * 0.6)
            draw_shape(image, view, "disc", (at[0] + 12 * np.sign(speed), at[1]), 3.5, 0, color("fff3b0"))
        sx, sy, unit = self.sign
        half_width = (5.6 * len(self.text) + 2) * unit / 2
        draw_box(image, view, sx - half_width, sy - 5 * unit, sx + half_width, sy + 5 * unit, self.sky[0] * 0.7)
        draw_text(image, view, self.text, (sx, sy), unit, self.neon)
        return image

    def draw_windows(self, image, view, left, wide, top, lit, wall):
        """Draw a building's grid of 12 x 3 windows in one operation."""
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

    def __init__(self, rng):
        center = (rng.uniform(-100, 100), rng.uniform(-100, 100))
        self.camera = Camera(rng, 0.9, center, math.exp(rng.uniform(-0.1, 0.5)))
        paints = [0.8 * color(PAINTS[i]) + 0.1 for i in rng.permutation(len(PAINTS))]
        mixes = rng.uniform(0.3, 0.9, 3)
        toned = [p * t + (1 - t) * rng.uniform(0.15, 0.9) for p, t in zip(paints[:3], mixes, strict=True)]
        self.ground, self.angle = toned, rng.uniform(0, math.tau)
        self.noise, self.cell = SoftNoise(rng), rng.uniform(36, 90)
        self.depth = rng.uniform(0, 0.5)
        self.pattern, self.period = rng.integers(4), rng.uniform(36, 90)
        self.strength = rng.uniform(0.05, 0.25)
        kinds = ["disc", "box", "triangle", "ring", "bar"]
        self.shapes = []
        for _ in range(rng.integers(2, 7)):
            first, second = (paints[i] for i in rng.integers(3, len(paints), 2))
            size = math.exp(rng.uniform(2.7, 4.0))
            style = rng.integers(3)
            self.shapes.append(
                {
                    "kind": kinds[rng.integers(5)],
                    "start": np.array([center[0], center[1]]) + rng.uniform(-1, 1, 2) * (190, 130),
                    "velocity": rng.normal(0, 0.6, 2),
                    "orbit": (rng.uniform(0, 25), rng.uniform(-0.05, 0.05), rng.uniform(0, math.tau)),
                    "turn": (rng.uniform(0, math.tau), rng.normal(0, 0.02)),
                    "look": (size, first, None if style == 0 else second, size if style == 2 else 0.0),
                    "shadow": rng.choice([0.0, 0.35]),
                }
            )
        self.text = random_word(rng) if rng.uniform() < 0.6 else ""
        self.text_at = np.array(center) + rng.uniform(-60, 60, 2), rng.uniform(4.5, 8), rng.normal(0, 0.3, 2)
        self.ink = paints[-1]

    def draw(self, frame, height, width):
        """Draw the image (H, W, 3) of a frame."""
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
    """Draw the frames, uint8 (T, H, W, 3), of `scenes`, a list of (first frame, scene)."""
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    for frame in range(num_frames):
        start, scene = [entry for entry in scenes if entry[0] <= frame][-1]
        image = scene.draw(frame - start, height, width)
        frames[frame] = np.round(np.clip(image, 0, 1) * 255)
    return frames


def make_clip(seed, num_frames, height, width):
    """Return the clip of a seed, uint8 (T, H, W, 3). One in six has a cut."""
    rng = np.random.default_rng(seed)

    def scene():
        return (Landscape, Landscape, City, Shapes, Shapes)[rng.integers(5)](rng)

    scenes = [(0, scene())]
    if num_frames > 2 and rng.uniform() < 1 / 6:
        scenes.append((int(rng.integers(1, num_frames)), scene()))
    return render(scenes, num_frames, height, width)


def demo_clip():
    """Return the clip in the package, uint8 (T, H, W, 3): a pan over a dusk landscape with balloons and a sign."""
    rng = np.random.default_rng(DEMO_SEED)
    camera = Camera(rng)
    camera.center, camera.zoom, camera.velocity, camera.growth, camera.sway = (-70, -6), 1.1, (1.0, 0.0), 0.0012, (2, 0)
    landscape = Landscape(rng, camera, 0, "LTX")
    landscape.sign, landscape.trees = (-2, 6.2), [(-160, 52), (-118, 38), (98, 44), (134, 34)]
    landscape.board = [color("3d5a80"), color("c98f6a")]
    landscape.sun = (-118, -14, 26)
    stripes = [[color(first), color(second)] for first, second in (("f4a259", "2a9d8f"), ("ffe066", "ef476f"))]
    places = ((-122, -58, 27, 0.35), (78, -66, 20, -0.45))
    landscape.balloons = [(*at, paints) for at, paints in zip(places, stripes, strict=True)]
    return render([(0, landscape)], DEMO_FRAMES, *DEMO_SIZE)
