"""flashinfer: its Python package and its kernels compiled ahead of time, through upstream's own ``aot`` module.

``build`` is the way in. ``profiles`` decides which modules; ``listing`` asks upstream (through ``aot_driver``, in the
build environment) what there is; ``ninja`` compiles; ``wheels`` packs. Nothing here downloads, and finishing the wheels
(tags, label, SBOM) is another stage.
"""

from sm120_wheels.compile.flashinfer.build import FlashinferBuildRequest, FlashinferBuildResult, build

__all__ = ["FlashinferBuildRequest", "FlashinferBuildResult", "build"]
