"""Where the API is and who asks: flags, then `JOBSTREAM_*`, then the TOML file, then the local stack.

Not through `runtime.config`, whose import would triple the time of a short command.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from jobstream.local.paths import Layout, default_data
from jobstream.runtime.errors import ConfigurationError

PREFIX: Final = "JOBSTREAM_"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFlags:
    """What every command that speaks to the API takes."""

    api_url: Annotated[str | None, Parameter(help="The API's address. [JOBSTREAM_API_URL]")] = None
    api_key: Annotated[str | None, Parameter(help="Better in the environment. [JOBSTREAM_API_KEY]")] = None
    data: Annotated[Path | None, Parameter(help="Folder of the local stack. [JOBSTREAM_DATA]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address and the key to show there."""

    url: str
    key: str


def endpoint(flags: ApiFlags | None, *, admin: bool = False) -> Endpoint:
    """The API to speak to; raises ConfigurationError that says what to set."""
    flags = flags or ApiFlags()
    name = "admin_key" if admin else "api_key"
    given = {"api_url": flags.api_url, name: flags.api_key}
    file = _config_file()
    url, key = (given[field] or os.environ.get(f"{PREFIX}{field.upper()}") or file.get(field) for field in given)
    if url is None or key is None:
        data = flags.data or file.get("data")
        stack = local_stack(Path(data) if data else default_data())
        if url is None and stack is None:
            raise ConfigurationError(
                "no API is known: start a local stack with `jobstream up --detach`, or set "
                f"JOBSTREAM_API_URL and {PREFIX}{name.upper()}"
            )
        # The local stack's key is for the local stack alone: it never goes to an address that somebody named.
        if stack is not None and url in (None, stack["api_url"]):
            url, key = stack["api_url"], key or stack[name]
    if key is None:
        raise ConfigurationError(f"no key for {url}: set {PREFIX}{name.upper()}")
    if not str(url).startswith(("http://", "https://")):
        raise ConfigurationError(f"the API's address begins with http:// or https://, not {str(url)[:100]!r}")
    return Endpoint(url=str(url).rstrip("/"), key=str(key))


def local_stack(data: Path) -> Mapping[str, Any] | None:
    """What the stack in this folder wrote about itself when it became ready, or None."""
    try:
        state = json.loads(Layout(data=data).state.read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and state.get("api_url") else None


def _config_file() -> dict[str, Any]:
    named = os.environ.get(f"{PREFIX}CONFIG")
    if not named:
        return {}
    try:
        return tomllib.loads(Path(named).read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the settings file {named} (JOBSTREAM_CONFIG) cannot be read: {error}") from None
