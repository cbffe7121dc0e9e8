"""What predict.py takes: files, folders, globs, pages of TIFFs, and how they are shared out.

Modules: inference/input_files.py, inference/inputs.py, inference/readers.py.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from conftest import predict
from PIL import Image
from prediction import touch

from data_utils.image_io.class_masks import ClassFile, ClassMasks
from data_utils.image_io.formats import BandSource, PictureFile
from data_utils.loading.batch_sampler import images_per_batch, pixels_per_batch
from inference import Predictor
from inference.batches import batches_of, share_of
from inference.inputs import InputRules, find_jobs, named_job
from inference.outputs.jobs import ImageJob, MaskFile
from inference.readers import read_inputs
from inference.true_masks import TruthFolder
from runtime.errors import DataError
from unet.config import Preprocess, UNetConfig


def test_globs_keep_the_folders_that_they_match(model, photos, tmp_path):
    result = predict(model, [f"{photos}/*/*.tif", f"{photos}/a.*"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == ["a.png", "sub/c.png"]


def test_outputs_never_take_the_place_of_inputs_or_of_each_other(model, photos, tmp_path, fails_with):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "a.overlay.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    fails_with(predict(model, [folder], tmp_path / "out", "--overlay"), "would both write", 1)
    fails_with(predict(model, [folder / "a.overlay.png"], folder), "is an input, not to be overwritten", 1)
    legend = tmp_path / "legend.png"
    Image.new("RGB", (8, 8)).save(legend)
    fails_with(predict(model, [legend], tmp_path / "out", "--overlay"), "the legend of the overlays; rename it", 1)
    assert predict(model, [legend], tmp_path / "out").returncode == 0
    fails_with(predict(model, [folder], folder), "is a folder of inputs", 1)
    for _ in range(2):  # the second time does not take the masks for images
        assert "2 of 2 masks" in predict(model, [folder], folder / "masks").stdout
    for pattern in ("*", "**/*.*g"):
        jobs = find_jobs([f"{folder}/{pattern}"], folder / "masks", [".png"])
        assert {job.image.name for job in jobs} == {"a.jpg", "a.overlay.png"}


def test_pages_of_a_tiff_are_predicted_and_scored_one_by_one(model, tmp_path):
    pages = np.random.default_rng(0).integers(0, 256, (3, 40, 50), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "stack.tif", pages, photometric="minisblack")
    for number, page in enumerate(pages):
        Image.fromarray(page).save(tmp_path / f"{number}.png")
    assert predict(model, [tmp_path / "in"], tmp_path / "out").returncode == 0
    assert predict(model, [tmp_path / f"{number}.png" for number in range(3)], tmp_path / "one").returncode == 0
    masks = [np.asarray(Image.open(tmp_path / "out" / f"stack_000{number + 1}.png")) for number in range(3)]
    of_third = Predictor.from_pretrained(model).mask(tmp_path / "in" / "stack.tif", page=2)
    np.testing.assert_array_equal(np.array([10, 200, 255])[of_third], masks[2])
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(mask, np.asarray(Image.open(tmp_path / "one" / f"{number}.png")))
    (tmp_path / "truth").mkdir()
    tifffile.imwrite(tmp_path / "truth" / "stack.tif", np.stack(masks), photometric="minisblack")
    for truth in (tmp_path / "truth", tmp_path / "out"):
        result = predict(model, [tmp_path / "in"], tmp_path / "scored", "--truth", truth)
        assert result.returncode == 0, result.stderr
        report = json.loads((tmp_path / "scored" / "metrics.json").read_text())
        assert report["images"] == 3
        assert report["pixel_accuracy"] == 1


def test_a_header_that_tells_another_size_costs_nobody_a_mask(model, tmp_path):
    """A PNG whose EXIF orientation comes after its pixels."""
    folder = tmp_path / "in"
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    picture.save(folder / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "b.png", exif=exif)
    content = (folder / "b.png").read_bytes()
    start = content.index(b"eXIf") - 4
    stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
    end = content.index(b"IEND") - 4
    (folder / "b.png").write_bytes(content[:start] + content[stop:end] + content[start:stop] + content[end:])
    result = predict(model, [folder], tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert Image.open(tmp_path / "out" / "a.png").size == (60, 40)
    assert Image.open(tmp_path / "out" / "b.png").size == (40, 60)


def test_work_is_shared_by_pixels():
    sizes = [(2000, 2000), *[(100, 100)] * 8, (300, 200), (1500, 1500), (1200, 1300)]
    jobs = [
        ImageJob(image=Path(f"{number}.png"), size=size, output=Path(str(number))) for number, size in enumerate(sizes)
    ]
    pixels = pixels_per_batch(torch.device("cpu"))
    batches = batches_of(jobs, lambda size: (size, images_per_batch(pixels, size)))
    assert max(map(len, batches)) == 8
    shares = [share_of(batches, process, 2) for process in range(2)]
    assert sorted((job for share in shares for batch in share for job in batch), key=jobs.index) == jobs
    pixels = [sum(job.pixels for batch in share for job in batch) for share in shares]
    assert max(pixels) / min(pixels) < 1.1


def test_a_hostile_file_among_three_good_ones_costs_no_mask(tmp_path, model):
    (tmp_path / "in").mkdir()
    for name in "abc":
        Image.new("RGB", (20, 16), (90, 50, 10)).save(tmp_path / "in" / f"{name}.png")
    for number, content in enumerate(
        (b"", b"II*\0\x08\0\0\0" + b"\xff" * 400, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0" * 99)
    ):
        (tmp_path / "in" / "hostile.tif").write_bytes(content)
        result = predict(model, [tmp_path / "in"], tmp_path / f"out{number}")
        assert result.returncode == 1, result.stderr
        assert "3 of 4 masks" in result.stdout, result.stderr
        assert sorted(path.name for path in (tmp_path / f"out{number}").glob("*.png")) == ["a.png", "b.png", "c.png"]
        assert "Traceback" not in result.stderr
        assert "hostile.tif" in result.stderr


def test_names_of_any_bytes_are_predicted_and_named_in_one_line(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (b"a\xff.png", b"b\nc.png"):
        Image.new("RGB", (20, 16)).save(folder / "x.png")
        (folder / "x.png").rename(folder / os.fsdecode(name))
    (folder / os.fsdecode(b"d\n\xfe\x1b[2J.png")).write_bytes(b"no picture")
    result = predict(model, [folder], tmp_path / "out", "--overlay")
    assert "2 of 3 masks" in result.stdout, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "failed:" in line]
    assert r"d\n\udcfe\x1b[2J.png" in line
    assert (tmp_path / "out" / os.fsdecode(b"a\xff.png")).is_file()


def outputs(folder: Path, *patterns: str, channels: int = 1, **options) -> dict[str, tuple[str, ...]]:
    """The outputs of inputs below `folder`, each with the files that are read for it."""
    inputs = [str(folder / pattern) for pattern in patterns]
    jobs = find_jobs(inputs, folder / "out", [".png"], InputRules(channels), **options)
    relative = {}
    for job in jobs:
        files = tuple(str(Path(file).relative_to(folder)) for file in job.files)
        relative[str(job.output.relative_to(folder / "out"))] = files
    return relative


def test_a_folder_holds_pictures_and_volumes_but_no_hidden_files(tmp_path):
    touch(tmp_path, "in/b.png", "in/a.PNG", "in/.c.png", "in/sub/.d/e.png", "in/sub/f.nii.gz")
    (tmp_path / "in" / "notes.txt").write_text("")
    assert outputs(tmp_path, "in") == {"a": ("in/a.PNG",), "b": ("in/b.png",), "sub/f": ("in/sub/f.nii.gz",)}
    assert outputs(tmp_path, "in/b.png", "in") == {
        "b": ("in/b.png",),
        "a": ("in/a.PNG",),
        "sub/f": ("in/sub/f.nii.gz",),
    }
    assert outputs(tmp_path, "*/*.png") == {"in/b": ("in/b.png",)}
    assert outputs(tmp_path, "i*") == {"in/a": ("in/a.PNG",), "in/b": ("in/b.png",), "in/sub/f": ("in/sub/f.nii.gz",)}


def test_channels_of_a_case_are_joined_where_the_model_takes_several_or_all_have_but_the_first(tmp_path):
    touch(
        tmp_path, "two/a_0000.nii.gz", "two/a_0001.nii.gz", "one/a_0000.nii.gz", "one/b_0000.nii.gz", "x/a_0000.nii.gz"
    )
    touch(tmp_path, "x/b.nii.gz")
    both = ("two/a_0000.nii.gz", "two/a_0001.nii.gz")
    assert outputs(tmp_path, "two", channels=2) == {"a": both}
    assert outputs(tmp_path, *reversed(both), channels=2) == {"a": both}  # in the order of their numbers
    assert outputs(tmp_path, "two") == {"a_0000": both[:1], "a_0001": both[1:]}
    assert outputs(tmp_path, "one") == {"a": ("one/a_0000.nii.gz",), "b": ("one/b_0000.nii.gz",)}
    assert outputs(tmp_path, "x") == {"a_0000": ("x/a_0000.nii.gz",), "b": ("x/b.nii.gz",)}
    assert outputs(tmp_path, "o*") == {"one/a": ("one/a_0000.nii.gz",), "one/b": ("one/b_0000.nii.gz",)}
    touch(tmp_path, "pictures/a_0000.png", "pictures/a_0001.png")
    assert outputs(tmp_path, "pictures", channels=3) == {
        "a_0000": ("pictures/a_0000.png",),
        "a_0001": ("pictures/a_0001.png",),
    }


def test_pages_are_numbered_from_one_and_stacks_are_volumes_where_a_spacing_is_known(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    pages = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"])
    assert [(job.output.name, job.page, job.size) for job in pages] == [
        ("s_0001", 0, (4, 5)),
        ("s_0002", 1, (4, 5)),
        ("s_0003", 2, (4, 5)),
    ]
    assert [job.stored for job in pages] == [None] * 3
    (stack,) = find_jobs(
        [str(tmp_path / "s.tif")], tmp_path / "out", [".png"], InputRules(stack_spacing=(3.0, 1.0, 1.0))
    )
    assert (stack.size, stack.spacing, stack.output.name) == ((3, 4, 5), (3, 1, 1), "s")
    rules = InputRules(reads_places=False)
    pictures = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"], rules)
    assert [job.source for job in pictures] == [PictureFile(str(tmp_path / "s.tif"), page) for page in range(3)]
    touch(tmp_path, "a.png")
    (picture,) = find_jobs([str(tmp_path / "a.png")], tmp_path / "out", [".png"], rules)
    assert picture.source == tmp_path / "a.png"
    bands = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"], InputRules(bands=("1",)))
    assert [job.source for job in bands] == [BandSource((str(tmp_path / "s.tif"),), ("1",), page) for page in range(3)]
    (tmp_path / "s.tif").rename(tmp_path / "S.TIF")
    (stack,) = find_jobs(
        [str(tmp_path / "S.TIF")], tmp_path / "out", [".png"], InputRules(stack_spacing=(3.0, 1.0, 1.0))
    )
    assert stack.size == (3, 4, 5)


def test_inputs_that_cannot_be_are_one_line(tmp_path, capsys):
    touch(tmp_path, "in/a.png", "in/a.tif", "in/legend.png", "other/a.png")
    with pytest.raises(DataError, match=r"in/a\.png and .*in/a\.tif would both write .*out/a\.png; give one of them"):
        outputs(tmp_path, "in")
    with pytest.raises(DataError, match="would both write"):
        find_jobs([str(tmp_path / "in")], tmp_path / "out", [".png"])
    with pytest.raises(DataError, match=r"in/a\.png is an input, not to be overwritten; choose another folder"):
        find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "in", [".png"])
    with pytest.raises(DataError, match="is a folder of inputs; masks must not lie among images"):
        find_jobs([str(tmp_path / "in")], tmp_path / "in", [".png"])
    with pytest.raises(DataError, match=r"legend\.overlay\.png, the legend of the overlays; rename it"):
        find_jobs([str(tmp_path / "in" / "legend.png")], tmp_path / "out", [".png", ".overlay.png"])
    assert len(find_jobs([str(tmp_path / "in" / "legend.png")], tmp_path / "out", [".png"])) == 1
    touch(tmp_path, "points.png")
    with pytest.raises(DataError, match=r"points\.png would write .*points\.json, which is of all inputs; rename it"):
        find_jobs([str(tmp_path / "points.png")], tmp_path / "out", [".json"])
    (tmp_path / "unread" / "sub").mkdir(parents=True)
    (tmp_path / "unread" / "sub" / "b.HEIC").write_bytes(b"heic")
    wrong = {
        "": "--input: is empty",
        f"{tmp_path}/none*": "no image or volume found",
        f"{tmp_path}/none": "is not there",
        "/dev/null": "is neither a file nor a folder",
        f"{tmp_path}/unread": "no image or volume found; convert HEIC to JPEG or PNG",
    }
    for pattern, line in wrong.items():
        with pytest.raises(DataError, match=line):
            find_jobs([pattern], tmp_path / "out", [".png"])
    touch(tmp_path, "phone/a.png")
    (tmp_path / "phone" / "b.HEIC").write_bytes(b"heic")
    assert len(find_jobs([f"{tmp_path}/phone"], tmp_path / "out", [".png"])) == 1
    assert "left out 1 files that are not read, the first is b.HEIC; convert HEIC" in capsys.readouterr().out
    (tmp_path / "truth").mkdir()
    touch(tmp_path, "truth/b.png")
    touch(tmp_path, "other/b.png", "other/c.png")
    with pytest.raises(DataError, match=r"has no mask for 2 inputs, the first is a; if the masks have a suffix"):
        find_jobs([str(tmp_path / "other")], tmp_path / "out", [".png"], truth=TruthFolder(tmp_path / "truth"))


@pytest.mark.parametrize(
    "name",
    ["predict.json", "metrics.json", "points.csv", "points.tps", "points.json", "rank.csv", "legend.overlay.png"],
)
def test_no_input_writes_what_is_written_of_all(tmp_path, name):
    stem, _, extension = name.partition(".")
    touch(tmp_path, f"{stem}.png", f"sub/{stem}.png")
    with pytest.raises(DataError, match=rf"{stem}\.png would write .*{stem}\.\w+.*rename it"):
        find_jobs([str(tmp_path / f"{stem}.png")], tmp_path / "out", [f".{extension}"])
    assert len(find_jobs([f"{tmp_path}/*/{stem}.png"], tmp_path / "out", [f".{extension}"])) == 1  # in a subfolder


def test_inputs_are_known_under_other_names_of_their_folders(tmp_path):
    touch(tmp_path, "in/a.png", "in/sub/deep/b.png", "out/notes.png")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(DataError, match="link: is a folder of inputs; masks must not lie among images"):
        find_jobs([str(tmp_path / "in")], tmp_path / "link", [".png"])
    with pytest.raises(DataError, match=r"a\.png is an input, not to be overwritten; choose another folder"):
        find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "link", [".png"])
    jobs = find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "out", [".png"])
    with pytest.raises(DataError, match=r"a\.png: is the input, not to be overwritten"):
        named_job(jobs, tmp_path / "link" / "a.png", overwrite=True)
    assert outputs(tmp_path, "in/**/*.png") == {"a": ("in/a.png",), "sub/deep/b": ("in/sub/deep/b.png",)}
    inputs = [str(tmp_path / "*")]  # the outputs of an earlier call lie there too
    stems = [job.output.name for job in find_jobs(inputs, tmp_path / "out", [".png"])]
    assert stems == ["a", "b", "a", "b"]
    for pattern in (tmp_path / "*" / "*.png", tmp_path):
        jobs = find_jobs([str(pattern)], tmp_path / "out", [".png"])
        assert "a" in {job.output.name for job in jobs}
        assert "notes" not in {job.output.name for job in jobs}


def test_masks_of_an_earlier_call_are_no_inputs_however_deep_they_lie_and_by_whichever_name(tmp_path):
    touch(tmp_path, "in/x/a.png", "in/x/out/b.png", "in/x/out/sub/c.png")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "in").symlink_to(tmp_path / "in")
    (tmp_path / "other" / "out").symlink_to(tmp_path / "in" / "x" / "out")
    real = tmp_path / "in"
    for pattern in (real, real / "*", real / "x" / "*", real / "**" / "*.png", tmp_path / "other" / "in"):
        for output in (real / "x" / "out", tmp_path / "other" / "in" / "x" / "out", tmp_path / "other" / "out"):
            assert [job.image.name for job in find_jobs([str(pattern)], output, [".png"])] == ["a.png"], pattern


def test_the_mask_of_one_image_may_be_a_file_that_is_neither_the_input_nor_there(tmp_path):
    touch(tmp_path, "a.png", "b.png", "old.png")
    jobs = find_jobs([str(tmp_path / "a.png"), str(tmp_path / "b.png")], tmp_path / "out", [".png"])
    assert named_job(jobs[:1], tmp_path / "new.png", overwrite=False).file(".png") == tmp_path / "new.png"
    assert named_job(jobs[:1], tmp_path / "old.png", overwrite=True).output == tmp_path / "old"
    touch(tmp_path, "v.nii.gz")
    volumes = find_jobs([str(tmp_path / "v.nii.gz")], tmp_path / "out", [".png"])
    for chosen, name, overwrite, line in (
        (volumes, "new.png", True, "the mask of a volume is no .png; give a folder"),
        (jobs, "new.png", True, "is one file, but there are 2 inputs; give a folder"),
        (jobs[:1], "a.png", True, "is the input, not to be overwritten"),
        (jobs[:1], "old.png", False, "is there already; --overwrite replaces it"),
    ):
        with pytest.raises(DataError, match=line):
            named_job(chosen, tmp_path / name, overwrite=overwrite)


def test_true_masks_are_found_by_the_suffix_the_folders_or_the_classes_that_are_given(tmp_path):
    touch(tmp_path, "a.png", "truth/a.png", "truth/a_mask.png", "classes/x/a.png", "classes/y/a.png")

    def truth_of(truth: TruthFolder) -> MaskFile:
        (job,) = find_jobs([str(tmp_path / "a.png")], tmp_path / "out", [".png"], truth=truth)
        return job.truth

    assert truth_of(TruthFolder(tmp_path / "truth", "_mask")) == (tmp_path / "truth" / "a_mask.png", 0)
    plain = TruthFolder(tmp_path / "truth", "")
    assert truth_of(plain) == (tmp_path / "truth" / "a.png", 0)
    assert truth_of(replace(plain, reads_places=False)) == (tmp_path / "truth" / "a.png", 0)
    files = (ClassFile(str(tmp_path / "classes" / "x" / "a.png")), ClassFile(str(tmp_path / "classes" / "y" / "a.png")))
    assert truth_of(TruthFolder(tmp_path / "classes", None, ("x", "y"))) == ClassMasks(files, (0, 1))
    with pytest.raises(DataError, match="masks do not say the classes of objects"):
        truth_of(replace(plain, object_classes=("cell", "dirt")))


def test_masks_of_pages_are_found_by_the_suffix_that_theirs_have(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((2, 4, 5), np.uint8), photometric="minisblack")
    touch(tmp_path, "truth/s_0001_mask.png", "truth/s_0002_mask.png")
    jobs = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"], truth=TruthFolder(tmp_path / "truth"))
    assert [job.truth for job in jobs] == [(tmp_path / f"truth/s_000{page}_mask.png", 0) for page in (1, 2)]


@pytest.mark.parametrize(
    "others",
    [
        [{"scale": 0.25}, {"scale": 1.0}],
        [{"image_size": (32, 32)}, {"image_size": (128, 128)}],
        [{"scale": 0.25}, {"scale": 0.25, "draft": False}],
    ],
)
def test_networks_that_need_other_detail_of_a_photograph_each_have_their_own(tmp_path, others):
    pixels = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    configs = [UNetConfig(preprocess=Preprocess(**options)) for options in others]
    for order in (configs, configs[::-1]):
        together = read_inputs(tmp_path / "a.jpg", order, "a.jpg", 0, keep_pixels=False).tensors
        for config, tensor in zip(order, together, strict=True):
            (alone,) = read_inputs(tmp_path / "a.jpg", [config], "a.jpg", 0, keep_pixels=False).tensors
            assert torch.equal(tensor, alone)
        assert together[0].shape != together[1].shape or not torch.equal(*together)


def test_an_input_that_is_named_twice_is_predicted_once(tmp_path):
    touch(tmp_path, "a.png", "v.nii.gz")
    patterns = [str(tmp_path / "*"), str(tmp_path / "a.png"), str(tmp_path / "v.nii.gz")]
    image, volume = find_jobs(patterns, tmp_path / "out", [".png"])
    assert (image.image, volume.image) == (tmp_path / "a.png", tmp_path / "v.nii.gz")
    assert volume.volume.paths == (str(tmp_path / "v.nii.gz"),)
