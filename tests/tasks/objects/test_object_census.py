"""The objects of a data set as its report counts them: their number, sizes, and those that touch."""

import numpy as np
from PIL import Image
from support.objects import Masks, numbered, write_discs

from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Records
from tasks.objects.reader import ObjectReader, describe_objects
from train_utils.check_data import check_data


def test_check_data_counts_objects(tmp_path):
    write_discs(tmp_path, [3, 5, 8, 9], seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[2:6, 2:6], ids[2:6, 6:10], ids[20:24, 20:30], ids[40:42, 40:42] = 1, 2, 900, 900
    Image.fromarray(ids).save(tmp_path / "masks" / "00.png")
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 0, report
    other_masks = [np.array(Image.open(file)) for file in sorted((tmp_path / "masks").iterdir())[1:]]
    total = 3 + sum(int(values.max()) for values in other_masks)
    assert f"objects: {total} in 4 of 4 images;" in report
    assert "sizes of objects in pixels: 16 to " in report
    assert ") touch another object" in report
    assert "to check: in 1 image a number names several pieces, which count as one object: 00.png" in report


def test_counts_add_up_over_images():
    images = {
        "first": np.array([[1, 0], [0, 1]]),  # a corner joins
        "second": np.array([[1, 1, 2, 0, 3]]),
        "third": np.array([[0, 0, 0, 0]]),
        "fourth": np.array([[5, 5, 6, 0, 6]]),
    }
    assert describe_objects(images.items()) == [
        "objects: 6 in 3 of 4 images; 1.5 an image, 3 at most",
        "sizes of objects in pixels: 1 to 2, median 2; 4 (66.7%) touch another object",
        "to check: in 1 image a number names several pieces, which count as one object: fourth",
    ]


def test_the_report_counts_objects_of_masks_that_can_be_read():
    # the first is among the problems
    records = Records(ListRows([{"image": "", "target": "nowhere.png", "name": "gone"}, *Masks([numbered(3)])]))
    lines = ObjectReader().describe_records([records, Masks([numbered(2)])])
    assert lines[0] == "objects: 5 in 2 of 2 images; 2.5 an image, 3 at most"
