"""Which true mask belongs to which input.

Modules: inference/true_masks.py.
"""

from pathlib import Path

import numpy as np
import pytest

from inference.true_masks import files_below, open_true_masks


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_come_in_the_order_of_their_names_whatever_the_disk_says(tmp_path):
    order = np.random.default_rng(0).permutation(40)
    touch(tmp_path, *[f"{number % 3}/{number:02}.png" for number in order])
    files = [file.relative_to(tmp_path).as_posix() for file in files_below(tmp_path) if file.is_file()]
    assert files == sorted(files) and len(files) == 40


@pytest.mark.parametrize(("name", "unknown"), [("a", (1, 2)), ("b", (0, 2)), ("c", (0, 1))])
def test_a_volume_may_have_a_mask_of_any_of_the_classes_alone(tmp_path, name, unknown):
    touch(tmp_path, f"{name}/v.nii.gz", "a/x.nii.gz", "b/x.nii.gz", "c/x.nii.gz")
    masks = open_true_masks(tmp_path, "", [Path("v"), Path("x")], ["a", "b", "c"])
    volume = masks.find(Path("v"), Path("v"), 0, 1)
    assert volume.paths == (str(tmp_path / name / "v.nii.gz"),) and volume.layers.unknown == unknown
    assert len(masks.find(Path("x"), Path("x"), 0, 1).paths) == 3
