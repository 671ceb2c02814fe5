"""The matrix: every combination that the recipes can build, by name; selecting, explaining and covering them.

Here are only the names, which plans need too; ``jobs`` makes the combinations, and the rooms beside it use them.
"""

from __future__ import annotations

from sm120_wheels.matrix.names import PLATFORMS, build_identifier, cuda_tag, platform_name, torch_cuda

__all__ = ["PLATFORMS", "build_identifier", "cuda_tag", "platform_name", "torch_cuda"]
