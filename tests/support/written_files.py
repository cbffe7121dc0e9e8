"""What tests of written predictions share: a volume in a tilted space, and objects with their labels and table."""

from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.places import Place
from data_utils.image_io.volumes import read_volume_header
from tasks.job import Job
from tasks.objects.decode import DetectedObject
from tasks.objects.write import IMAGE_COLUMNS

SIZE = (9, 7)
PLACE = Place((2.0, 0.0, 0.0, 0.0, -2.0, 0.0), None, ())
TILTED = np.array([[0, -2.0, 0, 9], [1.5, 0, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])  # voxels of 3 x 1.5 x 2 mm
DETECTED = DetectedObject(1, 2, 10, (1.25, 2.5), (0, 1, 3, 4), 0.54321)
LABELS = np.array([[1, 1, 0, 3], [1, 1, 0, 3], [0, 2, 2, 2]], np.uint16)


def tilted_volume_job(folder: Path, size: tuple[int, int, int] = (3, 4, 5)) -> Job:
    """The job of a volume, which is written, whose axes are not those of its space."""
    image = folder / "v.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((size[1], size[2], size[0]), np.float32), TILTED), image)
    volume = VolumeFile((str(image),))
    header = read_volume_header(volume, "v")
    return Job(source=volume, size=header.size, output=folder / "out" / "v")


def write_object_table(file: Path, *rows: tuple[int, str, tuple[int, int, int, int]]) -> Path:
    """A table of objects of four pixels: number, class, box."""
    lines = [",".join(IMAGE_COLUMNS)]
    for number, name, (top, left, bottom, right) in rows:
        lines.append(f"{number},{name},4,0.5,0.5,{top},{left},{bottom},{right},0.75")
    file.write_text("\n".join(lines) + "\n")
    return file


def write_labels(file: Path, labels: np.ndarray = LABELS) -> Path:
    Image.fromarray(labels).save(file)
    return file
