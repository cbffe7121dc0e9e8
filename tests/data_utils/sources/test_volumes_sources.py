"""Folders of volumes become records, the same in every layout.

Modules: data_utils/sources/volumes.py.
"""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from support.folders import touch
from support.inspections import inspected
from support.volumes import (
    CASE_NAMES,
    LPS,
    case,
    training_volumes,
    volume_config,
    write_decathlon,
    write_nifti,
    write_nnunet,
    write_pairs,
)

from data_utils.analysis.inspect_record import Inspection
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from data_utils.sources.records import Records
from data_utils.sources.volumes import read_description
from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError
from tasks.classes.reader import ClassReader


def samples(records: Records) -> list[tuple]:
    """(name, voxels, affine, mask) of all records."""
    samples_of_epoch = []
    for record in records:
        voxels, header = read_volume(record["image"], record["name"])
        mask, _ = read_label_volume(record["target"], record["name"])
        samples_of_epoch.append((record["name"], voxels.tolist(), header.affine.tolist(), mask.tolist()))
    return samples_of_epoch


@pytest.mark.parametrize(("channels", "modality"), [(1, "CT"), (3, "T0, T1, T2")])
def test_decathlon_and_nnunet_layouts_hold_the_same_samples_of_which_a_quarter_is_held_out(
    tmp_path, channels, modality
):
    train, val = load_records(volume_config(write_decathlon(tmp_path / "msd", channels)))
    nnunet = load_records(volume_config(write_nnunet(tmp_path / "nnunet", channels)))
    for records, same_records in zip((train, val), nnunet, strict=True):
        assert samples(records) == samples(same_records)
        assert records.metadata == same_records.metadata
    assert sorted(record["name"] for part in (train, val) for record in part) == CASE_NAMES
    assert (len(train), train.dims) == (3, 3)
    assert train.metadata.classes == ((0, "background"), (1, "liver"), (2, "tumour"))
    assert train.metadata.modality == modality


def test_images_beside_masks_are_the_same_samples(tmp_path):
    listed = load_records(volume_config(write_decathlon(tmp_path / "msd")))
    splits = load_records(volume_config(write_pairs(tmp_path / "pairs")))
    assert [samples(records) for records in splits] == [samples(records) for records in listed]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", [0, 1], ids=["imagesTr", "labelsTr"])
def test_the_key_of_the_content_changes_with_a_file(tmp_path, kind, dims):
    root = write_decathlon(tmp_path)
    before = load_records(volume_config(root, dims=dims))[0].digest
    assert load_records(volume_config(root, dims=dims))[0].digest == before
    for name in CASE_NAMES[:2]:
        write_nifti(root / ("imagesTr", "labelsTr")[kind] / f"{name}.nii.gz", case(7)[kind], LPS)
    assert load_records(volume_config(root, dims=dims))[0].digest != before


def loading_error(folder: Path) -> str:
    """The message, which is one line, that a folder of volumes is refused with."""
    with pytest.raises(DataError) as error:
        load_records(volume_config(folder))
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": {"background": 0, "liver": [1, 2], "tumour": 2}}, "the label liver is a region"),
        ({"labels": {"background": 0, "liver": 1.5}}, "the label liver is 1.5, expected a whole number"),
        ({"labels": {"background": 0, "liver": 10**18}}, f"the label liver is {10**18}, expected a whole number"),
        ({"training": ["a.nii.gz"]}, '"training" lists something else'),
    ],
    ids=["region", "half", "large", "list"],
)
def test_a_mistake_in_a_list_of_volumes_is_a_one_line_error(tmp_path, changes, message):
    write_decathlon(tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(content | changes))
    assert message in loading_error(tmp_path)


def test_cases_of_a_list_without_files_are_named_and_left_out_where_that_is_allowed(tmp_path):
    write_decathlon(tmp_path)
    (tmp_path / "imagesTr" / f"{CASE_NAMES[1]}.nii.gz").unlink()
    (tmp_path / "labelsTr" / f"{CASE_NAMES[2]}.nii.gz").unlink()
    message = loading_error(tmp_path)
    assert "2 files without partner: " in message
    assert "brain_002: no image, but dataset.json lists it; brain_004: no label" in message
    records = training_volumes(tmp_path, allow_unpaired=True)
    assert [record["name"] for record in records] == [CASE_NAMES[0], CASE_NAMES[3]]
    assert len(records.metadata.unpaired) == 2


def test_dims_that_do_not_fit_the_data_are_refused(tiny_folder):
    with pytest.raises(DataError, match=r"--dims 3: .* holds images"):
        load_records(DataConfig(str(tiny_folder), dims=3))


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
    assert description.classes == tuple(enumerate(classes))
    assert description.modality == modality
    assert description.channels == channels
    assert description.cases is None


def test_a_list_that_is_empty_leaves_the_cases_to_the_folders(tmp_path):
    touch(tmp_path, "imagesTr/a.nii.gz", "labelsTr/a.nii.gz")
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"0": "background"}, "training": []}))
    assert [record["name"] for record in training_volumes(tmp_path)] == ["a"]


@pytest.mark.parametrize("entry", [{"image": "a.nii.gz"}, "a.nii.gz", {"label": 3}])
def test_a_case_without_label_in_a_list_is_refused(tmp_path, entry):
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {}, "training": [entry]}))
    with pytest.raises(DataError, match='"training" lists something else than'):
        read_description(tmp_path / "dataset.json")


LISTED = {  # image and label of a case in dataset.json, and the files that are meant
    "other names": ("imagesTr/img{}.nii.gz", "labelsTr/label{}.nii.gz", ["img{}.nii.gz"], "label{}.nii.gz"),
    "of Windows": (r".\imagesTr\img{}.nii.gz", r".\labelsTr\label{}.nii.gz", ["img{}.nii.gz"], "label{}.nii.gz"),
    "folders": ("imagesTr/p{}/ct.nii.gz", "./labelsTr/p{}/seg.nii.gz", ["p{}/ct.nii.gz"], "p{}/seg.nii.gz"),
    "channels": (
        ["imagesTr/t1_{}.nii.gz", "imagesTr/t2_{}.nii.gz"],
        "labelsTr/seg{}.nii.gz",
        ["t1_{}.nii.gz", "t2_{}.nii.gz"],
        "seg{}.nii.gz",
    ),
    "accents": ("imagesTr/e\u0301{}.nii.gz", "labelsTr/\u00e9{}.nii.gz", ["e\u0301{}.nii.gz"], "\u00e9{}.nii.gz"),
}


@pytest.mark.parametrize(("image", "label", "images", "mask"), LISTED.values(), ids=LISTED)
def test_a_list_says_which_image_belongs_to_which_label(tmp_path, image, label, images, mask):
    entries = []
    for number in range(2):
        names = [name.format(number) for name in ([image] if isinstance(image, str) else image)]
        entries.append({"image": names[0] if isinstance(image, str) else names, "label": label.format(number)})
        touch(tmp_path / "imagesTr", *(name.format(number) for name in images))
        touch(tmp_path / "labelsTr", mask.format(number))
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"0": "background"}, "training": entries}))
    records = training_volumes(tmp_path)
    for number, record in enumerate(records):
        assert record["image"].paths == tuple(str(tmp_path / "imagesTr" / name.format(number)) for name in images)
        assert record["target"].paths == (str(tmp_path / "labelsTr" / mask.format(number)),)


def test_a_list_by_case_as_nnunet_has_it_says_which_image_belongs_to_which_label(tmp_path):
    touch(tmp_path, "imagesTr/t1.nii.gz", "imagesTr/t2.nii.gz", "labelsTr/seg.nii.gz")
    files = {"images": ["imagesTr/t1.nii.gz", "imagesTr/t2.nii.gz"], "label": "labelsTr/seg.nii.gz"}
    content = {"labels": {"background": 0}, "channel_names": {"0": "MR", "1": "MR"}, "dataset": {"a": files}}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    (record,) = training_volumes(tmp_path)
    assert record["image"].paths == tuple(str(tmp_path / image) for image in files["images"])
    assert record["target"].paths == (str(tmp_path / files["label"]),)


def test_two_images_with_one_label_in_a_list_are_refused(tmp_path):
    touch(tmp_path, "imagesTr/a.nii.gz", "imagesTr/b.nii.gz", "labelsTr/seg.nii.gz")
    entries = [{"image": f"imagesTr/{stem}.nii.gz", "label": "labelsTr/seg.nii.gz"} for stem in "ab"]
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"0": "background"}, "training": entries}))
    assert "dataset.json lists a.nii.gz and b.nii.gz with the label seg" in loading_error(tmp_path)


def test_a_list_may_have_the_name_that_monai_gives_it(tmp_path):
    write_decathlon(tmp_path)
    (tmp_path / "dataset.json").rename(tmp_path / "dataset_0.json")
    records = training_volumes(tmp_path)
    assert dict(records.metadata.classes).keys() == {0, 1, 2}


@pytest.mark.parametrize("listed", [("image", "label"), ("image",), ()], ids=["cases", "images", "nothing"])
def test_volumes_in_folders_for_validation_are_a_split(tmp_path, listed):
    """As AMOS22 has them."""
    write_decathlon(tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    last = content["training"].pop()
    moved = {kind: path.replace("Tr/", "Va/") for kind, path in last.items()}
    for kind, path in last.items():
        (tmp_path / moved[kind]).parent.mkdir()
        (tmp_path / path).rename(tmp_path / moved[kind])
    lists = {"validation": [{kind: moved[kind] for kind in listed}]} if listed else {}
    (tmp_path / "dataset.json").write_text(json.dumps(content | lists))
    train, val = load_records(volume_config(tmp_path))
    assert [record["name"] for record in val] == CASE_NAMES[-1:]
    assert len(train) == len(CASE_NAMES) - 1
    assert val.metadata.classes == train.metadata.classes


@pytest.mark.parametrize("lists_training", [True, False])
@pytest.mark.parametrize("labels", ["here", "elsewhere", "nowhere"])
def test_a_list_of_labeled_cases_for_validation_is_a_split(tmp_path, labels, lists_training):
    write_decathlon(tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    *training, last = content["training"]
    elsewhere = {"image": "imagesVa/v_1.nii.gz", "label": "labelsVa/v_1.nii.gz"}
    held_out = {"here": last, "elsewhere": elsewhere, "nowhere": {"image": last["image"]}}[labels]
    content |= {"training": training if lists_training else [], "validation": [held_out]}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    train, val = ([record["name"] for record in split] for split in load_records(volume_config(tmp_path)))
    is_here = labels == "here"
    assert sorted(train + val) == sorted(CASE_NAMES[: len(training) + (is_here or not lists_training)])
    assert not is_here or val == CASE_NAMES[-1:]


def test_volumes_in_folders_that_are_links_are_read(tmp_path):
    touch(tmp_path / "elsewhere", "images/a.nii.gz", "masks/a.nii.gz")
    for kind in ("images", "masks"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        (tmp_path / "set" / kind / "site").symlink_to(tmp_path / "elsewhere" / kind)
    (record,) = training_volumes(tmp_path / "set")
    assert record["name"] == "site/a"


@pytest.mark.parametrize("name", CASE_NAMES[:2])
def test_a_case_of_fewer_channels_than_most_is_refused(tmp_path, name):
    write_nnunet(tmp_path, channels=2)
    (tmp_path / "imagesTr" / f"{name}_0001.nii.gz").unlink()
    line = f"{name}_0000.nii.gz: its case has the channels 0000, but needs 2, from 0000 on"
    assert line in loading_error(tmp_path)
    (tmp_path / "dataset.json").unlink()  # now nothing describes the channels
    assert line in loading_error(tmp_path)


def test_images_may_have_the_names_of_their_labels_where_channels_are_described(tmp_path):
    write_nnunet(tmp_path)
    for image in (tmp_path / "imagesTr").iterdir():
        image.rename(image.with_name(image.name.replace("_0000.", ".")))
    assert sorted(record["name"] for split in load_records(volume_config(tmp_path)) for record in split) == CASE_NAMES


def test_a_suffix_of_masks_is_found_unless_the_flag_gives_one(tmp_path):
    touch(tmp_path, "images/a.nii.gz", "masks/a_seg.nii.gz")
    assert len(training_volumes(tmp_path)) == 1
    with pytest.raises(DataError, match="does not end in a channel number"):
        training_volumes(tmp_path, mask_suffix="")


def test_a_label_follows_its_resized_volume(tmp_path):
    class_map = ClassMap(("background", "liver", "tumour"), (0, 1, 2), None)
    reader = ClassReader(class_map, label_sets=LabelSets(((True,) * 3, (False, True, False)), {("liver",): 1}))
    record = training_volumes(write_pairs(tmp_path))[1]
    _, header = read_volume(record["image"], "a")
    assert reader.read_volume(record, header).mask.shape == header.size
    target = reader.read_volume({**record, "labeled": ("liver",)}, header, (4, 5, 6))
    assert target.mask.shape == (4, 5, 6)
    assert set(np.unique(target.mask)) <= {0, 1, 2}
    assert int(target.label_set) == 1


@pytest.mark.parametrize("side", [1.0, 0.7], ids=["sides of 1", "sides of the image"])
def test_a_label_that_does_not_say_where_it_lies_lies_on_its_image(tmp_path, side):
    affine = LPS @ np.diag([0.7, 0.7, 0.7, 1])
    voxels = np.zeros((6, 7, 8), np.uint8)
    voxels[1, 2, 3] = 1
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for name in "ab":
            write_nifti(tmp_path / kind / f"{name}.nii.gz", voxels, affine)
    expected = samples(training_volumes(tmp_path))
    plain = nibabel.Nifti1Image(voxels, None)
    plain.header.set_zooms((side, side, side))
    nibabel.save(plain, tmp_path / "masks" / "a.nii.gz")
    records = training_volumes(tmp_path)
    assert samples(records) == expected
    assert isinstance(inspected(records[0]), Inspection)


def test_a_label_whose_voxels_have_other_sides_does_not_lie_on_its_image(tmp_path):
    voxels = np.zeros((6, 7, 8), np.uint8)
    image = write_nifti(tmp_path / "images" / "a.nii.gz", voxels, LPS)
    plain = nibabel.Nifti1Image(voxels, None)
    plain.header.set_zooms((2, 2, 2))
    nibabel.save(plain, tmp_path / "a.nii.gz")
    label = VolumeFile((str(tmp_path / "a.nii.gz"),), grid_of=VolumeFile((str(image),)))
    problem = inspected({"image": VolumeFile((str(image),)), "target": label, "name": "a"})
    assert problem.kind == "label of another affine"


def test_hidden_folders_are_no_cases(tmp_path):
    touch(tmp_path, "images/s/a.nii.gz", "masks/s/a.nii.gz", "images/.cache/b.nii.gz")
    touch(tmp_path, "images/notes.txt", "masks/notes.txt")
    records = training_volumes(tmp_path)
    assert records.rows.image_folders == {(f"{tmp_path}/images", "s")}
    assert records[0]["name"] == "s/a"


def test_pictures_in_folders_of_volumes_are_told_what_reads_them(tmp_path):
    touch(tmp_path, "imagesTr/a_0000.tif", "labelsTr/a.tif")
    with pytest.raises(DataError, match=r"found only \.tif, .*; --dims 3 reads stacks of pages as volumes"):
        training_volumes(tmp_path)
