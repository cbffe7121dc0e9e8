"""What a run says: a record of its steps, its evaluations with the best model, and a report at its end.

The files are run.json, metrics.jsonl, images.csv, report.html and, with --trace-steps, traces/.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import huggingface_hub
import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs, gather_object

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.loading.dataset import TrainingBatch
from inference.predictor import Predictor
from runtime.console import counted, progress_bar, say
from runtime.distributed import on_main
from runtime.errors import WriteError, one_line
from runtime.files import replace_file, tolerate_write_errors
from tasks import TASKS
from tasks.section import Section
from tasks.task import Task
from train_utils.checkpoints import Checkpoints
from train_utils.compilation import eager
from train_utils.evaluation import Evaluation
from train_utils.meter import WARMUP_STEPS, Meter
from train_utils.metrics_log import IMAGE_SCORES, MetricsFile, read_log, write_image_scores
from train_utils.reporting.model_card import model_card
from train_utils.reporting.pages import Views
from train_utils.reporting.report import FEW_STEPS, remarks_on, write_report
from train_utils.reporting.samples import report_pictures, sample_panels, save_pictures
from train_utils.run_state import LossWindow, RunState, StepResult
from train_utils.schedule import Schedule, milliseconds_since_start
from train_utils.settings.record import FINISHED_FILE
from train_utils.sharding import whole_network
from train_utils.start import OpenedRun
from train_utils.tracker import Tracker
from unet.model import UNet

PROBLEMS_IN_MESSAGE = 20  # the most problems of samples that a message lists
TOP_OPERATORS = 12  # that a trace prints


@dataclass
class RunLog:
    """The log of a run. Every process makes the same calls, and the main process writes.

    Args:
        network: the network that trains, not wrapped.
        checkpoints: saves the network after its best evaluation; their folder is in the folder of the run.
        schedule: says at which steps there is a record.
        state: where the run stands; its window of losses is filled here.
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
        self.folder = self.checkpoints.output_dir
        self.settings = self.checkpoints.settings
        self._problems: set[str] = set()  # why samples were left out
        self._file: MetricsFile | None = None
        if self.accelerator.is_main_process:
            try:
                self.settings.write(self.folder)
                self._file = MetricsFile(self.folder / "metrics.jsonl", self.state.step)
            except OSError as error:
                raise WriteError(f"--output-dir {self.folder} cannot be written to: {error}") from error
        flags = self.settings.flags
        self.tracker = Tracker(self.accelerator, flags["tracker"], asdict(self.settings), self.state.step)
        self.meter = Meter(self.accelerator)
        self._trace = ExitStack()
        self._profiler: torch.profiler.profile | None = None
        if flags["trace_steps"]:
            steps = {"wait": WARMUP_STEPS - 1, "warmup": 1, "active": flags["trace_steps"], "repeat": 1}
            options = ProfileKwargs(schedule_option=steps, on_trace_ready=self._write_trace)
            self._profiler = self._trace.enter_context(self.accelerator.profile(options))
        clock = self.schedule.clock
        if clock.budget:  # from the time that is used on, else the bar takes the start for fast work
            self.bar = progress_bar(clock.budget // 1000, "training", "s", initial=clock.now() // 1000)
        else:
            self.bar = progress_bar(self.schedule.total_steps, "training", "step", initial=self.state.step)

    @cached_property
    def section(self) -> Section:
        """What reports say of the task."""
        return TASKS[self.task.name].section(self.info.reader)

    def data_ready(self, batches: list[TrainingBatch]) -> None:
        """Note that the next step's micro-batches are here, and which problems their samples had."""
        for batch in batches:
            self._problems.update(batch["problems"])
        self.meter.data_ready()

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes."""
        self.meter.end_step(images)
        if self._profiler is not None:
            self._profiler.step()

    def step(self, results: Sequence[StepResult], learning_rate: float) -> None:
        """Take in the results of steps that are known by now, write a record where it is due, and move the bar.

        Where a record is due, the last result must be that of the last step.
        """
        window = self.state.window
        for result in results:
            if result.is_made:
                window.total += result.loss
                window.steps += 1
        if self.schedule.is_log_step(self.state.step):
            self._write_training(learning_rate, results[-1].grad_norm)
        clock = self.schedule.clock
        self.bar.update(clock.now() // 1000 - self.bar.n if clock.budget else 1)

    def _write_training(self, learning_rate: float, grad_norm: float) -> None:
        """Write a record of the steps since the last one."""
        window = self.state.window
        self.state.window = LossWindow()
        record = {
            "train/loss": window.total / window.steps if window.steps else None,
            "train/lr": learning_rate,
            "train/grad_norm": grad_norm,
            "train/skipped_steps": self.state.skipped,
            **self.meter.summary(),
        }
        self._write(record)
        self.bar.set_postfix_str(self._brief(record), refresh=False)

    def _brief(self, record: dict[str, float | None]) -> str:
        """Epoch, loss, speed, wait for data and best score, for the bar."""
        loss = record["train/loss"]
        parts = [f"epoch {self.schedule.epoch(self.state.step):.1f}", "no loss" if loss is None else f"loss {loss:.3f}"]
        if "perf/images_per_second" in record:
            parts.append(f"{record['perf/images_per_second']:.1f} images/s")
            parts.append(f"{record['perf/data_wait_percent']:.0f}% waiting for data")
        if self.state.has_best:
            parts.append(f"best {self.task.scores.compared.title} {self.state.best:.3f}")
        return ", ".join(parts)

    def _write(self, record: dict[str, float | None]) -> None:
        if self._file is not None:
            self._file.write(self.state.step, self.schedule.epoch(self.state.step), record)
            self.tracker.scalars(self.state.step, record)

    def publish(self, evaluation: Evaluation) -> bool:
        """Log an evaluation, save the network if it is the best one, and note it in the state of the run.

        Every process must call it, and may work on only when all is written: pictures of volumes and a slow disk
        outlast the limit of a collective.

        Returns:
            Whether there is a new best model on disk.

        Raises TrainingError if an output of the network is not a finite number.
        """
        evaluation.check(self.info.val.records, self.state.best_step)
        self._write(evaluation.record())
        network = whole_network(self.accelerator, self.network)
        is_best = on_main(self.accelerator, lambda: self._publish_on_main(network, evaluation))
        self.state.update(evaluation, is_best)
        self.network.train()  # pictures were predicted with it
        return is_best

    def _publish_on_main(self, network: UNet, evaluation: Evaluation) -> bool:
        """Returns whether the evaluation is the best one, and its model on disk."""
        if evaluation.task not in (None, self.task):  # it reads predictions in another way
            network.config = replace(network.config, task=evaluation.task.to_config())
        if self.tracker.takes_pictures:
            with eager(self.accelerator), self.accelerator.autocast():
                panels = sample_panels(self.info, Predictor(network), self.section)
            pictures = {f"pictures/{name}": picture for name, picture in panels.items()}
            for figure in self.section.figures(evaluation.scores):
                if figure.picture is not None:
                    pictures[f"eval/{figure.title.lower().replace(' ', '_')}"] = figure.picture
            self.tracker.pictures(evaluation.step, pictures)
        is_saved = False
        mark = ""
        if evaluation.scores.comparison > self.state.best:
            card = model_card(self.settings, evaluation, self.section)
            is_saved = self.checkpoints.save_model(network, card)
            mark = " (best so far, saved)" if is_saved else " (best so far, not saved)"
        if is_saved:
            with tolerate_write_errors(IMAGE_SCORES):
                scores = evaluation.scores.image_comparison
                write_image_scores(self.folder, self.info, self.task.scores.compared.title, scores)
        say(f"step {evaluation.step}: {evaluation.scores.summary()}{mark}")
        return is_saved

    def finish(self, run: OpenedRun) -> None:
        """End the log, write the report and publish the model; every process must call it.

        Raises WriteError if a file could not be written.
        """
        self.close()
        all_saved = all([self.checkpoints.wait(), self._file is None or self._file.is_saved()])
        if self.accelerator.is_main_process:
            resume = None if self.schedule.is_over(self.state) else run.resume_line()
            if self.schedule.clock.budget and not resume:  # now the number of steps is known, for --like
                with tolerate_write_errors("run.json"):
                    replace(self.settings, total_steps=self.state.step).write(self.folder)
            self.write_results(resume)
            if resume:
                saved = "all is saved" if all_saved else "not all is saved, see above"
                say(f"stopped after step {self._steps_made}; {saved}; continue with: {resume}")
            elif all_saved and push_to_hub(self.checkpoints.model_folder, run.flags.push_to_hub):
                with tolerate_write_errors(FINISHED_FILE), replace_file(self.folder / FINISHED_FILE) as file:
                    file.write(json.dumps({"step": self.state.step}).encode())
        self.tracker.finish()
        if not all_saved:
            raise WriteError(f"{self.folder} is incomplete: files could not be written, see the lines above")

    def close(self) -> None:
        """End the measurement after the last step, and name the samples that any process left out."""
        self.bar.close()
        if self._profiler is not None and self._profiler.step_num <= WARMUP_STEPS:
            say(f"--trace-steps: the run has made no step beyond the first {WARMUP_STEPS}, which are not traced")
        self._profiler = None
        self._trace.close()  # perhaps before all the steps were traced
        if self.schedule.is_out_of_patience(self.state) and not self.schedule.is_last(self.state.step):
            evaluations = counted(self.state.evaluations_since_best, "evaluation")
            say(f"no better {self.task.scores.compared.title} in {evaluations}, stopping at step {self.state.step}")
        problems = sorted(set(gather_object(sorted(self._problems))))
        if problems:
            first_problems = "; ".join(problems[:PROBLEMS_IN_MESSAGE])
            say(f"{counted(len(problems), 'bad sample was', 'bad samples were')} skipped in training: {first_problems}")

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
            write_report(self.folder, best, self.section, views=views, remarks=remarks, extent=self._extent())
            for remark in remarks:
                say(remark)

    def _remarks(self, best: Evaluation | None, resume: str | None) -> list[str]:
        """What the numbers of the run mean, and what to do next."""
        is_good = best is not None and best.scores.comparison >= self.section.good
        records, _ = read_log(self.folder)
        longer = f"give more {self.schedule.length_flag(self.state.step)} (docs/choosing-settings.md)"
        if resume:
            longer = f"{resume} goes on"
        return remarks_on(
            records,
            score=self.task.scores.score_key(),
            steps=f"{self._steps_made} steps",
            is_short=self.state.step < FEW_STEPS and not is_good,
            longer=longer,
            images=len(self.info.val),
            image_kind=self.info.val.records.image_kind,
            is_fold=self.info.config.fold is not None,
            unfound=[] if best is None else best.scores.unfound,
            weights_classes=self.schedule.args.class_weights not in (None, ("none",)),
            is_generated=self.info.config.dataset == DataConfig.dataset,
            is_cached=self.info.config.cache,
        )

    def _extent(self) -> dict[str, str]:
        """What the run has done, in words and numbers."""
        extent = {
            "steps made": self._steps_made,
            "epochs done": f"{self.schedule.epoch(self.state.step):.1f}",
            "minutes since the last start": f"{milliseconds_since_start() / 60_000:.3g}",
        }
        for images, use in ((self.info.train, "training"), (self.info.val, "validation")):
            number, _, label = counted(len(images), f"{use} {images.records.image_kind}").partition(" ")
            extent[label] = number
        return extent

    @property
    def _steps_made(self) -> str:
        """The steps made, and how many were planned, unless the clock decides."""
        made = f"{self.state.step:,}"
        if self.schedule.total_steps:
            made += f" of {self.schedule.total_steps:,}"
        return made

    def _write_trace(self, profiler: torch.profiler.profile) -> None:
        """Write traces/process-<n>.json for chrome://tracing; the main process prints the operators that took most."""
        folder = self.folder / "traces"
        folder.mkdir(parents=True, exist_ok=True)  # machines may not share the folder that the main process has made
        profiler.export_chrome_trace(str(folder / f"process-{self.accelerator.process_index}.json"))
        if self.accelerator.is_main_process:
            device = "cpu" if self.accelerator.device.type == "cpu" else "device"
            table = profiler.key_averages().table(f"self_{device}_time_total", row_limit=TOP_OPERATORS)
            say(f"{table}\ntraces, a file for each process: {folder}")


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
