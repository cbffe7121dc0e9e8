"""Annotations in formats that are not read: the line names the format and what converts it."""

import json

import numpy as np
import pytest
from PIL import Image

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from runtime.errors import DataError

REGION = {"shape_attributes": {"name": "polygon"}, "region_attributes": {}}
FILES = {
    "via_region_data.json": (json.dumps({"0.png1": {"filename": "0.png", "regions": [REGION]}}), "VIA"),
    "annotations.json": (json.dumps({"_via_settings": {}, "_via_img_metadata": {}}), "VIA"),
    "via.csv": ("filename,file_size,region_shape_attributes\n0.png,1,{}\n", "VIA"),
    "meta.json": (json.dumps({"classes": [{"title": "cell", "shape": "polygon"}], "tags": []}), "Supervisely"),
    "ds0/ann/0.png.json": (json.dumps({"size": {}, "objects": [{"classTitle": "cell"}]}), "Supervisely"),
    "annotations.xml": ("<?xml version='1.0'?>\n<annotations>\n<version>1.1</version><meta/></annotations>", "CVAT"),
    "annotations/task.xml": ('<annotations><meta/><image id="0" name="0.png"></image></annotations>', "CVAT"),
    "project-1.json": (json.dumps([{"annotations": [{"result": [{"from_name": "label"}]}]}]), "Label Studio"),
    "export.ndjson": (json.dumps({"data_row": {"id": "c"}, "projects": {}}), "Labelbox"),
    "0.json": (json.dumps({"version": "2.0", "schema_ref": "https://darwin-public.s3/schema.json"}), "V7 Darwin"),
    "annotations/0.xml": ("<annotation><object><bndbox><xmin>1</xmin></bndbox></object></annotation>", "boxes"),
    "Annotations/0.xml": ("<annotation><object><polygon><pt><x>1</x></pt></polygon></object></annotation>", "LabelMe"),
    "1.json": (json.dumps({"info": {"description": "ISAT", "name": "0.png"}, "objects": []}), "ISAT"),
    "panoptic_train.json": (json.dumps({"images": [{}] * 2**15, "annotations": [{"segments_info": []}]}), "panoptic"),
    "annotations/default.json": (json.dumps({"info": {}, "categories": {"label": {"labels": []}}}), "Datumaro"),
    "0_shapes.csv": ("index,shape-type,vertex-index,axis-0,axis-1\n0,polygon,0,10,8\n", "napari"),
    "slide.xml": ("<ASAP_Annotations><Annotations/></ASAP_Annotations>", "ASAP"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("images", ["images", "."])
def test_a_format_that_is_not_read_is_named_with_its_converter(file, images, tmp_path):
    content, name = FILES[file]
    for folder in (tmp_path / images, (tmp_path / file).parent):
        folder.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8)).save(tmp_path / images / "0.png")
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=rf"{file} holds annotations of [^;]*{name}[^;]*, which are not read; \w+"):
        load_records(DataConfig(str(tmp_path)))


@pytest.mark.parametrize("file", ["my_labels.json", "annotations/labels_of_mine.json", "images/annotations.json"])
def test_coco_in_a_file_of_another_name_is_told_the_names_that_are_read(file, tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "0.png")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    with pytest.raises(DataError, match=rf"{file} may be COCO, which is read as .*/annotations/instances_train\.json"):
        load_records(DataConfig(str(tmp_path)))


def test_files_of_cellpose_are_never_opened(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "0.png")
    np.save(tmp_path / "0_seg.npy", {"masks": np.zeros((8, 8))}, allow_pickle=True)
    with pytest.raises(DataError, match=r"0_seg.npy is a file of Cellpose .* save the masks as PNG or TIFF"):
        load_records(DataConfig(str(tmp_path)))
