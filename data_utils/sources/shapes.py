"""The built-in data set: generated pictures of overlapping shapes, nothing to download."""

from functools import lru_cache

import numpy as np
from PIL import Image

from data_utils.sources.records import Record, Rows

CLASS_NAMES: tuple[str, ...] = ("background", "disk", "square", "triangle", "ring")
SIZES = ((96, 96), (96, 136), (120, 100), (128, 128), (144, 160))  # (H, W); not all square or multiples of 16
KEPT = 1024  # pictures, of 57 kB on average, that a process keeps: to draw one takes longer than to train on it
VAL_FIRST = 1_000_000  # validation counts from here, so that no length of training split ever reaches it


class Shapes(Rows):
    """`length` records {"image": uint8 (H, W, 3), "target": uint8 (H, W) class indices, "name": str}.

    A record is a function of (seed, first + i) alone. Objects are rotated, textured and shaded, later ones cover
    earlier ones; light is uneven, pixels noisy. Hue and texture lean towards a class without settling it.
    """

    def __init__(self, length: int, seed: int = 0, first: int = 0) -> None:
        self.length = length
        self.seed = seed
        self.first = first

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Record:
        index = self.first + i
        image, mask = _render(self.seed, index)
        return {"image": image, "target": mask, "name": f"shapes-{index:06d}"}


@lru_cache(KEPT)
def _render(seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """A picture (H, W, 3) and its class indices (H, W), uint8 both, which nobody may write to."""
    rng = np.random.default_rng([seed, index])
    height, width = SIZES[rng.integers(len(SIZES))]
    image = _background(rng, height, width)
    mask = np.zeros((height, width), np.uint8)
    for _ in range(rng.integers(2, 7)):
        add_object(rng, image, mask)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, width, dtype=np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    strength = rng.uniform(0.1, 0.4)
    slope = np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y
    light = 1 + strength * slope - 0.12 * (x * x + y * y)
    image *= light[:, :, None]
    image += rng.uniform(3, 10) * rng.standard_normal(image.shape, dtype=np.float32)
    pixels = np.rint(image.clip(0, 255)).astype(np.uint8)
    pixels.setflags(write=False)
    mask.setflags(write=False)
    return pixels, mask


def _background(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Two muted colors mixed by cloudy noise with a faint grain of stripes, float32 (H, W, 3)."""
    coarse = rng.random((rng.integers(3, 8), rng.integers(3, 8)), dtype=np.float32)
    clouds = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)
    clouds = clouds + 0.12 * _stripes(rng, x, y, spacing=rng.uniform(5, 14))
    dark_value, bright_value = rng.uniform((40, 110), (100, 170))
    dark = _rgb(rng.random(), rng.uniform(0.1, 0.4), dark_value)
    bright = _rgb(rng.random(), rng.uniform(0.1, 0.4), bright_value)
    return dark + clouds[:, :, None] * (bright - dark)


def add_object(rng: np.random.Generator, image: np.ndarray, mask: np.ndarray) -> None:
    """Paint one object, in place: soft shadow, textured and shaded body with an antialiased edge, mask."""
    label = int(rng.integers(1, len(CLASS_NAMES)))
    radius = rng.uniform(0.14, 0.26) * min(mask.shape)
    center_y, center_x = rng.uniform(0.06, 0.94, 2) * mask.shape
    top = int(max(center_y - 1.5 * radius, 0))
    left = int(max(center_x - 1.5 * radius, 0))
    bottom = int(center_y + 1.5 * radius) + 2
    right = int(center_x + 1.5 * radius) + 2
    image = image[top:bottom, left:right]
    mask = mask[top:bottom, left:right]
    y = np.arange(mask.shape[0], dtype=np.float32)[:, None] + np.float32(top - center_y)
    x = np.arange(mask.shape[1], dtype=np.float32) + np.float32(left - center_x)
    angle = rng.uniform(0, 2 * np.pi)
    cos = np.float32(np.cos(angle))
    sin = np.float32(np.sin(angle))
    distance = _signed_distance(label, cos * x + sin * y, cos * y - sin * x, np.float32(radius))

    texture = _texture(rng, label, x, y, distance)
    hue = 0.25 * label + rng.normal(0, 0.045)
    color = _rgb(hue, rng.uniform(0.35, 0.85), rng.uniform(130, 235))
    bevel = (1 + distance / 3).clip(0, 1)  # a darker rim of three pixels
    shade = 1 + rng.uniform(0.12, 0.3) * texture - 0.35 * bevel
    shadow = (1 - distance / (0.25 * radius)).clip(0, 1)
    image *= (1 - 0.45 * shadow)[:, :, None]
    body = (0.5 - distance).clip(0, 1)
    image += body[:, :, None] * (shade[:, :, None] * color - image)
    mask[distance < 0] = label


def _signed_distance(label: int, u: np.ndarray, v: np.ndarray, radius: np.float32) -> np.ndarray:
    """Distance to the outline of class `label` in pixels, negative inside, at (u, v) from the center."""
    if CLASS_NAMES[label] == "square":
        return np.maximum(abs(u), abs(v)) - 0.85 * radius
    if CLASS_NAMES[label] == "triangle":
        return np.maximum(abs(u) * np.float32(0.75**0.5) + v / 2, -v) - 0.6 * radius
    center_distance = np.sqrt(u * u + v * v)
    if CLASS_NAMES[label] == "ring":
        return abs(center_distance - 0.75 * radius) - 0.25 * radius
    return center_distance - radius


def _texture(rng: np.random.Generator, label: int, x: np.ndarray, y: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Contour lines, stripes, checks or plain, -1..1: usually the texture of the class, sometimes another."""
    kind = label if rng.random() < 0.9 else rng.integers(1, len(CLASS_NAMES))
    spacing = rng.uniform(4, 9)
    if kind == 1:
        return np.sin(distance * np.float32(2 * np.pi / spacing))
    stripes = _stripes(rng, x, y, spacing)
    if kind == 2:
        return stripes
    if kind == 3:
        return np.sign(stripes) * np.sign(_stripes(rng, x, y, spacing))
    return np.zeros_like(distance)


def _stripes(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, spacing: float) -> np.ndarray:
    """A sine wave in a random direction, `spacing` pixels from crest to crest."""
    angle = rng.uniform(0, 2 * np.pi)
    frequency = 2 * np.pi / spacing
    return np.sin(np.float32(frequency * np.cos(angle)) * x + np.float32(frequency * np.sin(angle)) * y)


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    """HSV (hue in turns, value 0..255) to RGB, float32 (3,)."""
    ramp = abs((hue + np.array([0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1
    return (value * (1 - saturation * (1 - ramp.clip(0, 1)))).astype(np.float32)
