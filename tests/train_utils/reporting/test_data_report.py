"""The report on a data set that train.py prints instead of training.

Module: train_utils/reporting/data_report.py.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from train_utils.reporting import data_report


@pytest.mark.parametrize(("problems", "code"), [(0, 0), (1, 1), (3, 1)])
def test_a_report_on_data_ends_the_script_with_1_where_it_lists_problems(monkeypatch, capsys, problems, code):
    calls = []

    def on_main(accelerator: SimpleNamespace, function: Callable[[], tuple[str, int]]) -> tuple[str, int]:
        calls.append("first process")
        return function()

    monkeypatch.setattr(data_report, "on_main", on_main)
    monkeypatch.setattr(data_report, "check_data", lambda config: (f"the report on {config}", problems))
    monkeypatch.setattr(data_report, "barrier_without_timeout", lambda accelerator: calls.append("barrier"))
    accelerator = SimpleNamespace(end_training=lambda: calls.append("end"))
    with pytest.raises(SystemExit) as caught:
        data_report.report_data(accelerator, "cells")
    assert int(caught.value.code) == code
    assert calls == ["first process", "barrier", "end"]
    assert capsys.readouterr().out == "the report on cells\n"
