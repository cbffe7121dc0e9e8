"""How predicted classes are written and shown: values, colors, legend.

Modules: inference/outputs/classes.py.
"""

import numpy as np
import pytest
import torch
from prediction import volume_job

from data_utils.class_map import ClassMap
from data_utils.visualize import outlined_overlay
from inference.outputs import new_format
from inference.outputs.classes import ClassFormat
from inference.outputs.volumes import VolumeWriter
from runtime.errors import ImageError, SettingsError
from tasks.classes import Classes
from unet.config import Preprocess, UNetConfig

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)


def test_classes_are_written_as_the_values_that_they_had(tmp_path):
    output_format = ClassFormat(CLASSES)
    rows = np.array([[0, 1], [2, 0]], np.uint8)
    assert output_format.mask_values(rows).tolist() == [[10, 200], [255, 10]]
    assert output_format.mask_values(rows).dtype == np.uint8
    assert output_format.shades(rows) is rows
    assert output_format.names == CLASSES.names
    assert len(output_format.colors) == 3
    image = np.full((2, 2, 3), 90, np.uint8)
    assert np.array_equal(output_format.overlay(image, rows), outlined_overlay(image, rows, output_format.colors))
    assert np.asarray(output_format.legend()).shape[0] == 60
    output_format.check_volume("v")
    wide = ClassFormat(ClassMap(("a", "b"), (0, 300), None)).mask_values(rows % 2)
    assert wide.dtype == np.uint16
    assert wide.max() == 300
    colors = ClassFormat(ClassMap(("a", "b"), ((1, 2, 3), (4, 5, 6)), None))
    assert colors.mask_values(np.array([[1, 0]])).tolist() == [[[4, 5, 6], [1, 2, 3]]]
    assert colors.colors.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ImageError, match="v: the model's classes are colors, which the mask of a volume cannot hold"):
        colors.check_volume("v")
    job = volume_job(tmp_path, None)
    with pytest.raises(ImageError, match=r"image\.nii: the model's classes are colors"):
        VolumeWriter(colors, Classes(("a", "b")), (".png",)).write(job, (3, 4, 5), [torch.zeros(2, 3, 4, 5)])
    assert not job.output.parent.exists()
    assert colors.area_properties(0, 2, None) == {"class": "b", "value": "#040506"}
    assert output_format.area_properties(0, 1, None) == {"class": "sky", "value": 10}
    for suffix in (".PNG", ".jpg"):
        with pytest.raises(SettingsError, match="masks of this model are PNG files; give a folder"):
            output_format.for_file(tmp_path / f"a{suffix}")


def test_areas_are_those_of_all_classes_but_the_background_wherever_it_stands():
    rows = np.array([[0, 1], [2, 0]], np.uint8)
    (areas,) = ClassFormat(ClassMap(("sky", "background", "sea"), (0, 1, 2), None)).areas(rows)
    assert areas.tolist() == [[1, 0], [3, 1]]
    (areas,) = ClassFormat(CLASSES).areas(rows)
    assert areas.tolist() == [[1, 2], [3, 1]]


def test_a_model_says_how_its_predictions_are_written():
    preprocess = Preprocess(class_names=("a", "b"), class_values=(3, 9))
    assert new_format(UNetConfig(num_classes=2, preprocess=preprocess)).mask_values(np.array([[0, 1]])).tolist() == [
        [3, 9]
    ]
