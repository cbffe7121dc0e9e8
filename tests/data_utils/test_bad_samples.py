"""What becomes of files that cannot be used: reported all at once, skipped, or the end of the run.

Modules: data_utils/analysis/check_data.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from conftest import TINY, launch, load_info, losses, write_folder
from in_process import run_train
from PIL import Image

from data_utils.analysis.check_data import check_data
from data_utils.analysis.normalization import Normalization
from data_utils.analysis.problems import merge_equal
from data_utils.config import DataConfig
from data_utils.image_io.reader import DecodedImage
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from runtime.errors import DataError, ImageError
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


@pytest.mark.parametrize("kind", [TrainingDataset, EvaluationDataset])
def test_a_skipped_sample_is_blank_and_counts_nowhere(tmp_path, monkeypatch, kind):
    def decode_image(source: object, name: str, draft_for: Preprocess) -> DecodedImage:
        raise ImageError(f"{name}: broken")

    monkeypatch.setattr("data_utils.loading.samples.decode_image", decode_image)
    info = load_info(write_folder(tmp_path / "data", 12, seed=0))
    info = replace(info, normalization=Normalization((1, 2.5, 3), (1, 1, 1), ("uint8",)))
    skipping = replace(info, config=replace(info.config, on_bad_sample="skip"))
    image, target, *_, problem = kind(skipping.train, skipping, Preprocess())[Slot(0, 0, (24, 32))]
    assert image.amin(dim=(1, 2)).tolist() == [1, 2.5, 3]
    assert image.amax(dim=(1, 2)).tolist() == [1, 2.5, 3]
    assert target.mask.shape == (24, 32)
    assert (target.mask == 255).all()
    assert problem.endswith("broken")
    with pytest.raises(ImageError, match=r"broken$"):
        kind(info.train, info, Preprocess())[Slot(0, 0, (24, 32))]


def test_all_problems_are_reported_at_once(broken):
    (broken / "train" / "images" / "alone.png").write_bytes((broken / "train/images/cell_20.png").read_bytes())
    report, count = check_data(DataConfig(str(broken), classes=CLASSES))
    assert count == 10
    assert "problems: 10" in report
    for i in range(9):
        assert f"    cell_{i:02}" in report
    for line in (
        "file without partner: 1",
        "image cannot be read: 4",
        "mask cannot be read: 2",
        "mask and image differ in proportions: 1",
        "unknown mask value: 1",
        "number of channels: 1",
        "alone.png: image without mask",
        "cell_06.png: mask values 37 belong to no class; classes are 0, 255",
        "sizes (height x width): 40 x 56: ",
        "image modes: RGB: ",
        "cell_08.png: image cannot be read ([Errno 2] No such file",
    ):
        assert line in report, report
    shares = [float(line.split()[1]) for line in report.splitlines() if " %  " in line]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=0.01)


def test_a_report_names_twenty_files_of_a_problem(tmp_path):
    folder = write_folder(tmp_path, 30, seed=0)
    for i in range(25):
        (folder / "masks" / f"cell_{i:02}.png").write_bytes(b"")
    report, count = check_data(DataConfig(str(folder)))
    assert count == 25
    assert "mask cannot be read: 25" in report
    (line,) = [text for text in report.splitlines() if "cell_00.png" in text]  # one for all files, with twenty names
    assert line.startswith("    25 files (cell_00.png, cell_01.png,")
    assert line.count("cell_") == 20
    assert "...)" in line


def test_lines_that_differ_in_numbers_only_become_one_with_a_count():
    texts = [f"{name}.png: mask values {name}7, 4 belong to no class" for name in range(12)]
    texts += ["a.png: image is 40 x 56, its mask 10 x 20", "b.png: image is 40 x 56, its mask 10 x 21", "alone"]
    first, *further_lines = merge_equal(texts)
    assert first == "12 files (0.png, 1.png, 2.png, ...): mask values 07, 4 belong to no class"
    assert further_lines == texts[12:]


def test_a_report_names_the_flags_that_train_without_the_files(broken):
    report, _ = check_data(DataConfig(str(broken), classes=CLASSES))
    assert report.endswith("--on-bad-sample skip trains without the files that cannot be used")
    (broken / "train" / "images" / "alone.png").write_bytes((broken / "train/images/cell_20.png").read_bytes())
    report, _ = check_data(DataConfig(str(broken), classes=CLASSES))
    assert "--allow-unpaired trains without the files that have no partner" in report
    with pytest.raises(DataError, match="--on-bad-sample skip trains without them"):
        load_info(broken, classes=CLASSES, allow_unpaired=True)


def test_what_is_to_check_is_not_followed_by_no_problems(tmp_path):
    folder = write_folder(tmp_path, 12, seed=0)
    mask = folder / "masks" / "cell_00.png"
    pixels = np.array(Image.open(mask))
    pixels[0, 0] = 100
    Image.fromarray(pixels).save(mask)
    report, count = check_data(DataConfig(str(folder)))
    assert count == 0
    assert "to check: rare" in report
    assert report.splitlines()[-1].startswith("no problems, but 1 to check, see above")


def test_a_split_whose_masks_hold_too_many_colors_together_is_a_line_of_the_report(tmp_path):
    for split, count in {"train": 2, "val": 1}.items():
        write_folder(tmp_path / split, count, seed=0)
        for index in range(count):
            colors = np.zeros((40, 56, 3), np.uint8)
            colors[0, :, :2] = np.arange(56)[:, None]
            if split == "train":
                colors[1:4, :, :2] = np.arange(168).reshape(3, 56, 1)
                colors[1:4, :, 2] = index + 1
            Image.fromarray(colors).save(tmp_path / split / "masks" / f"cell_{index:02}.png")
    report, count = check_data(DataConfig(str(tmp_path)))
    assert count == 1, report
    assert "too many mask values: 1" in report, report
    assert "cell_01.png hold more than 255 values" in report, report


def test_check_data_ends_with_1_where_there_are_problems(broken, tiny_folder, tmp_path):
    result = launch("train.py", "--dataset", broken, "--classes", CLASSES, "--check-data")
    assert result.returncode == 1
    assert "problems: 9" in result.stdout
    assert "Traceback" not in result.stderr
    result = launch("train.py", "--dataset", tiny_folder, "--check-data", "--output-dir", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "no problems" in result.stdout, result.stderr
    assert not (tmp_path / "run").exists()


def test_bad_samples_are_skipped_in_one_order_on_any_number_of_processes(broken, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--epochs", "1", "--log-every", "1", "--max-steps", "6"]
    flags = ["--dataset", broken, *TINY, *options, "--tracker", "none", "--optimizer", "sgd"]
    one = run_train(tmp_path / "one", *flags)
    two = launch("train.py", *flags, "--output-dir", tmp_path / "two", profile="multi_cpu")
    assert (one.exit_code, two.returncode) == (0, 0), one.output + two.stderr
    for output in (one.output, two.stdout):
        assert "9 bad samples were skipped in training" in output
        assert all(f"cell_{i:02}" in output for i in range(9))
    assert len(losses(one.folder)) == 6
    # the documented promise, of SGD in fp32
    assert losses(one.folder) == pytest.approx(losses(tmp_path / "two"), abs=1e-5)


def test_bad_samples_end_training_otherwise_and_the_output_folder_may_be_given_again(broken, tmp_path, fails_with):
    command = ["train.py", "--dataset", broken, "--classes", CLASSES, *TINY, "--output-dir", tmp_path / "run"]
    fails_with(launch(*command), "pairs cannot be used: cell_00.png", 1)
    result = launch(*command, "--on-bad-sample", "skip", "--max-steps", "1", "--tracker", "none")
    assert result.returncode == 0, result.stderr
