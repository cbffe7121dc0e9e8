"""Which models and settings made the masks of a folder, and whether all of them are there."""

import errno
import json
from pathlib import Path
from unittest import mock

import pytest
from support.prediction import settings_of

from inference.output_folder import complete_provenance, provenance_of, record_provenance
from runtime.errors import DataError


@pytest.fixture
def weights(tmp_path) -> Path:
    """The file of a model."""
    (tmp_path / "model.onnx").write_bytes(b"weights")
    return tmp_path / "model.onnx"


@pytest.fixture
def output(tmp_path) -> Path:
    """A folder of masks that nothing is recorded of."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_provenance_names_the_model_by_its_checksum_beside_settings(weights):
    own = provenance_of(settings_of(model=str(weights)))
    assert own == {"models": {str(weights): "1ad27358"}, "scale": None, "tta": False, "complete": True}


def test_a_folder_of_masks_is_not_complete_while_others_are_overwritten(weights, output):
    """A folder of masks of which another call has overwritten some."""
    record_provenance(output, provenance_of(settings_of(model=str(weights))), overwrite=False)
    record_provenance(output, provenance_of(settings_of(model=str(weights), tta=True)), overwrite=True)
    assert not json.loads((output / "predict.json").read_text())["complete"]
    with pytest.raises(DataError, match="or of an --overwrite that did not finish"):
        record_provenance(output, provenance_of(settings_of(model=str(weights), tta=True)), overwrite=False)


def test_a_record_that_somebody_has_removed_is_not_written_again(output):
    complete_provenance(output)
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


def test_a_disk_that_takes_no_record_is_a_one_line_error(output, monkeypatch):
    """As a full disk does, which takes the empty file that the folder is tried with."""
    monkeypatch.setattr("runtime.files.sync", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DataError, match=r"predict\.json cannot be written \(No space left on device\)"):
        record_provenance(output, {"models": {"me/cells": None}, "complete": True}, overwrite=False)


def models_of(model: Path | str, **settings: object) -> dict[str, str | None]:
    """The models of a call, with their checksums."""
    return provenance_of(settings_of(model=str(model), **settings))["models"]


def test_weights_and_config_of_every_model_count_in_a_folder_of_masks(tmp_path):
    """The folders of two models."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b"{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    folders = tmp_path / "a", tmp_path / "b"
    first, second = map(str, folders)
    models = models_of(first, ensemble=[second, "me/cells"])
    assert list(models) == [first, second, "me/cells"]
    assert models[first] == models_of(first)[first]
    assert models[first] != models[second]
    assert models["me/cells"] is None
    first, _ = folders
    before = models_of(first)
    (first / "config.json").write_bytes(b"{} ")
    assert models_of(first)[str(first)] != before[str(first)]


def test_the_address_of_a_model_is_recorded_without_its_query():
    assert models_of("https://host/x?token=secret") == {"https://host/x": None}
