"""The model card: its front matter for the Hub, its settings, scores and code, and no path of this machine.

Module: train_utils/reporting/model_card.py.
"""

import re
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

from data_utils.class_map import ClassMap
from tasks.classes.reader import ClassReader
from tasks.classes.scores import ClassScores
from tasks.classes.show import ClassSection
from train_utils.evaluation import Evaluation
from train_utils.reporting.model_card import model_card
from train_utils.settings.record import RunSettings

NAMES = ("<script>alert(1)</script>", 'a|b & "c"', "c: #d")
MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])
SETTINGS = {
    "flags": {"dataset": "cells", "epochs": 3, "max_steps": None, "image_size": [32, 48], "crop_size": None},
    "profile": {"processes": 1, "mixed_precision": "no"},
    "total_steps": 40,
    "identity": {"dims": 2, "in_channels": 3},
    "run": {"started": "2026-01-02", "torch": "2.13.0", "accelerate": "1.15.0", "git_commit": "abc"},
}


def card(flags: dict | None = None, *, names=NAMES, matrix=MATRIX, step: int = 30, **changes) -> str:
    """The card of a model of these classes, with further flags, and other settings than SETTINGS."""
    settings = RunSettings.from_json(SETTINGS | {"flags": SETTINGS["flags"] | (flags or {})} | changes)
    section = ClassSection(ClassReader(ClassMap(tuple(names), tuple(range(len(names))), None)))
    return model_card(settings, Evaluation(step, 0.5, ClassScores(names, matrix, torch.zeros(0, 1))), section)


def front_matter(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_front_matter_of_a_card_without_scores_has_no_results():
    """The Hub refuses a model index without results."""
    text = card(matrix=torch.zeros(3, 3, dtype=torch.int64))
    assert front_matter(text).keys() == {"library_name", "tags"}
    assert front_matter(text)["library_name"] == "unet-accelerate"
    assert "n/a" in text


def test_the_front_matter_of_a_card_is_read_by_the_hub():
    data = ModelCard(card({"dataset": "shapes<i>"})).data
    assert data.library_name == "unet-accelerate"
    assert data.pipeline_tag is None
    assert {result.dataset_name for result in data.eval_results} == {"shapes<i>"}
    assert {result.metric_type: result.metric_value for result in data.eval_results} == {
        "mean_iou": round((90 / 105 + 15 / 30) / 2, 6),
        "mean_dice": round((180 / 195 + 30 / 45) / 2, 6),
        "pixel_accuracy": 105 / 120,
    }


@pytest.mark.parametrize(
    ("dims", "channels", "line"),
    [
        (3, 1, 'predictor.mask("scan.nii.gz")  # (D, H, W) class indices'),
        (2, 8, 'predictor.mask("image.tif")  # (H, W) class indices'),
    ],
)
def test_the_card_of_a_model_of_volumes_or_bands_predicts_a_file_that_holds_these(dims, channels, line):
    text = card(identity={"dims": dims, "in_channels": channels})
    assert line in text
    assert "image.png" not in text


def test_a_data_set_whose_name_means_something_in_yaml_keeps_it():
    name = 'a: "b" # {c}\\'
    matter = front_matter(card({"dataset": name}))
    assert matter["model-index"][0]["results"][0]["dataset"]["name"] == name


@pytest.mark.parametrize("name", ["a\\|b", "a\n| b", "`a|b`", "[a](b)", "<img>", "&lt;"])
def test_a_class_name_stays_one_cell_of_plain_text(name):
    (row,) = [line for line in card(names=(name, "b", "c")).splitlines() if line.endswith("| 100 |")]
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", row)
    assert len(cells) == 8
    text = cells[1].strip()
    assert not re.search(r"(?<!\\)[`*<~\[\]]|&(?!amp;|lt;)", text.replace("\\\\", ""))
    plain_text = re.sub(r"\\(.)", r"\1", text).replace("&lt;", "<").replace("&amp;", "&")
    assert plain_text == re.sub(r"\s+", " ", name)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of data at a path that the card must not tell."""
    folder = tmp_path / "secret" / "cells"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("form", ["{}", "file://{}", "{}/shards-{{000..012}}.tar", "{}/gone/*.parquet", "/gone{}"])
def test_no_form_of_a_local_path_is_reported(folder, form):
    path = form.format(folder)
    text = card({"dataset": path, "init_from": path, "bands": [path, "x"]})
    assert "secret" not in text
    assert str(folder.parent.parent) not in text
    assert Path(path).name.split("{")[0].rstrip("*") in text.replace("\\", "")


@pytest.mark.parametrize("path", ["../../secret/cells", "~/secret/cells"])
def test_a_local_path_is_not_told_from_within_its_folder(path, folder, tmp_path, monkeypatch):
    """The test runs within the folder, below its home."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "secret" not in card({"dataset": path})
