"""Mistakes in the scripts: train.py, predict.py and those beside them."""

from mistakes.mutant import Mutant

EVALUATION_IN_TRAINING = """
if schedule.is_evaluation_step(state.step):
    with monitor.paused(), average.applied(), eager(accelerator):
        evaluation = evaluate(accelerator, model, val_loader, criterion, state.step)
        improved = state.update(evaluation)
        publisher.publish(evaluation, improved)
"""

MUTANTS = [
    Mutant(
        "app.py",
        "main",
        "Image.MAX_IMAGE_PIXELS = None",
        "pass",
        "test_app.py",
    ),
    Mutant("app.py", "serve", "(OSError, OverflowError)", "OSError", "test_app.py"),
    Mutant(
        "compare.py",
        "parse_args",
        "parser.add_argument('--output', type=arg.non_empty_path, default=Path('comparison.html'),"
        " metavar='FILE', help=page)",
        "parser.add_argument('--output', type=Path, default=Path('comparison.html'), metavar='FILE', help=page)",
        "test_comparison.py",
    ),
    Mutant(
        "compare.py",
        "parse_args",
        "parser.add_argument('runs', nargs='+', type=arg.non_empty_path, metavar='RUN',"
        " help='output folder of train.py')",
        "parser.add_argument('runs', nargs='+', type=Path, metavar='RUN', help='output folder of train.py')",
        "test_comparison.py",
    ),
    Mutant(
        "installed/commands.py",
        "_run",
        "import_module(module, __package__).main()",
        "import_module(module, __package__)",
        "test_installed.py",
    ),
    Mutant("installed/commands.py", "review", "('jinja2', 'matplotlib')", "('jinja2',)", "test_installed.py"),
    Mutant("predict.py", "_order", "score is None, score or 0.0", "False, score or 0.0", "test_predict_scores.py"),
    Mutant("predict.py", "", "WORST_SHOWN = 5", "WORST_SHOWN = 6", "test_predict_scores.py"),
    Mutant(
        "predict.py",
        "Failure.leaves_old_mask",
        "self.has_mask and not self.is_written",
        "self.has_mask",
        "test_predict.py",
    ),
    Mutant("predict.py", "close_output", "is_complete", "True", "test_provenance.py"),
    Mutant(
        "predict.py",
        "print_scores",
        "len(by_image) > 1",
        "len(by_image) > 0",
        "test_predict_scores.py",
    ),
    Mutant("review.py", "", "WORST_SHOWN = 10", "WORST_SHOWN = 5", "test_review.py"),
    Mutant(
        "predict.py",
        "check_outputs",
        "output_format.has_objects and predictor.config.dims == 2",
        "output_format.has_objects",
        "test_predict.py",
    ),
    Mutant(
        "review.py",
        "parse_args",
        'parser.add_argument("--output", type=arg.non_empty_path, default=Path("review"), metavar="DIR",'
        ' help=f"for {PAGE}, {TABLE} and {LIST}")',
        'parser.add_argument("--output", type=Path, default=Path("review"), metavar="DIR",'
        ' help=f"for {PAGE}, {TABLE} and {LIST}")',
        "test_review.py",
    ),
    Mutant(
        "review.py",
        "calibrate_models",
        "(UserError, OSError)",
        "UserError",
        "test_review.py",
    ),
    Mutant(
        "train.py",
        "evaluate",
        "reliability = accelerator.reduce(reliability, 'sum')",
        "pass",
        "test_report.py",
    ),
    Mutant("train.py", "rehearse", "rehearsal.time_steps_again(make_step, steps)", "pass", "test_rehearsal.py"),
    Mutant("train.py", "main", "args.class_weights", "None", "test_flags.py"),
    Mutant("train.py", "main", "args.loss", "'ce+dice'", "test_flags.py"),
    Mutant(
        "train.py",
        "main",
        "set_seed(args.seed, deterministic=args.deterministic)",
        "set_seed(args.seed, deterministic=False)",
        "test_flags.py",
    ),
    Mutant("train.py", "main", "tuning.for_shape(shapes.largest)", "tuning.for_shape(())", "test_kernel_tuning.py"),
    Mutant("train.py", "train_step", "max_grad_norm or torch.inf", "torch.inf", "test_flags.py"),
    Mutant(
        "train.py",
        "train_step",
        "torch.as_tensor(grad_norm, device=accelerator.device)",
        "torch.as_tensor(grad_norm)",
        "test_device.py",
    ),
    Mutant(
        "train.py", "main", "WeightAverage(network, args.ema_decay)", "WeightAverage(network, 0.0)", "test_flags.py"
    ),
    Mutant(
        "train.py",
        "train_step",
        "is_made = guard.judge(loss, grad_norm, stop_requests)\noptimizer.step()",
        "optimizer.step()\nis_made = guard.judge(loss, grad_norm, stop_requests)",
        "test_nan_guard.py",
    ),
    Mutant(
        "train.py",
        "add_gradients",
        "criterion(logits, targets, counts)",
        "criterion(logits, targets, criterion.counts(targets))",
        "test_flags.py test_train.py",
    ),
    Mutant("train.py", "train_step", "loss = accelerator.reduce(loss, 'sum')", "pass", "test_train.py"),
    Mutant("train.py", "main", "device.type == 'cpu' or schedule.needs_results(state.step)", "False", "test_flags.py"),
    Mutant("train.py", "add_gradients", "share * accelerator.num_processes", "share", "test_equality.py test_train.py"),
    Mutant(
        "train.py",
        "main",
        "average.applied()",
        "nullcontext()",
        "test_flags.py",
    ),
    Mutant(
        "train.py",
        "main",
        "seed_step(args.seed, state.step, mesh.group)",
        "pass",
        "test_resume.py test_flags.py",
    ),
    Mutant("train.py", "add_gradients", "reduction.wait", "counts.zero_", "test_equality.py test_train.py"),
    Mutant(
        "train.py",
        "evaluate",
        "task.finish(partial).to(counts.dtype)",
        "2 * task.finish(partial).to(counts.dtype)",
        "test_published_numbers.py",
    ),
    Mutant(
        "train.py",
        "evaluate",
        "(sums / torch.where(counts > 0, counts, 1)).sum",
        "(sums / torch.where(counts > 0, counts, 1)).mean",
        "test_published_numbers.py",
    ),
    Mutant("train.py", "add_gradients", "not micro_batches", "True", "test_equality.py test_train.py"),
    Mutant(
        "train.py",
        "main",
        "preflight.check_evaluation(evaluation_size)",
        "pass",
        "test_preflight.py",
    ),
    Mutant("train.py", "evaluate", "share_statistics(accelerator, model)", "pass", "test_sync_batchnorm.py"),
    Mutant(
        "train.py",
        "main",
        "schedule.is_checkpoint_step(state.step) or schedule.is_over(state) or improved or guard.stopping",
        "schedule.is_checkpoint_step(state.step) or improved or guard.stopping",
        "test_repeat.py",
    ),
    Mutant("train.py", "rehearse", "torch.autocast('cpu', torch.bfloat16)", "nullcontext()", "test_rehearsal.py"),
    Mutant(
        "train.py",
        "main",
        "checkpoints.save(state, evaluation)",
        "checkpoints.save(state, None)",
        "test_checkpoints.py",
    ),
    Mutant(
        "train.py",
        "main",
        "schedule.is_checkpoint_step(state.step) or schedule.is_over(state) or improved or guard.stopping",
        "schedule.is_checkpoint_step(state.step) or schedule.is_over(state) or guard.stopping",
        "test_checkpoints.py",
    ),
    Mutant("train.py", "evaluate", "model.eval()", "pass", "test_train.py"),
    Mutant("train.py", "main", EVALUATION_IN_TRAINING + "    model.train()", EVALUATION_IN_TRAINING, "test_train.py"),
    Mutant("train.py", "main", "accelerator.process_index", "0", "test_train.py"),
    Mutant("train.py", "main", "check_scale(info, typed_scale, model.config)", "pass", "test_train.py"),
    Mutant("train.py", "main", "state.window = monitor.window.saved()", "pass", "test_accounts.py"),
    Mutant(
        "train.py",
        "main",
        "training_flops(model, info.channels) * shapes.mean_pixels",
        "training_flops(model, info.channels)",
        "test_accounts.py",
    ),
    Mutant(
        "train.py", "main", "len(info.train) / schedule.steps_per_epoch", "batch_split.batch_size", "test_accounts.py"
    ),
    Mutant("train.py", "main", "args.ema_decay > 0", "False", "test_accounts.py"),
    Mutant(
        "train.py",
        "main",
        "schedule.set_learning_rate(optimizer, state.step)",
        "schedule.set_learning_rate(optimizer, state.step + 1)",
        "test_accounts.py",
    ),
    Mutant("train.py", "main", "info.open_here()", "pass", "test_train.py"),
    Mutant("train.py", "main", "rebuild_buckets(model, network)", "pass", "test_flags.py"),
    Mutant("train.py", "main", "pace.check(state.step)", "pass", "test_accounts.py"),
]
