"""NIfTI files; nibabel reads their headers."""

import logging
import warnings
from functools import cache
from typing import Any

from data_utils.image_io.stored_volume import FileVolume

MM = {"unknown": 1.0, "mm": 1.0, "meter": 1e3, "micron": 1e-3}  # mm in each of NIfTI's units


class NiftiVolume(FileVolume):
    """A NIfTI file; channels are the fourth axis. `image` is nibabel's."""

    def __init__(self, path: str) -> None:
        nibabel = load_nibabel()
        self.image = nibabel.load(path)
        if not isinstance(self.image, nibabel.Nifti1Image):
            raise ValueError(f"a {type(self.image).__name__}, not a NIfTI volume")
        stored = self.image.dataobj
        sizes = tuple(map(int, stored.shape))
        if len(sizes) not in (3, 4) or min(sizes) < 0:
            sides = " x ".join(map(str, sizes))
            raise ValueError(f"it has {len(sizes)} axes, {sides}; a volume has 3, or 4 with its channels")
        is_compressed = path.lower().endswith(".gz")
        affine = self.image.affine.copy()
        affine[:3] *= MM[self.image.header.get_xyzt_units()[0]]
        super().__init__(
            path,
            sizes if len(sizes) == 4 else (*sizes, 1),
            channel_axis=3,
            stored_type=self.image.header.get_data_dtype(),
            skipped=0 if is_compressed else stored.offset,
            is_compressed=is_compressed,
            affine=affine,
            skipped_inside=stored.offset,
            scale=(stored.slope, stored.inter),
        )

    @property
    def has_place(self) -> bool:
        """Whether the header says where the voxels lie; else nibabel makes a place up."""
        return bool(self.image.header["sform_code"] > 0 or self.image.header["qform_code"] > 0)


@cache
def load_nibabel() -> Any:
    """Import nibabel, silent about odd headers; only here, so that users with images do not wait for it."""
    import nibabel

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="nibabel")
    return nibabel
