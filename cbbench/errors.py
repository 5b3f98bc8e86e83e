"""The one exception a user's mistake raises: a single line that says what is wrong, where, and what would be right."""


class UserError(ValueError):
    """Shown as one line without a traceback; the command ends with exit code 2."""


class StuckError(RuntimeError):
    """The engine made no progress; carries a dump of its state."""


class ContractError(AssertionError):
    """A strategy broke a promise of its kind; names class, method, step and rule."""


class CacheError(AssertionError):
    """A KV cache invariant is broken: a bug in a strategy, never a user's mistake."""
