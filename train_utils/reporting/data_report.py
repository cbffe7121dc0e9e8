"""--check-data: the report on a data set instead of a run."""

from typing import NoReturn

from accelerate import Accelerator

from data_utils.config import DataConfig
from runtime.console import say
from runtime.distributed import barrier_without_timeout, on_main
from train_utils.check_data import check_data


def report_data(accelerator: Accelerator, config: DataConfig) -> NoReturn:
    """Print the report and end the script, with exit code 1 if it lists problems."""
    report, problems = on_main(accelerator, lambda: check_data(config))
    say(report)
    barrier_without_timeout(accelerator)  # a launcher ends all processes when one has ended
    accelerator.end_training()
    raise SystemExit(problems > 0)
