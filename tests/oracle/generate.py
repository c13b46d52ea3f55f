"""Ask `transformers` (torch, eager attention, float32) for the logits of every case and store them.

Run from the root of the checkout where torch is installed: `python -m tests.oracle.generate`. `test_oracle.py` checks
that what is stored is what this file computes.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from .cases import CASES, CHECKPOINTS, LOGITS, Case

transformers.utils.logging.disable_progress_bar()


def build(case: Case) -> PreTrainedModel:
    """The case as a `transformers` model, its config read from a config.json as a user's would be."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case.config))
        config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # tied ones come once
            parameter.copy_(torch.from_numpy(case.weight(name, tuple(parameter.shape))))
    return model


def logits(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Logits of one sequence alone, float32 [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None].long()).logits[0].numpy()


def checkpoint(model: PreTrainedModel) -> dict[str, Any]:
    """The config and the tensors' shapes, by name, of the folder that `transformers` saves."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads(Path(folder, "config.json").read_text())
        with safe_open(Path(folder, "model.safetensors"), "np") as file:
            tensors = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    del config["transformers_version"]
    return {"config": config, "tensors": tensors}


def main() -> None:
    """Write the golden files."""
    arrays, checkpoints = {}, {}
    for case in CASES:
        model = build(case)
        checkpoints[case.name] = checkpoint(model)
        for index, tokens in enumerate(case.sequences):
            arrays[f"{case.name}/{index}"] = values = logits(model, tokens)
            sizes = np.abs(values)
            print(f"{case.name:30} {len(tokens):3} tokens, |logits| {sizes.mean():.2f} (mean) {sizes.max():.2f} (max)")
    LOGITS.parent.mkdir(exist_ok=True)
    np.savez_compressed(LOGITS, **arrays)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(content)}" for name, content in checkpoints.items())
    CHECKPOINTS.write_text(f'{{"made_with": {json.dumps(versions)}, "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
