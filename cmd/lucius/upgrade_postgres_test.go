//go:build integration && !race

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
)

const migrations = "../../pkg/tablestore/pgstore/migrations"

// newestMigration returns the number of the newest migration.
func newestMigration(t *testing.T) (newest int) {
	t.Helper()
	files, err := filepath.Glob(migrations + "/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("migrations: %v, %v", files, err)
	}
	number, _, _ := strings.Cut(filepath.Base(files[len(files)-1]), "_")
	if newest, err = strconv.Atoi(number); err != nil {
		t.Fatal(err)
	}
	return newest
}

// buildNext builds the program as a next release may be, with one migration more. The migration
// serves the programs of that schema version and later.
func buildNext(t *testing.T, serves int) (binary string) {
	t.Helper()
	dir, name := t.TempDir(), fmt.Sprintf("%04d_next", newestMigration(t)+1)
	folder, err := filepath.Abs(migrations)
	if err != nil {
		t.Fatal(err)
	}
	replaced := map[string]string{}
	for suffix, text := range map[string]string{
		".sql": fmt.Sprintf("-- serves: %d\nALTER TABLE lucius.rows ADD COLUMN next integer;\n"+
			"CREATE FUNCTION lucius.next() RETURNS integer LANGUAGE sql AS 'SELECT 1';\n", serves),
		".down.sql": "DROP FUNCTION lucius.next();\nALTER TABLE lucius.rows DROP COLUMN next;\n",
	} {
		file := filepath.Join(dir, name+suffix)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(folder, name+suffix)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "lucius")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the next release: %v\n%s", err, out)
	}
	return binary
}

// TestUpgrade_OfASchemaUnderLoad replaces the servers of one release by those of the next, one
// after the other and under load. The migration comes first, so servers of both releases work
// on the new schema. Every accepted command has a job that ended well.
func TestUpgrade_OfASchemaUnderLoad(t *testing.T) {
	t.Parallel()
	newest := newestMigration(t)
	contracting, expanding := buildNext(t, newest+1), buildNext(t, newest) // Before there is load.
	server := onPostgres(t)
	database := server.URL.String()
	next := func(binary string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND="+config.BackendPostgres, "LUCIUS_POSTGRES_URL="+database)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	flags := []string{"--storage-backend", config.BackendPostgres, "--postgres-url", database}
	s := newSite(t)
	old := []*process{s.start(flags...), s.start(flags...)}
	l := startLoad(s, 50*time.Millisecond)
	l.more()

	if out, err := next(contracting, "postgres", "migrate", "--online"); err == nil || !strings.Contains(out, "stop them first") {
		t.Errorf("migrate to a schema on which the running servers do not work: %v: %s", err, out)
	}
	if out, err := next(expanding, "postgres", "migrate"); err == nil || !strings.Contains(out, "--online") {
		t.Errorf("migrate under servers without --online: %v: %s", err, out)
	}
	out, err := next(expanding, "postgres", "migrate", "--online")
	if err != nil {
		t.Fatalf("migrate --online: %v: %s", err, out)
	}
	expectSays(t, "migrate", out, fmt.Sprintf("from version %d to %d", newest, newest+1))
	s.expectReady() // An old server, on the new schema.
	l.more()
	var replicas []*process
	for _, p := range old {
		replica, serves := s.launch(exec.CommandContext(t.Context(), expanding, s.arguments(flags)...))
		if !serves {
			t.Fatalf("the server of the next release did not come up: %s", replica.ending())
		}
		replicas = append(replicas, replica)
		l.more()
		p.terminate()
		l.more()
	}

	jobs := l.drain()
	for _, id := range jobs {
		auditJob(t, s.client, id)
	}
	if found := listJobs(t, s.client, api.ListJobsParams{}); len(found) != len(jobs) || len(jobs) == 0 {
		t.Errorf("%d commands were accepted, and there are %d jobs", len(jobs), len(found))
	}
	for _, replica := range replicas {
		replica.terminate()
	}
	if out, err := next(expanding, "audit"); err != nil {
		t.Errorf("lucius audit: %v\n%s", err, out)
	}
	if out, err := next(expanding, "postgres", "migrate", "--down"); err != nil {
		t.Errorf("migrate --down: %v: %s", err, out)
	}
	runPlain(t, database, "postgres", "check")
	t.Logf("%d commands accepted", len(jobs))
}
