"""Masks stored at another size than their images: usable where the proportions agree, scored at their own size.

Modules: tasks/classes/reader.py, data_utils/loading/dataset.py.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import run_train

from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from runtime.errors import DataError
from train_utils.check_data import check_data
from unet import Preprocess, UNet

TINY = ["--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0", "--tracker", "none"]
TINY += ["--plan", "none"]


def resize_masks(folder: Path, files: list[str], size: tuple[int, int]) -> None:
    """Store masks at another `size` (H, W)."""
    for name in files:
        file = folder / "masks" / name
        Image.open(file).resize(size[::-1], Image.Resampling.NEAREST).save(file)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """8 and 4 pairs of 40 x 56; in each split two masks of half the size, in `val` one of twice the size too."""
    for split, count in (("train", 8), ("val", 4)):
        write_folder(tmp_path / split, count, seed=count)
        resize_masks(tmp_path / split, ["cell_01.png", "cell_03.png"], (20, 28))
    resize_masks(tmp_path / "val", ["cell_02.png"], (80, 112))
    return tmp_path


@pytest.mark.parametrize(("scale", "factor"), [(0.5, 1), (1.0, 2)])
def test_training_sees_a_smaller_mask_at_the_size_of_the_network(data, scale, factor):
    info = load_info(data, scale=scale)
    size = (20 * factor, 28 * factor)
    image, target, *_ = TrainingDataset(info.train, info, Preprocess(scale=scale))[Slot(1, 0, size)]
    stored = np.array(Image.open(data / "train" / "masks" / "cell_01.png"))
    assert image.shape[1:] == size
    np.testing.assert_array_equal(target.mask.numpy(), np.kron(stored // 255, np.ones((factor, factor), np.uint8)))


def test_one_line_says_how_many_masks_are_so_the_second_time_too(data, capsys):
    line = "5 of 12 masks have another size than their images but the same proportions"
    for _ in range(2):  # the second time from what was remembered
        (warning,) = load_info(data).warnings
        assert warning.startswith(line)
    report, problems = check_data(DataConfig(str(data)))
    assert problems == 0
    assert f"to check: {line}" in report
    assert load_info(write_folder(data / "plain", 4, seed=0)).warnings == ()


def test_masks_of_other_proportions_are_refused_by_name_and_sizes(data):
    resize_masks(data / "train", ["cell_05.png"], (20, 36))
    line = r"cell_05.png: image is 40 x 56, its mask 20 x 36 \(height x width\); they differ in proportions"
    with pytest.raises(DataError, match=f"1 of 8 pairs cannot be used: {line}"):
        load_info(data)
    report, problems = check_data(DataConfig(str(data)))
    assert problems == 1
    assert "mask and image differ in proportions: 1" in report


def test_scores_of_a_run_count_the_pixels_of_the_masks_themselves(data, tmp_path):
    run = run_train(tmp_path / "run", "--dataset", data, *TINY, "--max-steps", "4", "--eval-every", "4")
    assert run.exit_code == 0, run.output
    model = UNet.from_pretrained(run.folder / "model")
    matrix = np.zeros((2, 2), int)
    for file in sorted((data / "val" / "images").iterdir()):
        truth = np.array(Image.open(data / "val" / "masks" / file.name)) // 255
        with torch.no_grad():
            logits = model(torch.tensor(np.array(Image.open(file))).permute(2, 0, 1)[None])
        resized = F.interpolate(logits, truth.shape, mode="bilinear", align_corners=False)
        np.add.at(matrix, (truth, resized.argmax(dim=1)[0].numpy()), 1)
    hits = matrix.diagonal()
    expected = (hits / (matrix.sum(axis=0) + matrix.sum(axis=1) - hits)).mean()
    assert matrix.sum() == 40 * 56 + 2 * 20 * 28 + 80 * 112
    assert run.values("eval/mean_iou")[-1] == pytest.approx(expected, rel=1e-12)
    assert (run.folder / "report.html").exists()  # whose pictures show masks over images
