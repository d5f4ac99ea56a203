"""Modules that are imported when a test first uses them: each worker collects every file."""

import importlib
import sys


class Late:
    """A module, by its name.

    Args:
        name: Of the module.
        *others: Modules below it that are imported with it.
    """

    def __init__(self, name, *others):
        self._names = (name, *others)

    def __getattr__(self, attribute):
        if attribute.startswith("_") or "pytest" in attribute:
            raise AttributeError(attribute)  # whoever collects looks whether this is a test
        for name in self._names:
            importlib.import_module(name)
        return getattr(sys.modules[self._names[0]], attribute)
