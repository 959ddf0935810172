"""Errors by meaning: a ``ValueError`` is the caller's mistake, these are not."""

from __future__ import annotations


class HbmOverdrawn(Exception):
    """Not now: the change does not fit. Nothing was touched; another plan may fit."""


class Stuck(Exception):
    """No request can ever run again although some are left: what, where and the mend."""


class DeviceFailed(Exception):
    """A real device, or its driver, failed in the midst of a run: nothing can be relied on any more."""
