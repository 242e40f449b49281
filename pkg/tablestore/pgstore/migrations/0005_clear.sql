-- serves: 4
-- Removes all rows of these partitions. The settings are those of lucius.apply, for its reasons.
CREATE FUNCTION lucius.clear(p_tbl text, p_parts text[])
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan SET random_page_cost = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    DELETE FROM lucius.rows r USING unnest(p_parts) AS v(part) WHERE r.tbl = p_tbl AND r.part = v.part;
END $$;
