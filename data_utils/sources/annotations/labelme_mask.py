"""The mask of one labelme file: its shapes in their order, later ones on top, filled by Pillow as labelme does."""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from data_utils.image_io.formats import DrawnMask, open_picture, readable
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.polygons import check_drawing_size, checked_points, fill
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line

# labelme draws its own masks with these, in pixels
LINE_WIDTH = 10
POINT_RADIUS = 5
# how many points each type of shape needs; a rectangle of four is a turned one
POINTS = {"polygon": 3, "rectangle": 2, "oriented_rectangle": 4, "rotation": 4, "circle": 2, "mask": 2}
POINTS |= {"line": 2, "linestrip": 2, "point": 1}


@dataclass(frozen=True)
class LabelmeMask(DrawnMask):
    """The shapes of a file; `image` is its image file, "" where that is in the file; `values`: label -> mask value."""

    file: str
    image: str
    values: dict[str, int]

    def draw(self) -> np.ndarray:
        """(H, W) uint8 of the size that the file says, else of the image's."""
        content = read_labelme(self.file)
        values = [self._value(number, shape) for number, shape in enumerate(content["shapes"], 1)]
        return self._drawn(content, "L", values)

    def draw_objects(self) -> tuple[np.ndarray, np.ndarray]:
        """Shapes of one label and group are one object."""
        content = read_labelme(self.file)
        numbers: list[int] = []
        values = [0]
        number_of_group: dict[tuple[str, str], int] = {}
        for place, shape in enumerate(content["shapes"], 1):
            value = self._value(place, shape)
            group = shape.get("group_id")
            key = (str(shape.get("label")), str(group))
            if value == 0:
                numbers.append(0)  # it erases what lies below
            elif group is not None and key in number_of_group:
                numbers.append(number_of_group[key])
            else:
                values.append(value)
                numbers.append(len(values) - 1)
                number_of_group[key] = numbers[-1]
        return self._drawn(content, "I", numbers), np.array(values, np.uint8)

    def _value(self, number: int, shape: dict[str, Any]) -> int:
        """The mask value of a shape, the `number`-th of the file."""
        label = str(shape.get("label"))
        if label not in self.values:
            raise DataError(f"{self.file}: shape {number} is called {label!r}, which labels.txt does not list")
        return self.values[label]

    def _drawn(self, content: dict[str, Any], mode: str, values: Sequence[int]) -> np.ndarray:
        """The shapes of a file, filled with a value each."""
        size = self._picture_size(content)
        width = content.get("imageWidth")
        height = content.get("imageHeight")
        if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
            check_drawing_size((height, width), size, self.file)
            size = height, width
        height, width = size
        picture = Image.new(mode, (width, height))
        for number, (shape, value) in enumerate(zip(content["shapes"], values, strict=True), 1):
            draw_shape(picture, shape, value, f"{self.file}: shape {number} ({shape.get('label')})")
        return np.asarray(picture)

    def _picture_size(self, content: dict[str, Any]) -> tuple[int, int]:
        """(H, W) of the image from its header, which is in its own file or in this one."""
        if self.image:
            return read_header(self.image, self.image)[0]
        if not content.get("imageData"):
            raise DataError(f"{self.file} has no image file beside it, and holds none")
        with readable(f"{self.file}: imageData"):
            picture = b64decode(content["imageData"])
        return read_header(picture, f"{self.file}: imageData")[0]


def read_labelme(file: str) -> dict[str, Any]:
    """The content of a file, with its list of shapes. DataError for what is no labelme file."""
    try:
        content = read_json(file, most_bytes=MOST_BYTES_OF_DATA)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({one_line(error)})") from error
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise DataError(f"{file} is no labelme file: it has no list of shapes")
    return content


def draw_shape(picture: Image.Image, shape: dict[str, Any], value: int, where: str) -> None:
    """Fill a shape. Raises DataError, with `where`, for what has no area or cannot be understood."""
    kind = shape.get("shape_type") or "polygon"
    if kind not in POINTS:
        raise DataError(f"{where} is a {kind}; supported are {', '.join(POINTS)}")
    points = checked_points(shape.get("points"), f"{where}: {kind}", POINTS[kind])
    pen = ImageDraw.Draw(picture)
    low = points.min(axis=0).tolist()
    high = points.max(axis=0).tolist()
    if kind == "mask":
        with readable(where):
            stamp = open_picture(BytesIO(b64decode(shape["mask"])))
            if stamp.width > 2 * picture.width or stamp.height > 2 * picture.height:
                raise ValueError(f"its mask of {stamp.width} x {stamp.height} pixels is larger than the picture")
            inside = stamp.convert("L").point(lambda level: 255 * (level > 0))
            picture.paste(value, (round(low[0]), round(low[1])), inside)
    elif kind == "rectangle" and len(points) == 2:
        pen.rectangle(low + high, fill=value, outline=value)
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
    pen.ellipse(low + high, fill=value, outline=value)
