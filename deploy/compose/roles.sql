-- The roles of postgres.yaml: lucius_owner migrates the schema, lucius_server serves.
DO $$
DECLARE
  role text;
BEGIN
  FOREACH role IN ARRAY ARRAY['lucius_owner', 'lucius_server'] LOOP
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', role,
      split_part(rtrim(pg_read_file('/run/secrets/' || role), E'\n'), ':', 5));
  END LOOP;
  EXECUTE format('ALTER DATABASE %I OWNER TO lucius_owner', current_database());
END
$$;
