//go:build integration && !race

package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
)

// composed are the services of deploy/compose/postgres.yaml.
type composed struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
	}
}

// TestDeploy_ComposeOnPostgreSQL does what deploy/compose/postgres.yaml has Docker do, on a
// PostgreSQL of this machine: it creates the passwords and the roles, migrates, and serves
// with two replicas, with the commands and variables of the services.
func TestDeploy_ComposeOnPostgreSQL(t *testing.T) {
	t.Parallel()
	server, dir := postgrestest.Start(t), newPasswords(t)
	placed := strings.NewReplacer("/run/secrets", filepath.Join(dir, "secrets"), "/etc/lucius/auth", dir, "@database/", "@"+server.URL.Host+"/")
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../../deploy/compose", name))
		if err != nil {
			t.Fatal(err)
		}
		return placed.Replace(string(text))
	}
	at := *server.URL
	at.Path = "/lucius"
	executeOn(t, server.URL, "CREATE DATABASE lucius")
	executeOn(t, &at, read("roles.sql"))

	var file composed
	if err := yaml.Unmarshal([]byte(read("postgres.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	command := func(service string, args ...string) *exec.Cmd {
		t.Helper()
		binary, err := buildPlain()
		if variables := file.Services[service].Environment; err != nil || len(variables) == 0 {
			t.Fatalf("%s has the variables %v, %v", service, variables, err)
		}
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...) // A replica ends in the cleanup.
		cmd.Env = append(os.Environ(), entries(file.Services[service].Environment)...)
		return cmd
	}
	for range 2 { // Docker runs it at each start.
		out, err := command("migrate", file.Services["migrate"].Command...).CombinedOutput()
		if err != nil {
			t.Fatalf("migrate: %v: %s", err, out)
		}
		expectSays(t, "migrate", string(out), "the role lucius_server has the rights that serve needs")
	}
	executeOn(t, &at, `DO $$ BEGIN
		ASSERT NOT (SELECT rolsuper FROM pg_roles WHERE rolname = 'lucius_owner'), 'the owner is a superuser';
		ASSERT NOT has_schema_privilege('lucius_server', 'lucius', 'CREATE'), 'the server may create tables';
		ASSERT NOT has_table_privilege('lucius_server', 'lucius.inbox_rights', 'INSERT, UPDATE, DELETE'), 'the server may let others submit';
	END $$`)
	out, err := command("migrate", "postgres", "migrate", "--grant", `no"body`).CombinedOutput()
	if err == nil {
		t.Error("it granted rights to a role that does not exist")
	}
	expectSays(t, "migrate", string(out), `role "no"body" does not exist`)

	token := addCaller(t, filepath.Join(dir, "tokens.yaml"), "me", "submit:*", "read:*")
	replica := func(service string) *caller {
		t.Helper()
		if out, err := command(service, "postgres", "check").CombinedOutput(); err != nil {
			t.Errorf("check: %v: %s", err, out)
		}
		s := newSite(t)
		p, serves := s.launch(command(service, "serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols"))
		if !serves {
			t.Fatalf("%s did not come up: %s", service, p.ending())
		}
		t.Cleanup(p.terminate)
		return &caller{url: siteURL, token: token, http: s.http}
	}
	first, second := replica("lucius-1"), replica("lucius-2")
	ingest := strings.Replace(ingestFor("tenant_a", "k"), `"payload":{}`, `"payload":{"language":"en"}`, 1)
	job := first.want(t, http.StatusAccepted, "POST", "/v1/commands", ingest).field(t, "jobId")
	second.want(t, http.StatusOK, "GET", "/v1/jobs/"+job, "")
}

// newPasswords runs deploy/compose/passwords.sh. PostgreSQL runs as another user, as in a
// container, and may enter the folder.
func newPasswords(t *testing.T) (dir string) {
	t.Helper()
	script, err := filepath.Abs("../../deploy/compose/passwords.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir, err = os.MkdirTemp("", "compose-") //nolint:usetesting // Only its owner may enter a folder of testing.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // The system deletes what is left of its temporary files.
	secrets := filepath.Join(dir, "secrets")
	for again := range 2 {
		cmd := exec.CommandContext(t.Context(), "sh", script)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); (err == nil) != (again == 0) {
			t.Fatalf("run %d: %v: %s", again, err, out)
		}
	}
	if info, err := os.Stat(secrets); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the passwords: %v, %v", info, err)
	}
	for _, open := range []string{dir, secrets} {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// executeOn executes statements in a database.
func executeOn(t *testing.T, database *url.URL, sql string) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), database.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	if _, err := connection.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
