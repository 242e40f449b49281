package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/pkg/pgsession"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ErrUnusable is returned if this process cannot use the database. The error that wraps it
// says what to do.
var ErrUnusable = errors.New("the database cannot be used")

// errReadOnly is returned for a server that accepts no writes.
var errReadOnly = fmt.Errorf("%w: the server is a standby, or read-only: name the primary, "+
	"or all hosts of the cluster with target_session_attrs=read-write", ErrUnusable)

// use is what a process does with the database. Each use includes those before it.
type use int

const (
	toRead  use = iota // as an audit does
	toWrite            // as every server does
	toTake             // take commands from the inbox, as a server with the role api does
)

func (o *Options) use() use {
	switch {
	case o.ReadOnly:
		return toRead
	case o.Inbox:
		return toTake
	}
	return toWrite
}

// rights are the rights that the role of a process needs. Objects are written as in GRANT.
var rights = []struct {
	use           use
	right, object string
}{
	{toRead, "USAGE", "SCHEMA lucius"},
	{toRead, "SELECT", "lucius.migrations"},
	{toRead, "SELECT", "lucius.rows"},
	{toWrite, "INSERT", "lucius.rows"},
	{toWrite, "UPDATE", "lucius.rows"},
	{toWrite, "DELETE", "lucius.rows"},
	{toWrite, "EXECUTE", "FUNCTION lucius.apply"},
	{toWrite, "EXECUTE", "FUNCTION lucius.clear"},
	{toTake, "SELECT", "lucius.inbox"},
	{toTake, "UPDATE", "lucius.inbox"},
	{toTake, "DELETE", "lucius.inbox"},
	{toTake, "SELECT", "lucius.inbox_owner"},
	{toTake, "INSERT", "lucius.inbox_owner"},
	{toTake, "UPDATE", "lucius.inbox_owner"},
}

// missingRights returns the role, and the statements that grant it the rights that it lacks on
// existing objects. It looks objects up by name in the catalog, because a cast such as
// 'lucius.rows'::regclass requires USAGE on the schema.
const missingRights = `SELECT current_user, coalesce(string_agg(statement, '; ' ORDER BY first), '') FROM (
		SELECT min(place) AS first,
			format('GRANT %s ON %s TO %I', string_agg(needed, ', ' ORDER BY place), object, current_user) AS statement
		FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS r(needed, object, place)
		WHERE NOT CASE split_part(object, ' ', 1)
			WHEN 'SCHEMA' THEN (SELECT has_schema_privilege(n.oid, needed) FROM pg_namespace n WHERE 'SCHEMA ' || n.nspname = object)
			WHEN 'FUNCTION' THEN (SELECT has_function_privilege(p.oid, needed) FROM pg_proc p
				JOIN pg_namespace n ON n.oid = p.pronamespace WHERE 'FUNCTION ' || n.nspname || '.' || p.proname = object)
			ELSE (SELECT has_table_privilege(c.oid, needed) FROM pg_class c
				JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = object) END
		GROUP BY object
	) missing`

// hidden returns the role, and those of the tables from which row-level security hides rows.
const hidden = `SELECT quote_ident(current_user), array_agg(object ORDER BY object) FROM (
		SELECT DISTINCT n.nspname || '.' || c.relname AS object FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname || '.' || c.relname = ANY ($1::text[]) AND c.relrowsecurity AND row_security_active(c.oid)
	) active`

// checkRights returns an error with the statements that grant the role the rights it lacks, or
// that let it see all rows.
func checkRights(ctx context.Context, db querier, use use) error {
	var needed, objects []string
	for _, r := range rights {
		if r.use <= use {
			needed, objects = append(needed, r.right), append(objects, r.object)
		}
	}
	var role, statements string
	if err := db.QueryRow(ctx, missingRights, needed, objects).Scan(&role, &statements); err != nil {
		return fmt.Errorf("read the rights of the role: %w", err)
	}
	if statements != "" {
		return fmt.Errorf("%w: %w: the role %s needs: %s", ErrUnusable, tablestore.ErrDenied, role, statements)
	}
	var tables []string
	if err := db.QueryRow(ctx, hidden, objects).Scan(&role, &tables); err != nil {
		return fmt.Errorf("read the policies of the tables: %w", err)
	}
	if len(tables) > 0 {
		return fmt.Errorf("%w: %w: row-level security hides rows of %s from the role %s: ALTER TABLE %s DISABLE ROW LEVEL SECURITY, or "+
			"ALTER ROLE %s BYPASSRLS", ErrUnusable, tablestore.ErrDenied, strings.Join(tables, ", "), role, tables[0], role)
	}
	return nil
}

// Grant grants the role the rights that a server needs. The URL must be that of the schema's
// owner.
func Grant(ctx context.Context, url, role string) error {
	err := administrate(ctx, url, func(tx pgx.Tx) error { // Concurrent grants on one object would fail.
		for _, r := range rights {
			if _, err := tx.Exec(ctx, "GRANT "+r.right+" ON "+r.object+" TO "+pgx.Identifier{role}.Sanitize()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("grant rights to the role %s: %w", role, err)
	}
	return nil
}

// sessionSettings are settings with which package pgsession begins a session, and what could
// happen with another value.
var sessionSettings = []struct{ name, want, otherwise string }{
	{"row_security", "off", "row-level security could hide jobs"},
	{"search_path", pgsession.SearchPath, "functions of other roles could run with the rights of Lucius"},
	{"default_transaction_isolation", "read committed", "commands of the inbox could wait for ever"},
	{"client_encoding", "UTF8", "some texts could not be read"},
}

// check refuses a server that could lose commits, accepts no writes or cannot store every text,
// a schema of another version, and a role that lacks rights. It returns the schema's version. It
// also checks the settings of the session, because a connection pooler may drop them.
func check(ctx context.Context, pool *pgsession.Pool, use use) (version int, err error) {
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		var value string
		if err := pool.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
			return 0, hideURL(err)
		}
		if value != "on" {
			return 0, fmt.Errorf("%w: %s of the server is %s: it must be on, or a crash loses what was acknowledged",
				ErrUnusable, setting, value)
		}
	}
	for _, of := range sessionSettings {
		var value string
		if err := pool.QueryRow(ctx, "SELECT current_setting($1)", of.name).Scan(&value); err != nil {
			return 0, hideURL(err)
		}
		if value != of.want {
			return 0, fmt.Errorf("%w: %s of the session is %q: it must be %q, or %s: a connection pooler has to keep it",
				ErrUnusable, of.name, value, of.want, of.otherwise)
		}
	}
	var encoding string
	if err := pool.QueryRow(ctx, "SELECT current_setting('server_encoding')").Scan(&encoding); err != nil {
		return 0, hideURL(err)
	}
	if encoding != "UTF8" {
		return 0, fmt.Errorf("%w: its encoding is %s: it must be UTF8, or it cannot hold every text", ErrUnusable, encoding)
	}
	if err := checkWrites(ctx, pool, use); err != nil {
		return 0, err
	}
	version, err = compare(ctx, pool)
	if err == nil || denied(err) {
		if missing := checkRights(ctx, pool, use); missing != nil {
			return 0, missing
		}
	}
	if err == nil {
		err = checkObjects(ctx, pool, version)
	}
	return version, err
}

// named matches the statements of migrations that create or drop an object.
var named = regexp.MustCompile(`(?m)^(CREATE|DROP)(?: UNIQUE)? (TABLE|INDEX|VIEW|FUNCTION) (?:lucius\.)?(\w+)`)

// objects returns the objects that the migrations make, such as "table lucius.rows".
func objects() []string {
	made := map[string]bool{}
	for _, m := range migrations() {
		for _, match := range named.FindAllStringSubmatch(m.up, -1) {
			if object := strings.ToLower(match[2]) + " lucius." + match[3]; match[1] == "CREATE" {
				made[object] = true
			} else {
				delete(made, object)
			}
		}
	}
	return slices.Sorted(maps.Keys(made))
}

// present are the objects of the schema in the notation of objects, without the indexes of
// constraints. An index that was not built to its end does not count.
const present = `SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE 'index' END || ' lucius.' || c.relname AS object
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_index i ON i.indexrelid = c.oid
		WHERE n.nspname = 'lucius' AND (c.relkind IN ('r', 'v') OR c.relkind = 'i' AND i.indisvalid
			AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid))
	UNION SELECT 'function lucius.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'lucius'`

// checkObjects refuses a schema from which an object was removed. It cannot tell which objects a
// newer schema has.
func checkObjects(ctx context.Context, db querier, version int) error {
	if version > len(migrations()) {
		return nil
	}
	var missing []string
	err := db.QueryRow(ctx, "SELECT array_agg(w ORDER BY w) FROM unnest($1::text[]) w WHERE w NOT IN ("+present+")",
		objects()).Scan(&missing)
	if err != nil {
		return fmt.Errorf("read the objects of the schema: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: its schema has its version, but lacks %s: create it with the statements that "+
			"lucius postgres migrate --print --all shows, as the owner of the schema", ErrUnusable, strings.Join(missing, ", "))
	}
	return nil
}

// checkWrites refuses a server that accepts no writes, unless use is to read.
func checkWrites(ctx context.Context, db querier, use use) error {
	var readOnly string
	if err := db.QueryRow(ctx, "SELECT current_setting('transaction_read_only')").Scan(&readOnly); err != nil {
		return hideURL(err)
	}
	if readOnly == "on" && use != toRead {
		return errReadOnly
	}
	return nil
}

// Writable returns why the server would refuse writes: it is a standby, the role lacks rights,
// or this program does not work on the schema. It returns nil if PostgreSQL does not answer,
// because reads report that.
func (s *Store) Writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := checkWrites(ctx, s.pool, s.use)
	if err == nil {
		err = checkRights(ctx, s.pool, s.use)
	}
	if err == nil {
		_, err = compare(ctx, s.pool)
	}
	if errors.Is(err, ErrUnusable) {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	return nil
}

// denied reports whether the role lacks a right.
func denied(err error) bool { return hasCode(err, codeDenied) }

// hasCode reports whether the server answered with the code.
func hasCode(err error, code string) bool {
	answer, answered := errors.AsType[*pgconn.PgError](err)
	return answered && answer.Code == code
}
