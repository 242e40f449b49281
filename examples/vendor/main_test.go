//go:build integration && !race

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main(m)) }

// TestDemo_KeepsTheLimit does a few jobs on three servers. How much of the quota is used, and how
// many calls come late enough to be refused, depends on the machine: the demo itself checks that.
func TestDemo_KeepsTheLimit(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "lucius")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/lucius")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out strings.Builder
	window := waittest.Scale(10 * time.Second) // Tokens live for a part of it, and a slow machine needs longer to use them.
	d := demo{
		lucius: program, postgres: postgrestest.Server.URL.String(), jobs: 220, quota: 100, window: window,
		call: time.Millisecond, servers: 3, patience: waittest.Bound(t), ways: []string{limited}, out: &out,
	}
	results, err := d.run(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	done := &results[0]
	if err := d.kept(done); err != nil || done.succeeded != d.jobs {
		t.Errorf("%d jobs succeeded, %v", done.succeeded, err)
	}
	if most := fullest(done.taken, d.window); most > d.quota {
		t.Errorf("the vendor took %d calls in a window", most)
	}
	_ = d.report(results) // A busy machine may use less of the quota.
	for _, want := range []string{"220 jobs, the vendor takes 100 calls in ", " 100/", " reported"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

// TestDemo_RefusesAnUnknownRun names the runs that there are.
func TestDemo_RefusesAnUnknownRun(t *testing.T) {
	t.Parallel()
	d := demo{postgres: postgrestest.Server.URL.String(), jobs: 2, quota: 1, ways: []string{"faster"}, out: t.Output()}
	if _, err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), `unknown run "faster": the runs are limit, throttled, neither`) {
		t.Errorf("answered %v", err)
	}
}
