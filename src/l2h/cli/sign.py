"""``l2h sign``: keys that sign bundles, signatures, and their check."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from l2h.cli.options import AsJson
from l2h.cli.output import print_result

Folder = Annotated[Path, Argument(help="The bundle's folder.")]


def key(
    file: Annotated[Path, Argument(help="Where the private key goes; the public one goes to FILE.pub.")],
    as_json: AsJson = False,
) -> None:
    """Make a key: FILE signs bundles and stays with whoever may; devices get FILE.pub.

    Example: [bold]l2h sign key signing.key[/]
    """
    from l2h.bundle.signing import make_key

    public = make_key(file)
    line = f"{file} signs: keep it where bundles are made. {public} verifies: EdgeClient(..., verify_key={public!s})"
    print_result({"key": str(file), "public": str(public)}, line, as_json)


def bundle(
    folder: Folder,
    key_file: Annotated[Path, Option("--key", "-k", help="The private key, as l2h sign key writes it.")],
    as_json: AsJson = False,
) -> None:
    """Sign a bundle, whose files are compared with their hashes first.

    Example: [bold]l2h sign bundle bundles/digits --key signing.key[/]
    """
    from l2h.bundle.writing import sign_bundle

    signature = sign_bundle(folder, key_file)
    line = f"{signature} signs {folder}: copy it along with manifest.json"
    print_result({"bundle": str(folder), "signature": str(signature)}, line, as_json)


def check(
    folder: Folder,
    key_file: Annotated[Path, Option("--key", "-k", help="The public key, FILE.pub.")],
    as_json: AsJson = False,
) -> None:
    """See that a bundle is signed with a key, and that the files that are there are those that were signed.

    Example: [bold]l2h sign check bundles/digits --key signing.key.pub[/]
    """
    from l2h.bundle.signing import read_verify_key
    from l2h.bundle.writing import check_files

    manifest, files = check_files(folder, read_verify_key(key_file))
    values = {"bundle": str(folder), "name": manifest.name, "version": manifest.version, "files": list(files)}
    line = f"{folder} is signed with this key: {manifest.name}, version {manifest.version}, {', '.join(files)}"
    print_result(values, line, as_json)


COMMANDS: dict[str, Callable[..., None]] = {"key": key, "bundle": bundle, "check": check}
