"""Flags of train.py that say which files a run writes, and when."""

import json

import pytest
import torch
from support.flag_runs import Trainer
from support.run_equality import different_tensors

import train
from train_utils import checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


FOUR_STEPS = ("--max-steps", "4", "--eval-every", "4")


@pytest.mark.flags("--checkpoint-every")
def test_checkpoint_every_step_is_kept(run):
    assert run(*FOUR_STEPS).checkpoints() == [0, 1, 2, 3, 4]


@pytest.mark.flags("--keep-checkpoints")
def test_keep_checkpoints_removes_the_oldest(run):
    result = run(*FOUR_STEPS, "--checkpoint-every", "2", "--keep-checkpoints", "2")
    assert result.checkpoints() == [2, 4]


@pytest.mark.flags("--resume")
def test_resume_ends_with_the_weights_of_an_uninterrupted_run(run, tmp_path, monkeypatch):
    rebuilt = []  # what only several processes show: the order of sums after the first step
    monkeypatch.setattr(checkpoints, "rebuild_buckets", lambda model, network: rebuilt.append(network is model))
    whole = run(*FOUR_STEPS)
    run.fresh("--max-steps", "2", "--eval-every", "4", output=tmp_path / "out")
    assert rebuilt == []
    resumed = run.fresh(*FOUR_STEPS, "--resume", "auto", output=tmp_path / "out")
    assert resumed.steps("train/loss") == [1, 2, 3, 4]
    assert resumed.checkpoints()[-1] == 4
    assert rebuilt == [True]
    assert different_tensors(resumed.weights(4), whole.weights(4)) == []


@pytest.mark.flags("--eval-every", "--log-every")
def test_records_come_at_their_intervals_with_the_last_step(run):
    result = run("--max-steps", "5", "--eval-every", "2", "--log-every", "3")
    assert result.steps("eval/loss") == [2, 4, 5]
    assert result.steps("train/loss") == [3, 5]


def test_trace_steps_of_a_run_that_is_too_short_are_said_to_have_no_effect(run):
    result = run.fresh("--trace-steps", "1", "--max-steps", "3")
    assert "--trace-steps: the run has made no step beyond" in result.output


@pytest.mark.flags("--trace-steps")
def test_trace_steps_writes_a_trace(run):
    result = run.fresh("--trace-steps", "1", "--max-steps", "5", "--eval-every", "5")
    events = json.loads((result.folder / "traces" / "process-0.json").read_text())["traceEvents"]
    assert any("conv" in event.get("name", "") for event in events)
    assert not (run().folder / "traces").exists()


@pytest.mark.flags("--push-to-hub")
def test_push_to_hub_uploads_the_model(run, monkeypatch):
    pushed = []
    monkeypatch.setattr("train_utils.run_log.huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr("train_utils.run_log.push_to_hub", lambda *given: pushed.append(given))
    result = run.fresh("--push-to-hub", "me/cells")
    assert pushed == [(result.folder / "model", "me/cells")]


@pytest.mark.flags("--tracker")
def test_tracker_writes_its_files(run):
    result = run.fresh("--tracker", "tensorboard")
    assert [*(result.folder / "tensorboard").glob("events.out.tfevents*")]
    assert not (run().folder / "tensorboard").exists()


@pytest.mark.flags("--deterministic")
def test_deterministic_holds_in_each_step(run, monkeypatch):
    calls = []
    train_step = train.train_step

    def noted_step(*arguments, **options):
        calls.append(torch.are_deterministic_algorithms_enabled())
        return train_step(*arguments, **options)

    monkeypatch.setattr(train, "train_step", noted_step)
    run.fresh()
    run.fresh("--deterministic")
    assert calls == [False, True]
