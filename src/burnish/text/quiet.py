"""Import `transformers` without its notice that PyTorch is missing: burnish needs only its tokenizers."""

from __future__ import annotations

import logging
from types import ModuleType


def import_transformers() -> ModuleType:
    """The `transformers` module."""
    logger = logging.getLogger("transformers")

    def wanted(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger.addFilter(wanted)
    try:
        import transformers
    finally:
        logger.removeFilter(wanted)
    return transformers
