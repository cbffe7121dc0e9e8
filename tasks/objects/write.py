"""Numbered objects: a label image, a table with a row for each object, and one COCO file of all images.

COCO's format: https://cocodataset.org/#format-data.
"""

import codecs
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.class_map import MOST_IN_MASK
from data_utils.image_io.reader import read_mask
from data_utils.image_io.volumes import VolumeHeader, read_volume_header
from runtime.console import counted, say
from runtime.documents import MOST_BYTES_OF_DATA, parse_csv, read_bytes, write_row
from runtime.errors import DataError, one_line
from runtime.files import replace_file
from tasks.job import MASK, Job
from tasks.objects.decode import DetectedObject
from tasks.objects.labels import label_numbers
from tasks.objects.show import ObjectSection
from tasks.polygons import Areas, Properties
from tasks.prediction import PredictedImage, Prediction
from tasks.prediction_files import save_labels
from tasks.prediction_format import MaskFormat, PredictionFormat

TABLE = ".objects.csv"
JOINED = "objects.csv"  # the table of all images
COCO = "objects.json"
LARGE_MASK = ".tif"  # the extension of a mask with more objects than a PNG can number
IMAGE_COLUMNS = ("number", "class", "area", "center_y", "center_x", "top", "left", "bottom", "right", "score")
VOLUME_COLUMNS: tuple[str, ...] = ("number", "class", "voxels", "volume_mm3", "x_mm", "y_mm", "z_mm")
VOLUME_COLUMNS += ("first_z", "first_y", "first_x", "end_z", "end_y", "end_x", "score")
WHOLE = ("number", "area", "top", "left", "bottom", "right")  # columns of whole numbers
REMEDY = "--overwrite makes it anew"


class ObjectFormat(MaskFormat):
    """The number of each pixel's object."""

    extensions = (MASK, TABLE)
    joined_files = (JOINED,)

    def __init__(self, section: ObjectSection) -> None:
        super().__init__(section)
        self.object_classes = section.names

    def file(self, job: Job, extension: str) -> Path:
        file = job.file(extension)
        large = job.file(LARGE_MASK)
        if extension == MASK and job.volume is None and large.exists() and not file.exists():
            return large
        return file

    def files(self, job: Job, extensions: Sequence[str]) -> list[Path]:
        files = [job.file(extension) for extension in extensions]
        large = job.file(LARGE_MASK)
        if job.volume is None and large not in files:
            files.append(large)
        return files

    def areas(self, prediction: Prediction) -> Iterator[Areas]:
        properties: list[Properties] = []
        for detected in prediction.objects:
            properties.append({"number": detected.number, "class": self.object_classes[detected.class_index - 1]})
        yield Areas(label_numbers(prediction.labels), properties)

    def write(self, image: PredictedImage, extensions: Sequence[str]) -> None:
        if TABLE in extensions:
            self.write_table(image)
        super().write(image, extensions)

    def write_mask(self, image: PredictedImage) -> None:
        job = image.job
        count = len(image.prediction.objects)
        most = MOST_IN_MASK
        if job.place is not None:
            most -= 1  # a raster needs a number for no data
        dtype = "uint16" if count <= most else "uint32"
        nodata = np.iinfo(dtype).max
        paths = [job.file(MASK), job.file(LARGE_MASK)]
        if job.volume is None and count > MOST_IN_MASK:
            paths.reverse()
        path, other = paths
        labels = image.prediction.labels
        save_labels(image, path, labels, lambda labels: label_numbers(labels).astype(dtype), nodata)
        if job.volume is None and other != path:
            other.unlink(missing_ok=True)  # an earlier call may have written it

    def write_table(self, image: PredictedImage) -> None:
        """Write a row for each object."""
        header = None
        columns: Sequence[str] = IMAGE_COLUMNS
        if image.job.volume is not None:
            header = read_volume_header(image.job.volume, image.job.name)
            columns = VOLUME_COLUMNS
        text = io.StringIO()
        write_row(text, columns)
        for detected in image.prediction.objects:
            name = self.object_classes[detected.class_index - 1]
            place = place_cells(detected, header)
            write_row(text, [detected.number, name, detected.size, *place, f"{detected.score:.4f}"])
        with replace_file(image.job.file(TABLE)) as file:
            file.write(text.getvalue().encode())

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write one table of the objects of all images, an image at a time."""
        columns: list[str] = []
        if any(job.volume is None for job in jobs):
            columns += IMAGE_COLUMNS
        if any(job.volume is not None for job in jobs):
            columns += VOLUME_COLUMNS
        titles = list(dict.fromkeys(columns))
        written_jobs = [job for job in jobs if self.mask_file(job).exists() and job.file(TABLE).exists()]
        objects = 0
        with replace_file(folder / JOINED) as file:
            text = codecs.getwriter("utf-8")(file, "surrogateescape")
            write_row(text, ["image", *titles])
            for job in written_jobs:
                job_columns = VOLUME_COLUMNS if job.volume is not None else IMAGE_COLUMNS
                for row in table_rows(job.file(TABLE), job_columns):
                    write_row(text, [job.relative_name, *(row.get(title, "") for title in titles)])
                    objects += 1
        say(f"{folder / JOINED} lists {counted(objects, 'object')} in {counted(len(written_jobs), 'image')}")


def place_cells(detected: DetectedObject, header: VolumeHeader | None) -> list[str]:
    """Center and box of an object in the pixels of an image.

    With the `header` of a volume they are volume and center in mm, in the space of the file, and the box in voxels, in
    RAS orientation.
    """
    box = map(str, detected.box)
    if header is None:
        return [*(f"{position:.2f}" for position in detected.center), *box]
    voxel = abs(float(np.linalg.det(header.affine[:3, :3])))  # not the product of its sides if a gantry is tilted
    volume = detected.size * voxel
    position = header.affine @ [*reversed(detected.center), 1]
    return [f"{volume:.4g}", *(f"{millimeters:.3f}" for millimeters in position[:3]), *box]


def table_rows(table: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of the table of an image. Raises DataError if somebody has made it unreadable."""
    try:
        text = read_bytes(table, MOST_BYTES_OF_DATA).decode(errors="replace")
        rows = parse_csv(text)
        if next(rows, (1, []))[1] != list(columns):
            raise ValueError("expected the columns " + ", ".join(columns))
        for _, cells in rows:
            row = dict(zip(columns, cells, strict=True))
            for name in WHOLE:
                int(row.get(name, "0"))
            float(row["score"])
            yield row
    except (OSError, ValueError) as error:
        raise DataError(f"{table}: is not as prediction wrote it ({one_line(error)}); {REMEDY}") from error


def write_coco(folder: Path, jobs: Iterable[Job], output_format: PredictionFormat) -> None:
    """Write folder/objects.json of the objects of all jobs that have a mask, an image at a time."""
    written_jobs = [job for job in jobs if output_format.mask_file(job).exists()]
    ids = {name: number for number, name in enumerate(output_format.object_classes, 1)}
    categories = [{"id": number, "name": name} for name, number in ids.items()]
    entries: list[dict[str, Any]] = []
    annotations = 0
    with replace_file(folder / COCO) as file:
        file.write(b'{"annotations": [')
        for image_id, job in enumerate(written_jobs, 1):
            mask = output_format.mask_file(job)
            labels = read_mask(mask, str(mask))
            height, width = labels.shape
            entries.append({"id": image_id, "file_name": job.relative_name, "height": height, "width": width})
            for annotation in _annotations(labels, job.file(TABLE), ids):
                separator = ",\n" if annotations else "\n"
                annotations += 1
                annotation |= {"id": annotations, "image_id": image_id}
                file.write((separator + json.dumps(annotation)).encode())
        remaining_members = json.dumps({"images": entries, "categories": categories})
        file.write(f"\n], {remaining_members[1:]}\n".encode())


def _annotations(labels: np.ndarray, table: Path, ids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The objects of a label image (H, W), from the rows of their table."""
    for row in table_rows(table, IMAGE_COLUMNS):
        top, left, bottom, right = (int(row[name]) for name in ("top", "left", "bottom", "right"))
        is_object = labels[top:bottom, left:right] == int(row["number"])
        if not is_object.any() or row["class"] not in ids:
            raise DataError(f"{table}: object {row['number']} is not one of the mask; {REMEDY}")
        yield {
            "category_id": ids[row["class"]],
            "segmentation": run_lengths(is_object, (top, left), labels.shape),
            "area": int(row["area"]),
            "bbox": [left, top, right - left, bottom - top],
            "iscrowd": 0,
            "score": float(row["score"]),
        }


def run_lengths(is_object: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> dict[str, Any]:
    """Compressed RLE of an object of a picture (H, W), given its box (h, w) and the box's top left corner."""
    from pycocotools import mask as rle_masks

    height, width = size
    top, left = corner
    columns, rows = np.nonzero(is_object.T)  # COCO counts down the columns
    pixels = (left + columns) * height + top + rows
    starts = np.concatenate([[0], np.flatnonzero(np.diff(pixels) != 1) + 1])
    ends = np.concatenate([starts[1:], [len(pixels)]])
    bounds = np.stack([pixels[starts], pixels[ends - 1] + 1], axis=1).ravel()
    runs = np.diff(bounds, prepend=0, append=height * width).tolist()
    encoded = rle_masks.frPyObjects({"size": [height, width], "counts": runs}, height, width)
    return {"size": [height, width], "counts": encoded["counts"].decode()}
