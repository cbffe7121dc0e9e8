"""What tests of written predictions share: a place on a map, and a volume in a tilted space."""

from pathlib import Path

import nibabel
import numpy as np

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.places import Place
from data_utils.image_io.volumes import read_volume_header
from tasks.job import Job

SIZE = (9, 7)
PLACE = Place((2.0, 0.0, 0.0, 0.0, -2.0, 0.0), None, ())
TILTED = np.array([[0, -2.0, 0, 9], [1.5, 0, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])  # voxels of 3 x 1.5 x 2 mm


def tilted_volume_job(folder: Path, size: tuple[int, int, int] = (3, 4, 5)) -> Job:
    """The job of a volume, which is written, whose axes are not those of its space."""
    image = folder / "v.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((size[1], size[2], size[0]), np.float32), TILTED), image)
    volume = VolumeFile((str(image),))
    header = read_volume_header(volume, "v")
    return Job(source=volume, size=header.size, root=folder / "out", stem=Path("v"))
