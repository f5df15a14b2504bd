"""matplotlib for pictures in files, without pyplot: no backend is chosen, and plots of a notebook stay as they are."""

from __future__ import annotations

import contextlib
import os
import sys

# A notebook names its backend in MPLBACKEND, which the processes that it starts inherit. If their Python does not have
# that backend, matplotlib refuses its own import, although a picture in a file needs no backend. So matplotlib is
# imported without the variable, and then takes the backend as its own import would, if there is one of that name.
_backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
try:
    import matplotlib as mpl
finally:
    if _backend is not None:
        os.environ["MPLBACKEND"] = _backend
if _backend:
    with contextlib.suppress(ValueError):
        mpl.rcParams["backend"] = _backend
from matplotlib.figure import Figure  # noqa: E402 - it imports matplotlib

__all__ = ["Figure", "mpl"]
