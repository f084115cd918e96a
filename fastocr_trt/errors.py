"""Errors that a user can act on. The commands print their text alone; anything else is a defect of ours."""


class FastOCRError(Exception):
    """Something the user can put right: the text names what is wrong, the value, the limit and the way out."""


class EngineError(FastOCRError):
    """An engine directory that is missing, incomplete, foreign, damaged or newer than this version."""


class PageError(FastOCRError):
    """A page that cannot be read: damaged, too small, too large, encrypted, or beyond the engine's capacity."""


class ExportError(FastOCRError):
    """A checkpoint that cannot be exported, or an output that cannot be written."""


class MissingDependencyError(FastOCRError):
    """An optional package is absent; the text names the extra that brings it."""
