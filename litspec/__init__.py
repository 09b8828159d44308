"""litspec: open language models served fast and exactly.

The public names. They are imported on first use, so that `import litspec` costs nothing and a command that needs no
model (`litspec --help`) does not pay for torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from litspec.api.llm import LLM
    from litspec.engine.params import SamplingParams
    from litspec.engine.request import Completion

__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]

_HOMES = {"LLM": "litspec.api.llm", "SamplingParams": "litspec.engine.request", "Completion": "litspec.engine.request"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'litspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
