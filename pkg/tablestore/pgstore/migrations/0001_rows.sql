-- IF NOT EXISTS would require the right to create schemas also of the role that owns this one.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'lucius') THEN
        CREATE SCHEMA lucius;
    END IF;
END $$;

-- The migrations that were applied. A program compares each hash with that of its own file.
CREATE TABLE lucius.migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    hash       text NOT NULL,    -- SHA-256 of the file, in hexadecimal.
    serves     integer NOT NULL, -- The oldest schema version whose programs work on this one.
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Every row of the table-store port. Keys are compared byte by byte.
CREATE TABLE lucius.rows (
    tbl   text COLLATE "C" NOT NULL,
    part  text COLLATE "C" NOT NULL,
    row   text COLLATE "C" NOT NULL,
    etag  text COLLATE "C" NOT NULL,
    props jsonb NOT NULL,
    PRIMARY KEY (tbl, part, row)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
