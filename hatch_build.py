"""Compiles the part of the agent that starts programs (src/headway/agent/starter.c), where there is a C compiler.

Without one the package is complete all the same: the agent starts programs in Python then, a fifth fewer a second.
"""

import contextlib
import os
import shutil
import subprocess
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = os.path.join("src", "headway", "agent")
FLAGS = ("-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", "-Wl,-z,now")  # no symbol is looked up between start and exec


class CompiledStarter(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict) -> None:
        source, made = os.path.join(self.root, FOLDER, "starter.c"), os.path.join(self.root, FOLDER, "_starter.so")
        if why := compiled(source, made):
            with contextlib.suppress(OSError):  # of an earlier source
                os.remove(made)
            self.app.display_warning(f"The compiled starter of programs is left out: {why}")
            return
        build_data["artifacts"].append(f"{FOLDER}/_starter.so")
        if version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compiled(source: str, made: str) -> str:
    """Put what `source` says in the place of `made`, at once: agents that have loaded what was there go on with it. Or why it cannot be."""
    compiler = next((found for name in (os.environ.get("CC", ""), "cc", "gcc", "clang") if name and (found := shutil.which(name))), None)
    if compiler is None:
        return "no C compiler was found (cc, gcc or clang; Debian's package gcc brings one, with libc6-dev)"
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(made)) as folder:
            new = os.path.join(folder, "new.so")
            subprocess.run([compiler, *FLAGS, "-o", new, source], capture_output=True, text=True, check=True)
            os.replace(new, made)
    except subprocess.CalledProcessError as error:
        return f"{compiler} could not compile it: {error.stderr.strip()[-1000:]}"
    except OSError as error:  # a source that can only be read, a compiler of another machine
        return str(error)
    return ""
