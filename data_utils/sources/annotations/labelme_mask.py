"""The mask of one labelme file: its shapes in their order, later ones on top, filled by Pillow as labelme does."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from data_utils.image_io.class_masks import LayeredMask
from data_utils.image_io.formats import image_errors, open_picture
from data_utils.image_io.reader import read_header
from data_utils.mask_values import number_type
from data_utils.sources.annotations.polygons import check_rendered_size, fill, read_points
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line
from tasks.overlapping import pack_bits
from unet.config import IGNORE_INDEX, MaskValue

# labelme draws its own masks with these, in pixels
LINE_WIDTH = 10
POINT_RADIUS = 5
# how many points each type of shape needs; a rectangle of four is a turned one
POINTS = {"polygon": 3, "rectangle": 2, "oriented_rectangle": 4, "rotation": 4, "circle": 2, "mask": 2}
POINTS |= {"line": 2, "linestrip": 2, "point": 1}


@dataclass(frozen=True)
class LabelmeMask(LayeredMask):
    """The shapes of a file; `image` is the image file, "" if embedded in the file; `values`: label -> mask value."""

    file: str
    image: str
    values: dict[str, int]

    def render(self) -> np.ndarray:
        """(H, W), in the size that the file gives, else in the image's size."""
        content = read_labelme(self.file)
        picture = self._empty_picture(content)
        for value, shape, location in self._shapes(content):
            render_shape(picture, shape, value, location)
        return np.asarray(picture).astype(number_type(self.values.values()))

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        """The objects: shapes of one label and group are one object; background erases shapes below it."""
        content = read_labelme(self.file)
        picture = self._empty_picture(content)
        values = [0]
        number_by_group: dict[tuple[int, str], int] = {}
        for value, shape, location in self._shapes(content):
            group = shape.get("group_id")
            number = number_by_group.get((value, str(group))) if group is not None else None
            if value == 0:
                number = 0
            if number is None:
                number = len(values)
                values.append(value)
                number_by_group[value, str(group)] = number
            render_shape(picture, shape, number, location)
        return np.asarray(picture), np.array(values)

    def render_classes(self, bit_by_value: Mapping[MaskValue, int]) -> np.ndarray:
        """The bits of `LayeredMask`; background removes all classes, and an ignored value makes all classes unknown."""
        content = read_labelme(self.file)
        empty = self._empty_picture(content)
        all_bits = sum(1 << bit for bit in set(bit_by_value.values()))
        truth = np.zeros(empty.size[::-1], np.int64)
        unknown = np.zeros_like(truth)
        # shapes in their order, neighbors of one class in one picture
        for value, shapes in groupby(self._shapes(content), key=itemgetter(0)):
            picture = empty.copy()
            for _, shape, location in shapes:
                render_shape(picture, shape, 1, location)
            inside = np.asarray(picture, bool)
            if value in bit_by_value:
                truth[inside] |= 1 << bit_by_value[value]
                unknown[inside] &= ~(1 << bit_by_value[value])
            elif value in (0, IGNORE_INDEX):
                truth[inside] = 0
                unknown[inside] = all_bits if value == IGNORE_INDEX else 0
        return pack_bits(truth, unknown)

    def _shapes(self, content: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Each shape with its mask value and its name in messages."""
        for number, shape in enumerate(content["shapes"], 1):
            location = f"{self.file}: shape {number}"
            label = str(shape.get("label"))
            if label not in self.values:
                raise DataError(f"{location} is called {label!r}, which labels.txt does not list")
            yield self.values[label], shape, f"{location} ({label})"

    def _empty_picture(self, content: dict[str, Any]) -> Image.Image:
        """A picture of int32 to render on, in the size that the file gives, else in the image's size."""
        size = self._picture_size(content)
        width = content.get("imageWidth")
        height = content.get("imageHeight")
        if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
            check_rendered_size((height, width), size, self.file)
            size = height, width
        height, width = size
        return Image.new("I", (width, height))

    def _picture_size(self, content: dict[str, Any]) -> tuple[int, int]:
        """(H, W) of the image from its header, in the image's own file or in this file."""
        if self.image:
            return read_header(self.image, self.image)[0]
        if not content.get("imageData"):
            raise DataError(f"{self.file} has no image file beside it, and holds none")
        with image_errors(f"{self.file}: imageData"):
            picture = b64decode(content["imageData"])
        return read_header(picture, f"{self.file}: imageData")[0]


def read_labelme(file: str) -> dict[str, Any]:
    """The content of a file, with its list of shapes. Raises DataError if the file is not a labelme file."""
    try:
        content = read_json(file, most_bytes=MOST_BYTES_OF_DATA)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({one_line(error)})") from error
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise DataError(f"{file} is no labelme file: it has no list of shapes")
    for number, shape in enumerate(shapes, 1):
        if not isinstance(shape.get("shape_type") or "", str):
            kind = str(shape["shape_type"])[:40]
            raise DataError(f"{file} says that shape {number} is of shape_type {kind}, expected a name")
    return content


def render_shape(picture: Image.Image, shape: dict[str, Any], value: int, location: str) -> None:
    """Fill a shape. Raises DataError, with `location`, for a shape that has no area or cannot be understood."""
    kind = shape.get("shape_type") or "polygon"
    if kind not in POINTS:
        raise DataError(f"{location} is a {kind}; supported are {', '.join(POINTS)}")
    points = read_points(shape.get("points"), f"{location}: {kind}", POINTS[kind])
    pen = ImageDraw.Draw(picture)
    low = points.min(axis=0).tolist()
    high = points.max(axis=0).tolist()
    if kind == "mask":
        with image_errors(location):
            stamp = open_picture(BytesIO(b64decode(shape["mask"])))
            if stamp.width > 2 * picture.width or stamp.height > 2 * picture.height:
                raise ValueError(f"its mask of {stamp.width} x {stamp.height} pixels is larger than the picture")
            inside = stamp.convert("L").point(lambda level: 255 * (level > 0))
            picture.paste(value, (round(low[0]), round(low[1])), inside)
    elif kind == "rectangle" and len(points) == 2:
        pen.rectangle(low + high, fill=value)
    elif kind == "circle":
        radius = float(np.hypot(*(points[1] - points[0])))
        _disc(pen, points[0], radius, value)
    elif kind == "point":
        _disc(pen, points[0], POINT_RADIUS, value)
    elif kind in ("line", "linestrip"):
        pen.line(points.ravel().tolist(), fill=value, width=LINE_WIDTH, joint="curve")
    else:
        fill(pen, points, value)


def _disc(pen: ImageDraw.ImageDraw, center: np.ndarray, radius: float, value: int) -> None:
    low = (center - radius).tolist()
    high = (center + radius).tolist()
    pen.ellipse(low + high, fill=value)
