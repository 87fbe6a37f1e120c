"""Keys: who may do what, and that nothing of a key is kept but its digest."""

import hashlib

import pytest
from tests.integration.api.conftest import Api, client
from tests.integration.api.test_jobs import BODY

from jobstream.api.admin import admin_init
from jobstream.api.keys import KEY_FORM
from jobstream.runtime.errors import ConfigurationError


def test_a_request_without_a_valid_key_is_401(api: Api) -> None:
    before = api.written()
    key_id = KEY_FORM.fullmatch(api.alice_key)
    assert key_id is not None
    wrong = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": f"Bearer js_{key_id[1]}_{'A' * 43}"},  # an id that exists, another secret
        {"Authorization": f"Bearer js_{'0' * 16}_{'A' * 43}"},
        {"Authorization": "Bearer " + "x" * 5_000},
    ]
    with client(api.url) as nobody:
        for headers in wrong:
            for method, path in (("POST", "/api/v1/jobs"), ("GET", "/api/v1/machines"), ("GET", "/api/v1/tenants")):
                response = nobody.request(method, path, headers=headers, json=BODY if method == "POST" else None)
                assert response.status_code == 401
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert response.headers["content-type"] == "application/problem+json"
    assert api.written() == before


def test_each_kind_of_key_has_its_own_endpoints(api: Api) -> None:
    jobs = [
        ("POST", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs/x"),
        ("GET", "/api/v1/jobs/x/logs"),
    ]
    for method, path in [*jobs, ("POST", "/api/v1/jobs/x/cancel")]:
        response = api.admin.request(method, path)
        assert response.status_code == 403
        assert "key of a tenant" in response.json()["detail"]
    tenants = [("POST", ""), ("GET", ""), ("POST", "/bob/keys"), ("GET", "/bob/keys"), ("DELETE", "/bob/keys/x")]
    for method, path in tenants:
        assert api.alice.request(method, f"/api/v1/tenants{path}").status_code == 403


def test_a_revoked_key_lets_nobody_in(api: Api) -> None:
    assert api.admin.post("/api/v1/tenants", json={"tenant": "carol"}).status_code == 201
    assert api.admin.post("/api/v1/tenants", json={"tenant": "carol"}).status_code == 409
    made = api.admin.post("/api/v1/tenants/carol/keys", json={"name": "ci"})
    assert made.status_code == 201
    key, key_id = made.json()["api_key"], made.json()["key_id"]
    assert KEY_FORM.fullmatch(key)
    with client(api.url, key) as carol:
        assert carol.get("/api/v1/jobs").status_code == 200
        assert api.admin.delete(f"/api/v1/tenants/bob/keys/{key_id}").status_code == 404
        assert carol.get("/api/v1/jobs").status_code == 200
        assert api.admin.delete(f"/api/v1/tenants/carol/keys/{key_id}").status_code == 204
        assert carol.get("/api/v1/jobs").status_code == 401
    assert api.admin.delete(f"/api/v1/tenants/carol/keys/{key_id}").status_code == 204
    listed = api.admin.get("/api/v1/tenants/carol/keys")
    assert [(item["key_id"], item["name"]) for item in listed.json()["keys"]] == [(key_id, "ci")]
    assert listed.json()["keys"][0]["revoked_at"] is not None
    assert key not in listed.text


def test_the_database_holds_a_digest_and_not_the_key(api: Api) -> None:
    api.admin.post("/api/v1/tenants", json={"tenant": "dave"})
    key = api.admin.post("/api/v1/tenants/dave/keys", json={"name": "x"}).json()["api_key"]
    schema = f"{api.settings.postgres_schema}_private"
    rows = api.leader.execute(f"SELECT row_to_json(k)::text, secret FROM {schema}.api_keys AS k WHERE tenant = 'dave'")
    assert rows[0][1] == hashlib.sha256(key.encode()).digest()
    assert key.rpartition("_")[2] not in rows[0][0]


def test_tenants_come_page_by_page(api: Api) -> None:
    for number in range(5):
        api.admin.post("/api/v1/tenants", json={"tenant": f"page-{number}"})
    seen, asked = [], {"limit": "2"}
    while True:
        found = api.admin.get("/api/v1/tenants", params=asked).json()
        seen += [item["tenant"] for item in found["tenants"]]
        if found["next_cursor"] is None:
            break
        asked["cursor"] = found["next_cursor"]
    assert seen == sorted(set(seen)) and {f"page-{number}" for number in range(5)} <= set(seen)


@pytest.mark.parametrize("tenant", ["", "A", "-a", "a" * 64, "a/b", "a\n", "é", 1, None])
def test_a_tenant_out_of_form_is_refused(api: Api, tenant: object) -> None:
    response = api.admin.post("/api/v1/tenants", json={"tenant": tenant})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "tenant"


@pytest.mark.parametrize("path", ["nobody", "..%2f", "%00", "a" * 300])
def test_an_unknown_tenant_has_no_keys(api: Api, path: str) -> None:
    assert api.admin.get(f"/api/v1/tenants/{path}/keys").status_code == 404
    assert api.admin.post(f"/api/v1/tenants/{path}/keys", json={"name": "x"}).status_code == 404
    assert api.admin.delete(f"/api/v1/tenants/{path}/keys/x").status_code == 404


def test_the_first_admin_key_is_made_once(api: Api) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        admin_init(api.settings)
    with pytest.raises(ConfigurationError, match="tenant"):
        admin_init(api.settings, tenant="No Tenant", force=True)
    made = admin_init(api.settings, tenant="alice", force=True)  # the tenant exists: only a key is made
    with client(api.url, made["admin_key"]) as admin, client(api.url, made["api_key"]) as alice:
        assert admin.get("/api/v1/tenants").status_code == 200
        assert alice.get("/api/v1/jobs").status_code == 200
