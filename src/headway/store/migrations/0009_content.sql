-- What tasks run and may know: pinned URLs (H1), secrets (H11), claims of effects that happen once (H10).

-- A URL without a checksum is what it was when it was first fetched for this tenant, on whichever node.
create table url_pin (
    tenant    int not null references tenant (id),
    url       text not null,
    sha256    bytea not null check (length(sha256) = 32),
    pinned_at timestamptz not null default clock_timestamp(),
    primary key (tenant, url)
);

-- Sealed with AES-256-GCM under a key that the database never sees; tenant and name are sealed in, so that a row cannot be moved.
create table secret (
    tenant     int not null references tenant (id),
    name       text not null,
    key_id     bytea not null, -- which key sealed it
    nonce      bytea not null check (length(nonce) = 12),
    sealed     bytea not null,
    changed_at timestamptz not null default clock_timestamp(),
    primary key (tenant, name)
);

-- Who may do an effect, and whether it is done. Keys are a tenant's own.
create table once_claim (
    tenant     int not null references tenant (id),
    key        text not null,
    task       bigint not null,
    attempt    int not null, -- the fence: an older attempt changes nothing
    claimed_at timestamptz not null default clock_timestamp(),
    done_at    timestamptz,
    value      bytea, -- JSON, kept for the runs after
    primary key (tenant, key)
);
create index once_claim_old on once_claim (claimed_at);
