"""Checkpoints: each is a directory ``step-N`` with a manifest and the unsharded network's variables as safetensors.

A reader never sees an incomplete checkpoint, a damaged checkpoint is never loaded, and no content is executed.

Read in this order: ``manifest``, ``shard`` and ``layout`` (the format), ``writing``, ``reading``, ``background``.
"""

from runner.checkpoint.manifest import BEST_STEP, CheckpointMeta, Manifest
from runner.checkpoint.reading import BEST, NEWEST, Checkpoint, find, load, newest
from runner.checkpoint.shard import weights_sha256
from runner.checkpoint.writing import save
