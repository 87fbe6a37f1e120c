"""Commands that prepare the database: its schema, and the first keys, which no API could be asked for."""

import json as json_module
import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from jobstream.cli.output import Json, print_json
from jobstream.cli.services import ServiceFlags, settings_of
from jobstream.runtime.errors import JobstreamError

admin = App(name="admin", help="Make the first keys.")


def migrate(*, json: Json = False, flags: ServiceFlags | None = None) -> None:
    """Bring the database's schema up to date; each migration is applied once."""
    from jobstream.projector import migrate as migrations

    applied = migrations.migrate(settings_of(flags))
    if json:
        print_json({"applied": applied})
    else:
        print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


@admin.command
def init(
    *,
    tenant: Annotated[str | None, Parameter(help="Make this tenant too, and a key for it.")] = None,
    force: Annotated[bool, Parameter(help="Make one more admin key, where there is one.")] = False,
    save: Annotated[
        Path | None, Parameter(help="Write the keys to this file, for you alone, instead of printing.")
    ] = None,
    json: Json = False,
    flags: ServiceFlags | None = None,
) -> None:
    """Make the first admin key. Keys are shown this once: only digests are kept. With --save, a file that is there stays."""
    if save is not None and save.exists():
        print(f"{save} is there already; nothing was made")
        return
    from jobstream.api.admin import admin_init

    made = admin_init(settings_of(flags), tenant=tenant, force=force)
    if save is not None:
        _save(save, made)
        print(f"wrote {save}")
    elif json:
        print_json(made)
    else:
        for name, value in made.items():
            print(f"{name:<14}{value}")


def _save(path: Path, keys: dict[str, str]) -> None:
    """Readable by this user alone from its first byte, and there as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json_module.dump(keys, file)
        temporary.replace(path)
    except OSError as error:
        raise JobstreamError(
            f"the keys were made, but {path} cannot be written: {error}; run again with --force"
        ) from None
