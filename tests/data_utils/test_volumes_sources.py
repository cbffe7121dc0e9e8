"""Folders of volumes become records, the same in every layout, and one reading finds all that is known of them.

Modules: data_utils/sources/volumes.py, data_utils/sources/volume_slices.py, data_utils/analysis/inspect_volumes.py,
data_utils/analysis/volume_statistics.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from conftest import ROOT, unnoticed_changes
from volumes import ANISOTROPIC, LPS, RAS, case, write_nifti

from data_utils.analysis import inspect_volumes
from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.inspect_volumes import VolumeSplitInspection, inspect_volume
from data_utils.analysis.inspection import Inspection
from data_utils.analysis.inspectors import choose_inspector, inspect_split
from data_utils.analysis.volume_statistics import target_spacing
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.load import load_records
from data_utils.sources.records import Records, Subset
from data_utils.sources.volume_slices import SliceRecords
from data_utils.sources.volumes import Case, Description, VolumeRecords, open_volumes, read_description, spacing_of
from data_utils.targets.classes import PartlyLabeledReader
from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError

HIPPOCAMPUS = ROOT.parent / "shared" / "data" / "hippocampus"
NAMES = [f"brain_{number:03}" for number in (1, 2, 4, 10)]
MSD = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "liver", "2": "tumour"}}
NNUNET = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "tumour": 2}, "file_ending": ".nii.gz"}


def decathlon(root: Path, channels: int = 1, affine: np.ndarray = LPS, description: dict | None = None) -> Path:
    """Four cases with their list; the channels lie in one file."""
    for seed, name in enumerate(NAMES):
        images = [case(seed + 10 * channel)[0] for channel in range(channels)]
        image = images[0] if channels == 1 else np.stack(images, axis=3)
        write_nifti(root / "imagesTr" / f"{name}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", case(seed)[1], affine)
    (root / "imagesTr" / f"._{NAMES[0]}.nii.gz").write_bytes(b"macOS")
    files = [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in NAMES]
    content = (description or MSD) | {"training": files}
    if channels > 1:
        content["modality"] = {str(channel): f"T{channel}" for channel in range(channels)}
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def nnunet(root: Path, channels: int = 1, affine: np.ndarray = LPS) -> Path:
    """The same cases with a file for each channel."""
    for seed, name in enumerate(NAMES):
        for channel in range(channels):
            image = case(seed + 10 * channel)[0]
            write_nifti(root / "imagesTr" / f"{name}_{channel:04}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", case(seed)[1], affine)
    content = dict(NNUNET)
    if channels > 1:
        content["channel_names"] = {str(channel): f"T{channel}" for channel in range(channels)}
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def plain(root: Path, affine: np.ndarray = LPS) -> Path:
    for seed, name in enumerate(NAMES):
        image, label = case(seed)
        write_nifti(root / "images" / f"{name}.nii.gz", image, affine)
        write_nifti(root / "masks" / f"{name}.nii.gz", label, affine)
    return root


def config(root: Path, **settings) -> DataConfig:
    return DataConfig(str(root), **({"val_fraction": 0.25} | settings))


def samples(records: Records) -> list[tuple]:
    """(name, voxels, affine, mask) of all records."""
    samples_of_epoch = []
    for record in records:
        voxels, header = read_volume(record["image"], record["name"])
        mask, _ = read_label_volume(record["target"], record["name"])
        samples_of_epoch.append((record["name"], voxels.tolist(), header.affine.tolist(), mask.tolist()))
    return samples_of_epoch


@pytest.mark.parametrize("channels", [1, 3])
def test_decathlon_and_nnunet_layouts_hold_the_same_samples(tmp_path, channels):
    first = load_records(config(decathlon(tmp_path / "msd", channels)))
    second = load_records(config(nnunet(tmp_path / "nnunet", channels)))
    for ours, theirs in zip(first, second, strict=True):
        assert samples(ours) == samples(theirs)
        assert ours.metadata == theirs.metadata
    train, val = first
    assert sorted(record["name"] for part in first for record in part) == NAMES
    assert (len(train), len(val), train.dims) == (3, 1, 3)
    assert train.metadata.classes == ((0, "background"), (1, "liver"), (2, "tumour"))
    assert train.metadata.modality == ("CT" if channels == 1 else "T0, T1, T2")


def test_images_beside_masks_are_the_same_samples_flat_and_below_splits(tmp_path):
    expected = [samples(part) for part in load_records(config(decathlon(tmp_path / "msd")))]
    assert [samples(part) for part in load_records(config(plain(tmp_path / "flat")))] == expected
    plain(tmp_path / "splits" / "train")
    plain(tmp_path / "splits" / "val")
    train, val = load_records(config(tmp_path / "splits"))
    assert samples(train) == samples(val) == sorted(expected[0] + expected[1])


def test_folds_hold_out_each_case_once(tmp_path):
    root = decathlon(tmp_path)
    held_out = [load_records(config(root, fold=(k, 4)))[1][0]["name"] for k in range(1, 5)]
    assert sorted(held_out) == NAMES


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", [0, 1], ids=["imagesTr", "labelsTr"])
def test_the_key_of_the_content_changes_with_a_file(tmp_path, kind, dims):
    root = decathlon(tmp_path)
    before = load_records(config(root, dims=dims))[0].digest
    assert load_records(config(root, dims=dims))[0].digest == before
    for name in NAMES[:2]:
        write_nifti(root / ("imagesTr", "labelsTr")[kind] / f"{name}.nii.gz", case(7, (12, 10, 9))[kind])
    assert load_records(config(root, dims=dims))[0].digest != before


def test_volumes_and_their_slices_and_stacks_of_another_spacing_have_keys_of_their_own(tmp_path):
    root = decathlon(tmp_path / "msd")
    assert load_records(config(root, dims=2, val_fraction=0.25))[0].digest != load_records(config(root))[0].digest
    for seed, name in enumerate(NAMES):
        for kind, voxels in zip(("images", "masks"), case(seed), strict=True):
            (tmp_path / "stacks" / kind).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "stacks" / kind / f"{name}.npy", voxels)
    keys = {
        load_records(config(tmp_path / "stacks", dims=3, spacing=spacing))[0].digest
        for spacing in ((1.0, 1.0, 1.0), (2.0, 1.0, 1.0))
    }
    assert len(keys) == 2


def test_the_key_of_the_content_changes_with_each_file_and_with_the_spacing(tmp_path):
    root = nnunet(tmp_path, channels=2)
    files = [*root.glob("*/*.nii.gz")]
    assert len(files) == 12
    assert unnoticed_changes(files, lambda: load_records(config(root))[0].digest) == []
    keys = [load_records(config(root))[0].digest]
    keys.append(load_records(config(root, spacing=(2.0, 1.0, 1.0)))[0].digest)
    for file in root.glob(f"*/{NAMES[1]}*"):
        file.rename(file.with_name(file.name.replace("002", "003")))  # still in the same place of the order
    keys.append(load_records(config(root))[0].digest)
    for file in root.glob(f"*/{NAMES[3]}*"):
        file.unlink()
    keys.append(load_records(config(root))[0].digest)
    assert len(set(keys)) == 4


def test_the_numbers_of_labels_may_be_text(tmp_path):
    root = nnunet(tmp_path)
    labels = {"background": 0, "liver": "1", "tumour": 2}
    (root / "dataset.json").write_text(json.dumps(NNUNET | {"labels": labels}))
    assert load_records(config(root))[0].metadata.classes == ((0, "background"), (1, "liver"), (2, "tumour"))


def test_two_numbers_of_one_name_are_one_class(tmp_path):
    labels = {"0": "background", "1": "liver", "2": "liver"}
    root = decathlon(tmp_path, description=MSD | {"labels": labels})
    assert load_records(config(root))[0].metadata.classes == ((0, "background"), (1, "liver"), (2, "liver"))
    assert load_dataset_info(config(root)).reader.class_names == ("background", "liver")


@pytest.mark.parametrize("kind", ["npy", "tif"])
def test_stacks_are_volumes_where_a_spacing_is_given(tmp_path, kind):
    for seed, name in enumerate(NAMES):
        image, label = (array.T for array in case(seed, kind=np.uint8))
        for folder, array in (("images", image), ("masks", label)):
            (tmp_path / folder).mkdir(exist_ok=True)
            path = tmp_path / folder / f"{name}.{kind}"
            np.save(path, array) if kind == "npy" else tifffile.imwrite(path, array, photometric="minisblack")
    assert load_records(config(tmp_path))[0].dims == 2
    train, _ = load_records(config(tmp_path, spacing=(4.0, 1.0, 1.0)))
    assert train.dims == 3
    assert read_volume(train[0]["image"], "a")[1].spacing == (4.0, 1.0, 1.0)
    assert read_volume(load_records(config(tmp_path, dims=3))[0][0]["image"], "a")[1].spacing == (1.0, 1.0, 1.0)
    (tmp_path / "spacing.json").write_text("[50, 4, 4]")
    train, _ = load_records(config(tmp_path))
    _, header = read_volume(train[0]["image"], "a")
    assert header.spacing == (50.0, 4.0, 4.0)
    assert header.size == (8, 10, 12)
    assert load_dataset_info(config(tmp_path)).train.spacings.tolist() == [[50, 4, 4]] * 3
    (tmp_path / "spacing.json").write_text("[50, 4]")
    with pytest.raises(DataError, match=r"spacing.json holds \[50, 4\], expected \[z, y, x\] in mm"):
        load_records(config(tmp_path))


def test_the_nearest_spacing_file_counts(tmp_path):
    images = tmp_path / "train" / "images"
    images.mkdir(parents=True)
    assert spacing_of(images) is None
    for folder, spacing in ((tmp_path, [9, 9, 9]), (tmp_path / "train", [5, 4, 4]), (images, [3, 2.5, 1])):
        (folder / "spacing.json").write_text(json.dumps(spacing))
        assert spacing_of(images) == tuple(spacing)


def test_stacks_are_volumes_where_the_file_of_the_spacing_lies_among_them(tmp_path):
    for name in ("images/a.npy", "masks/a.npy"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert open_volumes(tmp_path, (), config(tmp_path)) == {}
    (tmp_path / "images" / "spacing.json").write_text("[3, 2.5, 1]")
    assert open_volumes(tmp_path, (), config(tmp_path))["train"]().spacing == (3.0, 2.5, 1.0)


def test_what_has_no_partner_is_in_natural_order(tmp_path):
    for name in ("images/v1", "images/v2", "images/v10", "masks/v1", "masks/w2", "masks/w10"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.nii.gz").touch()
    records = open_volumes(tmp_path, (), config(tmp_path, allow_unpaired=True))["train"]()
    lines = [f"images/v{number}.nii.gz: image without mask" for number in (2, 10)]
    lines += [f"masks/w{number}.nii.gz: mask without image" for number in (2, 10)]
    assert records.metadata.unpaired == tuple(f"{tmp_path}/{line}" for line in lines)
    for number in (3, 4):
        (tmp_path / "images" / f"v{number}.nii.gz").touch()
    line = r"^6 volumes have no partner: .*v2\..*; .*v3\..*; .*v4\..*; .*v10\..*; .*w2\.nii\.gz: [a-z ]+; \.\.\. "
    with pytest.raises(DataError, match=line):
        open_volumes(tmp_path, (), config(tmp_path))["train"]()


def mistake(root: Path, kind: str) -> None:
    """One thing wrong with a Decathlon folder."""
    description = json.loads((root / "dataset.json").read_text())
    if kind == "missing":
        (root / "imagesTr" / f"{NAMES[1]}.nii.gz").unlink()
        (root / "labelsTr" / f"{NAMES[2]}.nii.gz").unlink()
    elif kind == "regions":
        description["labels"] = {"background": 0, "liver": [1, 2], "tumour": 2}
    elif kind == "no labels":
        del description["labels"]
    elif kind == "odd label":
        description["labels"] = {"background": 0, "liver": 1.5}
    elif kind == "long label":
        description["labels"] = {"background": 0, "liver": 10**18}
    elif kind == "doubles":
        write_nifti(root / "imagesTr" / f"{NAMES[0]}.nii", case(0)[0])
    elif kind == "odd list":
        description["training"] = ["a.nii.gz"]
    elif kind == "channels":
        description = dict(NNUNET)
    (root / "dataset.json").write_text("{" if kind == "damaged" else json.dumps(description))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "2 volumes have no partner: .*no image brain_002, .*no label brain_004, which dataset.json lists"),
        ("regions", "the label liver is a region"),
        ("no labels", 'has no "labels"'),
        ("odd label", "the label liver is 1.5, expected a whole number"),
        ("long label", "the label liver is 1000000000000000000, expected a whole number"),
        ("doubles", "two images with the same name .* brain_001.nii.* keep one"),
        ("odd list", '"training" lists something else'),
        ("channels", "its name does not end in a channel number such as _0000"),
        ("damaged", "dataset.json cannot be read"),
    ],
)
def test_a_mistake_in_a_folder_of_volumes_is_one_line(tmp_path, kind, message):
    mistake(decathlon(tmp_path), kind)
    with pytest.raises(DataError, match=message) as error:
        load_records(config(tmp_path))
    assert "\n" not in str(error.value)


def test_a_missing_channel_is_named(tmp_path):
    nnunet(tmp_path, channels=2)
    (tmp_path / "imagesTr" / f"{NAMES[2]}_0001.nii.gz").unlink()
    with pytest.raises(
        DataError, match=r"brain_004_0000.nii.gz: its case has the channels 0000, but needs 2, from 0000 on"
    ):
        load_records(config(tmp_path))


def test_what_has_no_partner_is_named_or_left_out(tmp_path):
    plain(tmp_path)
    (tmp_path / "masks" / f"{NAMES[0]}.nii.gz").unlink()
    with pytest.raises(DataError, match=r"1 volumes have no partner: .*brain_001.nii.gz: image without mask"):
        load_records(config(tmp_path))
    train, val = load_records(config(tmp_path, allow_unpaired=True))
    assert len(train) + len(val) == 3
    assert len(train.metadata.unpaired) == 1


def test_volumes_that_have_no_partner_at_all_are_an_error_whatever_is_allowed(tmp_path):
    for name in ("images/a_0000.nii.gz", "masks/b.nii.gz"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    line = r"2 volumes have no partner: .*/a_0000\.nii\.gz: image without mask; .*/b\.nii\.gz: mask without image$"
    with pytest.raises(DataError, match=line):
        load_records(config(tmp_path, allow_unpaired=True))


def test_hidden_folders_are_no_cases_and_each_case_lies_in_its_own(tmp_path):
    names = ["images/s/a.nii.gz", "masks/s/a.nii.gz", "images/.cache/b.nii.gz", "images/notes.txt", "masks/notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    records = open_volumes(tmp_path, (), config(tmp_path))["train"]()
    assert records.image_folders() == {(f"{tmp_path}/images/", "s")}
    assert records[0]["name"] == "s/a"


def test_dims_that_do_not_fit_the_data_are_refused(tiny_folder):
    with pytest.raises(DataError, match=r"--dims 3: .* holds images"):
        load_records(DataConfig(str(tiny_folder), dims=3))


def test_settings_that_do_not_fit_the_data_are_refused(tiny_folder, tmp_path):
    with pytest.raises(DataError, match="--normalization ct is for volumes"):
        load_dataset_info(DataConfig(str(tiny_folder), normalization="ct"))
    with pytest.raises(DataError, match="--image-size and --scale are for images"):
        load_dataset_info(config(decathlon(tmp_path), scale=0.5))


def test_slices_of_volumes_are_images_and_all_of_a_volume_are_in_one_split(tmp_path):
    root = decathlon(tmp_path, channels=2)
    train, val = load_records(config(root, dims=2))
    volumes, _ = load_records(config(root))
    assert (len(train), len(val), train.dims, train.metadata.classes) == (24, 8, 2, volumes.metadata.classes)
    assert train[8]["name"] == f"{volumes[1]['name']}_0001"
    voxels, _ = read_volume(volumes[1]["image"], "a")
    mask, _ = read_label_volume(volumes[1]["target"], "a")
    assert np.array_equal(read_image(train[10]["image"], "a"), voxels[2])
    assert np.array_equal(read_mask(train[10]["target"], "a"), mask[2])
    assert train[10]["target"].read().shape == (10, 12)
    info = load_dataset_info(config(root, dims=2))
    assert info.train.sizes.tolist() == [[10, 12]] * 24
    assert info.preprocess().spacing is None


def test_one_reading_finds_all_that_is_known_of_a_volume(tmp_path):
    image, label = case(3, (40, 36, 30))
    files = [write_nifti(tmp_path / f"{i}.nii.gz", array, RAS) for i, array in enumerate((image, label))]
    image_file, label_file = (VolumeFile((str(path),)) for path in files)
    record = {"image": image_file, "target": label_file, "name": "a"}
    inspection = inspect_volume(record)
    assert isinstance(inspection, Inspection)
    assert inspection.size == (30, 36, 40)
    assert inspection.pixels == {value: (label == value).sum() for value in range(3)}
    for value, places in inspection.class_locations.items():
        assert len(np.unique(places, axis=0)) == min(1000, (label == value).sum())
        assert (label.T[tuple(places.T)] == value).all()
    assert len(inspection.foreground) == min(10_000, (label > 0).sum())
    assert set(inspection.foreground[:, 0]) <= set(image[label > 0].tolist())
    again = inspect_volume(record)
    assert all(np.array_equal(inspection.class_locations[value], again.class_locations[value]) for value in range(3))


def test_an_inspection_of_volumes_is_kept_as_it_was(tmp_path):
    train, _ = load_records(config(decathlon(tmp_path, channels=2)))
    inspection = inspect_split(train, "reading", choose_inspector(train))
    restored = VolumeSplitInspection.from_json(json.loads(json.dumps(inspection.to_json())))
    assert np.array_equal(inspection.sizes, restored.sizes)
    assert np.array_equal(inspection.statistics.spacings, restored.statistics.spacings)
    assert inspection.statistics.foreground == restored.statistics.foreground
    for i, locations in inspection.class_locations.items():
        assert all(np.array_equal(places, restored.class_locations[i][value]) for value, places in locations.items())
    assert [
        inspection.statistics.normalization(None, config(tmp_path, normalization=kind)) for kind in ("z-score", "ct")
    ] == [restored.statistics.normalization(None, config(tmp_path, normalization=kind)) for kind in ("z-score", "ct")]


def test_normalization_is_by_the_modality_or_as_asked_for(tmp_path):
    root = decathlon(tmp_path / "ct", affine=ANISOTROPIC)
    train, _ = load_records(config(root))
    pairs = [(read_volume(r["image"], "a")[0], read_label_volume(r["target"], "a")[0]) for r in train]
    labeled = np.concatenate([voxels[mask > 0] for voxels, mask in pairs]).astype(np.float64)
    preprocess = load_dataset_info(config(root)).preprocess()
    assert preprocess.clip == pytest.approx(np.percentile(labeled, [0.5, 99.5]))
    assert (preprocess.mean[0], preprocess.std[0]) == (pytest.approx(labeled.mean()), pytest.approx(labeled.std()))
    assert preprocess.spacing == (4.0, 0.75, 0.5)
    assert not preprocess.standardize
    assert preprocess.class_names[1] == "liver"
    assert load_dataset_info(config(root, normalization="z-score")).preprocess().standardize
    mri = decathlon(tmp_path / "mri", channels=2)
    alone = load_dataset_info(config(mri)).preprocess()
    assert (alone.mean, alone.std, alone.standardize, alone.clip) == ((0.0, 0.0), (1.0, 1.0), True, None)
    pretrained = replace(alone, spacing=(3.0, 2.0, 1.0))
    assert load_dataset_info(config(mri)).preprocess(pretrained).spacing == (3.0, 2.0, 1.0)


def test_volumes_are_resampled_to_the_median_and_coarse_axes_finer():
    assert target_spacing(np.array([[1.0, 1.0, 1.0], [2.0, 0.5, 0.8], [3.0, 0.8, 0.8]])) == (2.0, 0.8, 0.8)
    coarse = np.array([[float(z), 0.7, 0.7] for z in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5)])
    assert target_spacing(coarse) == (2.0, 0.7, 0.7)
    assert target_spacing(np.array([[0.1, 0.7, 0.7], *[[5.0, 0.7, 0.7]] * 3])) == (pytest.approx(1.57), 0.7, 0.7)
    assert target_spacing(np.array([[0.1, 0.7, 0.7], [0.1, 0.7, 0.7], *[[5.0, 0.7, 0.7]] * 3]))[0] == 0.7


def test_check_data_names_all_problems_of_volumes_at_once(tmp_path):
    decathlon(tmp_path)
    images, labels = tmp_path / "imagesTr", tmp_path / "labelsTr"
    (images / f"{NAMES[0]}.nii.gz").write_bytes(b"\x1f\x8b")
    write_nifti(labels / f"{NAMES[1]}.nii.gz", case(1)[1] * 0.5, LPS)
    write_nifti(labels / f"{NAMES[2]}.nii.gz", case(2)[1], RAS)
    write_nifti(images / f"{NAMES[3]}.nii.gz", np.full((12, 10, 8), np.nan, np.float32), LPS)
    report, count = check_data(config(tmp_path))
    assert count >= 4
    for name in NAMES:
        assert f"    {name}" in report
    assert "label holds 0.5" in report
    assert "the affines of image and label differ" in report
    assert "(NaN or infinite)" in report
    decathlon(tmp_path)
    write_nifti(images / f"{NAMES[3]}.nii.gz", case(3)[0].astype(np.float32), LPS)
    report, count = check_data(config(tmp_path))
    assert count == 0
    assert "no problems" in report
    assert "3 training volumes, 1 validation volumes" in report
    assert "sizes (depth x height x width): 8 x 10 x 12: 4" in report
    assert "spacings in mm along z, y, x: 1 x 1 x 1: 4" in report


@pytest.mark.parametrize("channels", [1, 3])
def test_volumes_with_other_channels_are_named(tmp_path, channels):
    decathlon(tmp_path, channels=channels)
    two = np.stack([case(0)[0]] * 2, axis=3)
    write_nifti(tmp_path / "imagesTr" / f"{NAMES[1]}.nii.gz", two, LPS)
    assert f"brain_002: has 2 channels, most others have {channels}" in check_data(config(tmp_path))[0]


def test_a_data_set_of_volumes_is_read_once(tmp_path, monkeypatch):
    settings = config(decathlon(tmp_path, channels=1))
    info = load_dataset_info(settings)
    monkeypatch.delattr(inspect_volumes, "read_volume")
    again = load_dataset_info(settings)
    assert np.array_equal(info.train.sizes, again.train.sizes)
    assert info.preprocess() == again.preprocess()
    assert info.reader.class_map == again.reader.class_map
    for index, locations in info.train.class_locations.items():
        for places, kept in zip(locations, again.train.class_locations[index], strict=True):
            assert np.array_equal(places, kept)


@pytest.mark.slow
@pytest.mark.skipif(not HIPPOCAMPUS.is_dir(), reason="no real data in shared/data beside this folder")
def test_the_hippocampus_is_read_once(monkeypatch):
    settings = DataConfig(str(HIPPOCAMPUS))
    info = load_dataset_info(settings)
    monkeypatch.delattr(inspect_volumes, "read_volume")
    again = load_dataset_info(settings)
    assert len(info.train) + len(info.val) == 208
    assert info.reader.class_map.names == (
        "background",
        "anterior",
        "posterior",
    )
    assert np.array_equal(info.train.sizes, again.train.sizes)
    assert info.preprocess() == again.preprocess()
    assert info.preprocess().spacing == (1.0, 1.0, 1.0)
    assert info.preprocess().standardize
    assert info.warnings == ()
    places = info.train.class_locations[0]
    assert [part.shape[1] for part in places] == [3, 3]
    mask, _ = read_label_volume(Subset(info.train.records, np.array([0]))[0]["target"], "a")
    assert all((mask[tuple(part.T)] == value).all() for value, part in enumerate(places, 1))


def test_a_spacing_is_for_files_that_hold_none_in_any_case():
    (record,) = VolumeRecords([Case("a", ("A.NPY",), "a.nii.gz")], (3.0, 2.0, 1.0), Description())
    assert record["image"].spacing == (3.0, 2.0, 1.0)
    assert record["target"].spacing is None


@pytest.mark.parametrize("place", ["", "images", "masks"])
def test_a_flag_says_the_spacing_before_a_file_that_may_lie_in_a_folder(tmp_path, place):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for name in "ab":
            np.save(tmp_path / kind / f"{name}.npy", np.zeros((2, 3, 4), np.uint8))
    (tmp_path / place / "spacing.json").write_text("[50, 4, 4]")
    train, _ = load_records(config(tmp_path))
    assert train.dims == 3
    assert train[0]["image"].spacing == (None if place == "masks" else (50.0, 4.0, 4.0))
    assert load_records(config(tmp_path, spacing=(2.0, 1.0, 1.0)))[0][0]["image"].spacing == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("text", ["[1, 1, 1, 1]", "[0, 1, 1]", "[1, -1, 1]", '["1", 1, 1]', "[]"])
def test_a_spacing_has_three_sides_of_more_than_0(tmp_path, text):
    (tmp_path / "spacing.json").mkdir()
    with pytest.raises(DataError, match=r"spacing\.json cannot be read"):
        spacing_of(tmp_path)
    (tmp_path / "spacing.json").rmdir()
    (tmp_path / "spacing.json").write_text(text)
    with pytest.raises(DataError, match=r"spacing\.json holds .*, expected \[z, y, x\] in mm"):
        spacing_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "classes", "modality", "channels"),
    [
        ({"labels": {"1": "b", "0": "a"}, "modality": {"0": "MR", "1": "CT", "2": "MR"}}, "ab", "MR, CT", None),
        ({"labels": {"a": 0, "b": "1", "ignore": 2}, "channel_names": {"0": "MR", "1": "MR"}}, "ab", "MR", 2),
        ({"labels": {"0": "a"}}, "a", None, None),
        ({"labels": {"0": "a"}, "modality": "CT"}, "a", None, None),
        ({"labels": {"0": "a"}, "modality": {"0": "CT"}, "channel_names": {"0": 7}, "training": 3}, "a", "7", 1),
    ],
)
def test_a_description_says_classes_modality_and_channels(tmp_path, content, classes, modality, channels):
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    description = read_description(tmp_path / "dataset.json")
    assert description == (tuple(enumerate(classes)), modality, channels, None)


@pytest.mark.parametrize("entry", [{"image": "a.nii.gz"}, "a.nii.gz", {"label": 3}])
def test_a_list_of_cases_names_the_label_of_each(tmp_path, entry):
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {}, "training": [entry]}))
    with pytest.raises(DataError, match='"training" lists something else than'):
        read_description(tmp_path / "dataset.json")
    good = [{"image": "i/b_0000.nii.gz", "label": "l/b.nii.gz"}, {"label": "a.v1.nii.gz"}]
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {}, "training": good}))
    assert read_description(tmp_path / "dataset.json").cases == ("b", "a.v1")


def test_cases_are_in_natural_order_and_folders_of_the_decathlon_may_be_capitals(tmp_path):
    root = decathlon(tmp_path)
    content = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(content | {"training": content["training"][::-1]}))
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).rename(root / folder.upper())
    records = open_volumes(root, (), config(root))["train"]()
    assert [case.name for case in records.cases] == NAMES
    assert records.metadata.modality == "CT"


def test_pairs_of_volumes_are_in_natural_order(tmp_path):
    for number in (10, 9, 1):
        for folder in ("images", "masks"):
            write_nifti(tmp_path / folder / f"case{number}.nii.gz", np.zeros((4, 4, 4), np.uint8))
    records = open_volumes(tmp_path, (), config(tmp_path))["train"]()
    assert [case.name for case in records.cases] == ["case1", "case9", "case10"]


def test_channels_are_as_many_as_most_cases_have_where_nothing_describes_them(tmp_path):
    root = nnunet(tmp_path, channels=2)
    (root / "dataset.json").unlink()
    records = open_volumes(root, (), config(root))["train"]()
    assert [len(case.images) for case in records.cases] == [2] * 4
    (root / "imagesTr" / f"{NAMES[0]}_0001.nii.gz").rename(tmp_path / "later")
    with pytest.raises(DataError, match="its case has the channels 0000, but needs 2, from 0000 on"):
        open_volumes(root, (), config(root))["train"]()
    (tmp_path / "later").rename(root / "imagesTr" / f"{NAMES[0]}_0001.nii.gz")
    (root / "imagesTr" / f"{NAMES[1]}_0001.nii.gz").unlink()
    with pytest.raises(DataError, match="its case has the channels 0000, but needs 2, from 0000 on"):
        open_volumes(root, (), config(root))["train"]()
    (root / "imagesTr" / f"{NAMES[1]}_0002.nii.gz").touch()
    with pytest.raises(DataError, match="its case has the channels 0000, 0002, but needs 2, from 0000 on"):
        open_volumes(root, (), config(root))["train"]()


def touch(root: Path, *names: str) -> Path:
    """Empty files."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_channels_are_as_many_as_a_description_says_and_have_four_digits(tmp_path):
    touch(tmp_path, "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz")
    labels = {"background": 0}
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels, "channel_names": {"0": "T1", "1": "T2"}}))
    with pytest.raises(DataError, match="its case has the channels 0000, but needs 2, from 0000 on"):
        open_volumes(tmp_path, (), config(tmp_path))["train"]()
    touch(tmp_path / "other", "images/a_00000.nii.gz", "masks/b.nii.gz")
    with pytest.raises(DataError, match="its name does not end in a channel number such as _0000"):
        open_volumes(tmp_path / "other", (), config(tmp_path))["train"]()


def test_each_channel_of_a_case_without_mask_is_named(tmp_path):
    touch(tmp_path, *(f"images/{name}_000{channel}.nii.gz" for name in "ab" for channel in range(2)), "masks/a.nii.gz")
    with pytest.raises(DataError, match=r"2 volumes have no partner: .*b_0000.*b_0001\.nii\.gz: image without mask"):
        open_volumes(tmp_path, (), config(tmp_path))["train"]()


def test_cases_of_a_list_without_files_are_left_out_where_that_is_allowed(tmp_path):
    mistake(decathlon(tmp_path), "missing")
    records = open_volumes(tmp_path, (), config(tmp_path, allow_unpaired=True))["train"]()
    assert [case.name for case in records.cases] == [NAMES[0], NAMES[3]]
    assert len(records.metadata.unpaired) == 2


def test_a_description_beside_folders_of_other_names_is_not_read(tmp_path):
    touch(tmp_path, *(f"{folder}/c{number}.nii.gz" for folder in ("images", "masks") for number in (10, 2)))
    (tmp_path / "dataset.json").write_text("[]")
    records = open_volumes(tmp_path, (), config(tmp_path))["train"]()
    assert [case.name for case in records.cases] == ["c2", "c10"]
    assert records.metadata.classes == ()


def test_masks_have_the_suffix_of_the_flag_even_if_it_is_none(tmp_path):
    touch(tmp_path, "images/a.nii.gz", "masks/a_seg.nii.gz")
    assert len(open_volumes(tmp_path, (), config(tmp_path))["train"]()) == 1
    with pytest.raises(DataError, match="does not end in a channel number"):
        open_volumes(tmp_path, (), config(tmp_path, mask_suffix=""))["train"]()


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["images/A.NII.GZ", "masks/A.NII.GZ"], ["train"]),
        (["images/._a.nii.gz", "images/a.png", "masks/a.png"], []),
        (["images/a.png", "images/b/b.nii.gz", "masks/a.png"], []),  # the first ones count
        (["images/a/notes.txt", "images/b/b.nii.gz", "masks/b/b.nii.gz"], ["train"]),
        (["images/a.npy", "images/b.nii.gz", "masks/a.npy"], ["train"]),
    ],
)
def test_folders_are_of_volumes_where_one_lies_beside_the_first_images(tmp_path, names, splits):
    assert list(open_volumes(touch(tmp_path, *names), (), config(tmp_path))) == splits


def test_volumes_in_capitals_are_cases_and_images_without_labels_are_one_line(tmp_path):
    touch(tmp_path / "capitals", "images/A.NII.GZ", "masks/A.NII.GZ")
    (case_of,) = open_volumes(tmp_path / "capitals", (), config(tmp_path))["train"]().cases
    assert case_of.name == "A"
    touch(tmp_path / "half", "imagesTr/a.nii.gz")
    with pytest.raises(DataError):
        load_records(config(tmp_path / "half"))


def test_folders_without_volumes_are_one_line(tmp_path):
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
    line = f"no volumes in {tmp_path / 'imagesTr'}; found "
    looked = ", looked for .nii, .nii.gz, .nrrd, .mha, .mhd"
    hint = " (and, with a spacing, for TIFF and .npy)"
    with pytest.raises(DataError, match=f"^{re.escape(line + 'nothing' + looked + hint)}$"):
        load_records(config(tmp_path))
    for name in ("b.txt", "a.txt", "c.csv", "notes"):
        (tmp_path / "imagesTr" / name).touch()
    with pytest.raises(DataError, match=f"^{re.escape(line + '.csv, .txt, notes' + looked)}, .npy, .tif, .tiff$"):
        load_records(config(tmp_path, dims=3))


def test_slices_say_all_that_their_volumes_say():
    volumes = VolumeRecords([], None, Description(((0, "a"),), "CT"), ["x: image without mask"])
    volumes.metadata = replace(volumes.metadata, label_sets={("a",): "a table"}, unlisted=("x",), task="classes")
    slices = SliceRecords(volumes)
    assert slices.metadata == replace(volumes.metadata, dims=2)
    assert slices.digest != volumes.digest
    vars(volumes)["digest"] = None
    assert SliceRecords(volumes).digest is None


def test_headers_of_volumes_are_read_once_for_their_slices_which_are_labeled_as_they_are(tmp_path, monkeypatch):
    root = plain(tmp_path)
    labels = [None, ImageLabels(("liver",), "a table"), None, None]
    slices = SliceRecords(with_labels(open_volumes(root, (), config(root))["train"](), labels))
    depth = case(0)[1].shape[2]
    assert len(slices) == 4 * depth
    labeled = [None] * depth + [("liver",)] * depth + [None] * 2 * depth
    assert [slices.labeled(i) for i in range(4 * depth)] == labeled
    assert [record.get("labeled") for record in slices] == labeled
    monkeypatch.delattr("data_utils.sources.volume_slices.read_volume_header")
    assert len(SliceRecords(slices.volumes)) == 4 * depth


def test_slices_are_those_of_volumes_of_several_depths(tmp_path):
    for name, depth in (("a", 3), ("b", 5), ("c", 2)):
        write_nifti(tmp_path / "images" / f"{name}.nii.gz", case(0, (6, 7, depth))[0])
        write_nifti(tmp_path / "masks" / f"{name}.nii.gz", case(0, (6, 7, depth))[1])
    slices = SliceRecords(open_volumes(tmp_path, (), config(tmp_path))["train"]())
    numbers = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3), ("b", 4), ("b", 5), ("c", 1), ("c", 2)]
    assert [record["name"] for record in slices] == [f"{name}_{number:04}" for name, number in numbers]


def test_a_volume_that_cannot_be_read_is_named_by_its_slice(tmp_path):
    root = plain(tmp_path)
    (root / "images" / f"{NAMES[0]}.nii.gz").write_bytes(b"damaged")
    slices = SliceRecords(open_volumes(root, (), config(root))["train"]())
    depth = case(0)[1].shape[2]
    assert len(slices) == 1 + 3 * depth
    assert slices.name(0) == f"{NAMES[0]}_0001"
    assert [slices.name(1), slices.name(len(slices) - 1)] == [f"{NAMES[1]}_0001", f"{NAMES[3]}_{depth:04}"]
    with pytest.raises(DataError, match=NAMES[0]):
        read_image(slices[0]["image"])
    for image, affine in ((case(0)[0], RAS * 2), (case(0, (12, 10, 9))[0], LPS)):
        write_nifti(root / "images" / f"{NAMES[0]}.nii.gz", image, affine)
        with pytest.raises(DataError, match=f"{NAMES[0]}: image and label differ in shape or affine"):
            len(SliceRecords(open_volumes(root, (), config(root))["train"]()))


def test_a_label_of_another_size_is_named_and_others_follow_their_resized_volume(tmp_path):
    root = plain(tmp_path)
    write_nifti(root / "masks" / f"{NAMES[0]}.nii.gz", case(0, (12, 10, 9))[1], LPS)
    other, record, *_ = open_volumes(root, (), config(root))["train"]()
    reader = PartlyLabeledReader(
        ClassMap(("background", "liver", "tumour"), (0, 1, 2), None),
        label_sets=LabelSets(((True,) * 3, (False, True, False)), {("liver",): 1}),
    )
    _, header = read_volume(record["image"], "a")
    target = reader.read_volume({**record, "labeled": ("liver",)}, header, (4, 5, 6))
    assert target.mask.shape == (4, 5, 6)
    assert set(np.unique(target.mask)) <= {0, 1, 2}
    assert int(target.label_set) == 1
    assert reader.read_volume(record, header).mask.shape == header.size
    message = rf"{NAMES[0]}: image is 8 x 10 x 12, its label 9 x 10 x 12 \(depth x height x width\)"
    with pytest.raises(DataError, match=message):
        reader.read_volume(other, header)
