"""One root error; subclasses are named after the boundary that was crossed.

Every error a person may see carries three sentences: what happened, why, and the next command.
"""


class NightschoolError(Exception):
    """Base of every expected failure.

    `what` states the fact, `why` its cause, `next_step` the command or act that helps.
    `exit_code` follows the command line's table: 3 refused, 4 not enough data, 5 something is
    missing, 6 busy, 1 anything else.
    """

    exit_code = 1

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        self.what = what
        self.why = why
        self.next_step = next_step
        super().__init__(" ".join(part for part in (what, why, next_step) if part))

    def as_dict(self) -> dict[str, str]:
        return {"what": self.what, "why": self.why, "next": self.next_step}


class ConfigError(NightschoolError):
    """A configuration value is unknown or out of range."""

    exit_code = 2


class InputError(NightschoolError):
    """A request or file from outside is malformed."""

    exit_code = 2


class MissingError(NightschoolError):
    """A model, engine, store or file that the work needs is absent."""

    exit_code = 5


class BusyError(NightschoolError):
    """Somebody else holds the lock or the lease."""

    exit_code = 6


class StoreError(NightschoolError):
    """The store could not be opened, migrated, read or written."""

    exit_code = 5


class UpstreamError(NightschoolError):
    """The engine did not answer, or answered with an error."""

    exit_code = 5


class AdapterError(NightschoolError):
    """An adapter's files do not match its manifest, or the running base."""

    exit_code = 3


class RefusedError(NightschoolError):
    """A rule forbids the work: a gate, a guard or an objective's requirement."""

    exit_code = 3


class TooLittleDataError(NightschoolError):
    """There is not enough evidence to act on; the message says how much would do."""

    exit_code = 4


class InterruptedRun(NightschoolError):
    """The person stopped the run; its state is saved and it can be resumed."""

    exit_code = 130
