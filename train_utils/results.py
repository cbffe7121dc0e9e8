"""Pictures, scores and the report of a run: at each evaluation, and at the end."""

from argparse import Namespace
from pathlib import Path

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.visualize import class_colors
from inference.predictor import Predictor
from runtime.console import say
from runtime.files import tolerated
from train_utils.checkpoints.best_model import BestModel
from train_utils.checkpoints.run_state import RunState
from train_utils.evaluation import Evaluation
from train_utils.monitoring.monitor import Monitor
from train_utils.reporting.charts import matrix_picture
from train_utils.reporting.hub import push_to_hub
from train_utils.reporting.report import write_report
from train_utils.reporting.samples import sample_panels, save_pictures, worst_and_best
from train_utils.schedule import Schedule
from train_utils.settings.run_dir import mark_finished
from train_utils.sharding import whole_network
from unet.model import UNet


def publish_evaluation(
    accelerator: Accelerator,
    network: UNet,
    evaluation: Evaluation,
    is_best: bool,
    best_model: BestModel,
    monitor: Monitor,
    info: DatasetInfo,
) -> None:
    """Scores and pictures to the log, the best model to its folder, a line on the terminal; every process must call it.

    May leave the network in evaluation mode.
    """
    monitor.log_evaluation(evaluation)
    network = whole_network(accelerator, network)
    if not accelerator.is_main_process:
        return
    if monitor.run_log.takes_pictures():
        with accelerator.autocast():
            panels = sample_panels(info, Predictor(network))
        pictures = {f"pictures/{name}": picture for name, picture in panels.items()}
        pictures["eval/confusion_matrix"] = matrix_picture(evaluation.matrix.numpy(), evaluation.class_names)
        monitor.run_log.pictures(evaluation.step, pictures)
    mark = ""
    if is_best:
        mark = " (best so far, saved)" if best_model.save(network, evaluation) else " (best so far)"
    say(f"step {evaluation.step}: {evaluation.summary()}{mark}")


def write_results(
    accelerator: Accelerator,
    output_dir: Path,
    state: RunState,
    best_model: BestModel,
    info: DatasetInfo,
    bottleneck: str | None,
) -> None:
    """The best model's pictures and table, and the report of the run; for the main process."""
    best = state.best_evaluation(info.class_map.names) if best_model.is_saved() else None
    views = {}
    if best is not None:
        predictor = Predictor(UNet.from_pretrained(best_model.folder).to(accelerator.device))
        with accelerator.autocast():
            with tolerated("predictions/"):
                save_pictures(output_dir / "predictions", sample_panels(info, predictor))
            views = worst_and_best(info, predictor, best.image_iou)
        say(best.table())
        say(f"best model in {best_model.folder}, report in {output_dir / 'report.html'}")
    with tolerated("report.html"):
        write_report(output_dir, best, class_colors(info.class_map.values), views, bottleneck)
    if bottleneck:
        say(bottleneck)


def finish_run(
    args: Namespace, output_dir: Path, schedule: Schedule, state: RunState, best_model: BestModel, all_saved: bool
) -> None:
    """Publish the best model if asked to, and mark the run as finished; of a stopped run, print how to continue it."""
    if not schedule.is_over(state):
        saved = "all is saved" if all_saved else "not all is saved, see above"
        say(f"stopped after step {state.step} of {schedule.total_steps}; {saved}; continue with --resume auto")
    elif best_model.is_saved() and push_to_hub(best_model.folder, args.push_to_hub) and all_saved:
        mark_finished(output_dir, args, schedule, state.step)
