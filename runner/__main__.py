"""The command ``runner``: ``python -m runner`` or, in processes that runner starts, ``python -P FOLDER/__main__.py``.

A file in the working directory, such as random.py, must not be imported in place of a library. ``python -m`` puts the
working directory first on ``sys.path``, and the code below removes it. With -P, Python adds no folder to the path.
"""

import sys

if __package__ and not sys.flags.safe_path:
    del sys.path[0]

import importlib.util
import os

_FOLDER = os.path.dirname(os.path.abspath(__file__))

if not __package__:
    # All processes of a run import the same copy of runner, even if another copy is installed.
    _spec = importlib.util.spec_from_file_location("runner", os.path.join(_FOLDER, "__init__.py"))
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["runner"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["runner"])
if os.path.dirname(_FOLDER) not in sys.path:
    # If runner is not installed but run from a checkout, the processes that joblib starts need this path to import it.
    sys.path.append(os.path.dirname(_FOLDER))

from runner.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
