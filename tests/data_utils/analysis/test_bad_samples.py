"""What becomes of files that cannot be used: reported all at once, skipped, or the end of the run.

Modules: train_utils/check_data.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import run_train
from support.launches import TINY, launch
from support.run_files import losses

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.analysis.normalization import Normalization
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from runtime.errors import DataError, ImageError
from train_utils.check_data import check_data
from unet.config import Preprocess

CLASSES = "0=background,255=cell"


def test_a_mask_that_changed_its_size_after_the_check_is_named(tmp_path):
    info = load_info(write_folder(tmp_path / "data", 12, seed=0))
    dataset = TrainingDataset(info.train, info, Preprocess())
    slot = Slot(0, 0, (40, 56))
    assert dataset[slot][1].shape == (40, 56)
    Image.new("L", (20, 10)).save(info.train.records[0]["target"])
    with pytest.raises(DataError, match="image is 40 x 56, its mask 10 x 20"):
        dataset[slot]


@pytest.fixture
def undecodable(tmp_path) -> DatasetInfo:
    """A data set of which an image cannot be decoded any more."""
    info = load_info(write_folder(tmp_path / "data", 12, seed=0))
    Path(info.train.records[0]["image"]).write_bytes(b"")
    return replace(info, normalization=Normalization((1, 2.5, 3), (1, 1, 1), ("uint8",)))


@pytest.mark.parametrize("kind", [TrainingDataset, EvaluationDataset])
def test_a_sample_that_cannot_be_decoded_is_an_error_or_blank_and_counts_nowhere(undecodable, kind):
    slot = Slot(0, 0, (40, 56))
    with pytest.raises(ImageError, match=r"^cell_\d+\.png: image cannot be read"):
        kind(undecodable.train, undecodable, Preprocess())[slot]
    skipping = replace(undecodable, config=replace(undecodable.config, on_bad_sample="skip"))
    image, target, *_, problem = kind(skipping.train, skipping, Preprocess())[slot]
    assert image.amin(dim=(1, 2)).tolist() == image.amax(dim=(1, 2)).tolist() == [1, 2.5, 3]
    assert target.mask.shape == (40, 56)
    assert (target.mask == 255).all()
    assert "image cannot be read" in problem


def test_all_problems_are_counted_by_their_kinds_and_named_by_their_files(broken_folder):
    alone = broken_folder / "train" / "images" / "alone.png"
    alone.write_bytes((broken_folder / "train/images/cell_20.png").read_bytes())
    report, count = check_data(DataConfig(str(broken_folder), classes=CLASSES))
    assert count == 10
    lines = ["problems: 10", "file without partner: 1", "image cannot be read: 4", "mask cannot be read: 2"]
    lines += ["mask and image differ in proportions: 1", "unknown mask value: 1", "number of channels: 1"]
    lines += [f"    cell_{i:02}" for i in range(9)]
    lines += ["alone.png: image without mask"]
    lines += ["cell_06.png: mask values 37 belong to no class; classes are 0, 255"]
    lines += ["cell_08.png: image cannot be read ([Errno 2] No such file"]
    assert [line for line in lines if line not in report] == []


def test_a_report_or_an_error_names_the_flag_that_trains_without_bad_files(broken_folder):
    report, _ = check_data(DataConfig(str(broken_folder), classes=CLASSES))
    assert report.endswith("--on-bad-sample skip trains without the files that cannot be used")
    with pytest.raises(DataError) as error:
        load_info(broken_folder, classes=CLASSES, allow_unpaired=True)
    assert str(error.value).startswith("7 of 24 pairs cannot be used: cell_00.png: image cannot be read")
    assert str(error.value).endswith("; ...; --on-bad-sample skip trains without them")
    assert "\n" not in str(error.value)


def test_bad_samples_are_skipped_in_one_order_on_any_number_of_processes(broken_folder, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--epochs", "1", "--log-every", "1", "--max-steps", "6"]
    flags = ["--dataset", broken_folder, *TINY, *options, "--tracker", "none", "--optimizer", "sgd"]
    one = run_train(tmp_path / "one", *flags)
    assert one.exit_code == 0, one.output
    two = launch("train.py", *flags, "--output-dir", tmp_path / "two", profile="multi_cpu")
    assert two.returncode == 0, two.stderr
    outputs = [one.output, two.stdout]
    for output in outputs:
        assert "9 bad samples were skipped in training" in output
        assert all(f"cell_{i:02}" in output for i in range(9))
    assert len(losses(one.folder)) == 6
    # the documented promise, of SGD in fp32
    assert losses(one.folder) == pytest.approx(losses(tmp_path / "two"), abs=1e-5)


def test_the_output_folder_of_a_run_that_bad_samples_ended_may_be_given_again(broken_folder, tmp_path, fails_with):
    command = ["train.py", "--dataset", broken_folder, "--classes", CLASSES, *TINY, "--output-dir", tmp_path / "run"]
    fails_with(launch(*command), "pairs cannot be used: cell_00.png", 1)
    result = launch(*command, "--on-bad-sample", "skip", "--max-steps", "1", "--tracker", "none")
    assert result.returncode == 0, result.stderr
