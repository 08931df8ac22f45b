"""Errors that a user meets: one sentence that names the thing and the fix."""


class HarnessError(Exception):
    """Something the user can put right; commands print it as one sentence and exit with 2."""


class NotTestable(HarnessError):
    """A prerequisite of a selected check is missing. The check fails with this, it is never skipped."""

    def __str__(self) -> str:
        return f"Not testable: {super().__str__()}"


class ServerFailed(HarnessError):
    """A server did not start, did not become ready in time, or died."""
