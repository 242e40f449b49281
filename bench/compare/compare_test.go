package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/lucius-project/lucius/internal/postgres"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brief are arguments for a comparison that is short, not exact.
func brief(dir string) []string {
	return []string{"-rounds", "1", "-duration", "1s", "-warm-up", "0s", "-in-flight", "8", "-dir", dir}
}

// ownPostgres starts a PostgreSQL from npm for the test.
func ownPostgres(t *testing.T) *postgres.Server {
	t.Helper()
	// The user that PostgreSQL runs as cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", "compare-test-") //nolint:usetesting // The user of PostgreSQL cannot enter t.TempDir.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p, err := postgres.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// checkTable checks that a table has a figure in each cell. CPU is not measured if the
// program did not start PostgreSQL, or if no job ended in the short time.
func checkTable(t *testing.T, table string, installed bool) {
	t.Helper()
	figure := regexp.MustCompile(`^[0-9.]+ \([0-9.]+–[0-9.]+\)$`)
	for _, row := range rows {
		_, rest, found := strings.Cut(table, "\n| "+row.title+" | ")
		line, _, _ := strings.Cut(rest, " |\n")
		cells := strings.Split(line, " | ")
		if !found || len(cells) != len(contenders) {
			t.Fatalf("the row %q has not a cell for each of %d systems:\n%s", row.title, len(contenders), table)
		}
		for i, cell := range cells {
			cpu := strings.Contains(row.title, "CPU")
			measured, may, must := figure.MatchString(cell), !cpu || !installed || !contenders[i].onPostgres, !cpu
			if measured && !may || !measured && (must || cell != "not measured") {
				t.Errorf("%s of %s: %q", row.title, contenders[i].name, cell)
			}
		}
	}
}

// checkEmpty checks that nothing is left in the folder.
func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestComparison(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "compare-test-") //nolint:usetesting // The user of PostgreSQL cannot enter t.TempDir.
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var out strings.Builder
	if err := run(t.Context(), brief(dir), "", &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	checkTable(t, out.String(), false)
	checkEmpty(t, dir)
}

func TestComparisonOnAnInstalledPostgreSQL(t *testing.T) {
	t.Parallel()
	p, dir := ownPostgres(t), t.TempDir()
	var out strings.Builder
	if err := run(t.Context(), brief(dir), p.URL.String(), &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	checkTable(t, out.String(), true)
	checkEmpty(t, dir)

	connection, err := pgx.Connect(t.Context(), p.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(context.WithoutCancel(t.Context())) }()
	var left int
	err = connection.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname LIKE 'lucius%'").Scan(&left)
	if err != nil || left > 0 {
		t.Errorf("%d databases are left behind, error %v", left, err)
	}

	unsafe := *p.URL
	unsafe.RawQuery += "&options=-c%20synchronous_commit%3Doff"
	_, err = postgres.Open(t.Context(), dir, unsafe.String())
	if err == nil || !strings.Contains(err.Error(), "synchronous_commit is off, it must be on") {
		t.Errorf("PostgreSQL without synchronous commits: %v", err)
	}
}

func TestCommitsThatSubmitCommands(t *testing.T) {
	t.Parallel()
	p, dir := ownPostgres(t), t.TempDir()
	var out strings.Builder
	if err := run(t.Context(), append(brief(dir), "-submits"), p.URL.String(), &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, transaction := range transactions {
		if !regexp.MustCompile(`\n\| ` + transaction.name + ` \| [0-9]+ \([0-9]+–[0-9]+\) \|\n`).MatchString(out.String()) {
			t.Errorf("no figure for %q:\n%s", transaction.name, out.String())
		}
	}
	checkEmpty(t, dir)
}

// interrupter is a program's progress that interrupts it when the first system starts.
type interrupter struct {
	io.Writer
	interrupt func()
}

func (i interrupter) Write(text []byte) (int, error) {
	if strings.HasPrefix(string(text), "round 1 of 1: Lucius") {
		i.interrupt()
	}
	return i.Writer.Write(text)
}

func TestInterruptLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p, dir := ownPostgres(t), t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	err := run(ctx, brief(dir), p.URL.String(), io.Discard, interrupter{t.Output(), interrupt})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want %v", err, context.Canceled)
	}
	checkEmpty(t, dir)
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-rounds", "0"},
		{"-duration", "0s"},
		{"-warm-up", "-1s"},
		{"-in-flight", "0"},
		{"more"},
	} {
		if err := run(t.Context(), args, "", io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%v: %v", args, err)
		}
	}
	for url, want := range map[string]string{
		"postgres://192.0.2.1/postgres": "192.0.2.1 is not a loopback address",
		"host=127.0.0.1":                "the URL of PostgreSQL must be one like",
	} {
		if _, err := postgres.Open(t.Context(), t.TempDir(), url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestSummaryIsMedianAndRange(t *testing.T) {
	t.Parallel()
	if got, want := summary("%.1f", []float64{5, 1, 2}), "2.0 (1.0–5.0)"; got != want {
		t.Errorf("of three: %s, want %s", got, want)
	}
	if got, want := summary("%.0f", []float64{4, 1, 2, 10}), "3 (1–10)"; got != want {
		t.Errorf("of four: %s, want %s", got, want)
	}
}

func TestPercentileIsASample(t *testing.T) {
	t.Parallel()
	var samples []time.Duration
	for n := 200; n > 0; n-- {
		samples = append(samples, time.Duration(n)*time.Millisecond)
	}
	if p50, p99 := percentile(samples, 50), percentile(samples, 99); p50 != 100 || p99 != 198 {
		t.Errorf("of 1 to 200 ms: p50 %v, p99 %v", p50, p99)
	}
}

func TestCPUTimesOfDescendantsAreSummed(t *testing.T) {
	t.Parallel()
	children := map[int][]processTime{}
	for _, stat := range []string{
		"11 (a b) c) S 10 1 1 0 -1 0 0 0 0 0 100 50 25 25 20 0 1 0 0",
		"12 (worker) S 11 1 1 0 -1 0 0 0 0 0 100 0 0 0 20 0 1 0 0",
		"13 (another) S 1 1 1 0 -1 0 0 0 0 0 900 0 0 0 20 0 1 0 0",
	} {
		process, err := parseStat([]byte(stat))
		if err != nil {
			t.Fatal(err)
		}
		children[process.parent] = append(children[process.parent], process)
	}
	if got := sum(processTime{pid: 10, used: time.Second}, children); got != 4*time.Second {
		t.Errorf("the sum is %s, want 4s", got)
	}
	for _, stat := range []string{"", "11 (a) S 10", "x (a) S 10 1 1 0 -1 0 0 0 0 0 100 50 25 25 20"} {
		if _, err := parseStat([]byte(stat)); !errors.Is(err, errStat) {
			t.Errorf("%q: %v", stat, err)
		}
	}
}
