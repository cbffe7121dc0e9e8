"""The end of a run and each of its evaluations: what is saved, printed, shown and published.

Module: train_utils/publisher.py.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.accelerators import AS_IT_IS
from support.clocks import NO_CLOCK
from support.networks import LITE
from support.runs import SMALL_MODEL, unplanned
from support.saved_checkpoints import new_checkpoints

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from data_utils.targets.classes import ClassReader
from tasks.classes import ClassScores
from train_utils import publisher as publisher_module
from train_utils.evaluation import Evaluation
from train_utils.publisher import Publisher, facts, finish_run
from train_utils.reporting.judgement import Facts
from train_utils.reporting.section import Section
from train_utils.reporting.sections import new_section
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig


def data_set(dataset: str = "photos", channels: int = 1, images: int = 3) -> DatasetInfo:
    """Images of 4 x 6 of two classes, twice as many for training as the validation has."""
    picture = np.zeros((4, 6), np.uint8)
    records = [{"image": picture, "target": picture, "name": f"i{index}"} for index in range(images)]
    val = Split(ListRecords(records), np.full((images, 2), (4, 6)))
    train = Split(ListRecords([*records, *records]), np.full((2 * images, 2), (4, 6)))
    reader = ClassReader(ClassMap(("a", "b"), (0, 255), None), class_pixels=(1, 1))
    normalization = Normalization((1.0, 2.0, 3.0)[:channels], (1.0,) * channels, ("uint8",))
    return DatasetInfo(DataConfig(dataset, task="classes"), train, val, reader, normalization)


def scores_of(*by_image: float) -> ClassScores:
    """Scores of two classes, of which the second was never found, with the IoU of each image."""
    return ClassScores(("a", "b"), torch.tensor([[4, 0], [3, 0]]), torch.tensor(by_image)[:, None])


def finish(folder: Path, *flags: str, all_saved: bool = True, total_steps: int = 20, **state: int) -> None:
    """Finish a run of 20 steps, or of another number, that has this state."""
    settings = unplanned(*flags)
    schedule = replace(Schedule.from_args(settings, 12, 20, NO_CLOCK), total_steps=total_steps)
    resume = None if schedule.is_over(RunState(**state)) else "python train.py"
    finish_run(settings, folder, schedule, RunState(**state), resume=resume, all_saved=all_saved)


@pytest.mark.parametrize("all_saved", [True, False])
def test_a_run_is_marked_as_finished_if_all_is_saved(tmp_path, capsys, all_saved):
    finish(tmp_path, all_saved=all_saved, step=20)
    assert (tmp_path / "finished.json").exists() is all_saved
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("is_published", [True, False])
def test_a_run_out_of_patience_is_published_before_it_is_marked(tmp_path, monkeypatch, is_published):
    pushed = []
    monkeypatch.setattr(publisher_module, "push_to_hub", lambda *arguments: pushed.append(arguments) or is_published)
    finish(tmp_path, "--patience", "2", "--push-to-hub", "me/cells", step=7, evaluations_since_best=2)
    assert pushed == [(tmp_path / "model", "me/cells")]
    assert (tmp_path / "finished.json").exists() is is_published


@pytest.mark.parametrize(
    ("all_saved", "total_steps", "words"),
    [
        (True, 20, "step 7 of 20; all is saved"),
        (False, 20, "step 7 of 20; not all is saved, see above"),
        (True, 0, "step 7; all is saved"),  # by the clock
    ],
)
def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path, capsys, all_saved, total_steps, words):
    finish(tmp_path, all_saved=all_saved, total_steps=total_steps, step=7)
    assert capsys.readouterr().out == f"stopped after {words}; continue with: python train.py\n"
    assert not (tmp_path / "finished.json").exists()


def facts_of(info: DatasetInfo, config: UNetConfig = SMALL_MODEL) -> Facts:
    """The facts of a run of 70 steps on color images, or of others."""
    evaluation = Evaluation(60, None, scores_of(0, 0, 0))
    network = SimpleNamespace(config=config)
    return facts(RunState(step=70), schedule_of(700), None, evaluation, info, new_section(info), network)


def schedule_of(total_steps: int) -> Schedule:
    """The schedule of a run of so many steps, three of them an epoch."""
    return Schedule.from_args(unplanned("--batch-size", "2"), 6, total_steps, NO_CLOCK)


def test_facts_of_a_run_are_its_steps_its_images_with_its_score():
    run_facts = facts_of(data_set(channels=3))
    assert run_facts.steps == 70
    assert run_facts.validation_images == 3
    assert list(run_facts.unfound) == ["b"]
    assert run_facts.score == "eval/mean_iou"
    assert run_facts.lacks_encoder
    assert not run_facts.is_generated
    assert facts_of(data_set("shapes", 3)).is_generated


@pytest.mark.parametrize(
    ("info", "config"),
    [
        (data_set(channels=1), SMALL_MODEL),
        (data_set(channels=3), UNetConfig(base_channels=2, depth=5, encoder=LITE)),
    ],
    ids=["grey", "with an encoder"],
)
def test_other_networks_lack_no_encoder(info, config):
    assert not facts_of(info, config).lacks_encoder


class RunLogDouble(SimpleNamespace):
    """Stands for a run's log and its tracker, and remembers what they were given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            output_dir=folder, settings=RunSettings.from_json(SETTINGS), takes_pictures=False, logged=[], shown=[]
        )
        self.tracker = self

    def evaluation(self, evaluation: Evaluation) -> None:
        self.logged.append(evaluation.step)

    def pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        self.shown.append((step, sorted(pictures)))


SETTINGS = {
    "flags": {"dataset": "photos"},
    "identity": {"dims": 2},
    "profile": {"processes": 1, "mixed_precision": "no"},
    "run": {"torch": "2", "accelerate": "1"},
}


def new_publisher(folder: Path) -> Publisher:
    """The publisher of a run on three images."""
    info = data_set()
    torch.manual_seed(0)
    network = UNet(replace(SMALL_MODEL, in_channels=1, preprocess=info.preprocess()))
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        autocast=Mock(side_effect=nullcontext),
        is_main_process=True,
        state=AS_IT_IS,
        num_processes=1,
    )
    log = RunLogDouble(folder)
    task = info.reader.task("ce+dice", None)
    checkpoints = new_checkpoints(folder, network)
    return Publisher(accelerator, network, checkpoints, log, info, task)


@pytest.fixture
def publisher(tmp_path) -> Publisher:
    return new_publisher(tmp_path)


def evaluation_of(step: int, score: float) -> Evaluation:
    """An evaluation with this IoU of the first image."""
    by_image = torch.tensor([[score], [0.25], [0.75]])
    return Evaluation(step, 0.5, ClassScores(("a", "b"), torch.tensor([[4, 0], [0, 4]]), by_image))


def test_the_best_evaluation_is_saved_with_its_model_card_and_the_scores_of_images(publisher, tmp_path, capsys):
    state = RunState()
    assert publisher.publish(evaluation_of(3, 0.5), state)
    assert capsys.readouterr().out.endswith(" (best so far, saved)\n")
    assert not publisher.publish(evaluation_of(6, 0.5), state)
    assert capsys.readouterr().out == "step 6: mean IoU 1.0000, mean Dice 1.0000, pixel accuracy 1.0000\n"
    assert publisher.log.logged == [3, 6]
    assert publisher.log.shown == []  # no tracker takes pictures
    assert "step 3" in (tmp_path / "model" / "README.md").read_text()
    assert (tmp_path / "images.csv").read_text() == "image,mean IoU\ni0,0.5\ni1,0.25\ni2,0.75\n"


def test_an_evaluation_is_shown_by_pictures_where_a_tracker_takes_them(publisher, monkeypatch):
    monkeypatch.setattr(publisher_module, "evaluation_pictures", lambda info: 2)
    publisher.log.takes_pictures = True
    publisher.publish(evaluation_of(3, 0.5), RunState())
    assert publisher.log.shown == [(3, ["eval/confusion_matrix", "pictures/i0", "pictures/i2"])]
    publisher.accelerator.autocast.assert_called_once_with()


def test_a_best_model_that_the_disk_refuses_is_not_the_best(tmp_path, capsys):
    state = RunState()
    assert not new_publisher(tmp_path / "gone").publish(evaluation_of(12, 0.25), state)
    assert capsys.readouterr().out.endswith(" (best so far, not saved)\n")
    assert not state.has_best


class Report(NamedTuple):
    """What a report was written of."""

    folder: Path
    best: Evaluation | None
    section: Section
    compared_by: str
    views: dict
    remarks: list[str]
    extent: dict[str, str]


@pytest.fixture
def reports(monkeypatch) -> list[Report]:
    """The reports that are written within a test; none comes on disk."""
    reports: list[Report] = []
    monkeypatch.setattr(
        publisher_module, "write_report", lambda *values, **named: reports.append(Report(*values, **named))
    )
    return reports


@pytest.fixture
def saved(tmp_path) -> Publisher:
    """The publisher of a run whose best model is on disk."""
    publisher = new_publisher(tmp_path)
    assert publisher.checkpoints.save_model(publisher.network, "a card")
    (tmp_path / "metrics.jsonl").write_text('{"step": 700, "train/loss": 0.5}\n')
    return publisher


SCORES = scores_of(0.5, 0.2, 0.9)


def last_state() -> RunState:
    """The end of a run of 700 steps that was best after 600."""
    state = RunState(step=700)
    state.update(Evaluation(600, 0.5, SCORES), is_best=True)
    return state


def test_the_report_has_the_best_evaluation_and_the_extent_of_the_run(saved, reports, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(publisher_module, "milliseconds_since_start", lambda: 754_200)
    saved.write_results(last_state(), schedule_of(1400), "train.py again", ["it was fast", None])
    (report,) = reports
    assert report.folder == tmp_path
    assert report.best.step == 600
    assert report.best.scores.sums.tolist() == [[4, 0], [3, 0]]
    assert report.compared_by == "mean IoU"
    assert report.extent["steps made"] == "700 of 1,400"
    assert report.extent["epochs done"] == "233.3"
    assert report.extent["training images"] == "6"
    assert report.extent["validation images"] == "3"
    assert report.extent["minutes since the last start"] == "12.6"
    assert [name.split(":")[0] for name in report.views] == ["i1", "i0", "i2"]  # the worst first
    assert report.remarks[-1] == "It was fast."
    assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == ["i0.png", "i1.png", "i2.png"]
    assert (tmp_path / "images.csv").exists()
    printed = capsys.readouterr().out
    assert SCORES.table() in printed
    assert f"best model in {tmp_path / 'model'}, report in {tmp_path / 'report.html'}" in printed


def test_the_remarks_on_a_run_stand_in_report_and_output(saved, reports, capsys):
    saved.write_results(last_state(), schedule_of(1400), "train.py again", [])
    printed = capsys.readouterr().out
    few_images, unfound = reports[0].remarks
    assert few_images.startswith("The score is measured on 3 images only")
    assert unfound.startswith("Nothing of b was found")
    assert f"{few_images}\n{unfound}\n" in printed


def test_the_end_of_a_run_without_a_best_model_has_a_report_all_the_same(saved, reports, tmp_path, capsys):
    saved.write_results(RunState(step=700), schedule_of(1400), "train.py again", ["it was fast", None])
    (report,) = reports
    assert report.best is None
    assert report.views == {}
    assert report.remarks[-1] == "It was fast."
    assert "best model" not in capsys.readouterr().out
    assert not (tmp_path / "images.csv").exists()
    assert not (tmp_path / "predictions").exists()


def test_the_predictions_are_those_of_the_model_that_was_saved(saved, reports, tmp_path):
    file = tmp_path / "predictions" / "i0.png"
    pictures = set()
    for bias in ([50.0, 0.0], [0.0, 50.0]):  # by the last network all is a, then all is b
        saved.network.head.conv.bias.data = torch.tensor(bias)
        saved.write_results(last_state(), schedule_of(1400), "train.py again", [])
        pictures.add(file.read_bytes())
    assert len(pictures) == 1
