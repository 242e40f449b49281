package pgstore

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/pkg/pgsession"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

var (
	// ErrOlderSchema is returned for a database that has not been migrated to this version.
	ErrOlderSchema = fmt.Errorf("%w: older than this program needs", errSchema)
	// ErrNewerSchema is returned for a database that a newer version has migrated, so that this
	// program does not work on it.
	ErrNewerSchema = fmt.Errorf("%w: newer than this program knows", errSchema)
	// ErrOtherSchema is returned for a database to which other migrations were applied than
	// those of this program.
	ErrOtherSchema = fmt.Errorf("%w: not the one of this program", errSchema)
	// ErrNoWayDown is returned for a migration that cannot be undone.
	ErrNoWayDown = errors.New("the migration cannot be undone")
	// ErrInUse is returned if servers are connected that a migration could disturb.
	ErrInUse = errors.New("servers are connected")

	errSchema = fmt.Errorf("%w: %w", ErrUnusable, tablestore.ErrOtherVersion)
)

const (
	// lockMigration takes the advisory lock under which one process migrates, or grants rights.
	lockMigration = "SELECT pg_advisory_xact_lock(119251434829171);\n" // the bytes of lucius
	// versionLocks are the advisory locks that sessions hold in shared mode, one for each schema
	// version of programs. A migration takes those of the programs that its schema does not serve.
	// invariant: a session of a program of version v is open ⇒ v serves, or is, the schema's version
	versionLocks = 0x6c756373
)

// migration brings the schema from the version before it to its own.
type migration struct {
	version int
	name    string // of its file, without the extension
	up      string
	down    string // the statements that undo it, empty if it cannot be undone
	hash    string // of up, in hexadecimal
	serves  int    // the oldest schema version whose programs work on this one
}

// servesLine begins a migration on whose schema programs of older versions work.
const servesLine = "-- serves: "

// migrations returns all migrations. The one at i makes version i+1. Reading them cannot fail:
// they are part of the program.
var migrations = sync.OnceValue(func() (all []migration) {
	files, _ := migrationFiles.ReadDir("migrations") // in the order of their numbers
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".sql")
		if strings.HasSuffix(name, ".down") {
			continue
		}
		up, _ := migrationFiles.ReadFile("migrations/" + name + ".sql")
		down, _ := migrationFiles.ReadFile("migrations/" + name + ".down.sql") // It may be missing.
		m := migration{version: len(all) + 1, name: name, up: string(up), down: string(down), hash: fmt.Sprintf("%x", sha256.Sum256(up))}
		m.serves = m.version
		if line, found := strings.CutPrefix(m.up, servesLine); found {
			line, _, _ = strings.Cut(line, "\n")
			m.serves, _ = strconv.Atoi(line) // A test checks all of them.
		}
		all = append(all, m)
	}
	return all
})

// apply returns the statements that apply the migration, and record that.
func (m *migration) apply() string {
	return fmt.Sprintf("%s\nINSERT INTO lucius.migrations (version, name, hash, serves) VALUES (%d, '%s', '%s', %d);\n",
		strings.TrimSpace(m.up), m.version, m.name, m.hash, m.serves)
}

// undo returns the statements that undo the migration, and delete its record.
func (m *migration) undo() string {
	return fmt.Sprintf("%s\nDELETE FROM lucius.migrations WHERE version = %d;\n", strings.TrimSpace(m.down), m.version)
}

// migrated is the record of a migration that was applied to a database.
type migrated struct {
	Version, Serves int
	Name, Hash      string
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// compare returns the version of the database's schema, and refuses a schema to which other
// migrations were applied than those of this program, or not all of them, or newer ones. The
// error wraps [ErrOtherSchema], [ErrOlderSchema] or [ErrNewerSchema].
func compare(ctx context.Context, db querier) (current int, err error) {
	var recorded, used bool
	err = db.QueryRow(ctx, "SELECT to_regclass('lucius.migrations') IS NOT NULL, to_regclass('lucius.rows') IS NOT NULL").
		Scan(&recorded, &used)
	if err == nil && used && !recorded {
		return 0, fmt.Errorf("%w: a version before the first release made it: use another database, "+
			"or DROP SCHEMA lucius CASCADE, which deletes its jobs", ErrOtherSchema)
	}
	var stored []migrated
	if recorded {
		rows, _ := db.Query(ctx, "SELECT version, serves, name, hash FROM lucius.migrations ORDER BY version") // The rows have its error.
		stored, err = pgx.CollectRows(rows, pgx.RowToStructByPos[migrated])
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	known := migrations()
	for i, m := range stored[:min(len(stored), len(known))] {
		if m.Version != i+1 || m.Hash != known[i].hash {
			return 0, fmt.Errorf("%w: migration %s was applied with other statements than this program has in %s: "+
				"use the program that applied it, or a new database", ErrOtherSchema, m.Name, known[i].name)
		}
	}
	current, wanted := len(stored), len(known)
	switch {
	case current < wanted:
		err = fmt.Errorf("%w: it has version %d, and this program needs %d: run lucius postgres migrate", ErrOlderSchema, current, wanted)
	case current > wanted && stored[current-1].Serves > wanted:
		err = fmt.Errorf("%w: it has version %d, and this program knows up to %d: use a newer Lucius", ErrNewerSchema, current, wanted)
	}
	return current, err
}

// lockSchema begins a session: it takes the lock of this program's version until the session
// ends, and refuses a schema on which the program does not work. A session that only waits for a
// migration reads the schema after it.
func lockSchema(ctx context.Context, connection *pgx.Conn) error {
	const lock = "SELECT pg_advisory_lock_shared($1::integer, $2::integer)"
	if _, err := connection.Exec(ctx, lock, versionLocks, len(migrations())); err != nil {
		return err
	}
	if _, err := compare(ctx, connection); errors.Is(err, ErrUnusable) {
		return err
	}
	return nil // [Open] and the first request report other errors.
}

// lockOut takes the locks of the programs that must not be connected during the migration from
// one version to another: of all programs, or online of those that do not work on the schema
// after it. The locks end with the transaction.
func lockOut(ctx context.Context, tx pgx.Tx, from, to int, online bool) error {
	var versions []int
	for v := 1; from > 0 && v <= max(from, to); v++ { // A server that starts before its schema is made ends by itself.
		if !online || to == 0 || v < migrations()[to-1].serves || v > to {
			versions = append(versions, v)
		}
	}
	var used *int
	err := tx.QueryRow(ctx, "SELECT min(v) FROM unnest($1::integer[]) v WHERE NOT pg_try_advisory_xact_lock($2::integer, v)",
		versions, versionLocks).Scan(&used)
	switch {
	case err != nil || used == nil:
		return err
	case online:
		return fmt.Errorf("%w: those of schema version %d do not work on version %d: stop them first", ErrInUse, *used, to)
	}
	return fmt.Errorf("%w: stop those of schema version %d first, or migrate with --online, if they work on version %d",
		ErrInUse, *used, to)
}

// MigrateOptions says how to migrate.
type MigrateOptions struct {
	// Down undoes the newest migration. Optional.
	Down bool
	// Print is called with the statements instead of running them, if there are any. Optional.
	Print func(sql string) error
	// Online migrates although servers are connected, if they also work on the schema after it.
	// Optional.
	Online bool
	// All has Print called with the statements of every migration, also of those that were
	// applied. Optional.
	All bool
}

// Migrate brings the database's schema to the version of this program, or one version down,
// and returns the versions before and after. One process migrates at a time, and all
// migrations are applied in one transaction, or none. The error wraps [ErrNewerSchema] for a
// newer schema, [ErrOtherSchema] for one with other migrations, [ErrNoWayDown] for a migration
// that cannot be undone, and [ErrInUse] if servers are connected, with Online only if they do not
// work on the new schema.
func Migrate(ctx context.Context, url string, options MigrateOptions) (from, to int, err error) {
	err = administrate(ctx, url, func(tx pgx.Tx) (err error) {
		var statements string
		if from, to, statements, err = pending(ctx, tx, &options); err != nil || from == to {
			return err
		}
		if options.Print != nil {
			return options.Print("BEGIN;\n" + lockMigration + statements + "\nCOMMIT;\n")
		}
		if err := lockOut(ctx, tx, from, to, options.Online); err != nil {
			return err
		}
		// Changes of running servers wait for the table while this waits for a long query.
		_, err = tx.Exec(ctx, "SET LOCAL lock_timeout = '5s';\n"+statements)
		return err
	})
	if err == nil {
		return from, to, nil
	}
	if hasCode(err, codeLocked) {
		err = fmt.Errorf("another transaction holds a table of Lucius for long: end it, and migrate again: %w", err)
	}
	return from, from, fmt.Errorf("migrate the database: %w", err)
}

// administrate runs a transaction in a session of its own, while no other process does.
func administrate(ctx context.Context, url string, run func(tx pgx.Tx) error) error {
	pool, err := pgsession.Open(ctx, pgsession.Options{URL: url, Connections: 1, Timeout: defaultTimeout})
	if err != nil {
		return hideURL(err)
	}
	defer pool.Close()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockMigration); err != nil {
			return err
		}
		return run(tx)
	})
	if denied(err) {
		return explainDenied(ctx, pool, err)
	}
	return err
}

// pending returns the version of the database's schema, the version to migrate it to, and the
// statements for that: those of each migration that is to be applied, or of the one to undo.
func pending(ctx context.Context, db querier, options *MigrateOptions) (from, to int, statements string, err error) {
	all := migrations()
	if from, err = compare(ctx, db); err != nil && !errors.Is(err, ErrOlderSchema) {
		return from, from, "", err
	}
	switch {
	case options.All && options.Print != nil:
		from = 0
	case !options.Down:
	case from > len(all):
		return from, from, "", fmt.Errorf("%w: the schema has version %d: use the newer Lucius that migrated it", ErrNewerSchema, from)
	case from == 0 || all[from-1].down == "":
		return from, from, "", fmt.Errorf("%w: none was applied after the first schema", ErrNoWayDown)
	default:
		return from, from - 1, "\n" + all[from-1].undo(), nil
	}
	for i := from; i < len(all); i++ {
		statements += "\n" + all[i].apply()
	}
	return from, max(from, len(all)), statements, nil // This program works on a newer schema.
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

// hideURL returns an error without the URL, which may contain a password.
func hideURL(err error) error {
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return fmt.Errorf("the URL of PostgreSQL is invalid: %w", parse.Unwrap())
	}
	return fmt.Errorf("connect to PostgreSQL: %w", err)
}
