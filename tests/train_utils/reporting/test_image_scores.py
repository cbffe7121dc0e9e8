"""images.csv: the score of each validation image.

Module: train_utils/metrics_log.py.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from train_utils.metrics_log import read_image_scores, write_image_scores

NAMES = ["a,b", 'say "x"', "two\nlines", "thrice", "thrice", "thrice", "thrice", "half \udcff"]
SCORES = [0.1, 0.0, 1.0, 0.4, 0.5, 0.10012562572956085, 0.6, 0.7]


class EightImages:
    """A split of images with difficult NAMES, of which number 3 is damaged."""

    def __init__(self) -> None:
        self.records = SimpleNamespace(name=NAMES.__getitem__)
        self.bad = {3: "thrice: unreadable"}

    def __len__(self) -> int:
        return 8


INFO = SimpleNamespace(val=EightImages())


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of a run with scores of eight images."""
    write_image_scores(tmp_path, INFO, "mean IoU", SCORES)
    return tmp_path


def test_names_and_scores_of_images_survive_their_file(folder):
    scores = read_image_scores(folder)
    assert list(scores) == ["a,b", 'say "x"', r"two\nlines", "thrice", "thrice (2)", "thrice (3)", r"half \udcff"]
    assert [*scores.values()][:3] == [0.1, 0.0, 1.0]
    assert np.float32(scores["thrice (2)"]) == np.float32(0.10012562572956085)
    assert (folder / "images.csv").read_bytes().startswith(b'image,mean IoU\n"a,b",0.1\n')


def test_scores_of_another_number_of_images_are_not_written(folder):
    before = read_image_scores(folder)
    write_image_scores(folder, INFO, "mean IoU", SCORES[:3])
    assert read_image_scores(folder) == before


def test_scores_that_a_checkpoint_lacks_make_no_file(tmp_path):
    write_image_scores(tmp_path, INFO, "mean IoU", [])  # of a checkpoint of an earlier version
    assert not (tmp_path / "images.csv").exists()
