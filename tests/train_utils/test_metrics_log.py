"""metrics.jsonl, and images.csv with the score of each validation image."""

import json
from types import SimpleNamespace

import numpy as np
from support.run_files import records

from data_utils.sources.records import ListRows, Records
from train_utils.metrics_log import MetricsFile, read_image_scores, read_log, series, write_image_scores

NAN = float("nan")


def test_lines_that_are_no_records_are_left_out(tmp_path):
    records = [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": None}, {"step": 3, "train/loss": 0.0}]
    lines = [*records, {"train/loss": 0.5}, {"step": "4"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{\n{"step": 4}')
    assert read_log(tmp_path) == (records, 3)
    assert series(records, "train/loss") == [(1, 0.5), (3, 0.0)]
    assert series(records, "eval/loss") == []


def test_log_of_a_resumed_run_ends_at_its_step_without_damaged_lines(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": "2"}\n{"step": 3}\nno json\n{"step": 4}\n[]\n{"step": 3}')
    MetricsFile(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    assert capsys.readouterr().out == f"{path}: 3 damaged lines are left out, 2 stay\n"


def test_log_that_is_gone_begins_again_with_a_line(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path, 3)
    assert capsys.readouterr().out == f"{path} is gone: it begins again behind step 3\n"


def test_line_of_the_log_has_null_for_no_number(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.write(3, 1 / 3, {"train/loss": NAN, "eval/iou/a": None, "train/lr": float("inf"), "train/grad_norm": 0.5})
    nothing = dict.fromkeys(("train/loss", "eval/iou/a", "train/lr"))
    assert records(tmp_path) == [{"step": 3, "epoch": 0.3333, **nothing, "train/grad_norm": 0.5}]


def test_lines_that_the_disk_refuses_are_reported_once_and_written_when_it_is_back(tmp_path, capsys):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.path.rename(tmp_path / "away")
    for step in (1, 2):
        file.write(step, 0.1, {"train/loss": 1.0})
    assert not file.is_saved()
    assert capsys.readouterr().out.count("could not be written") == 1
    (tmp_path / "away").rename(file.path)
    assert file.is_saved()
    assert [record["step"] for record in records(tmp_path)] == [1, 2]


NAMES = ["a,b", 'say "x"', "two\nlines", "thrice", "thrice", "thrice", "thrice", "half \udcff"]
SCORES = [0.1, 0.0, 1.0, 0.4, 0.5, 0.10012562572956085, 0.6, 0.7]


class EightImages:
    """A split of images with difficult NAMES, of which number 3 is damaged."""

    def __init__(self) -> None:
        self.records = Records(ListRows({"image": b"", "target": b"", "name": name} for name in NAMES))
        self.bad = {3: "thrice: unreadable"}


INFO = SimpleNamespace(val=EightImages())


def test_names_and_scores_of_images_survive_their_file(tmp_path):
    write_image_scores(tmp_path, INFO, "mean IoU", SCORES)
    scores = read_image_scores(tmp_path)
    assert list(scores) == ["a,b", 'say "x"', r"two\nlines", "thrice", "thrice (2)", "thrice (3)", r"half \udcff"]
    assert [*scores.values()][:3] == [0.1, 0.0, 1.0]
    assert np.float32(scores["thrice (2)"]) == np.float32(0.10012562572956085)
    assert (tmp_path / "images.csv").read_bytes().startswith(b'image,mean IoU\n"a,b",0.1\n')
