-- What a job is, for people and reports: nothing in Lucius reads these views. They show the
-- table luciusledger, the default of LUCIUS_LEDGER_TABLE. Lease ids are left out: a caller
-- that has one may report on the step.

CREATE FUNCTION lucius.at(value jsonb) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (value->>'t')::timestamptz;

-- A document is stored as its text. It is json, since jsonb refuses what a client may have
-- sent, such as "\u0000" and 1e999999, and one such job would fail every query.
CREATE FUNCTION lucius.document(value jsonb) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (value #>> '{}')::json;

-- The jobs are few among the rows. Ids begin with the time, so this is also their order in time.
-- An index on a property would cost more than it helps: each update of any row would write to
-- all indexes of the table, since it changes props. Generated columns double the time of a write.
CREATE INDEX rows_jobs ON lucius.rows (part) WHERE row = 'JOB';

-- What the ids of jobs from a time on are not less than: job_id >= lucius.job_id_at('2026-01-27').
CREATE FUNCTION lucius.job_id_at(at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
    RETURN regexp_replace(lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0'), '^(.{8})', '\1-') COLLATE "C";

CREATE VIEW lucius.jobs AS SELECT
    part AS job_id,
    props->>'tenant_id' AS tenant_id,
    props->>'request_type' AS request_type,
    props->>'schema_version' AS schema_version,
    props->>'protocol_id' AS protocol_id,
    props->>'protocol_version' AS protocol_version,
    props->>'mode' AS mode,
    coalesce(props->>'class', 'normal') AS priority,
    props->>'doc_id' AS doc_id,
    string_to_array(props->>'tags', E'\n') AS tags, -- as 'key=value'
    props->>'state' AS state,
    (props->>'rev')::bigint AS rev,
    props->>'current_step_id' AS current_step_id,
    (props->>'current_step_index')::bigint AS current_step_index,
    (props->>'attempts_total')::bigint AS attempts_total,
    props->>'idempotency_key' AS idempotency_key,
    props->>'correlation_id' AS correlation_id,
    props->>'traceparent' AS traceparent,
    props->>'rerun_of' AS rerun_of,
    string_to_array(props->>'rerun_edits', E'\n') AS rerun_edits, -- as JSON pointers
    props->>'supersedes' AS supersedes,
    props->>'error_code' AS error_code,
    props->>'error_message' AS error_message,
    lucius.document(props->'input_ref') AS input_ref,
    lucius.document(props->'output_ref') AS output_ref,
    lucius.document(props->'workspace_ref') AS workspace_ref,
    lucius.document(props->'final_output') AS final_output,
    lucius.at(props->'not_before') AS not_before,
    lucius.at(props->'not_after') AS not_after,
    props->>'order_key' AS order_key,
    props->>'order_mode' AS order_mode,
    lucius.document(props->'place')->>'line' AS line_id,
    lucius.at(props->'created_at') AS created_at,
    lucius.at(props->'updated_at') AS updated_at,
    lucius.at(props->'completed_at') AS completed_at
FROM lucius.rows WHERE tbl = 'luciusledger' AND row = 'JOB' AND props ? 'state';

CREATE VIEW lucius.steps AS SELECT
    part AS job_id,
    props->>'step_id' AS step_id,
    (props->>'step_index')::bigint AS step_index,
    props->>'step_type' AS step_type,
    props->>'service' AS service,
    props->>'state' AS state,
    props->>'outcome' AS outcome, -- 'carried' or 'resolved' by a rerun, which did not execute it
    (props->>'attempt_no')::bigint AS attempt_no,
    props->>'work_id' AS work_id,
    props->>'owner' AS owner,
    lucius.document(props->'input_ref') AS input_ref,
    lucius.document(props->'output_ref') AS output_ref,
    lucius.document(props->'result_ref') AS result_ref,
    props->>'last_error_code' AS last_error_code,
    props->>'last_error_message' AS last_error_message,
    lucius.at(props->'started_at') AS started_at,
    lucius.at(props->'lease_expires_at') AS lease_expires_at,
    lucius.at(props->'timeout_at') AS timeout_at,
    lucius.at(props->'next_attempt_at') AS next_attempt_at,
    lucius.at(props->'created_at') AS created_at,
    lucius.at(props->'updated_at') AS updated_at,
    lucius.at(props->'completed_at') AS completed_at
FROM lucius.rows WHERE tbl = 'luciusledger' AND row >= 'STEP:' AND row < 'STEP;';

CREATE VIEW lucius.outbox AS SELECT
    part AS job_id,
    props->>'outbox_id' AS outbox_id,
    props->>'step_id' AS step_id,
    (props->>'step_index')::bigint AS step_index,
    (props->>'attempt_no')::bigint AS attempt_no,
    props->>'state' AS state,
    props->>'bus' AS bus,
    (props->>'failures')::bigint AS failures,
    props->>'last_error' AS last_error,
    lucius.at(props->'next_attempt_at') AS next_attempt_at,
    lucius.at(props->'created_at') AS created_at,
    lucius.at(props->'sent_at') AS sent_at,
    lucius.at(props->'updated_at') AS updated_at
FROM lucius.rows WHERE tbl = 'luciusledger' AND row >= 'OUTBOX:' AND row < 'OUTBOX;';

CREATE VIEW lucius.events AS SELECT
    part AS job_id,
    (props->>'rev')::bigint AS rev,
    lucius.at(props->'at') AS at,
    props->>'event' AS event,
    props->>'actor' AS actor,
    props->>'caller' AS caller,
    props->>'request_id' AS request_id,
    -- More than fits into one column is split over several, and not shown.
    CASE WHEN NOT props ? 'entries_1' THEN lucius.document(props->'entries') END AS entries
FROM lucius.rows WHERE tbl = 'luciusledger' AND row >= 'EVENT:' AND row < 'EVENT;';
