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
    order_key    text COLLATE "C", -- Commands of one tenant and key are tried in the order of their numbers; NULL for any order.
    number       bigint, -- invariant: a.number < b.number, same tenant and key ⇒ a was committed before b, or in its transaction
    behind       boolean NOT NULL DEFAULT false, -- invariant: behind ⇒ a waiting command of its key comes before it
    CHECK ((order_key IS NULL) = (number IS NULL)),
    CHECK ((state IN ('waiting', 'refused')) = (command IS NOT NULL)),
    CHECK ((state = 'accepted') = (job_id IS NOT NULL)),
    CHECK ((state = 'waiting') = (decided_at IS NULL)),
    CHECK (state = 'waiting' OR lease IS NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX inbox_waiting ON lucius.inbox (tenant_id, due_at) WHERE state = 'waiting' AND NOT behind;
CREATE INDEX inbox_order ON lucius.inbox (tenant_id, order_key, number) WHERE state = 'waiting' AND order_key IS NOT NULL;
CREATE INDEX inbox_discarding ON lucius.inbox (due_at) WHERE state = 'waiting' AND discard IS NOT NULL;
CREATE INDEX inbox_open ON lucius.inbox (state, submitted_at, id) WHERE state IN ('waiting', 'refused');
CREATE INDEX inbox_decided ON lucius.inbox (decided_at, id) WHERE state IN ('accepted', 'discarded');

-- The numbers of commands with a key. Without a cache: a session must not hold numbers in reserve.
CREATE SEQUENCE lucius.inbox_number;

-- Lets the commands after one that waits no more be tried: as many as a replica takes at once. A
-- replica sets behind under a lock of the waiting command that comes directly before, and this
-- reads after the end of that lock, in a new snapshot. So no command stays behind.
CREATE FUNCTION lucius.inbox_release() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next_behind boolean; -- If it is not, those after it wait for a later command than this one.
BEGIN
    SELECT i.behind INTO next_behind FROM lucius.inbox i
     WHERE i.state = 'waiting' AND i.tenant_id = OLD.tenant_id AND i.order_key = OLD.order_key AND i.number > OLD.number
     ORDER BY i.number LIMIT 1;
    IF next_behind THEN
        UPDATE lucius.inbox SET behind = false WHERE behind AND id IN (
            SELECT i.id FROM lucius.inbox i
             WHERE i.state = 'waiting' AND i.tenant_id = OLD.tenant_id AND i.order_key = OLD.order_key AND i.number > OLD.number
             ORDER BY i.number LIMIT 64);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER inbox_release AFTER UPDATE OF state ON lucius.inbox FOR EACH ROW
    WHEN (OLD.state = 'waiting' AND NEW.state <> 'waiting' AND OLD.order_key IS NOT NULL) EXECUTE FUNCTION lucius.inbox_release();

-- The ledger that takes the commands, as its table of jobs: the first that served took this row.
-- max_payload is the limit in bytes of the server that started last.
CREATE TABLE lucius.inbox_owner (
    single      boolean PRIMARY KEY DEFAULT true CHECK (single),
    ledger      text COLLATE "C" NOT NULL,
    max_payload integer NOT NULL DEFAULT 131072
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

-- Notifies the servers of submitted commands when their transaction commits. PostgreSQL commits
-- transactions that notify one after the other, so only one of those that commit at the same
-- time does it. The server that it wakes looks again after a moment, and polls besides. The
-- setting lucius.notify = off leaves it to the polls.
CREATE FUNCTION lucius.inbox_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(current_setting('lucius.notify', true), '') <> 'off' AND pg_try_advisory_xact_lock(119251434829174) THEN
        PERFORM pg_notify('lucius_inbox', '');
    END IF;
    RETURN NULL;
END $$;

-- It is deferred, so that a long transaction takes the lock only when it commits.
CREATE CONSTRAINT TRIGGER inbox_notify AFTER INSERT ON lucius.inbox
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lucius.inbox_notify();

-- The size of a value without the blanks that PostgreSQL writes after colons and commas.
CREATE FUNCTION lucius.compact_size(value jsonb) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN octet_length(regexp_replace(value::text, '("(?:[^"\\]|\\.)*")|([:,]) ', '\1\2', 'g'));

-- What is wrong with a value that must have a type and at most so many bytes: a code and a
-- message, or NULL. Texts must not be blank.
CREATE FUNCTION lucius.value_fault(value jsonb, wanted text, most integer) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text := jsonb_typeof(value);
    body text := value #>> '{}';
    size integer := octet_length(body);
BEGIN
    IF kind <> wanted THEN
        RETURN ARRAY['invalid_envelope', format('must be %s, not %s', CASE wanted WHEN 'string' THEN 'a' ELSE 'an' END || ' ' || wanted,
            CASE kind WHEN 'null' THEN '' WHEN 'array' THEN 'an ' WHEN 'object' THEN 'an ' ELSE 'a ' END || kind)];
    ELSIF wanted = 'string' AND btrim(body, E' \t\n\r\f\v') = '' THEN
        RETURN ARRAY['invalid_envelope', 'must not be empty or blank'];
    ELSIF wanted = 'string' AND size <= most AND body ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        RETURN ARRAY['invalid_envelope', 'must not contain control characters'];
    ELSIF wanted <> 'string' AND size > most THEN
        size := lucius.compact_size(value);
    END IF;
    RETURN CASE WHEN size > most THEN ARRAY['too_large', format('is %s bytes long; at most %s are allowed', size, most)] END;
END $$;

-- Why a command can never be a job, as a problem of the API, or NULL if a server has to decide:
-- it makes these checks, too, and those that need a protocol or a setting. Its limits are in
-- pkg/commands.
CREATE FUNCTION lucius.command_problem(command jsonb, max_payload integer) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names CONSTANT text[] := '{tenant_id,request_type,schema_version,input_ref,output_ref,payload,
        doc_id,workspace_ref,correlation_id,idempotency_key,traceparent,callback_urls,mode,tags,
        order_key,order_mode,not_before,not_after,delay_seconds,priority}'; -- The first 6 are required.
    kinds CONSTANT text[] := '{string,string,string,object,object,object,string,object,string,string,string,array,string,object,string}';
    sizes integer[] := '{128,128,32,8192,8192,0,256,8192,128,255,1048576,1048576,1048576,1048576,256}';
    faults jsonb[] := '{}';
    codes  text[] := '{}';
    value  jsonb;
    fault  text[];
    place  text;
BEGIN
    IF jsonb_typeof(command) IS DISTINCT FROM 'object' THEN
        RETURN jsonb_build_object('code', 'invalid_envelope', 'errors', jsonb_build_array(jsonb_build_object('pointer', '',
            'message', coalesce((lucius.value_fault(command, 'object', 0))[2], 'must be an object, not null'))));
    ELSIF command @? 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")' THEN
        RETURN jsonb_build_object('code', 'too_large', 'errors', jsonb_build_array(jsonb_build_object('pointer', '',
            'message', 'is nested deeper than 64 levels')));
    END IF;
    sizes[6] := max_payload;
    FOR i IN 1 .. cardinality(names) LOOP
        value := nullif(command->names[i], 'null');
        IF value IS NULL THEN
            fault := CASE WHEN i <= 6 THEN '{invalid_envelope,is required}'::text[]
                WHEN names[i] = 'doc_id' AND command->'mode' = '"BURST"' THEN '{invalid_envelope,is required in the mode BURST}'::text[] END;
        ELSIF names[i] = 'mode' THEN
            fault := CASE WHEN value NOT IN ('"DEFAULT"', '"BURST"') THEN ARRAY['invalid_envelope', 'must be "DEFAULT" or "BURST"'] END;
        ELSIF names[i] = 'order_mode' THEN -- Whether there is a key, a server knows: the protocol may give one.
            fault := CASE WHEN value NOT IN ('"fifo"', '"newest"', '"reject"') THEN
                ARRAY['invalid_envelope', 'must be "fifo", "newest" or "reject"'] END;
        ELSIF names[i] = 'priority' THEN
            fault := CASE WHEN value NOT IN ('"normal"', '"bulk"') THEN ARRAY['invalid_envelope', 'must be "normal" or "bulk"'] END;
        ELSIF names[i] IN ('not_before', 'not_after') THEN -- Whether it is too early or too late is known at the accept.
            fault := CASE WHEN jsonb_typeof(value) <> 'string' OR value #>> '{}' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d' THEN
                ARRAY['invalid_envelope', 'must be a time in the form of RFC 3339, such as 2026-01-28T02:00:00Z'] END;
        ELSIF names[i] = 'delay_seconds' THEN -- It counts from the accept.
            fault := CASE WHEN value::text !~ '^\d+$' OR value > '31622400' THEN
                    ARRAY['invalid_envelope', 'must be a whole number from 0 to 31622400']
                WHEN nullif(command->'not_before', 'null') IS NOT NULL THEN
                    ARRAY['invalid_envelope', 'must not be set if not_before is'] END;
        ELSE
            fault := lucius.value_fault(value, kinds[i], sizes[i]);
        END IF;
        IF fault IS NOT NULL THEN
            codes := codes || fault[1];
            faults := faults || jsonb_build_object('pointer', '/' || names[i], 'message', fault[2]);
        END IF;
        CONTINUE WHEN value IS NULL OR fault[1] = 'invalid_envelope';
        fault := NULL;
        place := '';
        IF names[i] LIKE '%\_ref' THEN
            place := '/uri';
            fault := CASE WHEN value->'uri' IS NULL OR value->'uri' = 'null' THEN '{ref_invalid,is required}'::text[]
                ELSE lucius.value_fault(value->'uri', 'string', 2048) END;
            fault[1] := replace(fault[1], 'invalid_envelope', 'ref_invalid');
        ELSIF names[i] = 'callback_urls' AND jsonb_array_length(value) > 8 THEN
            fault := ARRAY['too_large', format('has %s entries; at most 8 are allowed', jsonb_array_length(value))];
        ELSIF names[i] = 'callback_urls' THEN
            SELECT '/' || u.place - 1, f.fault INTO place, fault
              FROM jsonb_array_elements(value) WITH ORDINALITY AS u(url, place), lucius.value_fault(u.url, 'string', 2048) AS f(fault)
             WHERE f.fault IS NOT NULL ORDER BY u.place LIMIT 1;
        ELSIF names[i] = 'tags' AND jsonb_array_length(jsonb_path_query_array(value, '$.keyvalue()')) > 8 THEN
            fault := ARRAY['too_large', format('has %s tags; at most 8 are allowed', jsonb_array_length(jsonb_path_query_array(value, '$.keyvalue()')))];
        ELSIF names[i] = 'tags' THEN
            SELECT '/' || replace(replace(t.key, '~', '~0'), '/', '~1'), ARRAY['invalid_envelope', t.message] INTO place, fault
              FROM (SELECT e.key, CASE
                        WHEN e.key !~ '^[a-z][a-z0-9_.-]{0,31}$' THEN
                            'must have a key of 1 to 32 lower-case letters, digits, ''_'', ''.'' and ''-'' that begins with a letter'
                        WHEN jsonb_typeof(e.value) <> 'string' THEN (lucius.value_fault(e.value, 'string', 128))[2]
                        WHEN octet_length(e.value #>> '{}') NOT BETWEEN 1 AND 128 THEN 'must have a value of 1 to 128 bytes'
                        WHEN e.value #>> '{}' ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'must have a value in UTF-8 without control characters'
                        WHEN e.key LIKE 'lucius.%' THEN 'is a tag of the system: a command has none that begins with "lucius."'
                    END AS message FROM jsonb_each(value) AS e) AS t
             WHERE t.message IS NOT NULL ORDER BY t.key COLLATE "C" LIMIT 1;
        END IF;
        IF fault[2] IS NOT NULL THEN
            codes := codes || fault[1];
            faults := faults || jsonb_build_object('pointer', '/' || names[i] || place, 'message', fault[2]);
        END IF;
    END LOOP;
    IF command - names <> '{}' THEN
        codes := codes || 'invalid_envelope'::text;
        faults := faults || ARRAY(
            SELECT jsonb_build_object('pointer', '/' || replace(replace(k, '~', '~0'), '/', '~1'), 'message', 'is not a field of a command')
              FROM jsonb_object_keys(command - names) AS k ORDER BY k LIMIT 20);
    END IF;
    IF codes = '{}' THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object('errors', to_jsonb(faults), 'code', CASE WHEN 'invalid_envelope' = ANY (codes) THEN 'invalid_envelope'
        WHEN 'too_large' = ANY (codes) THEN 'too_large' ELSE 'ref_invalid' END);
END $$;

-- Submits a command in the caller's transaction, and returns its id. The role of the session
-- needs EXECUTE on this function and USAGE on the schema, and no right on any table. A command
-- that can never be a job fails with the SQLSTATE LC002, and the problem as its detail. A
-- delay_seconds counts from the accept, after the commit, and a not_after that has passed by
-- then refuses the command. Commands of one tenant and order_key, or without it doc_id, are
-- accepted in the order of the commits: their transactions wait for each other here.
CREATE FUNCTION lucius.submit(command jsonb) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    new_id  uuid := gen_random_uuid();
    tenant  text := command->>'tenant_id';
    key     text := coalesce(command->>'order_key', command->>'doc_id');
    place   bigint;
    body    text;
    problem jsonb;
BEGIN
    -- A crash between the accept and its note here repeats the accept: the key makes one job of both.
    body := CASE WHEN jsonb_typeof(command) = 'object' AND command->>'idempotency_key' IS NULL
        THEN command || jsonb_build_object('idempotency_key', new_id) ELSE command END;
    IF octet_length(body) > 1048576 THEN
        problem := jsonb_build_object('code', 'too_large', 'errors', jsonb_build_array(jsonb_build_object('pointer', '',
            'message', format('is %s bytes long; at most 1048576 are allowed', octet_length(body)))));
    ELSE
        problem := lucius.command_problem(command, coalesce((SELECT o.max_payload FROM lucius.inbox_owner o), 131072));
    END IF;
    IF problem IS NOT NULL THEN
        problem := jsonb_build_object('detail', 'The command can never be a job.', 'status', CASE problem->>'code'
            WHEN 'invalid_envelope' THEN 400 WHEN 'too_large' THEN 413 ELSE 422 END) || problem;
        RAISE EXCEPTION 'the command can never be a job: %', (
                SELECT string_agg(ltrim(e->>'pointer' || ' ') || (e->>'message'), '; ') FROM jsonb_array_elements(problem->'errors') AS e)
            USING ERRCODE = 'LC002', DETAIL = problem, HINT = 'Correct the command and repeat the transaction. '
                'The fields of a command are those of POST /v1/commands. Store large content elsewhere, and refer to it.';
    ELSIF NOT lucius.inbox_allows(tenant) THEN
        RAISE EXCEPTION 'role % may not submit commands for tenant %', session_user, tenant
            USING ERRCODE = '42501', HINT = format(
                'If it may: INSERT INTO lucius.inbox_rights (role, tenant_id) VALUES (%L, %L)', session_user, tenant);
    END IF;
    IF key IS NOT NULL THEN
        -- PostgreSQL releases the lock after others see the commit. So the next holder's number is
        -- greater, and a reader that sees its command sees this one. A tenant has no newline.
        PERFORM pg_advisory_xact_lock(1819632491, hashtext(tenant || E'\n' || key));
        place := nextval('lucius.inbox_number');
    END IF;
    INSERT INTO lucius.inbox (id, tenant_id, command, submitted_by, submitted_at, due_at, order_key, number)
        VALUES (new_id, tenant, body, session_user, clock_timestamp(), clock_timestamp(), key, place);
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

REVOKE ALL ON FUNCTION lucius.inbox_allows(text), lucius.submit(jsonb), lucius.result(uuid), lucius.inbox_notify(), lucius.inbox_release(),
    lucius.compact_size(jsonb), lucius.value_fault(jsonb, text, integer), lucius.command_problem(jsonb, integer) FROM PUBLIC;
