"""Changes to a module that apply when, and only when, a program imports it."""
from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Change = Callable[[ModuleType], None]


class _Changer(importlib.abc.MetaPathFinder):
    """Finds a module as everybody does, and adds the change to what its loader runs."""

    def __init__(self, name: str, change: Change) -> None:
        self.name = name
        self.change = change

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute, change = spec.loader.exec_module, self.change

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def when_imported(name: str, change: Change) -> None:
    """Applies ``change`` to the module ``name``: now if it is loaded, else right after it is."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Changer(name, change))
