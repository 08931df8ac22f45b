"""Dataset rows for NeMo's native routes.

A row carries, beside what the model is shown, the id of its task, the digest of the core it was made for,
and a seal. The seal is in no message and no tool schema: the server takes a ``/seed_session`` or
``/verify`` body without it for what it is, a model that called a tool of that name.
"""

import hashlib
from typing import Any

from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.german_orders import TOOLS


def seal(task_id: str, core: str) -> str:
    """Return the row's seal."""
    return hashlib.sha256(f"gymqual row\n{core}\n{task_id}".encode()).hexdigest()


def task_fields(task_id: str, core: str) -> dict[str, str]:
    """Return the row's fields beside ``responses_create_params``."""
    return {"task_id": task_id, "core": core, "seal": seal(task_id, core)}


def row(task_id: str, core: str) -> dict[str, Any]:
    """Return one complete dataset row; ``core`` is the digest from ``gymqual.gyms.loaded``."""
    return {
        "responses_create_params": {"input": find_task(task_id).prompt, "tools": list(TOOLS)},
        **task_fields(task_id, core),
    }


def typed_seed(task_id: str, core: str, session_id: str) -> dict[str, Any]:
    """Return the typed ``/seed_session`` body under a caller-assigned session id."""
    return {
        "resources_session_id": session_id,
        "episode_id": {"rollout_id": session_id, "attempt": 0},
        "task_id": {"taskset": "german_orders", "task_id": task_id},
        "task_data": task_fields(task_id, core),
    }
