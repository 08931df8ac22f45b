"""A model's tensors as an audit sees them: which are trained, which are not, and that it stays so."""

from typing import Any

import torch

from gymqual.trainer.runs.errors import AuditError
from gymqual.trainer.runs.tensors import tensors_digest


class Parameters:
    """The tensors of a model, looked for once: to walk through a deep model's modules at every step costs more."""

    def __init__(self, model: Any) -> None:
        """Raises AuditError if a peft model trains more than its adapter."""
        self._all: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self._is_peft = hasattr(model, "peft_config")
        self._saved_names = {name: self.saved_name(name) for name in self._all}
        self._trained = set(self.trainable())
        self._frozen = self._frozen_digest()
        prefix = getattr(getattr(model, "base_model", None), "prefix", "")
        others = [n for n in sorted(self._trained) if prefix and prefix not in n and "modules_to_save" not in n]
        if others:
            raise AuditError("frozen", f"{others[0]} is trained beside the adapter")

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Return the tensors that are trained now, by their names in the model."""
        return {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}

    def saved_name(self, name: str) -> str:
        """Return the name that a tensor is saved under."""
        return name.replace(".default", "") if self._is_peft else name

    def digest(self) -> str:
        """Return the sha256 over the trainable tensors as they are now, by the names they are saved under."""
        return tensors_digest({self._saved_names[name]: p.detach() for name, p in self.trainable().items()})

    def require_same_trained(self) -> None:
        """Raise AuditError if other tensors are trained now than when training began."""
        odd = sorted(self._trained ^ set(self.trainable()))
        if odd:
            raise AuditError("frozen", f"{odd[0]} is {'not ' if odd[0] in self._trained else ''}trained now")

    def require_frozen(self) -> None:
        """Raise AuditError if a tensor that is not trained has changed."""
        if self._frozen_digest() != self._frozen:
            raise AuditError("frozen", "a tensor that is not trained has changed")

    def _frozen_digest(self) -> str:
        return tensors_digest({name: p.detach() for name, p in self._all.items() if name not in self._trained})
