"""Which models and settings made the masks of a folder, and whether all of them are there."""

import json
import re

import pytest
from prediction import settings_of

from inference import provenance
from inference.provenance import complete_provenance, provenance_of, record_provenance
from predict import close_output
from runtime.errors import DataError


def test_a_folder_of_masks_is_complete_when_all_are_of_one_model(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"weights")
    output = tmp_path / "out"
    output.mkdir()

    def is_complete() -> bool:
        return json.loads((output / "predict.json").read_text())["complete"]

    own = provenance_of(settings_of(model=str(model)))
    assert own == {"models": {str(model): "1ad27358"}, "scale": None, "tta": False, "complete": True}
    record_provenance(output, own, overwrite=False)
    assert is_complete()
    other = provenance_of(settings_of(model=str(model), tta=True))
    line = f"--output {output}: holds masks of another model or other settings (see predict.json)"
    with pytest.raises(DataError, match=re.escape(line)):
        record_provenance(output, other, overwrite=False)
    record_provenance(output, other, overwrite=True)
    assert (output / "predict.json").read_text().startswith('{\n  "models": {\n')  # a person reads it
    assert not is_complete()
    with pytest.raises(DataError, match="or of an --overwrite that did not finish"):
        record_provenance(output, other, overwrite=False)
    close_output(output, None, is_complete=False)
    assert not is_complete()
    assert not (output / "metrics.json").exists()
    close_output(output, {"images": 1}, is_complete=True)
    assert is_complete()
    assert json.loads((output / "metrics.json").read_text()) == {"images": 1}
    record_provenance(output, other, overwrite=False)
    model.rename(tmp_path / "moved.onnx")
    record_provenance(output, provenance_of(settings_of(model=str(tmp_path / "moved.onnx"), tta=True)), overwrite=False)
    (output / "predict.json").unlink()
    complete_provenance(output)  # somebody has removed it
    assert not (output / "predict.json").exists()


@pytest.mark.parametrize("text", ["{", "", "[1]", "5", "{}", '{"models": ["a"]}'])
def test_a_record_that_is_damaged_or_of_somebody_else_is_replaced(tmp_path, text):
    (tmp_path / "predict.json").write_text(text)
    own = {"models": {"me/cells": None}, "complete": True}
    record_provenance(tmp_path, own, overwrite=False)
    assert json.loads((tmp_path / "predict.json").read_text()) == own
    other = {"models": {"me/dirt": None}, "complete": True}
    with pytest.raises(DataError, match="holds masks of another model"):
        record_provenance(tmp_path, other, overwrite=False)
    (tmp_path / "predict.json").write_text("{")
    complete_provenance(tmp_path)
    assert (tmp_path / "predict.json").read_text() == "{"
    record_provenance(tmp_path / "gone", own, overwrite=False)
    assert not (tmp_path / "gone").exists()


def test_a_checksum_is_of_the_whole_file_and_has_eight_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "CHUNK", 2)
    for content, checksum in ((b"weights", "1ad27358"), (b"weights 129", "00c88c5f")):
        (tmp_path / "model.onnx").write_bytes(content)
        own = provenance_of(settings_of(model=str(tmp_path / "model.onnx")))
        assert list(own["models"].values()) == [checksum]


def test_every_model_counts_in_a_folder_of_masks(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b"{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    one = provenance_of(settings_of(model=str(tmp_path / "a")))["models"]
    two = provenance_of(settings_of(model=str(tmp_path / "a"), ensemble=[str(tmp_path / "b"), "me/cells"]))["models"]
    assert list(two) == [str(tmp_path / "a"), str(tmp_path / "b"), "me/cells"]
    assert two[str(tmp_path / "a")] == one[str(tmp_path / "a")] != two[str(tmp_path / "b")]
    assert two["me/cells"] is None
    assert provenance_of(settings_of(model="https://me:secret@host/x"))["models"] == {"https://host/x": None}
    before = one[str(tmp_path / "a")]
    (tmp_path / "a" / "config.json").write_bytes(b"{} ")
    assert provenance_of(settings_of(model=str(tmp_path / "a")))["models"][str(tmp_path / "a")] != before
