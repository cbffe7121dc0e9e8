"""Layouts that people have: trees of files -> the image and the mask of each record, or the line that says what to do.

Modules: data_utils/sources/side_by_side.py, data_utils/sources/folder.py.
"""

import os
from pathlib import Path

import pytest
from support.folders import touch

from data_utils.config import DataConfig
from data_utils.image_io.formats import source_files
from data_utils.sources.load import load_records
from runtime.errors import DataError

# each line is a record: its images, then its masks
LAYOUTS = {
    "a suffix": "a.jpg a_mask.png\nb.jpg b_mask.png",
    "another suffix": "0_img.tif 0_masks.tif\n1_img.tif 1_masks.tif",
    "a word that is no suffix of all": "1_sat.jpg 1_mask.png\n2_sat.jpg 2_mask.png",
    "a beginning": "volume-0.nii segmentation-0.nii\nvolume-1.nii segmentation-1.nii",
    "a beginning without separator": "image1.png label1.png\nimage2.png label2.png",
    "splits": "train/a.jpg train/a_mask.png\ntrain/b.jpg train/b_mask.png\nvalid/c.jpg valid/c_mask.png",
    "folders of patients": "p1/p1_1.tif p1/p1_1_mask.tif\np1/p1_2.tif p1/p1_2_mask.tif\np2/p2_1.tif p2/p2_1_mask.tif",
    "pictures of cases": "a/image.png a/label.png\nb/image.png b/label.png",
    "folders of cases": "a/image/1.png a/label/1.png\na/image/2.png a/label/2.png\nb/image/1.png b/label/1.png",
    "folders of sites": "a/images/1.png a/masks/1.png\na/images/2.png a/masks/2.png\nb/images/1.png b/masks/1.png",
    "volumes in folders": "a/image/1.nii a/label/1.nii\na/image/2.nii a/label/2.nii",
    "KiTS": "c0/imaging.nii.gz c0/segmentation.nii.gz\nc1/imaging.nii.gz c1/segmentation.nii.gz",
    "BraTS": "B0/B0_flair.nii B0/B0_t1.nii B0/B0_seg.nii\nB1/B1_flair.nii B1/B1_t1.nii B1/B1_seg.nii",
    "BraTS of 2023": "B-0/B-0-t1c.nii B-0/B-0-t1n.nii B-0/B-0-seg.nii\nB-1/B-1-t1c.nii B-1/B-1-t1n.nii B-1/B-1-seg.nii",
    "TotalSegmentator": "s0/ct.nii segmentations/liver.nii segmentations/spleen.nii\n"
    "s1/ct.nii segmentations/liver.nii segmentations/spleen.nii",
    "img_dir": "img_dir/train/a.jpg ann_dir/train/a.png\nimg_dir/val/b.jpg ann_dir/val/b.png",
    "train_masks": "train/a.jpg train_masks/a_mask.gif\ntrain/b.jpg train_masks/b_mask.gif",
    "trainannot": "train/a.png trainannot/a.png\ntrain/b.png trainannot/b.png\nval/c.png valannot/c.png",
    "train_images": "train_images/a.png train_masks/a.png\nval_images/b.png val_masks/b.png",
    "images_train": "images_train/a.png masks_train/a.png\nimages_val/b.png masks_val/b.png",
    "one pair of folders": "Original/a.png GroundTruth/a.png\nOriginal/b.png GroundTruth/b.png",
    "words in splits": "train/images/a.png train/gt/a.png\nval/images/b.png val/gt/b.png",
    "folders in folders": "train/train/a.jpg train_masks/train_masks/a_mask.gif\n"
    "train/train/b.jpg train_masks/train_masks/b_mask.gif",
    "BTCV": "img/img0001.nii.gz label/label0001.nii.gz\nimg/img0002.nii.gz label/label0002.nii.gz",
    "words as names": "images/1/image.png masks/1/mask.png\nimages/2/image.png masks/2/mask.png",
    "words in both names": "images/image_1.png masks/mask_1.png\nimages/image_2.png masks/mask_2.png",
    "words behind both names": "images/1_img.jpg masks/1_mask.png\nimages/22_img.jpg masks/22_mask.png",
    "GlaS": "train_1.bmp train_1_anno.bmp\ntestA_1.bmp testA_1_anno.bmp",
    "BIDS": "s1/anat/s1_T2w.nii s1/anat/s1_dseg.nii\ns2/anat/s2_T2w.nii s2/anat/s2_dseg.nii",
    "one image of several": "a_rgb.png a_mask.png\nb_rgb.png b_mask.png",
    "words in long names": "Set_1-2_Input/a.png Set_1_GroundTruth/a_segmentation.png\n"
    "Set_1-2_Input/b.png Set_1_GroundTruth/b_segmentation.png",
}
# files that lie beside those of a layout, and are no part of it
BESIDE = {
    "a suffix": "a_seg.npy a_overlay.png b_overlay.png notes.csv",
    "another suffix": "run/run.json run/checkpoints/step-00000001/state.json run/predictions/0_img.png",
    "one image of several": "a_nir.png b_nir.png",
    "train_masks": "test/c.jpg train_masks.csv",
    "trainannot": "test/d.png testannot/d.png",
    "KiTS": "c0/instances/kidney_annotation-1.nii.gz",
}


def list_rows(root: Path) -> set[str]:
    """The images and masks of all records, below the data set."""
    rows: set[str] = set()
    for records in load_records(DataConfig(str(root))):
        for record in records:
            files = (*source_files(record["image"]), *source_files(record["target"]))
            rows.add(" ".join(os.path.relpath(file, root) for file in files))
    return rows


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_that_can_only_mean_one_thing_is_read(name, tmp_path):
    rows = set()
    for line in LAYOUTS[name].splitlines():
        image, *others = line.split()
        # masks in a folder of the case
        others = [f"{image.split('/')[0]}/{file}" if file.startswith("segmentations") else file for file in others]
        touch(tmp_path, image, *others)
        rows.add(" ".join([image, *others]))
    touch(tmp_path, *BESIDE.get(name, "").split())
    assert list_rows(tmp_path) == rows


def test_names_of_classes_come_from_roboflow_and_from_files_of_masks(tmp_path):
    for split in ("train", "valid"):
        touch(tmp_path / "roboflow" / split, "a.jpg", "a_mask.png")
        (tmp_path / "roboflow" / split / "_classes.csv").write_text("Pixel Value, Class\n0, background\n1, cell\n")
    train, _ = load_records(DataConfig(str(tmp_path / "roboflow")))
    assert train.metadata.classes == ((0, "background"), (1, "cell"))
    for case in ("s1", "s2"):
        touch(tmp_path / "cases" / case, "ct.nii", "segmentations/liver.nii", f"segmentations/only_{case}.nii")
    train, _ = load_records(DataConfig(str(tmp_path / "cases")))
    assert train.metadata.classes == ((1, "liver"), (2, "only_s1"), (3, "only_s2"))
    assert train.metadata.task == "overlapping"
    with pytest.raises(DataError, match="each case has a folder with a mask for each class"):
        load_records(DataConfig(str(tmp_path / "cases"), task="classes"))


# files, and a part of the line
REFUSED = {
    "a.png a_mask.png b.png": "1 file without partner: b.png: image without mask; --allow-unpaired leaves them out",
    "a_1.png a_1_mask.png a_1_2.png b.png b_mask.png": "a_1_2.png: image without mask",
    "a.png a_mask.png a_label.png": "a_label.png and a_mask.png are masks of one image; keep one of them",
    "a_red.png a_nir.png a_mask.png": "a_mask.png may be the mask of nir, red; leave one image beside each mask",
    "B0/B0_t1.nii B0/B0_t2.nii B0/B0_seg.nii B1/B1_t1.nii B1/B1_t2.nii B1/B1_seg.nii B2/B2_t1.nii B2/B2_seg.nii": (
        "1 file without partner: B2/B2_t1.nii: its case has no file of t2; --allow-unpaired leaves them out"
    ),
    "s0/ct.nii s0/segmentations/liver.nii s1/segmentations/liver.nii": "s1: has not exactly one volume",
    "a.jpg a.png b.jpg b.png": "a.jpg and a.png have one name: move the images to images/ and the masks to masks/",
    "a.jpg a_1stHO.png a_2ndHO.png": "if a_1stHO.png is the mask of a.jpg, give --mask-suffix=_1stHO",
    "raw/a.png labels/a.png": "if raw/ holds the images, rename it to images/",
    "images/a.png outlines/a.png more/a.png": "if more/ or outlines/ hold the masks, rename it to masks/",
    "data/train/images/a.png data/train/masks/a.png": "/data?",
    "train/a.png train_masks/a.png val/b.png": "train/ has train_masks/, but val has no folder of masks beside it",
}
# of splits that have no masks, which --allow-unpaired leaves out
REFUSED_SPLITS = {
    "images/train/a.png masks/train/a.png images/val/b.png": "1 file without partner: images/val/b.png: image without",
    "images/train/a.png masks/train/a.png masks/valid/b.png": "1 file without partner: masks/valid/b.png: mask without",
    "train/a_sat.jpg train/a_mask.png valid/b_sat.jpg": "1 file without partner: valid/b_sat.jpg: image without mask",
}


@pytest.mark.parametrize("files", REFUSED_SPLITS)
def test_a_split_without_masks_is_refused_or_left_out(files, tmp_path):
    touch(tmp_path, *files.split(), *files.replace("/a", "/c").split()[:2])
    with pytest.raises(DataError, match=REFUSED_SPLITS[files]):
        load_records(DataConfig(str(tmp_path)))
    train, val = load_records(DataConfig(str(tmp_path), allow_unpaired=True))
    assert (len(train), len(val)) == (1, 1)  # both of train/
    assert len(train.metadata.unpaired) == 1


@pytest.mark.parametrize("files", REFUSED)
def test_what_is_missing_or_could_mean_two_things_is_said_in_one_line(files, tmp_path):
    touch(tmp_path, *files.split())
    with pytest.raises(DataError) as error:
        load_records(DataConfig(str(tmp_path)))
    assert REFUSED[files] in str(error.value)
