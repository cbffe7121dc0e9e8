"""Which models and settings made the masks of a folder, and whether all of them are there."""

import errno
import json
from argparse import Namespace
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


def is_complete(output: Path) -> bool:
    """Whether the folder is said to hold masks of one model alone."""
    return json.loads((output / "predict.json").read_text())["complete"]


def test_provenance_names_the_model_by_its_checksum_beside_settings(weights):
    own = provenance_of(settings_of(model=str(weights)))
    assert own == {"models": {str(weights): "1ad27358"}, "scale": None, "tta": False, "complete": True}


def test_provenance_has_what_is_left_out_of_objects():
    flags = {"model": "m", "ensemble": [], "scale": 0.5, "tta": True}
    plain = provenance_of(Namespace(**flags, min_size=None, drop_border=False))
    assert plain == {"models": {"m": None}, "scale": 0.5, "tta": True, "complete": True}
    changed = provenance_of(Namespace(**flags, min_size=0, drop_border=True))
    assert changed == plain | {"min_size": 0, "drop_border": True}


@pytest.fixture
def mixed(weights, output) -> Path:
    """A folder of masks of which another call has overwritten some."""
    record_provenance(output, provenance_of(settings_of(model=str(weights))), overwrite=False)
    record_provenance(output, provenance_of(settings_of(model=str(weights), tta=True)), overwrite=True)
    return output


def test_a_folder_of_masks_is_not_complete_while_others_are_overwritten(weights, mixed):
    assert not is_complete(mixed)
    with pytest.raises(DataError, match="or of an --overwrite that did not finish"):
        record_provenance(mixed, provenance_of(settings_of(model=str(weights), tta=True)), overwrite=False)


def test_a_record_that_somebody_has_removed_is_not_written_again(output):
    complete_provenance(output)
    assert not (output / "predict.json").exists()


DAMAGED_RECORDS = ["{", "", "[1]", "5", "{}", '{"models": ["a"]}']


@pytest.mark.parametrize("text", DAMAGED_RECORDS)
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


def test_a_record_that_is_damaged_is_not_completed(tmp_path):
    (tmp_path / "predict.json").write_text("{")
    complete_provenance(tmp_path)
    assert (tmp_path / "predict.json").read_text() == "{"


def models_of(model: Path | str, **settings: object) -> dict[str, str | None]:
    """The models of a call, with their checksums."""
    return provenance_of(settings_of(model=str(model), **settings))["models"]


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    """The folders of two models."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b"{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path / "a", tmp_path / "b"


def test_every_model_counts_in_a_folder_of_masks(folders):
    first, second = map(str, folders)
    models = models_of(first, ensemble=[second, "me/cells"])
    assert list(models) == [first, second, "me/cells"]
    assert models[first] == models_of(first)[first]
    assert models[first] != models[second]
    assert models["me/cells"] is None


def test_the_config_of_a_model_counts_in_its_checksum(folders):
    first, _ = folders
    before = models_of(first)
    (first / "config.json").write_bytes(b"{} ")
    assert models_of(first)[str(first)] != before[str(first)]


def test_the_address_of_a_model_is_recorded_without_its_query():
    assert models_of("https://host/x?token=secret") == {"https://host/x": None}
