"""Compiled programs are kept between processes, so that only the first run of a shape waits for the compiler."""

import jax

from burnish.config.cache import cache_folder


def use_compilation_cache() -> None:
    """Keep compiled programs in burnish's cache folder, unless JAX_COMPILATION_CACHE_DIR already says where."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
