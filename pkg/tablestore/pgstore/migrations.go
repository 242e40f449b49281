package pgstore

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
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
	// migrationLock is the advisory lock under which one process migrates.
	migrationLock = 0x6c7563697573 // lucius
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

// migrations returns all migrations. The one at i makes version i+1.
var migrations = sync.OnceValues(func() (all []migration, err error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // in the order of their numbers
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, file := range names {
		text, err := migrationFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		texts[strings.TrimSuffix(path.Base(file), ".sql")] = string(text)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasSuffix(name, ".down") {
			continue
		}
		m := migration{version: len(all) + 1, name: name, up: texts[name], down: texts[name+".down"]}
		sum := sha256.Sum256([]byte(m.up))
		m.hash, m.serves = hex.EncodeToString(sum[:]), m.version
		if first, _, _ := strings.Cut(m.up, "\n"); strings.HasPrefix(first, servesLine) {
			if m.serves, err = strconv.Atoi(first[len(servesLine):]); err != nil || m.serves < 1 || m.serves > m.version {
				return nil, fmt.Errorf("migration %s: %q names no version up to its own", name, first)
			}
		}
		all = append(all, m)
	}
	return all, nil
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

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// applied returns the migrations that were applied to the database, without their statements.
func applied(ctx context.Context, db querier) ([]migration, error) {
	var recorded, used bool
	err := db.QueryRow(ctx, "SELECT to_regclass('lucius.migrations') IS NOT NULL, to_regclass('lucius.rows') IS NOT NULL").
		Scan(&recorded, &used)
	if err != nil {
		return nil, err
	}
	if used && !recorded {
		return nil, fmt.Errorf("%w: a version before the first release made it: use another database, "+
			"or DROP SCHEMA lucius CASCADE, which deletes its jobs", ErrOtherSchema)
	}
	if !recorded {
		return nil, nil
	}
	rows, err := db.Query(ctx, "SELECT version, name, hash, serves FROM lucius.migrations ORDER BY version")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m migration, err error) {
		err = row.Scan(&m.version, &m.name, &m.hash, &m.serves)
		return m, err
	})
}

// compare returns the version of the database's schema, and refuses a schema to which other
// migrations were applied than those of this program, or not all of them, or newer ones. The
// error wraps [ErrOtherSchema], [ErrOlderSchema] or [ErrNewerSchema].
func compare(ctx context.Context, db querier) (current int, err error) {
	known, err := migrations()
	if err != nil {
		return 0, err
	}
	stored, err := applied(ctx, db)
	if errors.Is(err, ErrOtherSchema) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	for i, m := range stored[:min(len(stored), len(known))] {
		if m.version != i+1 || m.hash != known[i].hash {
			return 0, fmt.Errorf("%w: migration %s was applied with other statements than this program has in %s: "+
				"use the program that applied it, or a new database", ErrOtherSchema, m.name, known[i].name)
		}
	}
	current, wanted := len(stored), len(known)
	switch {
	case current < wanted:
		err = fmt.Errorf("%w: it has version %d, and this program needs %d: run lucius postgres migrate", ErrOlderSchema, current, wanted)
	case current > wanted && stored[current-1].serves > wanted:
		err = fmt.Errorf("%w: it has version %d, and this program knows up to %d: use a newer Lucius", ErrNewerSchema, current, wanted)
	}
	return current, err
}

// lockSchema begins a session: it takes the lock of this program's version until the session
// ends, and refuses a schema on which the program does not work. A session that only waits for a
// migration reads the schema after it.
func lockSchema(ctx context.Context, connection *pgx.Conn) error {
	known, err := migrations()
	if err != nil {
		return err
	}
	if _, err := connection.Exec(ctx, "SELECT pg_advisory_lock_shared($1::integer, $2::integer)", versionLocks, len(known)); err != nil {
		return err
	}
	if _, err = compare(ctx, connection); errors.Is(err, ErrUnusable) {
		return err
	}
	return nil // [Open] and the first request report other errors.
}

// lockOut takes the locks of the programs that must not be connected during the migration from
// one version to another: of all programs, or online of those that do not work on the schema
// after it. The locks end with the transaction.
func lockOut(ctx context.Context, tx pgx.Tx, from, to int, online bool) error {
	all, err := migrations()
	if err != nil || from == 0 { // A server that starts before its schema is made ends by itself.
		return err
	}
	for v := 1; v <= max(from, to); v++ {
		if online && to > 0 && v >= all[to-1].serves && v <= to {
			continue
		}
		var free bool
		if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1::integer, $2::integer)", versionLocks, v).Scan(&free); err != nil {
			return err
		}
		switch {
		case free:
		case online:
			return fmt.Errorf("%w: those of schema version %d do not work on version %d: stop them first", ErrInUse, v, to)
		default:
			return fmt.Errorf("%w: stop those of schema version %d first, or migrate with --online, if they work on version %d",
				ErrInUse, v, to)
		}
	}
	return nil
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
	connection, err := connect(ctx, url)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = connection.Close(ctx) }() // The transaction has ended.
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		lock := fmt.Sprintf("SELECT pg_advisory_xact_lock(%d);\n", int64(migrationLock))
		if _, err := tx.Exec(ctx, lock); err != nil {
			return err
		}
		steps, current, err := pending(ctx, tx, &options)
		if err != nil {
			return err
		}
		from, to = current, current+len(steps)
		if options.Down {
			to = current - 1
		}
		if len(steps) == 0 {
			return nil
		}
		if options.Print != nil {
			return options.Print("BEGIN;\n" + lock + "\n" + strings.Join(steps, "\n") + "\nCOMMIT;\n")
		}
		if err := lockOut(ctx, tx, from, to, options.Online); err != nil {
			return err
		}
		// Changes of running servers wait for the table while this waits for a long query.
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '5s'"); err != nil {
			return err
		}
		for _, statements := range steps {
			if _, err := tx.Exec(ctx, statements); err != nil {
				return err
			}
		}
		return nil
	})
	if denied(err) {
		err = explainDenied(ctx, connection, err)
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok && answer.Code == codeLocked {
		err = fmt.Errorf("another transaction holds a table of Lucius for long: end it, and migrate again: %w", err)
	}
	if err != nil {
		return from, from, fmt.Errorf("migrate the database: %w", err)
	}
	return from, to, nil
}

// pending returns the version of the database's schema, and the statements of each migration
// that is to be applied, or of the one to undo.
func pending(ctx context.Context, db querier, options *MigrateOptions) (steps []string, current int, err error) {
	all, err := migrations()
	if err != nil {
		return nil, 0, err
	}
	if current, err = compare(ctx, db); err != nil && !errors.Is(err, ErrOlderSchema) {
		return nil, current, err
	}
	switch {
	case options.All && options.Print != nil:
		current = 0
	case current > len(all) && options.Down:
		return nil, current, fmt.Errorf("%w: the schema has version %d: use the newer Lucius that migrated it", ErrNewerSchema, current)
	case current > len(all):
		return nil, current, nil // This program works on it.
	case options.Down && current == 0:
		return nil, 0, fmt.Errorf("%w: the database has no schema of Lucius", ErrNoWayDown)
	case options.Down && all[current-1].down == "":
		return nil, current, fmt.Errorf("%w: version %d belongs to the first schema", ErrNoWayDown, current)
	case options.Down:
		return []string{all[current-1].undo()}, current, nil
	}
	for i := range all[current:] {
		steps = append(steps, all[current+i].apply())
	}
	return steps, current, nil
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
	config.RuntimeParams["search_path"] = pgsession.SearchPath
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
