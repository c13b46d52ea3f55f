"""The schema of a run's configuration: every key, its type, default, bounds, and the sentence that documents it.

The string under each field is its documentation (docs/configuration.md is generated from it). Checks that involve one
group stand in that group, checks across groups in `RunConfig`; all speak in the keys a user types.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

IMPLIED_TOP_K = 128
"""How many of the most likely tokens top-p and min-p choose among when `rollout.top_k` sets no bound itself."""


class Group(BaseModel):
    """What all groups share: unknown keys refused, no silent conversions, no infinities, read-only once built."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class TaskConfig(Group):
    """Where prompts come from and how answers are scored. `task=NAME` is short for `task.name=NAME` with the rest
    at its defaults."""

    name: str = Field(default="arithmetic", min_length=1)
    """`arithmetic`, `gsm8k`, `openmathinstruct2`, `reasoning_gym:NAME`, or your own as `path/to/file.py:make_task`."""
    path: str | None = None
    """A local .jsonl or .parquet file to read the data set from, in place of the hub."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task itself, for example `task.options.max_operand=9`."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Use only this many training prompts; null uses all of them."""


class RolloutConfig(Group):
    """How completions are sampled while training."""

    num_generations: int = Field(default=8, ge=1)
    """Completions drawn for each prompt: the size of a group."""
    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature of sampling; log-probabilities include it."""
    top_k: int = Field(default=0, ge=0, le=1024)
    """Sample only among the this many most likely tokens, at most 1024, whose ids travel with every token; 0 turns it
    off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only among the most likely tokens that together reach this probability; 1 turns it off. With top_k=0
    it chooses among the 128 most likely tokens."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Sample only among tokens at least this fraction as likely as the most likely one; 0 turns it off. With
    top_k=0 it chooses among the 128 most likely tokens."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest completion, in tokens; a longer one is cut and its stop reason is `length`."""
    max_prompt_tokens: int = Field(default=256, ge=1)
    """Longest prompt, in tokens, chat template included; longer ones are dropped and counted."""
    stop_strings: list[str] = Field(default_factory=list)
    """A completion ends once its text contains one of these strings."""
    concurrent_sequences: int = Field(default=64, ge=1)
    """Completions decoded at the same time; more need more memory for the cache."""
    decode_steps_per_dispatch: int = Field(default=16, ge=1)
    """Tokens decoded for each sequence between two looks at which ones have finished."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables passed to the model's chat template, for example
    `rollout.chat_template_kwargs.enable_thinking=false`."""

    @field_validator("stop_strings")
    @classmethod
    def _no_empty_stop_string(cls, strings: list[str]) -> list[str]:
        if "" in strings:
            raise ValueError(
                "rollout.stop_strings holds an empty string, which would end every completion at once; "
                "remove it, or type rollout.stop_strings=[] for none"
            )
        return strings


class AlgorithmConfig(Group):
    """From rewards to a loss: GRPO and its relatives."""

    advantage: Literal["std", "none", "batch"] = "std"
    """How rewards become advantages: `std` divides the distance from the group's mean by the group's standard
    deviation, `none` keeps the distance (Dr. GRPO), `batch` divides it by the standard deviation of the whole step."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0)
    """The importance ratio is clipped from above at 1 + clip_high."""
    loss_aggregation: Literal["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum-norm"] = "token-mean"
    """`token-mean` averages over all completion tokens of an update, `sequence-mean-token-mean` over sequences of
    their token means, `sequence-mean-token-sum-norm` over sequences of their token sums divided by
    rollout.max_tokens."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the starting model; 0 loads no reference model."""
    kl_estimator: Literal["k3", "k2", "k1"] = "k3"
    """Estimator of that divergence: `k3` and `k2` are terms of the loss, `k1` is subtracted from the reward."""
    truncated_completions: Literal["keep", "mask"] = "keep"
    """Completions cut at rollout.max_tokens: `keep` trains on them, `mask` leaves them out of the loss and its mean."""
    zero_advantage_groups: Literal["keep", "resample"] = "keep"
    """Groups whose rewards are all equal teach nothing: `keep` counts them, `resample` draws other prompts in their
    place."""
    max_resample_rounds: int = Field(default=3, ge=1)
    """With zero_advantage_groups=resample, at most this many further rounds of prompts per step."""
    updates_per_rollout: int = Field(default=1, ge=1)
    """Mini-batches, each one optimizer update, that the completions of a step are split into; groups stay whole."""
    epochs_per_rollout: int = Field(default=1, ge=1)
    """How many times the completions of a step are gone through."""


class OptimizerConfig(Group):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "adafactor"] = "adamw"
    """`adamw`, or `adafactor` where memory is short."""
    learning_rate: float = Field(default=1e-6, ge=0)
    """Learning rate after warm-up; 0 makes a control run that learns nothing."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's mean of gradients."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of AdamW's mean of squared gradients."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay; each update also shrinks the weights by learning rate x this."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger global norm are scaled down to it."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear warm-up, which reaches learning_rate at the last of them; null takes warmup_fraction. Steps
    without a gradient change nothing and do not count."""
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the run's steps spent in linear warm-up, where warmup_steps is null."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after warm-up: `constant`, or `cosine`, which would reach 0 one update after the last."""

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_steps is not None and self.warmup_fraction > 0:
            raise ValueError(
                f"optimizer.warmup_steps={self.warmup_steps} and optimizer.warmup_fraction={self.warmup_fraction:g} "
                "both set the warm-up; type optimizer.warmup_steps=null to keep the fraction, "
                "or optimizer.warmup_fraction=0"
            )
        return self


class TrainingConfig(Group):
    """How an update is laid out in memory."""

    row_tokens: int | None = Field(default=None, ge=1)
    """Length of a packed row, in tokens; null chooses one from the prompt and completion limits."""
    rows_per_micro_batch: int = Field(default=1, ge=1)
    """Packed rows that go through the model at once; gradients are accumulated over them and do not depend on it."""
    remat: Literal["none", "dots", "full"] = "full"
    """What is computed again in the backward pass to save memory: `none`, `dots` (all but matrix products), `full`
    (whole layers)."""
    parameter_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type the weights are kept and updated in; in bfloat16 a small learning rate changes almost no weight."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type the weights are cast to for sampling and training; `auto` is bfloat16 on accelerators and float32 on CPU."""


class EvaluationConfig(Group):
    """Accuracy on held-out prompts, which leaves the training state untouched."""

    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    every: int = Field(default=0, ge=0)
    """Evaluate each time this many steps are done; 0 never does in between."""
    prompts: int = Field(default=100, ge=1)
    """Held-out prompts to evaluate on (all of them if there are fewer)."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Completions sampled for each of them."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of these samples; greedy decoding has its own switch."""
    greedy: bool = True
    """Also measure accuracy with greedy decoding."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest completion, in tokens; null takes rollout.max_tokens."""


class CheckpointConfig(Group):
    """Saving a run so that the same command resumes it."""

    every: int = Field(default=50, ge=0)
    """Save each time this many steps are done; 0 saves only the last step, and on Ctrl-C or SIGTERM."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay on disk."""
    resume: bool = True
    """Continue from the newest checkpoint of the run folder; false refuses a folder that already holds a run."""


class TrackingConfig(Group):
    """Where metrics go besides metrics.jsonl. Logins come from the tracker's own environment variables or login
    command."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    wandb_project: str | None = Field(default=None, min_length=1)
    """Weights & Biases project to log to; null logs nothing there."""
    trackio_project: str | None = Field(default=None, min_length=1)
    """Trackio project to log to; null logs nothing there."""


class GradingConfig(Group):
    """How graders are run."""

    workers: int = Field(default=1, ge=1)
    """Worker processes that grade completions."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """A grader that takes longer for one completion is killed, and the completion leaves its group."""
    max_failed_share: float = Field(default=0.01, ge=0, le=1)
    """The run stops when a larger share of a step's completions could not be graded."""


class ProfileConfig(Group):
    """A profiler trace of a range of steps, written to the run folder."""

    first_step: int | None = Field(default=None, ge=1)
    """First step of the trace; null records none."""
    last_step: int | None = Field(default=None, ge=1)
    """Last step of the trace, itself included."""

    @model_validator(mode="after")
    def _a_range(self) -> Self:
        first, last = self.first_step, self.last_step
        if (first is None) != (last is None):
            given, missing, value = (
                ("first_step", "last_step", first) if last is None else ("last_step", "first_step", last)
            )
            raise ValueError(
                f"profile.{given}={value} needs the other end of the range; type also profile.{missing}={value}"
            )
        if first is not None and last is not None and first > last:
            raise ValueError(
                f"profile.first_step={first} lies after profile.last_step={last}; "
                f"type profile.first_step={last} profile.last_step={first}"
            )
        return self


class ExportConfig(Group):
    """The Hugging Face folder written at the end."""

    dtype: Literal["source", "float32", "bfloat16", "float16"] = "source"
    """Type of the exported weights; `source` is the one the model came in."""


class RunConfig(Group):
    """One run: which model learns which task, for how long, and where the results go."""

    model: str = Field(min_length=1)
    """The starting model: a Hugging Face folder, a .gguf file, a hub id (`org/name`), or `smollm2-135m-instruct`."""
    run_name: str | None = None
    """Folder of the run inside output_dir; null makes it from the task and the model."""
    output_dir: str = Field(default="runs", min_length=1)
    """Folder that holds the runs."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of everything drawn at random: prompts, sampling noise, generated tasks."""
    steps: int = Field(default=100, ge=1)
    """Steps of the run; each one samples, scores, and updates."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Prompts, and so groups, in each step."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    grading: GradingConfig = Field(default_factory=GradingConfig)
    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    export: ExportConfig = Field(default_factory=ExportConfig)

    @property
    def completions_per_step(self) -> int:
        """Completions sampled in each step."""
        return self.prompts_per_step * self.rollout.num_generations

    @property
    def run_folder(self) -> Path:
        """Where the run lives; the same configuration always names the same folder, so that the same command
        resumes."""
        name = self.run_name
        if name is None:
            task = Path(self.task.name.split(":")[0]).stem if ".py" in self.task.name else self.task.name
            name = f"{task}-{Path(self.model).name.removesuffix('.gguf')}".replace(":", "-").replace("/", "-")
        return Path(self.output_dir) / name

    @field_validator("task", mode="before")
    @classmethod
    def _task_by_name(cls, task: Any) -> Any:
        return {"name": task} if isinstance(task, str) else task

    @field_validator("run_name")
    @classmethod
    def _run_name_is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and (not name or "/" in name or "\\" in name or name in (".", "..")):
            raise ValueError(
                f"run_name={name} is not the name of one folder; "
                "type a name without slashes and put the path into output_dir"
            )
        return name

    @field_validator("output_dir")
    @classmethod
    def _output_dir_is_local(cls, folder: str) -> str:
        if "://" in folder:
            raise ValueError(
                f"output_dir={folder} is a URL and runs are written to local folders; type output_dir=runs"
            )
        return folder

    @model_validator(mode="after")
    def _advantages_can_differ(self) -> Self:
        if self.rollout.num_generations == 1:
            raise ValueError(
                "rollout.num_generations=1 makes every advantage 0, since a reward is compared with the others of its "
                "group; type rollout.num_generations=8"
            )
        return self

    @model_validator(mode="after")
    def _mini_batches_hold_whole_groups(self) -> Self:
        prompts, updates = self.prompts_per_step, self.algorithm.updates_per_rollout
        if prompts % updates:
            raise ValueError(
                f"prompts_per_step={prompts} groups can't be split evenly into algorithm.updates_per_rollout={updates} "
                f"mini-batches; type prompts_per_step={-(-prompts // updates) * updates}"
            )
        return self

    @model_validator(mode="after")
    def _a_sequence_fits_a_row(self) -> Self:
        row, longest = self.training.row_tokens, self.rollout.max_prompt_tokens + self.rollout.max_tokens
        if row is not None and row < longest:
            raise ValueError(
                f"training.row_tokens={row} is shorter than one prompt and completion "
                f"(rollout.max_prompt_tokens={self.rollout.max_prompt_tokens} + "
                f"rollout.max_tokens={self.rollout.max_tokens}); "
                f"type training.row_tokens={longest} or more, or null to have it chosen"
            )
        return self

    @model_validator(mode="after")
    def _ranges_lie_within_the_run(self) -> Self:
        if self.optimizer.warmup_steps is not None and self.optimizer.warmup_steps > self.steps:
            raise ValueError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} is longer than the run of steps={self.steps}; "
                f"type optimizer.warmup_steps={max(1, self.steps // 10)}"
            )
        if self.profile.last_step is not None and self.profile.last_step > self.steps:
            raise ValueError(
                f"profile.last_step={self.profile.last_step} lies beyond the last step (steps={self.steps}); "
                f"type profile.last_step={self.steps}"
            )
        return self
