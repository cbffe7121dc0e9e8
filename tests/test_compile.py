"""A profile's dynamo_backend compiles the network that trains, and nothing else."""

import pytest
import torch._dynamo
from conftest import write_folder
from in_process import run_train
from torch._dynamo.utils import counters

import train

FLAGS = [
    "--plan",
    "none",
    "--base-channels",
    "2",
    "--depth",
    "1",
    "--num-workers",
    "0",
    "--batch-size",
    "2",
    "--tracker",
    "none",
]
FLAGS += ["--max-steps", "4", "--eval-every", "2", "--log-every", "2", "--norm", "group"]


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")  # traces as any backend does, and needs no compiler
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_evaluation_takes_the_network_as_it_is(compiled, tmp_path, monkeypatch):
    write_folder(tmp_path / "train", 4, seed=0, size=(16, 24))
    write_folder(tmp_path / "val", 2, seed=1, size=(24, 16))
    graphs = []
    evaluate = train.evaluate

    def counted(*arguments):
        before = counters["stats"]["unique_graphs"]
        evaluation = evaluate(*arguments)
        graphs.append((before, counters["stats"]["unique_graphs"] - before))
        return evaluation

    monkeypatch.setattr(train, "evaluate", counted)
    run = run_train(tmp_path / "compiled", "--dataset", tmp_path, *FLAGS)
    assert run.settings["profile"]["dynamo_backend"] == "eager"
    assert [(before > 0, during) for before, during in graphs] == [(True, 0), (True, 0)]
    monkeypatch.undo()
    plain = run_train(tmp_path / "plain", "--dataset", tmp_path, *FLAGS)
    assert run.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=1e-5)
    assert run.values("eval/loss") == pytest.approx(plain.values("eval/loss"), rel=1e-5)
