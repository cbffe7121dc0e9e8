"""The mutants of all packages, a module for each, by the files that they change."""

from mistakes import data_utils, inference, runtime, scripts, tasks, train_utils, unet
from mistakes.mutant import Mutant

MUTANTS: list[Mutant] = [
    *runtime.MUTANTS,
    *unet.MUTANTS,
    *tasks.MUTANTS,
    *data_utils.MUTANTS,
    *inference.MUTANTS,
    *train_utils.MUTANTS,
    *scripts.MUTANTS,
]
