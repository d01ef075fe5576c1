"""Puts the compiled kernels into the wheel, one library a level, so that whoever installs it needs no compiler.

Without a compiler here the wheel is a pure one, whose kernels are compiled on first use, as those of an editable install are.
"""

import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("sparseopt", "kernels", "native")
# What a system of the wheels' common kind has at least; torch's own wheels ask for the same.
POLICY = "manylinux_2_28"
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8, 0, 0)}


class KernelsHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or platform.system() != "Linux":
            return
        compiler = load(Path(self.root, NATIVE, "compiler.py"))
        self._folder = tempfile.TemporaryDirectory(prefix="sparseopt-wheel-")
        try:
            command = compiler.find_compiler()
            built = {level: self._compile(compiler, command, level) for level in compiler.levels()}
        except compiler.BuildError as reason:
            self.app.display_warning(f"a wheel without compiled kernels: {reason}")
            return
        build_data["force_include"] |= {
            str(path): str(NATIVE / "built" / path.name) for path in built.values()
        }
        kind = POLICY if all(fits(path) for path in built.values()) else "linux"
        build_data |= {"pure_python": False, "tag": f"py3-none-{kind}_{platform.machine()}"}

    def _compile(self, compiler: Any, command: list[str], level: str) -> Path:
        self.app.display_info(f"compiling the kernels: {level}")
        path = Path(self._folder.name, f"sparseopt-{level}-{compiler.fingerprint()}.so")
        compiler.compile_library([*command, "-s"], level, path)
        return path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def load(path: Path) -> Any:
    """A module by itself: importing its package would import torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def fits(library: Path) -> bool:
    """Whether the library asks for no newer symbols than such systems have."""
    try:
        listed = subprocess.run(
            ["readelf", "--version-info", "--wide", str(library)], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    found = re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", listed.stdout)
    return bool(found) and all(tuple(map(int, number.split("."))) <= NEWEST[name] for name, number in found)
