package pgstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// serverRights gives ROLE the rights that a server needs, the last two those of its inbox.
const serverRights = `GRANT USAGE ON SCHEMA lucius TO ROLE;
	GRANT SELECT ON ALL TABLES IN SCHEMA lucius TO ROLE;
	GRANT INSERT, UPDATE, DELETE ON lucius.rows TO ROLE;
	GRANT UPDATE, DELETE ON lucius.inbox TO ROLE;
	GRANT INSERT ON lucius.inbox_owner TO ROLE`

// Grant gives the role the rights that a server needs. The URL is that of the schema's owner.
func Grant(ctx context.Context, url, role string) error {
	connection, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }() // The lock ends with it.
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		// Two sessions that grant at the same time would fail.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, strings.ReplaceAll(serverRights, "ROLE", pgx.Identifier{role}.Sanitize()))
		return err
	})
	if err != nil {
		return fmt.Errorf("grant rights to the role %s: %w", role, err)
	}
	return nil
}
