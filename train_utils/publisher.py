"""Pictures, scores and the report of a run: at each evaluation, and at the end."""

from dataclasses import dataclass
from functools import cached_property

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from inference.predictor import Predictor
from runtime.console import counted, say
from runtime.distributed import on_main
from runtime.errors import WriteError
from runtime.files import tolerate_write_errors
from tasks.task import Task
from train_utils.checkpoints import Checkpoints
from train_utils.clock import milliseconds_since_start
from train_utils.compilation import eager
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import read_log
from train_utils.monitoring.run_log import RunLog
from train_utils.opened_run import OpenedRun, mark_finished
from train_utils.reporting.hub import push_to_hub
from train_utils.reporting.image_scores import IMAGE_SCORES, write_image_scores
from train_utils.reporting.model_card import model_card
from train_utils.reporting.remarks import Facts, remarks_on
from train_utils.reporting.report import write_report
from train_utils.reporting.samples import (
    evaluation_pictures,
    sample_panels,
    save_pictures,
    worst_and_best,
)
from train_utils.reporting.section import Section
from train_utils.reporting.sections import new_section
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.settings.train_settings import TrainSettings
from train_utils.sharding import whole_network
from unet.model import UNet


@dataclass(frozen=True)
class Publisher:
    """Publishes each evaluation in the log, the best model's folder and the terminal; writes the report at the end.

    Args:
        network: the network that trains, not wrapped.
        checkpoints: saves the network after its best evaluation.
        log: logs the scores and the pictures of an evaluation; its folder is the folder of the run.
    """

    accelerator: Accelerator
    network: UNet
    checkpoints: Checkpoints
    log: RunLog
    info: DatasetInfo
    task: Task

    @classmethod
    def begin(
        cls,
        accelerator: Accelerator,
        network: UNet,
        checkpoints: Checkpoints,
        schedule: Schedule,
        state: RunState,
        info: DatasetInfo,
        task: Task,
    ) -> "Publisher":
        """The publisher of a run, whose log begins."""
        folder = checkpoints.folder.parent
        log = RunLog(accelerator, folder, checkpoints.settings, schedule, state, task.compared_by)
        return cls(accelerator, network, checkpoints, log, info, task)

    @cached_property
    def section(self) -> Section:
        """What reports say of the task."""
        return new_section(self.info)

    def publish(self, evaluation: Evaluation, state: RunState) -> bool:
        """Log an evaluation, save the network if it is the best one, and note it in the state of the run.

        Every process must call it, and may work on only when all is written: pictures of volumes and a slow disk
        outlast the limit of a collective.

        Returns:
            Whether there is a new best model on disk.

        Raises TrainingError if an answer of the network is not a finite number.
        """
        evaluation.check(self.info.val.records, state.best_step)
        self.log.evaluation(evaluation)
        network = whole_network(self.accelerator, self.network)
        is_best = on_main(
            self.accelerator, lambda: self._publish_on_main(network, evaluation, state.is_improved_by(evaluation))
        )
        state.update(evaluation, is_best)
        self.network.train()  # pictures were predicted with it
        return is_best

    def _publish_on_main(self, network: UNet, evaluation: Evaluation, is_best: bool) -> bool:
        """Returns whether the evaluation is the best one, and its model on disk."""
        if self.log.tracker.takes_pictures:
            with eager(self.accelerator), self.accelerator.autocast():
                count = evaluation_pictures(self.info)
                panels = sample_panels(self.info, Predictor(network), self.section, count)
            pictures = {f"pictures/{name}": picture for name, picture in panels.items()}
            pictures |= self.section.render_pictures(evaluation.scores)
            self.log.tracker.pictures(evaluation.step, pictures)
        mark = ""
        if is_best:
            card = model_card(self.log.settings, evaluation, self.section)
            is_best = self.checkpoints.save_model(network, card)
            mark = " (best so far, saved)" if is_best else " (best so far, not saved)"
        if is_best:
            with tolerate_write_errors(IMAGE_SCORES):
                scores = evaluation.scores.image_comparison
                write_image_scores(self.log.output_dir, self.info, self.task.compared_by, scores)
        say(f"step {evaluation.step}: {evaluation.scores.summary()}{mark}")
        return is_best

    def finish(self, args: TrainSettings, run: OpenedRun, schedule: Schedule, state: RunState) -> None:
        """End the log, write the report and publish the model; every process must call it.

        Raises WriteError if a file could not be written.
        """
        self.log.close()
        all_saved = all([self.checkpoints.wait(), self.log.is_saved()])
        if self.accelerator.is_main_process:
            resume = None if schedule.is_over(state) else run.resume_line()
            if schedule.clock.budget and not resume:
                self.log.record_length()
            self.write_results(schedule, state, resume)
            if resume:
                saved = "all is saved" if all_saved else "not all is saved, see above"
                say(f"stopped after step {_steps_made(schedule, state)}; {saved}; continue with: {resume}")
            elif all_saved and push_to_hub(self.checkpoints.model_folder, args.push_to_hub):
                mark_finished(run.output_dir, schedule, state.step)
        self.log.tracker.finish()
        if not all_saved:
            raise WriteError(f"{run.output_dir} is incomplete: files could not be written, see the lines above")

    def write_results(self, schedule: Schedule, state: RunState, resume: str | None) -> None:
        """Write the best model's pictures and table, and the report of the run; call it on the main process.

        Args:
            resume: the command that goes on with a run that was stopped.
        """
        output_dir = self.log.output_dir
        best = state.best_evaluation(self.task)
        views = {}
        if best is not None:
            model = UNet.from_pretrained(self.checkpoints.model_folder)
            predictor = Predictor(model.to(self.accelerator.device))
            with self.accelerator.autocast():
                with tolerate_write_errors("predictions/"):
                    save_pictures(output_dir / "predictions", sample_panels(self.info, predictor, self.section))
                views = worst_and_best(self.info, predictor, self.section, best.scores.image_comparison)
            say(best.scores.table())
            say(f"best model in {self.checkpoints.model_folder}, report in {output_dir / 'report.html'}")
        remarks: list[str] = []
        with tolerate_write_errors("report.html"):
            remarks += remarks_on(read_log(output_dir), self._facts(schedule, state, resume, best))
        bottleneck = self.log.bottleneck()
        if bottleneck:
            remarks.append(f"{bottleneck[0].upper()}{bottleneck[1:]}.")
        with tolerate_write_errors("report.html"):
            write_report(
                output_dir,
                best,
                self.section,
                self.task.compared_by,
                views=views,
                remarks=remarks,
                extent=self._extent(schedule, state),
            )
        for remark in remarks:
            say(remark)

    def _facts(self, schedule: Schedule, state: RunState, resume: str | None, best: Evaluation | None) -> Facts:
        """The facts that the remarks on the run need beside its log."""
        info = self.info
        has_encoder = self.network.config.encoder is not None
        is_of_photographs = info.normalization.is_color and info.val.records.dims == 2
        return Facts(
            steps=state.step,
            total_steps=schedule.total_steps,
            resume=resume,
            validation_images=len(info.val),
            unfound=[] if best is None else best.scores.unfound,
            lacks_encoder=self.section.gains_from_encoder and is_of_photographs and not has_encoder,
            is_generated=info.config.dataset == DataConfig.dataset,
            is_good=best is not None and best.scores.comparison >= self.section.good,
            score=self.section.score_key,
            answers="points" if info.reader.takes_points else "masks",
            examples="volume" if info.val.records.dims == 3 else "image",
        )

    def _extent(self, schedule: Schedule, state: RunState) -> dict[str, str]:
        """What the run has done, in words and numbers."""
        extent = {
            "steps made": _steps_made(schedule, state),
            "epochs done": f"{schedule.epoch(state.step):.1f}",
            "minutes since the last start": f"{milliseconds_since_start() / 60_000:.3g}",
        }
        for images, use in ((self.info.train, "training"), (self.info.val, "validation")):
            number, _, label = counted(len(images), f"{use} image").partition(" ")
            extent[label] = number
        return extent


def _steps_made(schedule: Schedule, state: RunState) -> str:
    """The steps made, and how many were planned, unless the clock decides."""
    made = f"{state.step:,}"
    if schedule.total_steps:
        made += f" of {schedule.total_steps:,}"
    return made
