-- Applies the writes of some changes, all or none. No two changes have a row in common, and
-- the rows come in the order of their keys, so that calls seldom wait for each other in a
-- circle. expect is the version that a row must have, '' if it must be absent, and NULL if
-- any will do. etag is its new version, NULL if the row is removed. The counts say how many
-- rows of each sort there are: writes and removals under a condition, and both without. If a
-- condition does not hold, the detail of the error has the places of all such rows, from 1.
--
-- A call that waits for a row for longer than a second fails: it would hold up others.
--
-- The other settings make every plan look up the given rows in the primary key, in their order,
-- whatever the planner believes of a table that has just grown.
CREATE FUNCTION lucius.apply(
    p_tbls text[], p_parts text[], p_rows text[], p_expects text[], p_etags text[], p_props text[],
    p_writes integer, p_removals integer, p_puts integer, p_discards integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan SET random_page_cost = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    done     integer := 0;
    affected integer;
    places   integer[];
    bad      integer[] := '{}';
BEGIN
    IF p_writes > 0 THEN
        INSERT INTO lucius.rows
            SELECT v.tbl, v.part, v.row, v.etag, v.props::jsonb
              FROM unnest(p_tbls, p_parts, p_rows, p_expects, p_etags, p_props) AS v(tbl, part, row, expect, etag, props)
             WHERE v.expect = '' AND v.etag IS NOT NULL
            ON CONFLICT (tbl, part, row) DO NOTHING;
        GET DIAGNOSTICS done = ROW_COUNT;
    END IF;
    IF done < p_writes THEN
        UPDATE lucius.rows r SET etag = v.etag, props = v.props::jsonb
          FROM unnest(p_tbls, p_parts, p_rows, p_expects, p_etags, p_props) AS v(tbl, part, row, expect, etag, props)
         WHERE v.expect <> '' AND v.etag IS NOT NULL
           AND r.tbl = v.tbl AND r.part = v.part AND r.row = v.row AND r.etag = v.expect;
        GET DIAGNOSTICS affected = ROW_COUNT;
        IF done + affected < p_writes THEN
            SELECT array_agg(v.place) INTO bad
              FROM unnest(p_tbls, p_parts, p_rows, p_expects, p_etags) WITH ORDINALITY AS v(tbl, part, row, expect, etag, place)
             WHERE v.expect IS NOT NULL AND v.etag IS NOT NULL AND NOT EXISTS (
                SELECT FROM lucius.rows r WHERE r.tbl = v.tbl AND r.part = v.part AND r.row = v.row AND r.etag = v.etag);
        END IF;
    END IF;
    IF p_removals + p_discards > 0 THEN
        WITH gone AS (
            DELETE FROM lucius.rows r
             USING unnest(p_tbls, p_parts, p_rows, p_expects, p_etags) WITH ORDINALITY AS v(tbl, part, row, expect, etag, place)
             WHERE v.etag IS NULL AND (v.expect IS NULL OR r.etag = v.expect)
               AND r.tbl = v.tbl AND r.part = v.part AND r.row = v.row
            RETURNING v.place, v.expect)
        SELECT array_agg(gone.place) INTO places FROM gone WHERE gone.expect IS NOT NULL;
        IF coalesce(cardinality(places), 0) < p_removals THEN
            bad := bad || ARRAY(SELECT i FROM generate_subscripts(p_tbls, 1) AS i
                WHERE p_etags[i] IS NULL AND p_expects[i] IS NOT NULL AND (places IS NULL OR i <> ALL (places)));
        END IF;
    END IF;
    IF cardinality(bad) > 0 THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'LC001', DETAIL = array_to_string(bad, ',');
    END IF;
    IF p_puts > 0 THEN
        INSERT INTO lucius.rows
            SELECT v.tbl, v.part, v.row, v.etag, v.props::jsonb
              FROM unnest(p_tbls, p_parts, p_rows, p_expects, p_etags, p_props) AS v(tbl, part, row, expect, etag, props)
             WHERE v.expect IS NULL AND v.etag IS NOT NULL
            ON CONFLICT (tbl, part, row) DO UPDATE SET etag = EXCLUDED.etag, props = EXCLUDED.props;
    END IF;
END $$;
