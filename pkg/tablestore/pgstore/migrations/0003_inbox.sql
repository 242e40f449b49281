-- Commands that applications submit in their own transactions: a row is here if and only if
-- its transaction was committed. A replica takes it, and accepts it as POST /v1/commands does.
CREATE TABLE lucius.inbox (
    id           uuid PRIMARY KEY,
    tenant_id    text COLLATE "C" NOT NULL,
    command      text, -- NULL once a job has it, or an operator has discarded it.
    submitted_by name NOT NULL,
    submitted_at timestamptz NOT NULL,
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'refused', 'accepted', 'discarded')),
    due_at       timestamptz NOT NULL, -- When a replica tries it, or tries it again if a lease of it ended so.
    tries        integer NOT NULL DEFAULT 0,
    lease        uuid, -- Fences the replica that has it in hand until due_at; kept until it is known whether there is a job.
    discard      text, -- Why an operator discards it: once it is known that there is no job, it is discarded.
    problem      jsonb, -- Why it was refused, or has to wait: code, detail, errors, and the reason of a discard.
    job_id       text COLLATE "C",
    decided_at   timestamptz,
    CHECK ((state IN ('waiting', 'refused')) = (command IS NOT NULL)),
    CHECK ((state = 'accepted') = (job_id IS NOT NULL)),
    CHECK ((state = 'waiting') = (decided_at IS NULL)),
    CHECK (state = 'waiting' OR lease IS NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX inbox_waiting ON lucius.inbox (tenant_id, due_at) WHERE state = 'waiting';
CREATE INDEX inbox_discarding ON lucius.inbox (due_at) WHERE state = 'waiting' AND discard IS NOT NULL;
CREATE INDEX inbox_open ON lucius.inbox (state, submitted_at, id) WHERE state IN ('waiting', 'refused');
CREATE INDEX inbox_decided ON lucius.inbox (decided_at, id) WHERE state IN ('accepted', 'discarded');

-- The ledger that takes the commands, as its table of jobs: the first that served took this row.
CREATE TABLE lucius.inbox_owner (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    ledger text COLLATE "C" NOT NULL
);

-- The tenants for which a login role may submit; '*' is all. A role without a row may submit
-- for none, also if it owns the schema.
CREATE TABLE lucius.inbox_rights (
    role      name NOT NULL,
    tenant_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (role, tenant_id)
);

-- Whether the session's role may submit commands of a tenant and see what became of them.
CREATE FUNCTION lucius.inbox_allows(tenant text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET row_security = off
RETURN EXISTS (SELECT FROM lucius.inbox_rights r WHERE r.role = session_user AND r.tenant_id IN (tenant, '*'));

-- Submits a command in the caller's transaction, and returns its id. The role of the session
-- needs EXECUTE on this function and USAGE on the schema, and no right on any table.
CREATE FUNCTION lucius.submit(command jsonb) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    new_id uuid := gen_random_uuid();
    body   text;
    tenant text := command->>'tenant_id';
BEGIN
    IF jsonb_typeof(command) IS DISTINCT FROM 'object' OR tenant IS NULL THEN
        RAISE EXCEPTION 'a command must be an object with a tenant_id' USING ERRCODE = '22023';
    END IF;
    -- A crash between the accept and its note here repeats the accept: the key makes one job of both.
    body := CASE WHEN command->>'idempotency_key' IS NULL
        THEN command || jsonb_build_object('idempotency_key', new_id) ELSE command END;
    IF octet_length(body) > 1048576 THEN
        RAISE EXCEPTION 'the command has % bytes: at most 1048576 are allowed', octet_length(body) USING ERRCODE = '22023';
    ELSIF NOT lucius.inbox_allows(tenant) THEN
        RAISE EXCEPTION 'role % may not submit commands for tenant %', session_user, tenant
            USING ERRCODE = '42501', HINT = format(
                'If it may: INSERT INTO lucius.inbox_rights (role, tenant_id) VALUES (%L, %L)', session_user, tenant);
    END IF;
    INSERT INTO lucius.inbox (id, tenant_id, command, submitted_by, submitted_at, due_at)
        VALUES (new_id, tenant, body, session_user, clock_timestamp(), clock_timestamp());
    PERFORM pg_notify('lucius_inbox', ''); -- It is sent at commit, once for a transaction.
    RETURN new_id;
END $$;

-- What became of a command: one row, or none if there is no such command, if the caller may
-- not see it, or once its job was purged. state is that of the command, job_state and the rest
-- those of its job.
CREATE FUNCTION lucius.result(command_id uuid) RETURNS TABLE (
    state text, problem jsonb, job_id text, job_state text, final_output json, error_code text, error_message text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off
BEGIN ATOMIC
    SELECT i.state, i.problem, i.job_id, r.props->>'state', lucius.document(r.props->'final_output'),
           r.props->>'error_code', r.props->>'error_message'
      FROM lucius.inbox i
      LEFT JOIN lucius.rows r ON r.tbl = (SELECT o.ledger FROM lucius.inbox_owner o) AND r.part = i.job_id AND r.row = 'JOB'
       AND r.props ? 'state' -- A purged job has a tombstone for a while.
     WHERE i.id = command_id AND (i.state <> 'accepted' OR r.part IS NOT NULL) AND lucius.inbox_allows(i.tenant_id);
END;

REVOKE ALL ON FUNCTION lucius.inbox_allows(text), lucius.submit(jsonb), lucius.result(uuid) FROM PUBLIC;
