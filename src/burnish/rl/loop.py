"""A whole run, from top to bottom: prompts → completions → grades → advantages → updates → metrics → checkpoint.

    task ──prompts──▶ engine ──trajectories──▶ grades ──▶ advantages ──▶ packed batches ──▶ update ─┐
                        ▲                                                                           │
                        └────────────────────────── weights (version n+1) ──────────────────────────┘

The loop is synchronous: a step samples with the weights the last one made. A step is a pure function of the state
before it, and everything of a step is on disk before the next checkpoint is; so a run that was killed anywhere and
resumed is bit-equal to one that wasn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from burnish.checkpoint.run_folder import RunFolder
from burnish.checkpoint.run_state import Checkpoints
from burnish.config.loading import config_from, dump_yaml
from burnish.config.schema import RunConfig
from burnish.errors import Interrupted, RunStopped, UserError
from burnish.model.compilation_cache import use_compilation_cache
from burnish.model.spec import ModelSpec
from burnish.observe.metrics import MetricsWriter, read_metrics
from burnish.observe.progress import RunProgress
from burnish.observe.reward_curve import draw_reward_curve
from burnish.observe.samples import SampleWriter
from burnish.observe.trackers import open_trackers
from burnish.rl.advantages import group_advantages, zero_advantage_groups
from burnish.rl.evaluation import EvaluationResult, evaluate
from burnish.rl.interruption import Interruption
from burnish.rl.preflight import check_context, step_to_resume
from burnish.rl.prompt_stream import PromptStream
from burnish.rl.step_grading import JournaledPool, check_grades
from burnish.rl.step_metrics import Clock, machine_metrics, reward_metrics, update_metrics
from burnish.rl.step_samples import evaluation_samples, training_samples
from burnish.rl.trainer import StepUpdates, Trainer
from burnish.rollout.engine import Engine
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling
from burnish.tasks import Completion, GoldChecker, Grade, Row, Task, load_task, require_task, training_rows
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights.export import save_hf
from burnish.weights.loading import load_parameters
from burnish.weights.sources import open_source

SAMPLER_KL_ALARM = 1e-3
"""A KL (nats per token) between sampling and training that rounding, even in bfloat16, does not explain."""

LEAST_SHARE_CHANGED = 1e-3
"""Share of weights an update has to change to count as having arrived."""


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves."""

    run_folder: Path
    hf_folder: Path
    """The trained model as a Hugging Face folder."""
    reward_curve: Path
    """A picture of the run's reward and accuracy."""
    evaluations: dict[int, list[EvaluationResult]]
    """By step, those that this call made: sampled first, then greedy if asked for."""


@dataclass
class _Rollout:
    """Everything a step sampled, with its grades; `advantages` are 0 where a completion or group teaches nothing."""

    rows: dict[int, Row] = field(default_factory=dict)
    trajectories: list[Trajectory] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)
    reference: list[np.ndarray] | None = None
    rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """After a KL penalty, where there is one."""
    advantages: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def group_ids(self) -> np.ndarray:
        return np.asarray([trajectory.group_id for trajectory in self.trajectories], np.int64)

    @property
    def valid(self) -> np.ndarray:
        return np.asarray([grade.parts is not None for grade in self.grades], bool)


def train(config: RunConfig | Mapping[str, Any], task: Task | None = None) -> RunResult:
    """Run `config` to its end, or from its last checkpoint to its end, and export the trained model.

    Args:
        config: the run, or nested mappings of its settings; see docs/configuration.md.
        task: takes the place of `config.task`, for tasks that are Python objects.

    Raises:
        UserError: something in the configuration, the model or the run folder can't be used.
        RunStopped: an alarm of the run's own; what was done is on disk.
        Interrupted: Ctrl-C or SIGTERM; the state was saved, and the same call resumes.
    """
    use_compilation_cache()
    if not isinstance(config, RunConfig):
        config = config_from(config)
    if task is not None:
        # The task is part of what the run is: of its folder's name, and of what a resumed run must have in common.
        named = config.task.model_copy(update={"name": require_task(task, "task").name})
        config = config.model_copy(update={"task": named})
    with ExitStack() as stack:
        run = _Run(config, task, stack)
        return run.to_the_end()


class _Run:
    """One run's parts, put together once; `to_the_end` is the loop."""

    def __init__(self, config: RunConfig, task: Task | None, stack: ExitStack) -> None:
        self.config = config
        self.folder = stack.enter_context(RunFolder(config.output_dir, config.run_folder.name))
        self._tracing = False
        stack.callback(self._stop_tracing)
        self.checkpoints = stack.enter_context(Checkpoints(self.folder.checkpoints, keep=config.checkpoint.keep))
        resumed_step, changes = step_to_resume(config, self.folder, self.checkpoints)
        self.task = task or load_task(config.task, config.seed)
        self.source = open_source(config.model)
        self.spec = ModelSpec.from_config(self.source.config)
        check_context(config, self.spec)
        self.tokenizer = ChatTokenizer.from_source(self.source)
        grading = config.grading
        self.pool = stack.enter_context(
            JournaledPool(self.task, grading.workers, grading.timeout_seconds, run_folder=self.folder.path)
        )
        self.prompts = PromptStream(
            rows=training_rows(self.task, config.task.max_prompts),
            tokenizer=self.tokenizer,
            gold=GoldChecker(self.task, self.pool, grading.max_failed_share),
            seed=config.seed,
            max_prompt_tokens=config.rollout.max_prompt_tokens,
            chat_template_kwargs=config.rollout.chat_template_kwargs,
        )
        self.engine = Engine(
            self.spec,
            eos_ids=self.tokenizer.eos_ids,
            decode_text=self.tokenizer.decode,
            max_lanes=config.rollout.concurrent_sequences,
            steps_per_dispatch=config.rollout.decode_steps_per_dispatch,
        )
        initial = load_parameters(self.source, self.spec, config.training.parameter_dtype)
        self.trainer = Trainer(config, self.spec, initial)
        self.step = 0
        if resumed_step is not None:
            self._restore(resumed_step)
        self.folder.write_config(dump_yaml(config))
        self.samples = SampleWriter(self.folder.path)
        trackers = open_trackers(config, self.folder.path, resumed_step)
        self.metrics = stack.enter_context(MetricsWriter(self.folder.path, trackers))
        # Steps after the checkpoint are done again, to the same result; a new run starts from nothing.
        self.samples.truncate_after(self.step if resumed_step is not None else -1)
        self.metrics.truncate_after(self.step if resumed_step is not None else -1)
        self.evaluations: dict[int, list[EvaluationResult]] = {}
        self.interruption = stack.enter_context(Interruption())
        self.progress = stack.enter_context(RunProgress(config.steps, first_step=self.step))
        for change in changes:
            self.progress.note(f"changed since the run started: {change}")
        if self.pool.reason_in_process:
            self.progress.note(f"grading in this process, without a time limit: {self.pool.reason_in_process}")

    def to_the_end(self) -> RunResult:
        """The loop."""
        config = self.config
        try:
            self._evaluate_if_due()
            while self.step < config.steps:
                with self._profiled(self.step + 1):
                    self._one_step()
                self._evaluate_if_due()
                every = config.checkpoint.every
                if self.step == config.steps or (every and self.step % every == 0):
                    self._save()
        except Interrupted:
            # Whatever of the next step was begun is dropped: it will be done again, to the same result.
            self._save()
            saved = f"step {self.step} is saved in" if self.step else "before the first step of"
            self.progress.note(f"stopped: {saved} {self.folder.path}; the same command goes on from there")
            raise
        except RunStopped:
            self.pool.forget_part()
            raise
        self.checkpoints.wait()
        self.progress.phase("export")
        save_hf(self.folder.hf, self.trainer.state.parameters, self.spec, self.source, dtype=config.export.dtype)
        curve = draw_reward_curve(self.folder.path, self.folder.path / "reward_curve.png")
        return RunResult(self.folder.path, self.folder.hf, curve, self.evaluations)

    def _one_step(self) -> None:
        step = self.step + 1
        clock = Clock()
        self.engine.update_weights(int(self.trainer.state.version), self.trainer.sampling_weights())
        dropped_before, generated_before = self.prompts.dropped, self.engine.generated_tokens
        gold_before, position = len(self.prompts.gold.failures), self.prompts.state()
        self.pool.begin(f"step {step}")
        try:
            rollout = self._rollout(step, clock)
        except Interrupted:
            self.prompts.restore(position)
            raise
        updates = self._update(step, rollout, clock)
        self.samples.write(
            step, training_samples(rollout.trajectories, rollout.rows, rollout.grades, rollout.advantages)
        )
        values = {
            **reward_metrics(rollout.trajectories, rollout.grades, rollout.group_ids),
            **update_metrics(updates),
            "prompts/dropped": self.prompts.dropped - dropped_before,
            "prompts/gold_failures": len(self.prompts.gold.failures) - gold_before,
            **machine_metrics(clock.seconds, self.engine.generated_tokens - generated_before, updates.trained_tokens),
        }
        self.metrics.write(step, "train", values)
        self.step = step
        self._warn(step, values)
        self.progress.step(step, values.get("reward/mean"), values["perf/rollout_tokens_per_second"])

    def _rollout(self, step: int, clock: Clock) -> _Rollout:
        """Sample and grade the step's groups; with resampling, further ones for those that teach nothing."""
        config, rollout = self.config, _Rollout()
        rounds = 1 + (config.algorithm.max_resample_rounds if self._resampling else 0)
        useful = 0
        for _ in range(rounds):
            with clock.phase("prompts"):
                self.progress.phase("prompts")
                taken = self.prompts.take(config.prompts_per_step - useful, first_group=len(rollout.rows))
            rollout.rows |= {prompt.group_id: row for prompt, row in taken}
            with clock.phase("rollout"):
                self.progress.phase("rollout")
                trajectories = self._sample([prompt for prompt, _ in taken], step)
            with clock.phase("grading"):
                self.progress.phase("grading")
                rollout.grades += self.pool.grade(
                    [
                        Completion(rollout.rows[t.group_id], t.text, t.stop_reason, len(t.token_ids))
                        for t in trajectories
                    ]
                )
                rollout.trajectories += trajectories
                check_grades(step, rollout.trajectories, rollout.grades, config.grading.max_failed_share)
                self.interruption.raise_if_asked()
            self._judge(rollout, clock)
            useful = len(rollout.rows) - len(self._useless_groups(rollout))
            if useful >= config.prompts_per_step:
                break
        return rollout

    def _sample(self, prompts: Sequence[Prompt], step: int) -> list[Trajectory]:
        settings = self.config.rollout
        sampling = Sampling(
            num_generations=settings.num_generations,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            max_tokens=settings.max_tokens,
            stop_strings=tuple(settings.stop_strings),
        )
        self.engine.submit(prompts, sampling, seed=self.config.seed, step=step)
        trajectories: list[Trajectory] = []
        while self.engine.busy:
            trajectories += self.engine.poll()
            if self.interruption.signal is not None:
                self.engine.abandon()
                self.interruption.raise_if_asked()
        return sorted(trajectories, key=lambda trajectory: (trajectory.group_id, trajectory.completion_index))

    def _judge(self, rollout: _Rollout, clock: Clock) -> None:
        """Rewards and advantages of everything the step has sampled so far."""
        with clock.phase("reference"):
            rollout.reference = self.trainer.reference_logprobs(rollout.trajectories)
            penalties = self.trainer.kl_penalties(rollout.trajectories, rollout.reference)
        rewards = np.asarray([grade.reward or 0.0 for grade in rollout.grades], np.float64)
        rollout.rewards = rewards if penalties is None else rewards - penalties
        rollout.advantages = group_advantages(
            rollout.rewards, rollout.group_ids, self.config.algorithm.advantage, rollout.valid
        )

    @property
    def _resampling(self) -> bool:
        return self.config.algorithm.zero_advantage_groups == "resample"

    def _useless_groups(self, rollout: _Rollout) -> set[int]:
        """Groups that the task rewards all alike, where these are to be replaced."""
        if not self._resampling:
            return set()
        rewards = np.asarray([grade.reward or 0.0 for grade in rollout.grades], np.float64)
        return {int(group) for group in zero_advantage_groups(rewards, rollout.group_ids, rollout.valid)}

    def _update(self, step: int, rollout: _Rollout, clock: Clock) -> StepUpdates:
        self.progress.phase("update")
        useless = self._useless_groups(rollout)
        trained = [
            index
            for index, trajectory in enumerate(rollout.trajectories)
            if rollout.grades[index].parts is not None and trajectory.group_id not in useless
        ]
        reference = None if rollout.reference is None else [rollout.reference[index] for index in trained]
        with clock.phase("update"):
            return self.trainer.train(
                step,
                [rollout.trajectories[index] for index in trained],
                rollout.advantages[trained],
                reference,
                self.folder.path,
            )

    def _evaluate_if_due(self) -> None:
        """Evaluate at the steps that the configuration names, once; an interrupted evaluation is made up for."""
        settings, step = self.config.evaluation, self.step
        at_ends = (step == 0 and settings.before) or (step == self.config.steps and settings.after)
        due = at_ends or (step > 0 and settings.every > 0 and step % settings.every == 0)
        if due and all(record["step"] != step for record in read_metrics(self.folder.path, "eval")):
            self._evaluate()

    def _evaluate(self) -> None:
        """Accuracy on held-out prompts, sampled and greedy, into the metric stream; leaves the state as it was."""
        config, settings = self.config, self.config.evaluation
        self.progress.phase("evaluation")
        rows = self._held_out_rows
        self.pool.begin(f"evaluation {self.step}")
        self.engine.update_weights(int(self.trainer.state.version), self.trainer.sampling_weights())
        results = []
        for temperature in [settings.temperature, 0.0] if settings.greedy else [settings.temperature]:
            result = evaluate(
                self.engine,
                self.task,
                rows,
                self.tokenizer,
                self.pool,
                samples_per_prompt=settings.samples_per_prompt if temperature else 1,
                temperature=temperature,
                max_tokens=settings.max_tokens or config.rollout.max_tokens,
                max_prompt_tokens=config.rollout.max_prompt_tokens,
                seed=config.seed,
                stop_strings=config.rollout.stop_strings,
                chat_template_kwargs=config.rollout.chat_template_kwargs,
                max_failed_share=config.grading.max_failed_share,
                on_progress=self._on_evaluation_progress,
            )
            results.append(result)
            stream = "eval_greedy" if result.greedy else "eval"
            self.samples.write(self.step, evaluation_samples(result), stream=stream)
        self.evaluations[self.step] = results
        values: dict[str, float] = {}
        for result in results:
            values |= result.metrics()
        self.metrics.write(self.step, "eval", values)
        found = ", ".join(f"{'greedy' if r.greedy else 'sampled'} {r.accuracy:.1%}" for r in results)
        self.progress.note(f"step {self.step}: accuracy on {results[0].num_problems} held-out prompts: {found}")
        dropped, failed = results[0].dropped_prompts, sum(result.failed_grades for result in results)
        if dropped or failed:
            self.progress.note(
                f"step {self.step}: left out {dropped} prompts that are too long, {failed} failed grades"
            )
        self.progress.skip_time()

    @cached_property
    def _held_out_rows(self) -> list[Row]:
        """The rows of every evaluation, checked once, so that whether a gold answer timed out is decided once too."""
        rows = self.task.eval_rows()
        if not len(rows):
            raise UserError(
                f"task {self.task.name} has no held-out prompts to evaluate on; "
                "type evaluation.before=false evaluation.after=false evaluation.every=0 to train without"
            )
        self.pool.begin("held-out gold answers")
        gold = GoldChecker(self.task, self.pool, self.config.grading.max_failed_share)
        kept = gold.keep([rows[index] for index in range(min(self.config.evaluation.prompts, len(rows)))])
        if gold.failures:
            self.progress.note(f"left out {len(gold.failures)} held-out prompts whose gold answer fails")
        return kept

    def _on_evaluation_progress(self, done: int, total: int) -> None:
        self.progress.phase(f"evaluation {done}/{total}")
        if self.interruption.signal is not None:
            self.engine.abandon()
            self.interruption.raise_if_asked()

    def _save(self) -> None:
        if self.step == 0:
            return
        self.progress.phase("checkpoint")
        state = self.trainer.state
        loop_state = {"step": self.step, "version": int(state.version), "prompts": self.prompts.state()}
        self.checkpoints.save(self.step, state.parameters, state.optimizer_state, loop_state)

    def _restore(self, step: int) -> None:
        saved = self.checkpoints.restore(step, self.trainer.state.parameters, self.trainer.state.optimizer_state)
        self.trainer.restore(saved.parameters, saved.optimizer_state, saved.loop_state["version"])
        self.prompts.restore(saved.loop_state["prompts"])
        self.step = saved.loop_state["step"]

    def _warn(self, step: int, values: dict[str, float]) -> None:
        """Say aloud what a number alone would let pass."""
        left_out = {
            "prompts longer than rollout.max_prompt_tokens": values["prompts/dropped"],
            "completions whose grader failed": values["failed_grades"],
            "prompts whose gold answer fails": values["prompts/gold_failures"],
        }
        told = [f"{int(count)} {what}" for what, count in left_out.items() if count]
        if told:
            self.progress.note(f"step {step}: left out {', '.join(told)}")
        if not values["updates"]:
            self.progress.note(f"step {step}: no completion gave a gradient; the weights stay as they were")
            return
        if values["updates"] == 1 and values["sampler_kl"] > SAMPLER_KL_ALARM:
            self.progress.note(
                f"step {step}: sampler_kl is {values['sampler_kl']:.2g}; sampler and trainer share weights and code, "
                "so they should agree to rounding"
            )
        if self.config.optimizer.learning_rate and values["share_of_weights_changed"] < LEAST_SHARE_CHANGED:
            self.progress.note(
                f"step {step}: the update changed only {values['share_of_weights_changed']:.2%} of the weights as they "
                "are sampled from; the learning rate is lost in their rounding"
            )

    @contextmanager
    def _profiled(self, step: int) -> Iterator[None]:
        """Trace the range of steps that the configuration names, as far as this process runs it."""
        first, last = self.config.profile.first_step, self.config.profile.last_step
        inside = first is not None and last is not None and first <= step <= last
        if inside and not self._tracing:
            jax.profiler.start_trace(str(self.folder.path / "profile"))
            self._tracing = True
        yield
        if self._tracing and step == last:
            self._stop_tracing()

    def _stop_tracing(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
