"""Where a run starts, when it counts as finished, and what may differ where it goes on: each line written out.

Modules: train_utils/run_dir.py, train_utils/results.py, train_utils/checkpoints/find.py,
train_utils/checkpoints/checkpoint_state.py, train_utils/settings/record.py.
"""

import hashlib
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from in_process import parsed
from networks import LITE

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from data_utils.targets.classes import ClassReader
from runtime.errors import CheckpointError
from runtime.launch_profile import LaunchProfile
from tasks.classes import ClassScores
from train_utils import results
from train_utils.checkpoints.best_model import BestModel
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import (
    FoundCheckpoint,
    checkpoint_folder,
    compare_settings,
    find_checkpoint,
    fingerprint,
    newest_first,
    peek,
)
from train_utils.evaluation import Evaluation
from train_utils.memory.limit import MemoryLimit
from train_utils.microbatch import split_from_args
from train_utils.reporting.sections import new_section
from train_utils.results import Publisher, facts, finish_run
from train_utils.run_dir import OpenedRun, finished_line, mark_finished
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings, say_credentials
from unet import UNet, UNetConfig

FLAGS = ("--dataset", "data", "--plan", "none", "--batch-size", "4")
MODEL = UNetConfig(base_channels=2, depth=1)
NO_LIMIT = MemoryLimit()


def settings_of(*flags: str):
    return parsed(*FLAGS, *flags)


def profile_of(processes: int, accumulation: int | None = None) -> LaunchProfile:
    return LaunchProfile(processes, 1, "MULTI_CPU", "cpu", "no", gradient_accumulation_steps=accumulation)


def opened_run(folder: Path, limit: MemoryLimit = NO_LIMIT, **recorded) -> OpenedRun:
    """Where a run starts that has a checkpoint with these records; none without any."""
    state = None
    if recorded:
        state = CheckpointState(RunSettings(**recorded), MODEL, RunState(step=4), None, None)
    return OpenedRun(folder, FoundCheckpoint(None, state, []), limit)


def test_the_length_of_a_run_is_that_of_its_steps_or_of_its_minutes(tmp_path):
    fresh = opened_run(tmp_path)
    assert (fresh.total_steps(settings_of("--max-steps", "7")), fresh.steps_before) == (7, 0)
    assert fresh.total_steps(settings_of("--epochs", "7")) is None
    assert fresh.total_steps(settings_of("--max-minutes", "7")) is None
    assert fresh.minutes_to_fill(settings_of("--max-minutes", "7")) == 7
    assert fresh.minutes_to_fill(settings_of()) is None


@pytest.mark.parametrize(("before", "now", "minutes"), [(3, 3, None), (3, 2, None), (3, 5, 2), (None, 5, None)])
def test_a_resumed_run_fills_the_minutes_that_were_added(tmp_path, before, now, minutes):
    more = opened_run(tmp_path, total_steps=70, flags={"max_minutes": before})
    settings = settings_of("--max-minutes", str(now))
    assert (more.minutes_to_fill(settings), more.steps_before) == (minutes, 70)
    assert more.total_steps(settings) == (None if minutes else 70)
    assert more.total_steps(settings_of("--max-steps", "9")) == 9
    assert more.minutes_to_fill(settings_of()) is None


def test_the_largest_micro_batch_is_that_of_a_shortage_else_of_the_checkpoint(tmp_path):
    assert opened_run(tmp_path).largest_micro_batch is None
    assert opened_run(tmp_path, micro_batch_size=8).largest_micro_batch == 8
    assert opened_run(tmp_path, MemoryLimit(2), micro_batch_size=8).largest_micro_batch == 2
    assert opened_run(tmp_path, MemoryLimit(None, True), micro_batch_size=8).largest_micro_batch == 8


@pytest.mark.parametrize(
    ("flags", "processes", "accumulation", "saved", "expected"),
    [
        ((), 1, None, None, (4, 1)),
        ((), 1, None, 2, (2, 2)),
        ((), 1, None, 8, (4, 1)),
        ((), 2, None, 8, (2, 1)),
        (("--micro-batch-size", "1"), 2, None, 2, (1, 2)),
        ((), 2, 2, None, (1, 2)),
        (("--micro-batch-size", "auto"), 1, 1, 2, (4, 1)),
    ],
)
def test_a_batch_is_split_by_flags_profile_and_what_has_fitted(flags, processes, accumulation, saved, expected):
    batch_split = split_from_args(settings_of(*flags), profile_of(processes, accumulation), saved)
    assert (batch_split.micro_batch_size, batch_split.accumulation) == expected
    assert (batch_split.batch_size, batch_split.groups) == (4, processes)


@pytest.mark.parametrize(
    ("processes", "shared", "groups", "micro_batch"), [(4, 1, 4, 1), (4, 2, 2, 2), (2, 2, 1, 4), (6, 3, 2, 2)]
)
def test_a_batch_is_split_over_the_groups_that_share_a_volume(processes, shared, groups, micro_batch):
    settings = settings_of("--processes-per-volume", str(shared))
    batch_split = split_from_args(settings, profile_of(processes), None)
    assert (batch_split.groups, batch_split.processes_per_volume, batch_split.world_size) == (groups, shared, processes)
    assert (batch_split.micro_batch_size, batch_split.accumulation) == (micro_batch, 1)


def finished(folder: Path, step: int, total_steps: int, *flags: str) -> SimpleNamespace:
    """A folder in which a run of these flags has ended; asked with other flags, it answers with a line or None."""
    checkpoint_folder(folder / "checkpoints", step).mkdir(parents=True)
    schedule = replace(Schedule.from_args(settings_of(), 12, None), total_steps=total_steps)
    mark_finished(folder, settings_of(*flags), schedule, step)
    return SimpleNamespace(line=lambda *others: finished_line(folder, settings_of(*others)))


def test_a_run_has_finished_unless_more_steps_are_asked_for(tmp_path):
    run = finished(tmp_path, 30, 30)  # ten epochs of three steps
    line = f"{tmp_path}: the run has finished, at step 30 of 30; to continue it, give more --epochs, --max-steps or"
    for flags in ((), ("--epochs", "3"), ("--max-steps", "30"), ("--max-steps", "1"), ("--max-minutes", "9")):
        assert run.line(*flags) == f"{line} --max-minutes", flags
    for flags in (("--epochs", "11"), ("--max-steps", "31"), ("--seed", "1"), ("--batch-size", "5")):
        assert run.line(*flags) is None, flags
    stored = json.loads((tmp_path / "finished.json").read_text())
    assert (stored["step"], stored["total_steps"], stored["steps_per_epoch"]) == (30, 30, 3)
    assert stored["flags"]["batch_size"] == 4
    for flags in ([], None, "all"):
        (tmp_path / "finished.json").write_text(json.dumps(stored | {"flags": flags}))
        assert run.line() is None
    del stored["flags"]["num_workers"]  # a flag that is newer than the run is as the run was
    (tmp_path / "finished.json").write_text(json.dumps(stored))
    assert run.line("--num-workers", "7") == f"{line} --max-minutes"
    (tmp_path / "checkpoints" / "step-00000030").rmdir()
    assert run.line() is None


def test_what_the_plan_of_a_finished_run_has_chosen_need_not_be_typed(tmp_path):
    checkpoint_folder(tmp_path / "checkpoints", 30).mkdir(parents=True)
    planned = parsed("--dataset", "data", "--max-steps", "30")
    schedule = Schedule.from_args(settings_of(), 12, 30)
    mark_finished(tmp_path, replace(planned, base_channels=24, epochs=9, task="classes"), schedule, 30)
    for flags, has_finished in (((), True), (("--base-channels", "24"), True), (("--base-channels", "16"), False)):
        line = finished_line(tmp_path, parsed("--dataset", "data", "--max-steps", "30", *flags))
        assert (line is not None) is has_finished
    assert finished_line(tmp_path, parsed("--dataset", "data")) is not None  # whose length is left to the plan


def test_a_finished_run_that_the_disk_does_not_let_mark_is_said(tmp_path, capsys):
    mark_finished(tmp_path / "gone", settings_of(), Schedule.from_args(settings_of(), 12, 30), 30)
    assert capsys.readouterr().out.startswith("finished.json could not be written")


def test_a_run_that_found_its_task_and_places_has_finished_without_these_flags(tmp_path):
    checkpoint_folder(tmp_path / "checkpoints", 30).mkdir(parents=True)
    schedule = replace(Schedule.from_args(settings_of(), 12, None), total_steps=30)
    mark_finished(tmp_path, replace(settings_of(), task="classes", place=True), schedule, 30)
    for flags, has_finished in (((), True), (("--task", "landmarks"), False), (("--no-place",), False)):
        assert (finished_line(tmp_path, settings_of(*flags)) is not None) is has_finished
    record = json.loads((tmp_path / "finished.json").read_text())
    del record["flags"]["task"]  # earlier versions knew classes alone
    (tmp_path / "finished.json").write_text(json.dumps(record))
    for task, has_finished in (("classes", True), ("landmarks", False)):
        assert (finished_line(tmp_path, settings_of("--task", task)) is not None) is has_finished


def test_a_finished_run_is_recognized_without_the_password_that_its_file_holds(tmp_path):
    run = finished(tmp_path, 30, 30)
    url = "https://me:secret@example.org/data.parquet"
    stored = json.loads((tmp_path / "finished.json").read_text())
    (tmp_path / "finished.json").write_text(json.dumps(stored | {"flags": stored["flags"] | {"dataset": url}}))
    assert run.line("--dataset", url) is not None


def test_a_run_of_minutes_has_finished_unless_more_minutes_are_given(tmp_path):
    run = finished(tmp_path, 20, 20, "--max-minutes", "3")  # fewer steps than the ten epochs of --epochs
    assert run.line("--max-minutes", "3")
    assert run.line("--max-minutes", "2")
    assert run.line("--max-minutes", "3.1") is None


def test_a_run_without_patience_left_has_finished_whatever_its_length(tmp_path):
    run = finished(tmp_path, 12, 30)
    for flags in ((), ("--max-steps", "99")):
        line = f"{tmp_path}: the run has finished, at step 12 of 30; to continue it, give a larger --patience"
        assert run.line(*flags) == line


class Published(SimpleNamespace):
    """A best model that is saved or not."""

    def is_saved(self) -> bool:
        return self.saved


@pytest.mark.parametrize(
    ("saved", "all_saved", "is_marked"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_only_a_run_with_all_its_files_is_marked_as_finished(tmp_path, capsys, saved, all_saved, is_marked):
    schedule = Schedule.from_args(settings_of(), 12, 20)
    finish_run(settings_of(), tmp_path, schedule, RunState(step=20), Published(saved=saved, folder=tmp_path), all_saved)
    assert (tmp_path / "finished.json").exists() is is_marked
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("is_published", [True, False])
def test_a_run_out_of_patience_is_published_and_marked_if_that_went_well(tmp_path, monkeypatch, is_published):
    pushed = []
    monkeypatch.setattr(results, "push_to_hub", lambda *arguments: pushed.append(arguments) or is_published)
    args = settings_of("--patience", "2", "--push-to-hub", "me/cells")
    state = RunState(step=7, evaluations_since_best=2)
    best_model = Published(saved=True, folder=tmp_path / "model")
    finish_run(args, tmp_path, Schedule.from_args(args, 12, 20), state, best_model, True)
    assert pushed == [(tmp_path / "model", "me/cells")]
    assert (tmp_path / "finished.json").exists() is is_published


@pytest.mark.parametrize(("all_saved", "words"), [(True, "all is saved"), (False, "not all is saved, see above")])
def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path, capsys, all_saved, words):
    schedule = Schedule.from_args(settings_of(), 12, 20)
    finish_run(settings_of(), tmp_path, schedule, RunState(step=7), Published(saved=True, folder=tmp_path), all_saved)
    line = f"stopped after step 7 of 20; {words}; continue with --resume auto\n"
    assert capsys.readouterr().out == line
    assert not (tmp_path / "finished.json").exists()


def data_set(dataset: str, channels: int, images: int = 3) -> DatasetInfo:
    picture = np.zeros((4, 6), np.uint8)
    records = [{"image": picture, "target": picture, "name": f"i{index}"} for index in range(images)]
    val = Split(ListRecords(records), np.full((images, 2), (4, 6)))
    train = Split(ListRecords([*records, *records]), np.full((2 * images, 2), (4, 6)))
    reader = ClassReader(ClassMap(("a", "b"), (0, 255), None), (1, 1))
    normalization = Normalization((1.0, 2.0, 3.0)[:channels], (1.0,) * channels, ("uint8",))
    return DatasetInfo(DataConfig(dataset, task="classes"), train, val, reader, normalization)


def test_what_the_judgement_of_a_run_is_told():
    scores = ClassScores(("a", "b"), torch.tensor([[4, 0], [3, 0]]), torch.zeros(3, 1))
    info = data_set("photos", 3)
    told = facts(RunState(step=70), Evaluation(60, None, scores), info, new_section(info), UNet(MODEL))
    assert (told.steps, told.validation_images, list(told.unfound)) == (70, 3, ["b"])
    assert (told.lacks_encoder, told.is_generated, told.score) == (True, False, "eval/mean_iou")
    for dataset, channels, dims in (("photos", 1, 2), ("photos", 3, 3)):
        info = data_set(dataset, channels)
        network = UNet(replace(MODEL, dims=dims))
        assert not facts(RunState(), Evaluation(60, None, scores), info, new_section(info), network).lacks_encoder
    grey = replace(data_set("photos", 3), normalization=Normalization((1.0,) * 3, (1.0,) * 3, ("uint8",)))
    assert not facts(RunState(), Evaluation(60, None, scores), grey, new_section(grey), UNet(MODEL)).lacks_encoder
    points = replace(data_set("photos", 3), reader=SimpleNamespace(takes_points=True))
    section = new_section(info)
    assert not facts(RunState(), Evaluation(60, None, scores), points, section, UNet(MODEL)).lacks_encoder
    with_encoder = SimpleNamespace(config=UNetConfig(base_channels=2, depth=5, encoder=LITE))
    photos = data_set("photos", 3)
    assert not facts(RunState(), Evaluation(60, None, scores), photos, section, with_encoder).lacks_encoder
    info = data_set("shapes", 3)
    assert facts(RunState(), Evaluation(60, None, scores), info, new_section(info), UNet(MODEL)).is_generated


@pytest.mark.parametrize("is_saved", [True, False])
def test_the_report_shows_the_best_model_only_if_it_was_saved(tmp_path, monkeypatch, capsys, is_saved):
    info = data_set("photos", 1)
    torch.manual_seed(0)
    network = UNet(replace(MODEL, in_channels=1, preprocess=info.preprocess()))
    best_model = BestModel(tmp_path / "model")
    if is_saved:
        best_model.save(network, "a card")
    else:
        (tmp_path / "model").write_text("in the way")
        best_model.save(network, "a card")
        capsys.readouterr()
    scores = ClassScores(("a", "b"), torch.tensor([[4, 0], [3, 0]]), torch.tensor([[0.5], [0.2], [0.9]]))
    (tmp_path / "metrics.jsonl").write_text('{"step": 700, "train/loss": 0.5}\n')
    state = RunState(step=700)
    state.update(Evaluation(600, 0.5, scores))
    reports = []
    monkeypatch.setattr(results, "write_report", lambda *arguments, **options: reports.append((arguments, options)))
    accelerator = SimpleNamespace(device=torch.device("cpu"), autocast=nullcontext)
    task = info.reader.task("ce+dice", None)
    monkeypatch.setattr(results, "PROCESS_START", 100.0)
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: 854.2))
    run_log = SimpleNamespace(output_dir=tmp_path)
    publisher = Publisher(accelerator, network, best_model, None, run_log, info, task, new_section(info))
    publisher.write_results(state, ["it was fast", None])
    (((folder, best, _, compared_by), options),) = reports
    views = options["views"]
    judgement = options["judgement"]
    assert (folder, compared_by, options["speed_notes"]) == (tmp_path, "mean IoU", ["it was fast"])
    assert options["extent"]["training images"] == "6"
    assert options["extent"]["minutes since the last start"] == "12.6"
    assert (tmp_path / "images.csv").exists() is is_saved  # a resumed run may have lost it
    printed = capsys.readouterr().out
    assert "it was fast\n" in printed
    assert (scores.table() in printed) is is_saved
    if is_saved:
        assert (best.step, best.scores.sums.tolist(), len(views)) == (600, [[4, 0], [3, 0]], 3)
        assert [name.split(":")[0] for name in views] == ["i1", "i0", "i2"]  # the worst first
        assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == ["i0.png", "i1.png", "i2.png"]
        assert judgement[0].startswith("No pixel of b was found")
        assert judgement[0] in printed
        assert f"best model in {tmp_path / 'model'}, report in {tmp_path / 'report.html'}" in printed
        (tmp_path / "predictions").rename(tmp_path / "others")
        (tmp_path / "predictions").touch()
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").mkdir()
        publisher.write_results(state, [])
        printed = capsys.readouterr().out
        assert "predictions/ could not be written" in printed
        assert "report.html could not be written" in printed
        assert len(reports) == 2
        assert reports[1][1]["judgement"] == []
        assert len(reports[1][1]["views"]) == 3
    else:
        assert (best, views, list(judgement)) == (None, {}, [])
        assert "best model" not in printed
        assert not (tmp_path / "predictions").exists()
        monkeypatch.setattr(results, "write_report", Mock(side_effect=OSError(28, "No space left")))
        publisher.write_results(state, ["it was fast"])
        printed = capsys.readouterr().out
        assert printed.startswith("report.html could not be written")
        assert printed.endswith("it was fast\n")


class Calls(SimpleNamespace):
    """Parts of a run that remember what they were given."""

    def __init__(self, **values: object) -> None:
        super().__init__(logged=[], shown=[], **values)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        self.logged.append(evaluation.step)

    def takes_pictures(self) -> bool:
        return self.has_pictures

    def write_pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        self.shown.append((step, sorted(pictures)))


def test_an_evaluation_is_logged_shown_and_said_and_the_best_one_is_saved(tmp_path, monkeypatch, capsys):
    info = data_set("photos", 1)
    network = UNet(replace(MODEL, in_channels=1, preprocess=info.preprocess()))
    run = Calls(output_dir=tmp_path, settings="settings", has_pictures=True)
    barriers = []
    monkeypatch.setattr(results, "barrier_without_timeout", barriers.append)
    monkeypatch.setattr(results, "whole_network", lambda accelerator, network: network)
    monkeypatch.setattr(results, "model_card", lambda settings, best, section: f"{settings} of step {best.step}")
    monkeypatch.setattr(results, "pictures_of_an_evaluation", lambda info: 2)
    accelerator = SimpleNamespace(autocast=nullcontext, is_main_process=True)
    task = info.reader.task("ce+dice", None)
    best_model = BestModel(tmp_path / "model")
    publisher = Publisher(accelerator, network, best_model, run, run, info, task, new_section(info))

    def publish(step: int, hits: float, *, is_best: bool) -> str:
        by_image = torch.tensor([[hits], [0.25], [0.75]])
        publisher.publish(
            Evaluation(step, 0.5, ClassScores(("a", "b"), torch.tensor([[4, 0], [0, 4]]), by_image)), is_best
        )
        return capsys.readouterr().out

    scores = "mean IoU 1.0000, mean Dice 1.0000"
    assert publish(3, 0.5, is_best=True).startswith(f"step 3: {scores}")
    assert (tmp_path / "model" / "README.md").read_text() == "settings of step 3"
    assert (tmp_path / "images.csv").read_text() == "image,mean IoU\ni0,0.5\ni1,0.25\ni2,0.75\n"
    assert run.shown == [(3, ["eval/confusion_matrix", "pictures/i0", "pictures/i2"])]
    run.has_pictures = False
    assert "best" not in publish(6, 0.125, is_best=False)
    assert (tmp_path / "model" / "README.md").read_text() == "settings of step 3"
    assert len(run.shown) == 1
    assert (tmp_path / "images.csv").read_text().splitlines()[1] == "i0,0.5"
    assert publish(9, 0.125, is_best=True).endswith(" (best so far, saved)\n")
    best_model.folder = tmp_path / "gone" / "model"
    run.output_dir = tmp_path / "gone"
    said = publish(12, 0.25, is_best=True)
    assert "images.csv could not be written" in said
    assert said.endswith(" (best so far)\n")
    accelerator.is_main_process = False
    assert publish(15, 0.5, is_best=True) == ""
    assert run.logged == [3, 6, 9, 12, 15]
    assert len(barriers) == 5


def run_settings(**changes) -> RunSettings:
    values = {"identity": {"seed": 0, "batch size": 4}, "flags": {"keep_checkpoints": 2, "epochs": 3}, "total_steps": 9}
    return RunSettings(**values | changes)


def test_another_identity_is_another_run():
    saved = run_settings()
    assert compare_settings(saved, run_settings()) == []
    line = r"--resume: the checkpoint's batch size is 4, this run's is 8; give the same flags and data, or start"
    with pytest.raises(CheckpointError, match=line):
        compare_settings(saved, run_settings(identity={"seed": 0, "batch size": 8}))
    with pytest.raises(CheckpointError, match="the checkpoint's norm is None, this run's is batch"):
        compare_settings(saved, run_settings(identity={"norm": "batch"}))
    line = r"this run's is x \(--seed was 0 and is 1\); give the same flags"  # it chooses the validation images too
    with pytest.raises(CheckpointError, match=line):
        compare_settings(
            run_settings(identity={"data set": "y"}, flags={"seed": 0}),
            run_settings(identity={"data set": "x"}, flags={"seed": 1}),
        )
    # a run of an earlier version did not record the content
    assert compare_settings(saved, run_settings(identity={"content of the data set": "x"})) == []
    (line,) = compare_settings(saved, run_settings(identity={"content of the data set": "x"}, total_steps=8))
    assert line.startswith("the run is now 8 steps long instead of 9:")
    with pytest.raises(CheckpointError, match="content of the data set is y, this run's is x"):
        content = {"content of the data set": "y"}
        compare_settings(run_settings(identity=content), run_settings(identity={"content of the data set": "x"}))


def test_what_else_has_changed_is_said():
    changes = {
        "keep_checkpoints": 5,
        "epochs": 4,
        "output_dir": "elsewhere",
        "max_steps": 12,
        "like": "x",
        "resume": "y",
    }
    assert compare_settings(run_settings(), run_settings(flags=changes, total_steps=12)) == [
        "the run is now 12 steps long instead of 9: the learning rate follows the schedule of the new length",
        "keep_checkpoints was 2 and is now 5",
    ]


def test_the_length_and_the_place_of_a_run_may_change_without_a_word():
    names = ("epochs", "max_steps", "resume", "output_dir", "like", "processes_per_volume")
    before = RunSettings(flags=dict.fromkeys(names, 1))
    after = RunSettings(flags=dict.fromkeys(names, 2) | {"tracker": "none"})
    assert compare_settings(before, after) == ["tracker was None and is now none"]


@pytest.mark.parametrize(("before", "now", "is_said"), [(3, 3, False), (3, 5, False), (3, 2, True), (None, 5, True)])
def test_minutes_without_effect_are_said(before, now, is_said):
    saved = run_settings(flags={"max_minutes": before})
    notes = compare_settings(saved, run_settings(flags={"max_minutes": now}))
    line = "--max-minutes has no effect on a resumed run, which keeps its 9 steps"
    assert notes == ([line] if is_said else [])
    assert compare_settings(saved, run_settings(flags={"max_minutes": None})) == []


def test_checkpoints_are_named_by_their_step_in_eight_digits(tmp_path):
    assert checkpoint_folder(tmp_path, 42) == tmp_path / "step-00000042"
    names = ("step-00000009", "step-00000010", "set-aside-step-00000011", "step-00000002")
    for time, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time, time))  # a copy of a folder may have any
    assert [path.name[-2:] for path in newest_first(tmp_path)] == ["10", "09", "02"]
    assert newest_first(tmp_path / "none") == []
    (tmp_path / "file").write_bytes(b"abc")
    assert fingerprint(tmp_path / "file") == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    assert peek(tmp_path) == {}


def test_without_checkpoints_a_run_begins_anew_and_a_named_one_must_be_there(tmp_path):
    for resume in (None, "auto"):
        nothing = find_checkpoint(resume, tmp_path)
        assert nothing == (None, None, [])
        assert nothing.run_state() == RunState()
        assert nothing.model_config() is None
    with pytest.raises(CheckpointError, match=r"step-00000004: manifest\.json is missing"):
        find_checkpoint(str(tmp_path / "step-00000004"), tmp_path)
    for name in ("step-00000004", "step-00000006"):
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("auto", tmp_path)
    reasons = [f"{tmp_path / name}: manifest.json is missing" for name in ("step-00000006", "step-00000004")]
    assert str(caught.value) == f"no checkpoint to resume from: {'; '.join(reasons)}"
    assert find_checkpoint(None, tmp_path) == (None, None, [])


def test_the_state_of_a_checkpoint_survives_its_file_and_names_what_is_missing_or_unknown():
    state = CheckpointState(run_settings(), MODEL, RunState(step=4), 0.5, {"scale": 2.0})
    content = json.loads(json.dumps(state.to_json()))
    assert {"model", "run", "score", "scaler", "flags", "identity", "total_steps"} <= content.keys()
    again = CheckpointState.from_json(content)
    assert (again.config, again.run_state, again.score, again.scaler) == (MODEL, RunState(step=4), 0.5, {"scale": 2.0})
    assert again.settings.total_steps == 9
    assert again.settings.identity["seed"] == 0
    assert again.settings.environment == {}  # which a checkpoint does not hold
    with pytest.raises(ValueError, match="lacks flags, run"):
        CheckpointState.from_json({key: value for key, value in content.items() if key not in ("flags", "run")})
    for name in ("model", "run", "flags", "identity"):
        with pytest.raises(ValueError, match=f"^its {name} is no object$"):
            CheckpointState.from_json(content | {name: []})
    with pytest.raises(ValueError, match="holds arms, wings, "):
        CheckpointState.from_json(content | {"wings": 2, "arms": 2})


def test_what_runs_of_earlier_versions_did_not_record_is_as_it_was_then():
    settings = RunSettings.from_json({"flags": {"epochs": 3}, "identity": {"seed": 1}, "unknown": 1})
    assert settings.flags == {"task": "classes", "draft": True, "place": False, "epochs": 3}
    assert settings.identity == {"task": "classes", "seed": 1}
    assert RunSettings.from_json({"flags": {"draft": False}}).flags["draft"] is False
    assert "credentials_left_out" not in RunSettings().to_json()
    assert RunSettings(credentials_left_out=["dataset"]).to_json()["credentials_left_out"] == ["dataset"]


def test_credentials_that_a_run_does_not_record_are_asked_for_again(capsys):
    url = "https://me:secret@example.org/data.parquet"
    recorded = {"dataset": "https://example.org/data.parquet"}
    say_credentials(parsed("--dataset", url), recorded, ["dataset"])
    text = capsys.readouterr().out
    assert text.startswith("--dataset: user, password and query of the URL are those of this command")
    assert "secret" not in text
    say_credentials(parsed("--dataset", recorded["dataset"]), recorded, ["dataset"])
    assert capsys.readouterr().out.startswith("--dataset: the run began with a user, password or query in the URL")
    say_credentials(parsed("--dataset", "other"), recorded, ["dataset"])
    say_credentials(parsed("--dataset", url), recorded, [])
    assert capsys.readouterr().out == ""
