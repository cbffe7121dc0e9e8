"""Pictures, scores and the report of a run: at each evaluation, and at the end; the upload to the Hub."""

from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from inference.predictor import Predictor
from runtime.console import counted, say
from runtime.distributed import on_main
from runtime.errors import WriteError, one_line
from runtime.files import tolerate_write_errors
from tasks import new_section
from tasks.task import Task
from train_utils.checkpoints import Checkpoints
from train_utils.compilation import eager
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import IMAGE_SCORES, read_log, write_image_scores
from train_utils.reporting.model_card import model_card
from train_utils.reporting.pages import Views
from train_utils.reporting.report import FEW_STEPS, remarks_on, write_report
from train_utils.reporting.samples import evaluation_pictures, report_pictures, sample_panels, save_pictures
from train_utils.run_folder import mark_finished
from train_utils.run_log import RunLog
from train_utils.run_state import RunState
from train_utils.schedule import Schedule, milliseconds_since_start
from train_utils.sharding import whole_network
from train_utils.start import OpenedRun
from unet.model import UNet


@dataclass
class Publisher:
    """Publishes each evaluation in the log, the best model's folder and the terminal; writes the report at the end.

    Args:
        network: the network that trains, not wrapped.
        checkpoints: saves the network after its best evaluation; their folder is in the folder of the run.

    Attributes:
        log: logs steps, scores and pictures.
    """

    accelerator: Accelerator
    network: UNet
    checkpoints: Checkpoints
    schedule: Schedule
    state: RunState
    info: DatasetInfo
    task: Task

    def __post_init__(self) -> None:
        self.state.best_evaluation(self.task)  # damaged scores end the run now, and not when its report is written
        self.folder = self.checkpoints.folder.parent
        settings, compared_by = self.checkpoints.settings, self.task.compared_by
        self.log = RunLog(self.accelerator, self.folder, settings, self.schedule, self.state, compared_by)
        self.section = new_section(self.info)  # what reports say of the task
        self.image_kind = "volume" if self.info.val.records.dims == 3 else "image"

    def publish(self, evaluation: Evaluation) -> bool:
        """Log an evaluation, save the network if it is the best one, and note it in the state of the run.

        Every process must call it, and may work on only when all is written: pictures of volumes and a slow disk
        outlast the limit of a collective.

        Returns:
            Whether there is a new best model on disk.

        Raises TrainingError if an output of the network is not a finite number.
        """
        evaluation.check(self.info.val.records, self.state.best_step)
        self.log.evaluation(evaluation)
        network = whole_network(self.accelerator, self.network)
        is_best = on_main(self.accelerator, lambda: self._publish_on_main(network, evaluation))
        self.state.update(evaluation, is_best)
        self.network.train()  # pictures were predicted with it
        return is_best

    def _publish_on_main(self, network: UNet, evaluation: Evaluation) -> bool:
        """Returns whether the evaluation is the best one, and its model on disk."""
        if self.log.tracker.takes_pictures:
            with eager(self.accelerator), self.accelerator.autocast():
                count = evaluation_pictures(self.info)
                panels = sample_panels(self.info, Predictor(network), self.section, count)
            pictures = {f"pictures/{name}": picture for name, picture in panels.items()}
            for figure in self.section.figures(evaluation.scores):
                if figure.picture is not None:
                    pictures[f"eval/{figure.title.lower().replace(' ', '_')}"] = figure.picture
            self.log.tracker.pictures(evaluation.step, pictures)
        is_saved = False
        mark = ""
        if self.state.is_improved_by(evaluation):
            card = model_card(self.log.settings, evaluation, self.section)
            is_saved = self.checkpoints.save_model(network, card)
            mark = " (best so far, saved)" if is_saved else " (best so far, not saved)"
        if is_saved:
            with tolerate_write_errors(IMAGE_SCORES):
                scores = evaluation.scores.image_comparison
                write_image_scores(self.folder, self.info, self.task.compared_by, scores)
        say(f"step {evaluation.step}: {evaluation.scores.summary()}{mark}")
        return is_saved

    def finish(self, run: OpenedRun) -> None:
        """End the log, write the report and publish the model; every process must call it.

        Raises WriteError if a file could not be written.
        """
        self.log.close()
        all_saved = all([self.checkpoints.wait(), self.log.is_saved()])
        if self.accelerator.is_main_process:
            resume = None if self.schedule.is_over(self.state) else run.resume_line()
            if self.schedule.clock.budget and not resume:
                self.log.record_length()
            self.write_results(resume)
            if resume:
                saved = "all is saved" if all_saved else "not all is saved, see above"
                say(f"stopped after step {self._steps_made}; {saved}; continue with: {resume}")
            elif all_saved and push_to_hub(self.checkpoints.model_folder, run.flags.push_to_hub):
                mark_finished(self.folder, self.state.step)
        self.log.tracker.finish()
        if not all_saved:
            raise WriteError(f"{self.folder} is incomplete: files could not be written, see the lines above")

    def write_results(self, resume: str | None) -> None:
        """Write the best model's pictures and table, and the report of the run; call it on the main process.

        Args:
            resume: the command that goes on with a run that was stopped.
        """
        best = self.state.best_evaluation(self.task)
        views: Views = {}
        if best is not None:
            model = UNet.from_pretrained(self.checkpoints.model_folder)
            predictor = Predictor(model.to(self.accelerator.device))
            with self.accelerator.autocast():
                panels, views = report_pictures(self.info, predictor, self.section, best.scores)
            with tolerate_write_errors("predictions/"):
                save_pictures(self.folder / "predictions", panels)
            say(best.scores.table())
            say(f"best model in {self.checkpoints.model_folder}, report in {self.folder / 'report.html'}")
        with tolerate_write_errors("report.html"):
            remarks = self._remarks(best, resume)
            compared_by, extent = self.task.compared_by, self._extent()
            write_report(self.folder, best, self.section, compared_by, views=views, remarks=remarks, extent=extent)
            for remark in remarks:
                say(remark)

    def _remarks(self, best: Evaluation | None, resume: str | None) -> list[str]:
        """What the numbers of the run mean, and what to do next."""
        is_good = best is not None and best.scores.comparison >= self.section.good
        remarks = remarks_on(
            read_log(self.folder),
            score=self.task.scores.score_key(),
            steps=f"{self._steps_made} steps",
            is_short=self.state.step < FEW_STEPS and not is_good,
            resume=resume,
            images=len(self.info.val),
            image_kind=self.image_kind,
            unfound=[] if best is None else best.scores.unfound,
            is_generated=self.info.config.dataset == DataConfig.dataset,
        )
        bottleneck = self.log.bottleneck()
        if bottleneck:
            remarks.append(f"{bottleneck[0].upper()}{bottleneck[1:]}.")
        return remarks

    def _extent(self) -> dict[str, str]:
        """What the run has done, in words and numbers."""
        extent = {
            "steps made": self._steps_made,
            "epochs done": f"{self.schedule.epoch(self.state.step):.1f}",
            "minutes since the last start": f"{milliseconds_since_start() / 60_000:.3g}",
        }
        for images, use in ((self.info.train, "training"), (self.info.val, "validation")):
            number, _, label = counted(len(images), f"{use} {self.image_kind}").partition(" ")
            extent[label] = number
        return extent

    @property
    def _steps_made(self) -> str:
        """The steps made, and how many were planned, unless the clock decides."""
        made = f"{self.state.step:,}"
        if self.schedule.total_steps:
            made += f" of {self.schedule.total_steps:,}"
        return made


def push_to_hub(folder: Path, repo_id: str | None) -> bool:
    """Upload a model folder with its card, if asked to; returns whether nothing is left to do.

    If the upload fails, the model stays on disk, and the printed line says how to try again.
    """
    if repo_id is None:
        return True
    try:
        url = huggingface_hub.create_repo(repo_id, exist_ok=True)
        huggingface_hub.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message="U-Net and its model card"
        )
    except Exception as error:  # client, network or server may raise anything: the run is over
        reason = f"{type(error).__name__}: {one_line(error, limit=200)}"
        say(f"could not upload to {repo_id} ({reason}); to try again: hf upload {repo_id} {folder}")
        return False
    say(f"model published: {url}")
    return True
