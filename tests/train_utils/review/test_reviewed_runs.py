"""Runs that review masks: their data must be what they were, and volumes are read slice by slice.

Modules: train_utils/review/runs.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.reports import class_section
from support.volumes import RAS, write_nifti

from data_utils.image_io.formats import VolumeFile
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError
from train_utils.review import runs
from train_utils.review.runs import (
    ReviewedRun,
    open_reviewed_run,
    predicted_examples,
)
from train_utils.settings.record import RunSettings


@pytest.fixture(
    params=[([1.0, 0.5, 3.0, 1.0], 1, 2), ([0.5, 1.0, 3.0, 1.0], 0, 2)],
    ids=["coarse rows", "coarse columns"],
)
def volume(request, tmp_path) -> SimpleNamespace:
    """A run of one volume whose voxels are longer along one axis of its slices: the run, voxels, axis, and factor."""
    sides, coarse_axis, factor = request.param
    voxels = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    labels = (voxels % 2).astype(np.uint8)
    affine = RAS @ np.diag(sides)
    image = VolumeFile((str(write_nifti(tmp_path / "image.nii", voxels, affine)),))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    records = ListRecords([{"image": image, "target": label, "name": "case"}], Metadata(dims=3))
    info = SimpleNamespace(reader=class_section("ab").reader, val=SimpleNamespace(records=records, bad={}))
    prediction = 1 - labels.transpose(2, 1, 0)
    run = ReviewedRun("run", info, SimpleNamespace(labels=lambda source, name: prediction))
    return SimpleNamespace(run=run, slices=voxels.transpose(2, 1, 0), coarse_axis=coarse_axis, factor=factor)


@pytest.mark.parametrize(("place", "number"), [(0, 1), (1, 0)], ids=["upper", "lower"])
def test_slices_are_shown_as_radiologists_see_them_with_square_pixels(volume, place, number):
    example = predicted_examples(volume.run, 0, [1, 0])[place]
    shown = volume.slices[number].repeat(volume.factor, axis=volume.coarse_axis)[::-1, ::-1]
    assert example.name == f"slice {number}"
    assert np.array_equal(np.squeeze(example.image), shown)
    assert np.array_equal(example.truth, shown % 2)
    assert np.array_equal(example.pred, 1 - shown % 2)


def test_a_run_of_other_classes_is_refused(tmp_path, monkeypatch):
    settings = RunSettings(
        flags={"dataset": "photos"}, identity={"task": "classes", "data set": "1 + 1", "classes": ["a"]}
    )
    info = SimpleNamespace(reader=SimpleNamespace(identity=("b",)), fingerprint=lambda: "1 + 1")
    monkeypatch.setattr(runs, "read_settings", lambda folder: settings)
    monkeypatch.setattr(runs, "load_dataset_info", lambda config: info)
    with pytest.raises(DataError, match=r"^the masks have other classes now than in the run$"):
        open_reviewed_run(tmp_path, None, torch.device("cpu"))
