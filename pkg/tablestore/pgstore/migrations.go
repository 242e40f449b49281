package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed migrations/*.sql
var migrations embed.FS

var (
	// ErrOlderSchema is returned for a database that has not been migrated to this version.
	ErrOlderSchema = fmt.Errorf("%w: its schema is older than this program needs", ErrUnusable)
	// ErrNewerSchema is returned for a database that a newer version has migrated.
	ErrNewerSchema = fmt.Errorf("%w: its schema is newer than this program knows", ErrUnusable)
)

// migrationLock is the advisory lock under which one process migrates.
const migrationLock = 0x6c7563697573 // lucius

// steps returns the statements of each migration. The first one makes version 1.
func steps() ([]string, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql") // in the order of their numbers
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range names {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, string(text))
	}
	return all, nil
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// version returns the version of the database's schema, 0 if there is none.
func version(ctx context.Context, db querier) (current int, err error) {
	var exists bool
	if err := db.QueryRow(ctx, "SELECT to_regclass('lucius.schema_version') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = db.QueryRow(ctx, "SELECT version FROM lucius.schema_version").Scan(&current)
	return current, err
}

// compare returns the version of the database's schema and that of this program. The error
// wraps [ErrOlderSchema] or [ErrNewerSchema] if they differ.
func compare(ctx context.Context, db querier) (current, wanted int, err error) {
	all, err := steps()
	if err != nil {
		return 0, 0, err
	}
	wanted = len(all)
	if current, err = version(ctx, db); err != nil {
		return 0, wanted, fmt.Errorf("read the version of the schema: %w", err)
	}
	switch {
	case current < wanted:
		err = fmt.Errorf("%w: it has version %d, and this program needs %d: run lucius postgres migrate", ErrOlderSchema, current, wanted)
	case current > wanted:
		err = fmt.Errorf("%w: it has version %d, and this program knows up to %d: use a newer Lucius", ErrNewerSchema, current, wanted)
	}
	return current, wanted, err
}

// Migrate brings the database's schema to the version of this program, and returns the
// versions before and after. One process migrates at a time, and all missing migrations are
// applied in one transaction. The error wraps [ErrNewerSchema] for a newer schema.
func Migrate(ctx context.Context, url string) (from, to int, err error) {
	all, err := steps()
	if err != nil {
		return 0, 0, err
	}
	connection, err := connect(ctx, url)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = connection.Close(ctx) }() // The transaction has ended.
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		var err error
		if from, to, err = compare(ctx, tx); !errors.Is(err, ErrOlderSchema) {
			return err // The schema already has this version, or a newer one.
		}
		for number := from; number < len(all); number++ {
			if _, err := tx.Exec(ctx, all[number]); err != nil {
				return fmt.Errorf("migration %d: %w", number+1, err)
			}
		}
		_, err = tx.Exec(ctx, "UPDATE lucius.schema_version SET version = $1", len(all))
		return err
	})
	if denied(err) {
		err = explainDenied(ctx, connection, err)
	}
	if err != nil {
		return from, to, fmt.Errorf("migrate the database: %w", err)
	}
	return from, to, nil
}

// explainDenied adds to an error of a role that may not migrate which role may, or what to
// grant.
func explainDenied(ctx context.Context, db querier, denied error) error {
	var role, owner, statement string
	if err := db.QueryRow(ctx, `SELECT current_user, format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user),
			coalesce((SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'lucius'), '')`,
	).Scan(&role, &statement, &owner); err != nil {
		return errors.Join(denied, err)
	}
	switch owner {
	case "":
		return fmt.Errorf("the role %s may not create the schema lucius: migrate with another role, or %s: %w", role, statement, denied)
	case role:
		return denied
	}
	return fmt.Errorf("the role %s does not own the schema lucius: migrate with the role %s: %w", role, owner, denied)
}

// connect opens one connection for administration.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, hideURL(err)
	}
	config.RuntimeParams["search_path"] = searchPath
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, hideURL(err)
	}
	return connection, nil
}

// hideURL returns an error without the URL, which may contain a password.
func hideURL(err error) error {
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return fmt.Errorf("the URL of PostgreSQL is invalid: %w", parse.Unwrap())
	}
	return fmt.Errorf("connect to PostgreSQL: %w", err)
}
