"""A bundle or function that may be served next: copied, loaded and run by a process of its own, which can be killed.

Workers load the copy of what was accepted and nothing else: what lies in the bundle's folder may change at any time.
"""

import asyncio
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

from l2h.bundle import Manifest
from l2h.bundle.manifest import read_files
from l2h.errors import L2HError
from l2h.serving.errors import ServingError
from l2h.serving.model.function import FunctionManifest, ModelSource, copy_function
from l2h.serving.model.model import load_model
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import log_event

#: Bytes that are kept of what the process says: a model can put much into a message.
_MESSAGE = 4096


def copy_model(source: ModelSource, target: Path) -> Manifest | FunctionManifest:
    """Copy a function, or the server's half of a bundle as far as its hashes are right, into a new folder."""
    try:
        if source.function is not None:
            copied = copy_function(source, target)
            if copied.texts:
                why = "texts do not go over the wire; l2h.EdgeClient(bundle, server=function) gives the function all"
                log_event("warning", "columns_left_out", function=copied.function, columns=copied.texts, why=why)
            return copied
        manifest = Manifest.read(source.bundle)
        server = manifest.which_server(source.server)
        files = read_files(source.bundle, manifest, "server", server)
        if manifest.servers[server].file is None:
            which = f" --server {server}" if manifest.named else ""
            hint = f"l2h serve MODULE:FUNCTION --bundle {source.bundle}{which} serves a function in its place"
            raise ServingError(f"{source.bundle} holds no server, which was no file: {hint}")
        target.mkdir()
        for name, data in files.items():
            (target / name).write_bytes(data)
    except OSError as error:
        why = f"cannot copy the model to {target}: {error.strerror or error}; TMPDIR names another place"
        raise ServingError(why) from error
    manifest.write(target)
    return manifest


async def try_model(config: ServingConfig, target: Path) -> Manifest | FunctionManifest:
    """Copy the bundle or function of the settings, load it and run it within ``load_timeout``; return its manifest."""
    arguments = (config.to_json(), target, config.model_threads, config.max_batch, 1 + round(config.load_timeout))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "l2h.serving.process.candidate", *map(str, arguments)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(config.load_timeout):
            assert process.stdout is not None
            said = await _read_start(process.stdout)
            await process.wait()
    except TimeoutError:
        raise ServingError(
            f"the new bundle could not be loaded and run within --load-timeout {config.load_timeout:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        ended = f"the process that loaded the new bundle ended with status {process.returncode}"
        raise ServingError(said.decode(errors="replace").replace(str(target), config.bundle) or ended)
    return Manifest.read(target) if config.function is None else FunctionManifest.read(target)


async def _read_start(stream: asyncio.StreamReader) -> bytes:
    """Return the first bytes of all that a process says; the rest is read and dropped."""
    said = b""
    while piece := await stream.read(65536):
        said = (said + piece)[:_MESSAGE]
    return said


def require_same_interface(manifest: Manifest | FunctionManifest, before: Manifest | FunctionManifest) -> None:
    """Raise a ServingError where devices that know one bundle could not use the other's answers."""
    if manifest.name != before.name:
        raise ServingError(f"the new bundle is named {manifest.name!r}, this server serves {before.name!r}")
    columns = [getattr(each, "columns", None) for each in (manifest, before)]
    features = [None if each is None else each.features for each in columns]
    if (manifest.input, manifest.codec, features[0]) != (before.input, before.codec, features[1]):
        raise ServingError(
            "the new bundle has other classes or inputs, and devices in the field have those of the old: "
            "start a server for it"
        )


def main(arguments: list[str]) -> int:
    """Copy and try a bundle or a function; the error, if any, is all that is printed."""
    source, target = ModelSource.from_json(arguments[0]), Path(arguments[1])
    threads, most, seconds = map(int, arguments[2:])
    signal.alarm(seconds)  # if nobody is left to kill this process
    try:
        with redirect_stdout(sys.stderr):  # what a function prints
            copy_model(source, target)
            load_model(target, source.server, threads, most)
    except (L2HError, MemoryError) as error:
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
