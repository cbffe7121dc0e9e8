"""Which models and settings made the masks of a folder, and since when."""

import errno
import json
from pathlib import Path
from unittest import mock

import pytest
from support.prediction import settings_of

from inference.output_folder import provenance_of, record_provenance, recorded_since
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
    assert own == {"models": {str(weights): "1ad27358"}, "scale": None, "tta": False}


@pytest.mark.parametrize("other", [{"scale": 0.5}, {"tta": True}, {"min_size": 9}, {"drop_border": True}], ids=str)
def test_a_folder_takes_no_masks_of_other_settings(weights, output, other):
    record_provenance(output, provenance_of(settings_of(model=str(weights))), overwrite=False)
    with pytest.raises(DataError, match="masks of another model or other settings"):
        record_provenance(output, provenance_of(settings_of(model=str(weights), **other)), overwrite=False)


def test_files_of_before_an_overwriting_call_are_not_of_its_provenance(weights, output):
    record_provenance(output, provenance_of(settings_of(model=str(weights))), overwrite=False)
    assert recorded_since(output) == 0
    (output / "a.png").touch()
    for overwrite in (True, False):
        record_provenance(output, provenance_of(settings_of(model=str(weights), tta=True)), overwrite=overwrite)
        assert recorded_since(output) >= (output / "a.png").stat().st_mtime


@pytest.mark.parametrize("checksum", ["1ad27358", None], ids=["of files", "of the Hub"])
def test_files_of_before_stay_those_of_a_model_that_writes_some_again_unless_it_may_have_changed(output, checksum):
    own = {"models": {"me/cells": checksum}}
    record_provenance(output, own, overwrite=False)
    (output / "a.png").touch()
    record_provenance(output, own, overwrite=True)
    assert (recorded_since(output) == 0) is (checksum is not None)


def test_what_an_earlier_version_did_not_overwrite_to_the_end_is_predicted_again(output):
    own = {"models": {"me/cells": None}}
    for is_complete in (True, False):
        (output / "predict.json").write_text(json.dumps(own | {"complete": is_complete}))
        (output / "a.png").touch()
        assert (recorded_since(output) > (output / "a.png").stat().st_mtime) is not is_complete
    record_provenance(output, own, overwrite=False)
    assert recorded_since(output) >= (output / "a.png").stat().st_mtime


DAMAGED_RECORDS = ["{", "", "[1]", "5", "{}", '{"models": ["a"]}', '{"models": {}, "since": "x"}']


@pytest.mark.parametrize("text", DAMAGED_RECORDS)
def test_a_record_that_is_damaged_or_of_somebody_else_is_replaced(tmp_path, text):
    (tmp_path / "predict.json").write_text(text)
    own = {"models": {"me/cells": None}}
    record_provenance(tmp_path, own, overwrite=False)
    assert json.loads((tmp_path / "predict.json").read_text()) == own | {"since": 0.0}
    other = {"models": {"me/dirt": None}}
    with pytest.raises(DataError, match="holds masks of another model"):
        record_provenance(tmp_path, other, overwrite=False)


def test_a_disk_that_takes_no_record_is_a_one_line_error(output, monkeypatch):
    """As a full disk does, which takes the empty file that the folder is tried with."""
    monkeypatch.setattr("runtime.files.sync", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DataError, match=r"predict\.json cannot be written \(No space left on device\)"):
        record_provenance(output, {"models": {"me/cells": None}}, overwrite=False)


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
