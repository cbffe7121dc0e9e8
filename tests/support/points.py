"""Images with dots at known places, tables of points in the three layouts of CSV, and files of other programs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_utils.config import DataConfig
from data_utils.point_states import ABSENT, PRESENT
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from data_utils.sources.points.find import find_points
from data_utils.sources.points.table import Certainty, ImagePoints, PointTable
from runtime.errors import DataError
from tasks.landmarks.loss import Landmarks

NAMES = ("nose", "ear", "tail")
SIZE = (32, 44)
WIDTH = 1.5  # pixels of a dot's standard deviation
POINT_SHAPE = {"label": "a", "shape_type": "point", "points": [[1, 2]]}  # of labelme
BRIGHTNESS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # the color of each point's dot


def point_table(
    layout: str,
    names: Sequence[str],
    images: Sequence[str],
    positions: np.ndarray,
    states: np.ndarray,
    files: Sequence[str] = (),
    space: str = "pixels",
    *,
    confidence: np.ndarray | None = None,
    presence: np.ndarray | None = None,
    size: tuple[int, int] | None = None,
) -> PointTable:
    """A table of the points in arrays: (N, K, n) positions, (N, K) states, and both certainties of predictions."""
    entries = []
    for row, image in enumerate(images):
        entry = ImagePoints(files[row] if files else "", image, size)
        for column, name in enumerate(names):
            certainty = None
            if confidence is not None and presence is not None:
                certainty = Certainty(float(confidence[row, column]), float(presence[row, column]))
            entry.add(name, int(states[row, column]), positions[row, column].tolist(), certainty)
        entries.append(entry)
    return PointTable(layout, positions.shape[-1], entries, space, tuple(names))


def certainties(table: PointTable) -> list[list[Certainty | None]]:
    """The certainty of each point of each image."""
    return [[point.certainty for point in table.points(row).values()] for row in range(len(table.entries))]


def dots(count: int, seed: int, *, absent: float = 0.0) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Noisy RGB images with a dot at each point; the places (count, 3, 2) as (x, y), and the states."""
    rng = np.random.default_rng(seed)
    height, width = SIZE
    positions = rng.uniform((3, 3), (width - 4, height - 4), (count, len(NAMES), 2))
    states = np.where(rng.random((count, len(NAMES))) < absent, ABSENT, PRESENT)
    rows, columns = np.indices(SIZE)
    images = []
    for places, image_states in zip(positions, states, strict=True):
        image = rng.uniform(0, 60, (*SIZE, 3))
        for (x, y), color, state in zip(places, BRIGHTNESS, image_states, strict=True):
            dot = np.exp(-0.5 * ((columns - x) ** 2 + (rows - y) ** 2) / WIDTH**2)
            image += 190 * (state == PRESENT) * dot[:, :, None] * color
        images.append(image.clip(0, 255).astype(np.uint8))
    return images, positions, states


def write_dots(
    folder: Path, count: int, seed: int, *, layout: str = "long", absent: float = 0.0, name: str = "points.csv"
) -> PointTable:
    """A folder of such images in images/, with a table of their points beside it."""
    images, positions, states = dots(count, seed, absent=absent)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    names = []
    for number, image in enumerate(images):
        names.append(f"frame_{number:02}.png")
        Image.fromarray(image).save(folder / "images" / names[-1])
    table = point_table(layout, NAMES, names, positions.round(4), states)
    (folder / name).write_bytes(files.content(table))
    return table


def landmarks(layout: str, space: str) -> Landmarks:
    """The task of the points in a layout, whose places are those of a space."""
    names = ("1", "2", "3") if layout == "tps" else NAMES
    return Landmarks(names=names, partners=(0, 1, 2), layout=layout, space=space)


def write_labelme(folder: Path, images: list[str], positions: np.ndarray) -> None:
    """A file beside each of the images in images/; points whose place is NaN are left out."""
    for image, places in zip(images, positions, strict=True):
        shapes = []
        for name, place in zip(NAMES, places.tolist(), strict=True):
            if not np.isnan(place).any():
                shapes.append({"label": name, "points": [place], "shape_type": "point", "group_id": None, "flags": {}})
        content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None}
        content |= {"imageHeight": SIZE[0], "imageWidth": SIZE[1]}
        (folder / "images" / image).with_suffix(".json").write_text(json.dumps(content))


def coco_content(images: list[str], positions: np.ndarray) -> dict:
    """COCO's keypoints of images; those whose place is NaN are not labeled."""
    annotations = []
    entries = []
    for number, (image, places) in enumerate(zip(images, positions, strict=True), 7):
        entries.append({"id": number, "file_name": image, "height": SIZE[0], "width": SIZE[1]})
        keypoints = np.column_stack([places, [2, 1, 2]])
        keypoints[np.isnan(places).any(axis=1)] = 0
        annotations.append(
            {"id": number, "image_id": number, "category_id": 1, "keypoints": keypoints.ravel().tolist()}
        )
    category = {"id": 1, "name": "mouse", "keypoints": list(NAMES), "skeleton": []}
    return {"images": entries, "annotations": annotations, "categories": [category]}


COCO_CONTENT = coco_content(["a.png"], np.ones((1, 3, 2)))  # keypoints of one object
(COCO_OBJECT,) = COCO_CONTENT["annotations"]
(COCO_CATEGORY,) = COCO_CONTENT["categories"]


def coco_text(**changes) -> str:
    """The text of a file of COCO's keypoints, in which some keys have other values."""
    return json.dumps(COCO_CONTENT | changes)


def write_coco(folder: Path, images: list[str], positions: np.ndarray) -> None:
    (folder / "annotations").mkdir()
    file = folder / "annotations" / "person_keypoints_train2017.json"
    file.write_text(json.dumps(coco_content(images, positions)))


def write_tps(folder: Path, images: list[str], positions: np.ndarray) -> None:
    lines = []
    for number, (image, places) in enumerate(zip(images, positions, strict=True)):
        rows = []
        for x, y in places.tolist():  # from the lowest row up
            rows.append("-1 -1" if np.isnan(x) else f"{x} {SIZE[0] - 1 - y}")
        lines += ["LM=3", *rows, "CURVES=1", "POINTS=2", "1 1", "2 2", f"IMAGE={image}", f"ID={number}", "SCALE=0.01"]
    (folder / "all.tps").write_text("\r\n".join(lines))


WRITERS: dict[str, Callable[[Path, list[str], np.ndarray], None]] = {
    "labelme": write_labelme,
    "coco": write_coco,
    "tps": write_tps,
}


def write_annotated_dots(folder: Path, layout: str, count: int = 4) -> np.ndarray:
    """A folder of images with dots and the files of another program; returns the places (count, 3, 2) as (x, y)."""
    images, positions, _ = dots(count, seed=0)
    positions = positions.round(3)
    (folder / "images").mkdir(parents=True)
    names = [f"frame_{number:02}.png" for number in range(count)]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / "images" / name)
    WRITERS[layout](folder, names, positions)
    return positions


def write_points(folder: Path, table: PointTable) -> Path:
    """A file of points in the format of their table."""
    file = folder / f"one{files.FORMATS[table.layout].extension}"
    file.write_bytes(files.content(table))
    return file


def prediction_with_an_absent_point(
    layout: str, names: tuple[str, str] = ("a", "b"), axes: int = 2, space: str = "pixels"
) -> PointTable:
    """A prediction for one image: its first point is absent, and its second present."""
    return point_table(
        layout=layout,
        names=names,
        images=("one",),
        positions=np.array([[[1.5, 2.0625, 0.5], [3.0, 4.0, 1e-3]]])[:, :, :axes],
        states=np.array([[ABSENT, PRESENT]]),
        files=("",),
        space=space,
        presence=np.array([[0.25, 0.75]]),
        confidence=np.array([[0.5, 1.0]]),
        size=(30, 40),
    )


def reading_error(file: Path, text: str) -> str:
    """The message, which is one line, that a file of points with this text is refused with."""
    file.write_text(text)
    with pytest.raises(DataError) as error:
        files.read(file)
    message = str(error.value)
    assert "\n" not in message
    assert file.name in message
    return message


def dot_center(channel: np.ndarray, y: float, x: float) -> np.ndarray:
    """(y, x), the center of mass of what is bright about a place in a picture (H, W)."""
    weights = (channel - 60).clip(0)
    rows, columns = np.indices(channel.shape)
    window = (abs(rows - y) < 5) & (abs(columns - x) < 5)
    return np.array([(axis * weights)[window].sum() / weights[window].sum() for axis in (rows, columns)])


def write_table(folder: Path, text: str, *, images: int = 1, name: str = "points.csv") -> Path:
    """A folder of black images a.png, b.png, ... and a table of points."""
    (folder / "images").mkdir(parents=True)
    for letter in "abcdefgh"[:images]:
        Image.new("L", (20, 16)).save(folder / "images" / f"{letter}.png")
    (folder / name).write_text(text)
    return folder


def points_of_folder(folder: Path, absent: str | None = None) -> PointTable:
    """The points of a folder that training can read."""
    load_records(DataConfig(dataset=str(folder), absent=absent))
    return find_points(folder, (), explicit=False)["train"].with_absence(absent)
