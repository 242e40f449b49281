-- IF NOT EXISTS would require the right to create schemas also of the role that owns this one.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'lucius') THEN
        CREATE SCHEMA lucius;
    END IF;
END $$;

CREATE TABLE lucius.schema_version (version integer NOT NULL);
INSERT INTO lucius.schema_version VALUES (0);

-- Every row of the table-store port. Keys are compared byte by byte.
CREATE TABLE lucius.rows (
    tbl   text COLLATE "C" NOT NULL,
    part  text COLLATE "C" NOT NULL,
    row   text COLLATE "C" NOT NULL,
    etag  text COLLATE "C" NOT NULL,
    props jsonb NOT NULL,
    PRIMARY KEY (tbl, part, row)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- Applies the writes of one change, all or none. The rows come in the order of their keys,
-- so that two changes never wait for each other; places are those in the change. expect is
-- the version that the row must have, '' if it must be absent, and NULL if any will do. etag
-- is its new version, NULL if the row is removed.
CREATE FUNCTION lucius.write(
    p_tbls text[], p_parts text[], p_rows text[], p_places integer[], p_expects text[], p_etags text[], p_props text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    conflict integer;
    done     integer;
BEGIN
    FOR i IN 1 .. coalesce(array_length(p_tbls, 1), 0) LOOP
        IF p_etags[i] IS NULL AND p_expects[i] = '' THEN
            PERFORM 1 FROM lucius.rows r WHERE r.tbl = p_tbls[i] AND r.part = p_parts[i] AND r.row = p_rows[i] FOR UPDATE;
            done := CASE WHEN FOUND THEN 0 ELSE 1 END;
        ELSIF p_etags[i] IS NULL THEN
            DELETE FROM lucius.rows r
             WHERE r.tbl = p_tbls[i] AND r.part = p_parts[i] AND r.row = p_rows[i] AND (p_expects[i] IS NULL OR r.etag = p_expects[i]);
            GET DIAGNOSTICS done = ROW_COUNT;
            IF p_expects[i] IS NULL THEN
                done := 1;
            END IF;
        ELSIF p_expects[i] IS NULL THEN
            INSERT INTO lucius.rows AS r VALUES (p_tbls[i], p_parts[i], p_rows[i], p_etags[i], p_props[i]::jsonb)
                ON CONFLICT (tbl, part, row) DO UPDATE SET etag = EXCLUDED.etag, props = EXCLUDED.props;
            done := 1;
        ELSIF p_expects[i] = '' THEN
            INSERT INTO lucius.rows AS r VALUES (p_tbls[i], p_parts[i], p_rows[i], p_etags[i], p_props[i]::jsonb)
                ON CONFLICT (tbl, part, row) DO NOTHING;
            GET DIAGNOSTICS done = ROW_COUNT;
        ELSE
            UPDATE lucius.rows r SET etag = p_etags[i], props = p_props[i]::jsonb
             WHERE r.tbl = p_tbls[i] AND r.part = p_parts[i] AND r.row = p_rows[i] AND r.etag = p_expects[i];
            GET DIAGNOSTICS done = ROW_COUNT;
        END IF;
        IF done = 0 THEN
            conflict := least(conflict, p_places[i]);
        END IF;
    END LOOP;
    IF conflict IS NOT NULL THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'LC001', DETAIL = conflict::text;
    END IF;
END $$;
