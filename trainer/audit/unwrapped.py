"""The model inside of what accelerate wraps it in, looked for once: the search walks through all modules."""

from typing import Any


class Unwrapped:
    """Remembers what was found in the last wrapper that was asked about."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._wrapper: Any = None
        self._model: Any = None

    def of(self, wrapper: Any) -> Any:
        """Return the model in a wrapper, as ``Accelerator.unwrap_model`` does."""
        if wrapper is not self._wrapper:
            self._wrapper, self._model = wrapper, self._accelerator.unwrap_model(wrapper)
        return self._model
