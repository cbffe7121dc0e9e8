"""compare.py: how it is called, and what it says of runs that it cannot compare."""

import json
import sys
from types import SimpleNamespace

import pytest
from support.comparisons import run_compare, write_run, write_seeds
from support.reports import Page

import compare
from train_utils.comparison.recipes import read_runs


@pytest.mark.parametrize("arguments", [[""], ["run", "--output", ""]], ids=["a run", "the page"])
def test_a_path_that_is_empty_is_refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    assert ": '' is not a value" in capsys.readouterr().err


def test_remarks_and_differences_are_reported_on_the_terminal_as_on_the_page(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", {"i0": 0.2, "i1": 0.9}, epochs=9)]
    result = run_compare(runs, tmp_path / "page.html")
    for shown in (result.text, Page(result.page).text):
        assert f"{runs[1]} and {runs[0]} have 2 and 4 validation images: the 2 of the same name are compared" in shown
        assert "does not say which recipe is better" in shown


@pytest.fixture(scope="module")
def of_broken_runs(tmp_path_factory) -> SimpleNamespace:
    """The comparison of a sound run, of two more that can be read, and of folders that are broken in five ways."""
    root = tmp_path_factory.mktemp("broken")
    sound = write_run(root / "sound")
    unfinished = write_run(root / "unfinished", finished=False, epochs=5)
    old = write_run(root / "old", {}, seed=3)
    broken = write_run(root / "broken")
    (broken / "run.json").write_text('{"flags": 3')
    listed = write_run(root / "listed")
    (listed / "run.json").write_text(json.dumps({"flags": [], "profile": {}, "identity": {}, "run": {}}))
    young = write_run(root / "young")
    (young / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2}\nno json\n')
    empty = root / "empty"
    empty.mkdir()
    folders = [sound, unfinished, old, broken, listed, young, empty, root / "missing", empty / ".." / "sound"]
    result = run_compare(folders, root / "page.html")
    return SimpleNamespace(root=root, folders=folders, result=result, page=Page(result.page))


def test_broken_runs_are_left_out(of_broken_runs):
    runs, _ = read_runs(of_broken_runs.folders)
    assert len(runs) == 3
    assert of_broken_runs.result.code == 0
    assert "Traceback" not in of_broken_runs.result.text
    assert "all runs are of one recipe" not in of_broken_runs.result.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unfinished", "has not finished (step 40 of 40)"),
        ("old", "images.csv cannot be read (No such file or directory)"),
        ("broken", "run.json cannot be read"),
        ("listed", "run.json "),
        ("young", "the run has no evaluation yet; it is left out"),
        ("empty", "it holds no run.json"),
        ("missing", "it is no folder of a run"),
    ],
)
def test_a_broken_run_is_a_line_on_the_terminal_as_on_the_page(of_broken_runs, name, words):
    folder = of_broken_runs.root / name
    (line,) = [line for line in of_broken_runs.result.lines if line.startswith(f"{folder}: ")]
    assert words in line
    assert line in of_broken_runs.page.text


def test_folders_of_which_none_is_a_run_are_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    result = run_compare([tmp_path / "empty", tmp_path / "missing"], tmp_path / "page.html")
    assert result.code == 1
    assert "no run is left to compare" in result.errors
    assert f"{tmp_path / 'empty'}: it holds no run.json" in result.errors
    assert f"{tmp_path / 'missing'}: it is no folder of a run" in result.errors
    assert not result.page


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    result = run_compare([write_run(tmp_path / "a")], tmp_path / "nowhere" / "page.html")
    assert result.code == 1
    assert "cannot be written (No such file or directory)" in result.errors


def test_a_page_that_is_there_is_replaced_only_if_asked(tmp_path):
    runs = write_seeds(tmp_path, "a", [0.0, 0.09])
    page = tmp_path / "page.html"
    page.write_text("mine")
    refused = run_compare(runs, page)
    assert refused.code == 1
    assert f"{page} is there already; choose another, or give --overwrite" in refused.errors
    assert refused.page == "mine"
    written = run_compare(runs, page, "--overwrite")
    assert written.lines[-1] == f"page in {page}"
    assert written.page.startswith("<!doctype html>")
