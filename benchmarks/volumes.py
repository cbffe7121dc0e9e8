"""Patches of volumes a second for each core, as a loader's process makes them, beside nibabel's reading of the files.

python benchmarks/volumes.py FOLDER

FOLDER holds imagesTr and labelsTr with files of equal names (MSD's layout). The cache is decoded first and does not
count. Times are of the processor; patches and files take turns.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
from data import seconds_of_each

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume_header
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.classes import ClassReader
from runtime.cache import digest_of_files
from unet import Preprocess

PATCH, FILES, ROUNDS = (32, 48, 32), 40, 480  # the smallest volumes of the hippocampus are about as large


def cached_patches(images: list[Path], labels: list[Path], augment: str) -> Callable[[int], object]:
    """What a loader's process does for one patch: read from the cache, and its augmentation."""
    files = zip(images, labels, strict=True)
    pairs = [(VolumeFile((str(image),)), VolumeFile((str(label),))) for image, label in files]
    records = ListRecords({"image": image, "target": label, "name": image.paths[0]} for image, label in pairs)
    records.metadata = Metadata(dims=3)
    records.digest = digest_of_files(images + labels, b"benchmark")
    headers = [read_volume_header(image, "image") for image, _ in pairs]
    values = [read_label_volume(label, "label")[0] for _, label in pairs]
    locations = {i: [np.argwhere(mask == value)[:1000] for value in np.unique(mask)] for i, mask in enumerate(values)}
    sizes, spacings = (np.array([getattr(header, name) for header in headers]) for name in ("size", "spacing"))
    split = Split(records, sizes, class_locations=locations, spacings=spacings)
    config = DataConfig("volumes", crop_size=PATCH, augment=augment)
    reader = ClassReader(ClassMap(("background", "anterior", "posterior"), (0, 1, 2), None))
    info = DatasetInfo(config, split, split, reader, Normalization((0.0,), (1.0,), ()))
    dataset = TrainingDataset(split, info, Preprocess(spacing=(1.0, 1.0, 1.0), standardize=True))
    dataset.cache()
    order = np.random.default_rng(0).permutation(ROUNDS) % len(images)
    return lambda i: dataset[Slot(int(order[i]), i, PATCH)]


def main() -> None:
    folder = Path(sys.argv[1])
    labels = sorted((folder / "labelsTr").glob("[!.]*.nii.gz"))[:FILES]
    images = [folder / "imagesTr" / label.name for label in labels]
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_CACHE_HOME"] = work
        seconds = seconds_of_each(
            {
                "patches": cached_patches(images, labels, "none"),
                "patches and draws": cached_patches(images, labels, "basic"),
                "nibabel": lambda i: [np.asarray(nibabel.load(f[i % len(f)]).dataobj) for f in (images, labels)],
            },
            ROUNDS,
        )
    for name, value in seconds.items():
        print(f"{name}: {1 / value:.0f} a second, {seconds['nibabel'] / value:.1f} times nibabel")


if __name__ == "__main__":
    main()
