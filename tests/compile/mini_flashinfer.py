"""A miniature of flashinfer's sdist: the same seams (aot module, jit specs, ninja files, backend), a few C++ sources.

Written by the tests into a temporary folder; upstream's real source takes 930 MB and minutes of nvcc.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

VERSION = "0.7.4"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

_AOT = """
import os
from pathlib import Path

from .jit import cubin_loader, env as jit_env
from .jit.core import JitSpec
from .jit.attention import modules as attention


def gen_norm_module():
    return JitSpec("norm", [jit_env.FLASHINFER_CSRC_DIR / "norm.cpp", jit_env.FLASHINFER_CSRC_DIR / "binding.cpp"])


def gen_act_and_mul_module(name):
    source = jit_env.FLASHINFER_GEN_SRC_DIR / f"{name}_and_mul.cpp"
    if not source.exists():
        source.write_text(f'extern "C" const char* {name}_where() {{ return __FILE__; }}\\n')
    return JitSpec(f"{name}_and_mul", [source])


def gen_moe_utils_module():
    cubin_loader.get_artifact("batched_gemm/checksums.txt")
    return JitSpec("moe_utils", [jit_env.FLASHINFER_CSRC_DIR / "norm.cpp"])


def gen_trtllm_fmha_v2_sm120_module():
    folder = jit_env.FLASHINFER_JIT_DIR / "trtllm_fmha_v2"
    folder.mkdir(parents=True, exist_ok=True)
    attention.enumerate_kernels(folder)
    return JitSpec("trtllm_fmha_v2", [folder / "generated.cpp"], ["-gencode=arch=compute_120a,code=sm_120a"])


def get_default_config():
    return {"f16_dtype": ["float16"], "add_misc": True}


def detect_sm_capabilities():
    return {"sm120": "12." in os.environ["FLASHINFER_CUDA_ARCH_LIST"]}


def gen_all_modules(f16_dtype_, sm_capabilities, add_misc):
    specs = [gen_norm_module(), gen_act_and_mul_module("silu"), gen_act_and_mul_module("gelu"), gen_moe_utils_module()]
    if sm_capabilities["sm120"]:
        specs.append(gen_trtllm_fmha_v2_sm120_module())
    return specs
"""

_CORE = """
import ctypes
import dataclasses
import os
from pathlib import Path

from . import env as jit_env
from .utils import write_if_different


def gen_jit_spec(name, sources):
    return JitSpec(name, sources)


@dataclasses.dataclass
class JitSpec:
    name: str
    sources: list
    extra_cuda_cflags: list = dataclasses.field(default_factory=list)
    extra_cuda_cflags_by_source: dict = None

    @property
    def ninja_path(self):
        return jit_env.FLASHINFER_JIT_DIR / self.name / "build.ninja"

    @property
    def is_aot(self):
        return bool(jit_env.get_aot_artifacts(self.name))

    def get_library_path(self):
        return jit_env.get_aot_artifacts(self.name)[0].path

    def load(self, path):
        return ctypes.CDLL(str(path), os.RTLD_NOW)

    def build_and_load(self):
        return self.load(self.get_library_path())

    def write_ninja(self):
        folder = self.ninja_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            "launcher = " + os.environ.get("FLASHINFER_CXX_LAUNCHER", ""),
            "flags = -fPIC -O1 " + os.environ.get("FLASHINFER_EXTRA_CFLAGS", ""),
            "rule compile",
            "  command = $launcher c++ $flags -c $in -o $out",
            "rule link",
            "  command = c++ -shared $in -o $out",
        ]
        objects = []
        for source in self.sources:
            objects.append(str(folder / (source.stem + ".o")))
            lines.append(f"build {objects[-1]}: compile {source}")
        library = folder / (self.name + ".so")
        lines += [f"build {library}: link " + " ".join(objects), f"default {library}", ""]
        write_if_different(self.ninja_path, "\\n".join(lines))
"""

_ENV = """
import os
from collections import namedtuple

Artifact = namedtuple("Artifact", "provider_id path")


def _providers():
    try:
        import flashinfer_jit_cache as shim
    except ImportError:
        return ()
    return tuple(p for p in shim.get_jit_cache_providers() if p.version == shim.__version__)


FLASHINFER_AOT_PROVIDERS = _providers()


def get_aot_artifacts(name):
    target = "sm" + os.environ["FLASHINFER_CUDA_ARCH_LIST"].replace(".", "")
    return tuple(
        Artifact(p.provider_id, p.jit_cache_dir / name / f"{name}.so")
        for p in FLASHINFER_AOT_PROVIDERS
        if name in p.modules and target in p.cuda_architectures
    )
"""

_FILES = {
    "LICENSE": "The licence of the miniature.\n",
    "licenses/LICENSE.part.txt": "The licence of a part.\n",
    "3rdparty/cutlass/include/cutlass/cutlass.h": "/* Copyright of the template library. */\n#pragma once\n",
    "csrc/norm.cpp": """
        extern "C" int norm_value() { return 3; }
        extern "C" const char* norm_where() { return __FILE__; }
        """,
    "csrc/binding.cpp": 'extern "C" int norm_value();\nextern "C" int norm_bound() { return norm_value() + 1; }\n',
    "include/flashinfer/norm.cuh": "#pragma once\n",
    "flashinfer/__init__.py": "from .version import __version__\n",
    "flashinfer/_build_meta.py": f'__version__ = "{VERSION}"\n__git_commit__ = "{COMMIT}"\n',
    "flashinfer/version.py": "from ._build_meta import __version__\n",
    "flashinfer/aot.py": _AOT,
    "flashinfer/jit/__init__.py": "",
    "flashinfer/jit/core.py": _CORE,
    "flashinfer/jit/env.py": _ENV,
    "flashinfer/jit/utils.py": """
        def write_if_different(path, content):
            if not path.exists() or path.read_text() != content:
                path.write_text(content)
        """,
    "flashinfer/jit/cubin_loader.py": """
        import os
        from pathlib import Path


        def get_artifact(name):
            local = Path(os.environ["FLASHINFER_CUBIN_DIR"]) / name
            if local.exists():
                return local.read_bytes()
            assert os.environ.get("FLASHINFER_NO_DOWNLOAD"), "the build must never download"
            raise RuntimeError(f"Artifact not found locally: {name} (looked at {local}). FLASHINFER_NO_DOWNLOAD is set")
        """,
    "flashinfer/jit/attention/__init__.py": "",
    "flashinfer/jit/attention/modules.py": """
        from .fmha_v2 import generator_utils


        def enumerate_kernels(folder):
            generator_utils.generate_files(folder)
        """,
    "flashinfer/jit/attention/fmha_v2/__init__.py": "",
    "flashinfer/jit/attention/fmha_v2/generator_utils.py": """
        import subprocess


        def generate_files(folder):
            helper = ["sh", "-c", "test ! -e " + str(folder / "fail") + " && echo 1"]
            output, _ = subprocess.Popen(helper, stdout=subprocess.PIPE).communicate()
            (folder / "generated.cpp").write_text("int traits() { return " + (output.decode().strip() or "0") + "; }")
        """,
    "build_backend.py": "from setuptools.build_meta import *  # noqa: F403\n",
    "pyproject.toml": f"""
        [project]
        name = "flashinfer-python"
        version = "{VERSION}"
        [build-system]
        requires = ["setuptools>=77"]
        build-backend = "build_backend"
        backend-path = ["."]
        [tool.setuptools]
        packages = ["flashinfer", "flashinfer.jit"]
        """,
}


def write_sdist(root: Path) -> Path:
    """Write the miniature below ``root`` and return its folder."""
    folder = root / f"flashinfer_python-{VERSION}"
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return folder
