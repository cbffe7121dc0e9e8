"""The settings of a resumed run against those of its checkpoint: refused, said, or changed without a word.

Module: train_utils/checkpoints/find.py.
"""

import pytest

from runtime.errors import CheckpointError
from train_utils.checkpoints.find import compare_settings
from train_utils.settings.record import RunSettings

CONTENT = "content of the data set"


def settings_of(**changes) -> RunSettings:
    values = {"identity": {"seed": 0, "batch size": 4}, "flags": {"keep_checkpoints": 2, "epochs": 3}, "total_steps": 9}
    values |= changes
    return RunSettings(**values | {"identity": values["identity"]})


def test_another_identity_is_refused_with_both_values():
    line = r"--resume: the checkpoint's batch size is 4, this run's is 8; give the same flags and data, or start"
    with pytest.raises(CheckpointError, match=line):
        compare_settings(settings_of(), settings_of(identity={"seed": 0, "batch size": 8}))


def test_another_seed_is_named_where_the_data_differ():
    """The seed chooses the validation images too."""
    saved = settings_of(identity={"data set": "y"}, flags={"seed": 0})
    current = settings_of(identity={"data set": "x"}, flags={"seed": 1})
    with pytest.raises(CheckpointError, match=r"this run's is x \(--seed was 0 and is 1\); give the same flags"):
        compare_settings(saved, current)


def test_content_of_the_data_set_that_was_not_recorded_is_not_compared():
    """Runs of earlier versions did not record it."""
    assert compare_settings(settings_of(), settings_of(identity={CONTENT: "x"})) == []


def test_another_flag_is_reported_with_both_values():
    changes = {
        "keep_checkpoints": 5,
        "epochs": 4,
        "output_dir": "elsewhere",
        "max_steps": 12,
        "like": "x",
        "resume": "y",
    }
    assert compare_settings(settings_of(), settings_of(flags=changes)) == ["keep_checkpoints was 2 and is now 5"]


MINUTES = "--max-minutes has no effect on a resumed run, which keeps its 9 steps"


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [(3, 5, []), (3, 2, [MINUTES]), (None, 5, [MINUTES]), (None, None, [])],
)
def test_minutes_without_effect_are_reported(before, now, lines):
    saved = settings_of(flags={"max_minutes": before})
    assert compare_settings(saved, settings_of(flags={"max_minutes": now})) == lines


def test_an_identity_that_the_checkpoint_lacks_is_refused():
    with pytest.raises(CheckpointError, match="the checkpoint's norm is None, this run's is batch"):
        compare_settings(settings_of(), settings_of(identity={"norm": "batch"}))
