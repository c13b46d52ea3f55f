"""The surroundings every test runs in, set before jax is first imported: CPU, no hub, one compilation cache for all.

Subprocesses that the tests start inherit all of it. Each value yields to one set outside, so that
`JAX_PLATFORMS=cuda make test` does what it says.
"""

import os
from pathlib import Path

import hypothesis

COMPILATION_CACHE = Path(__file__).parents[1] / "build" / "jax-cache"
SURROUNDINGS = {
    "JAX_PLATFORMS": "cpu",
    # Tiny models compile for longer than they run: what one test (or the run before) compiled, the next one reads.
    "JAX_COMPILATION_CACHE_DIR": str(COMPILATION_CACHE),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MPLBACKEND": "Agg",
}
for name, value in SURROUNDINGS.items():
    os.environ.setdefault(name, value)
# Nobody's own token decides what a test does.
os.environ.pop("HF_TOKEN", None)

# A first call compiles, which no deadline of milliseconds survives; the same examples are drawn in every run.
hypothesis.settings.register_profile("burnish", deadline=None, derandomize=True)
hypothesis.settings.load_profile("burnish")
