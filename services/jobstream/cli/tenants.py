"""Commands on tenants and their API keys, with the admin key."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from jobstream.cli.connection import ApiFlags, endpoint
from jobstream.cli.output import Json, moment, print_json, print_table

if TYPE_CHECKING:
    from jobstream.cli.client import Client

Tenant = Annotated[str, Parameter(help="The tenant's name: small letters, digits, - and _.")]

app = App(
    name="tenants", help="Manage tenants and their API keys. Needs the admin key (JOBSTREAM_ADMIN_KEY, --api-key)."
)


@contextmanager
def _admin(flags: ApiFlags | None) -> Iterator["Client"]:
    from jobstream.cli.client import Client  # with httpx 0.2 s, which `--help` need not wait for

    with Client(endpoint(flags, admin=True)) as client:
        yield client


@app.command(name="list")
def list_tenants(*, json: Json = False, flags: ApiFlags | None = None) -> None:
    """List the tenants."""
    with _admin(flags) as client:
        tenants = list(client.items("/tenants", "tenants"))
    if json:
        print_json({"tenants": tenants})
    else:
        print_table(("tenant", "created"), ((tenant["tenant"], moment(tenant["created_at"])) for tenant in tenants))


@app.command
def create(tenant: Tenant, /, *, json: Json = False, flags: ApiFlags | None = None) -> None:
    """Make a tenant. It has no key yet: `jobstream tenants create-key` makes one."""
    with _admin(flags) as client:
        made = client.request("POST", "/tenants", repeatable=False, json={"tenant": tenant})
    print_json(made) if json else print(f"made the tenant {made['tenant']}")


@app.command
def keys(tenant: Tenant, /, *, json: Json = False, flags: ApiFlags | None = None) -> None:
    """List a tenant's keys: their ids and names, never the keys."""
    with _admin(flags) as client:
        found = list(client.items(_path(tenant), "keys"))
    if json:
        print_json({"keys": found})
        return
    print_table(
        ("key id", "name", "created", "revoked"),
        ((key["key_id"], key["name"], moment(key["created_at"]), moment(key["revoked_at"])) for key in found),
    )


@app.command
def create_key(
    tenant: Tenant,
    /,
    *,
    name: Annotated[str, Parameter(help="Who or what uses it.")],
    json: Json = False,
    flags: ApiFlags | None = None,
) -> None:
    """Make a key and print it: this once, since only a digest is kept."""
    with _admin(flags) as client:
        made: dict[str, Any] = client.request("POST", _path(tenant), repeatable=False, json={"name": name})
    print_json(made) if json else print(made["api_key"])


@app.command
def revoke_key(
    tenant: Tenant,
    key_id: Annotated[str, Parameter(help="As `jobstream tenants keys` shows it.")],
    /,
    *,
    flags: ApiFlags | None = None,
) -> None:
    """Revoke a key. Nobody gets in with it any more, after a second at most."""
    with _admin(flags) as client:
        client.request("DELETE", f"{_path(tenant)}/{quote(key_id, safe='')}")
    print(f"revoked the key {key_id} of {tenant}")


def _path(tenant: str) -> str:
    return f"/tenants/{quote(tenant, safe='')}/keys"
