-- The API's own: tenants and keys. Apart from the projection, which can be dropped and rebuilt.
-- {private} is replaced by the name of this schema, which `jobstream migrate` has made.

CREATE TABLE {private}.tenants (
    tenant     text        NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {private}.api_keys (
    key_id     text        NOT NULL PRIMARY KEY,   -- the public part, shown in lists
    tenant     text        REFERENCES {private}.tenants,   -- null: an admin key
    secret     bytea       NOT NULL,               -- SHA-256 of the whole key: 256 random bits need no slow hash
    name       text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
