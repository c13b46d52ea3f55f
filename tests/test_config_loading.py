"""A configuration is read as it was typed, and every mistake is answered with one sentence that says what to type."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config import yaml_text
from burnish.config.differences import check_resume, config_differences
from burnish.config.keys import nearest_key
from burnish.config.loading import dump_yaml, load_config, recipe_names, split_arguments
from burnish.config.schema import RunConfig
from burnish.errors import UserError

MODEL = "model=some/model"


def refusal(*overrides: str, recipe: str | Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_config(recipe, [MODEL, *overrides] if recipe is None else list(overrides))
    message = str(caught.value)
    assert "pydantic" not in message.lower()
    assert "http" not in message
    return message


@pytest.mark.parametrize("name", recipe_names())
def test_packaged_recipes_load_and_say_what_they_are(name: str) -> None:
    assert load_config(name).model
    text = (Path(__file__).parents[1] / "src/burnish/config/recipes" / f"{name}.yaml").read_text()
    assert text.startswith("# ")


def test_overrides_are_yaml_values_at_dotted_keys() -> None:
    config = load_config(
        None,
        [
            MODEL,
            "optimizer.learning_rate=1e-5",
            "rollout.stop_strings=['\\n', \"\\n\"]",
            "evaluation.greedy=false",
            "evaluation.max_tokens=null",
            "rollout.temperature=1",
            "task.options.max_operand=9",
            "task.options.operators=[+, '*']",
            "rollout.chat_template_kwargs.enable_thinking=false",
            "run_name=007",
        ],
    )
    assert config.optimizer.learning_rate == 1e-5
    assert config.rollout.stop_strings == ["\\n", "\n"]
    assert config.evaluation.greedy is False
    assert config.evaluation.max_tokens is None
    assert config.rollout.temperature == 1.0
    assert config.task.options == {"max_operand": 9, "operators": ["+", "*"]}
    assert config.rollout.chat_template_kwargs == {"enable_thinking": False}
    assert config.run_name == "007"


def test_task_name_alone_replaces_the_recipes_task_in_any_order(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: m\ntask: {name: arithmetic, options: {max_operand: 9}}\n")
    for overrides in (["task=gsm8k", "task.path=a.jsonl"], ["task.path=a.jsonl", "task=gsm8k"]):
        task = load_config(recipe, overrides).task
        assert (task.name, task.path, task.options) == ("gsm8k", "a.jsonl", {})
    assert load_config(recipe, ["task.name=gsm8k"]).task.options == {"max_operand": 9}
    recipe.write_text("model: m\ntask: gsm8k\n")
    assert load_config(recipe, ["task.max_prompts=3"]).task.name == "gsm8k"


def test_a_mapping_for_a_group_leaves_its_other_keys() -> None:
    config = load_config("demo", ["rollout={temperature: 0.5}"])
    assert config.rollout.temperature == 0.5
    assert config.rollout.max_tokens == load_config("demo").rollout.max_tokens


def test_the_recipe_is_the_argument_without_an_equals_sign() -> None:
    assert split_arguments(["steps=3", "demo", "seed=1"]) == ("demo", ["steps=3", "seed=1"])
    assert split_arguments(["steps=3"]) == (None, ["steps=3"])
    with pytest.raises(UserError, match="task=gsm8k"):
        split_arguments(["demo", "gsm8k"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rollout.temprature", "rollout.temperature"),
        ("rolout.top_k", "rollout.top_k"),
        ("learning_rate", "optimizer.learning_rate"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("max_token", "rollout.max_tokens"),
        ("step", "steps"),
        ("epochs", "algorithm.epochs_per_rollout"),
    ],
)
def test_unknown_key_is_answered_with_the_nearest_real_one(typed: str, meant: str) -> None:
    assert nearest_key(typed) == meant
    assert refusal(f"{typed}=1") == f"there is no key {typed}; did you mean {meant}?"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("steps=ten", "steps must be a whole number of at least 1, not ten; type for example steps=100"),
        ("steps=1e3", "steps must be a whole number of at least 1, not 1000.0; type for example steps=1000"),
        ("steps=true", "steps must be a whole number of at least 1, not true; type for example steps=100"),
        ("steps=0", "steps must be a whole number of at least 1, not 0; type for example steps=1"),
        ("rollout.top_p=2", "rollout.top_p must be a number above 0 and at most 1, not 2; "
         "type for example rollout.top_p=1"),
        ("rollout.temperature=.nan", "rollout.temperature must be a number above 0, not .nan; "
         "type for example rollout.temperature=1.0"),
        ("optimizer.name=adam", "optimizer.name must be one of adamw, adafactor, not adam; "
         "type for example optimizer.name=adamw"),
        ("evaluation.greedy=yes", "evaluation.greedy must be true or false, not 'yes'; "
         "type for example evaluation.greedy=true"),
        ("rollout.stop_strings=END", "rollout.stop_strings must be a list of texts, not END; "
         "type for example rollout.stop_strings=[END]"),
        ("rollout=3", "rollout=3 is not possible, rollout is a group of keys; "
         "type for example rollout.num_generations=…"),
        ("task.options=3", "task.options must be a mapping, not 3; type for example task.options={}"),
        ("steps", "steps is not a setting; type key=value, for example steps=50"),
    ],
)  # fmt: skip
def test_wrong_value_says_what_was_expected_and_what_to_type(override: str, sentence: str) -> None:
    assert refusal(override) == sentence


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["rollout.num_generations=1"], "type rollout.num_generations=8"),
        (["rollout.num_generations=1", "algorithm.advantage=none"], "type rollout.num_generations=8"),
        (["rollout.num_generations=1", "algorithm.advantage=batch"], "type rollout.num_generations=8"),
        (["prompts_per_step=6", "algorithm.updates_per_rollout=4"], "type prompts_per_step=8"),
        (["training.row_tokens=100"], "type training.row_tokens=512"),
        (["profile.first_step=3"], "type also profile.last_step=3"),
        (["profile.first_step=5", "profile.last_step=3"], "type profile.first_step=3 profile.last_step=5"),
        (["profile.first_step=5", "profile.last_step=9", "steps=7"], "type profile.last_step=7"),
        (["optimizer.warmup_steps=200"], "type optimizer.warmup_steps=10"),
        (["optimizer.warmup_steps=2", "optimizer.warmup_fraction=0.1"], "type optimizer.warmup_steps=null"),
        (["rollout.stop_strings=['']"], "type rollout.stop_strings=[]"),
        (["run_name=a/b"], "type a name without slashes"),
        (["output_dir=gs://bucket/runs"], "type output_dir=runs"),
    ],
)
def test_impossible_combination_says_what_to_type_instead(overrides: list[str], advice: str) -> None:
    message = refusal(*overrides)
    assert advice in message
    assert "\n" not in message


def test_several_mistakes_are_named_at_once() -> None:
    assert len(refusal("steps=0", "seeed=1", "rollout.top_k=-1").splitlines()) == 3


def test_a_run_without_a_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model is not set and has no default; type model=…"):
        load_config(None, ["steps=3"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"model: m\nsteps: 1\nsteps: 2\n", "line 3: not valid YAML: the key steps stands twice"),
        (b"model: m\nrollout: {top_k: 1, top_k: 2}\n", "line 2: not valid YAML: the key top_k stands twice"),
        (b"model: m\nsteps: [1\n", "line 3: not valid YAML"),
        (b"model: m\n\tsteps: 1\n", "line 2: not valid YAML"),
        (b"model: m\nrun_name: \xff\n", "line 2: the file is not UTF-8"),
        (b"- model\n", "holds [model], but a recipe holds lines such as"),
        (b"model: !!python/name:os.system\n", "line 1: not valid YAML"),
        (b"model: m\nrun_name: 7\n", "run_name must be text or null, not 7; type for example run_name='7'"),
    ],
)
def test_broken_recipe_file_names_file_and_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    message = refusal(recipe=path)
    assert message.startswith(str(path))
    assert sentence in message


def test_missing_recipes_and_folders_are_answered(tmp_path: Path) -> None:
    assert "did you mean demo-tiny?" in refusal(recipe="demo-tinny")
    assert "does not exist" in refusal(recipe=tmp_path / "none.yaml")
    assert "is a folder" in refusal(recipe=tmp_path)
    (tmp_path / "config.yaml").write_text("model: m")
    assert f"type {tmp_path / 'config.yaml'}" in refusal(recipe=tmp_path)


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=12)
plain_lookalikes = st.sampled_from(
    ["1e-5", "no", "on", "null", "~", "1:30", "2024-01-01", "0x10", "010", "1_0", "", "="]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | plain_lookalikes


@given(st.dictionaries(texts | plain_lookalikes, scalars | st.lists(scalars, max_size=3), max_size=3))
@settings(max_examples=60, deadline=None)
def test_dumped_configuration_reads_back_equal(options: dict[str, object]) -> None:
    config = load_config("demo", ["optimizer.learning_rate=3e-6"])
    config = RunConfig.model_validate({**config.model_dump(), "task": {"name": "t", "options": options}})
    assert RunConfig.model_validate(yaml_text.parse(dump_yaml(config))) == config


def test_the_same_configuration_names_the_same_run_folder() -> None:
    def folder(*overrides: str) -> str:
        return str(load_config(None, list(overrides)).run_folder)

    assert folder("model=HuggingFaceTB/SmolLM2-135M", "task=gsm8k") == "runs/gsm8k-SmolLM2-135M"
    assert folder("model=/models/a.gguf", "task=mine/words.py:make_task") == "runs/words-a"
    assert folder("model=m", "task=reasoning_gym:sudoku", "output_dir=x") == "x/reasoning_gym-sudoku-m"
    assert folder("model=m", "run_name=third") == "runs/third"


def test_resume_reports_what_changed_and_refuses_what_cannot() -> None:
    saved = load_config(None, [MODEL])
    longer = load_config(None, [MODEL, "steps=200", "checkpoint.every=5", "grading.workers=2"])
    assert [tuple(difference) for difference in check_resume(saved, longer)] == [
        ("steps", 100, 200),
        ("checkpoint.every", 50, 5),
        ("grading.workers", 1, 2),
    ]
    assert config_differences(saved, saved) == []
    other = load_config(None, [MODEL, "seed=1", "steps=200", "task.options.max_operand=3"])
    with pytest.raises(UserError) as caught:
        check_resume(saved, other)
    assert "seed: 0 → 1" in str(caught.value)
    assert "type seed=0 task.options={} to continue it" in str(caught.value)
    assert "steps" not in str(caught.value)
