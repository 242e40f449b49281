//go:build sdk

package guides_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/guides"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// root is the top of the repository.
const root = "../.."

// document is a document of the project with its blocks.
type document struct {
	path, text string // The path is relative to the root.
	blocks     []guides.Block
}

// documents returns all documents of the project.
func documents(t *testing.T) (found []document) {
	t.Helper()
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		blocks, err := guides.Parse(string(text))
		found = append(found, document{path: name, text: string(text), blocks: blocks})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestGuides runs each document as a reader would. With -v it says how long each block
// took that has a title, and how long a document takes from lucius init to the first job that
// succeeded.
func TestGuides(t *testing.T) {
	t.Parallel()
	programs := build(t)
	for _, d := range documents(t) {
		if !slices.ContainsFunc(d.blocks, func(b guides.Block) bool { return b.Verb == guides.Run || b.Verb == guides.Serve }) {
			continue
		}
		t.Run(d.path, func(t *testing.T) {
			t.Parallel()
			r := newReader(t, programs, guides.InAClone(d.text))
			if guides.WithPostgreSQL(d.text) {
				r.connect()
			}
			for i := range d.blocks {
				r.follow(&d.blocks[i])
				if t.Failed() {
					t.Fatalf("%s:%d", d.path, d.blocks[i].Line)
				}
			}
			select {
			case took := <-r.firstJob:
				t.Logf("%6.1fs from lucius init to the first job that succeeded", took.Seconds())
			default: // It has no such job, or not on the port of the documents without a token.
			}
		})
	}
}

// build builds the program and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "lucius"), "../../cmd/lucius")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// command is a shell function that passes the reader's address to `lucius dev`, which takes
// none from the environment.
const command = `BASH_FUNC_lucius%%=() { if [[ $1 = dev ]]; then shift; set -- dev --listen-addr "$LUCIUS_LISTEN_ADDR" "$@"; fi; command lucius "$@"; }`

// reader follows a document in a folder.
type reader struct {
	t          *testing.T
	dir, state string // The state is what the blocks leave: variables, and the folder that they are in.
	env        []string
	ports      func(string) string // replaces the ports of the document by free ones
	database   *pgx.Conn           // that of a document with PostgreSQL
	begun      time.Time           // when the last title was reached
	url        string              // that of the server on the port of the documents
	// initialized is when lucius init was run. The first job that succeeded is reported to
	// firstJob, if there is one.
	initialized time.Time
	firstJob    chan time.Duration
	last        *process
	served      []*process // blocks that were started and not stopped
}

// port matches the ports of the documents.
var port = regexp.MustCompile(`\b(8080|8443|9000)\b`)

func newReader(t *testing.T, programs string, inAClone bool) *reader {
	t.Helper()
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, begun: time.Now(), dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	free := map[string]string{"8080": freePort(t), "8443": freePort(t), "9000": freePort(t)}
	address := "127.0.0.1:" + free["8080"]
	r.url, r.firstJob = "http://"+address, make(chan time.Duration, 1)
	r.ports = func(text string) string {
		return port.ReplaceAllStringFunc(text, func(found string) string { return free[found] })
	}
	own := func(variable string) bool { return strings.HasPrefix(variable, "LUCIUS_") }
	r.env = append(slices.DeleteFunc(os.Environ(), own), command, "CLONE="+clone, "PYTHONDONTWRITEBYTECODE=1", "npm_config_prefer_offline=true",
		"PATH="+programs+string(filepath.ListSeparator)+os.Getenv("PATH"), "LUCIUS_CONFIG="+filepath.Join(filepath.Dir(r.state), "contexts.yaml"),
		"LUCIUS_LISTEN_ADDR="+address, "LUCIUS_URL="+r.url)
	if inAClone {
		r.run(&guides.Block{Verb: guides.Run, Text: "cd \"$CLONE\"; git ls-files -zco --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -xC " + r.dir + "; cd " + r.dir})
	}
	return r
}

// given are the ports that documents have.
var given sync.Map

// freePort returns a free port below the range that the system uses for connections, so
// that it is likely to stay free.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := fmt.Sprint(20000 + rand.IntN(10000))
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = listener.Close() // It has no connections.
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// follow handles the block as its comment says.
func (r *reader) follow(block *guides.Block) {
	r.t.Helper()
	switch block.Verb {
	case guides.Run:
		if r.initialized.IsZero() && strings.Contains(block.Text, "lucius init") {
			r.initialized = time.Now()
			go r.awaitFirstJob(r.initialized)
		}
		if block.Language == "sql" {
			r.query(block)
		} else {
			r.run(block)
		}
		if block.Argument != "" {
			r.t.Logf("%6.1fs %s", time.Since(r.begun).Seconds(), block.Argument)
			r.begun = time.Now()
		}
	case guides.Serve:
		r.start(block)
		r.served = append(r.served, r.last)
		if !r.last.await(func(said string) bool { return strings.Contains(said, r.ports(block.Argument)) }) {
			r.t.Errorf("it did not print %q:\n%s", block.Argument, r.last.output())
		}
	case guides.Stop:
		last := len(r.served) - 1
		r.served[last].end()
		r.served = r.served[:last]
	case guides.File:
		name := filepath.Join(r.dir, filepath.FromSlash(block.Argument))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, []byte(r.ports(block.Text)), 0o600)); err != nil {
			r.t.Error(err)
		}
	case guides.Prints:
		block.Text = r.ports(block.Text)
		printed := func(string) bool {
			return slices.ContainsFunc(append(r.served, r.last), func(p *process) bool { return block.Matches(p.output()) })
		}
		awaited := r.last
		if len(r.served) > 0 {
			awaited = r.served[len(r.served)-1]
		}
		if !awaited.await(printed) {
			r.t.Errorf("this was not printed:\n%s\nbut:\n%s", block.Text, r.last.output())
		}
	}
}

// awaitFirstJob reports how long after begun the first job succeeded. It polls until the test ends.
func (r *reader) awaitFirstJob(begun time.Time) {
	client, err := lucius.NewClient(lucius.ClientConfig{URL: r.url, RetryFor: -1}) // The server may not run yet.
	if err != nil {
		r.t.Error(err)
		return
	}
	defer client.Close()
	for r.t.Context().Err() == nil {
		for _, err := range client.List(r.t.Context(), lucius.JobFilter{State: lucius.JobStateSucceeded, PageSize: 1}) {
			if err == nil {
				r.firstJob <- time.Since(begun)
				return
			}
		}
		select {
		case <-r.t.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run runs the block to its end.
func (r *reader) run(block *guides.Block) {
	r.t.Helper()
	r.start(block)
	bound := waittest.Bound(r.t)
	select {
	case <-r.last.ended:
	case <-time.After(bound):
		r.t.Fatalf("it does not end in %s:\n%s", bound, r.last.output())
	}
	if r.last.err != nil {
		r.t.Errorf("%v:\n%s\n%s", r.last.err, block.Text, r.last.output())
	}
}

// connect starts a PostgreSQL with a database for the document.
func (r *reader) connect() {
	r.t.Helper()
	server := postgrestest.Start(r.t)
	ctx := context.WithoutCancel(r.t.Context())
	url, drop, err := server.CreateDatabase(ctx)
	if err == nil {
		r.database, err = pgx.Connect(ctx, url)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := errors.Join(r.database.Close(ctx), drop(ctx)); err != nil {
			r.t.Error(err)
		}
	})
	ports := r.ports
	r.ports = func(text string) string { return strings.ReplaceAll(ports(text), guides.Database, url) }
}

// query runs the block in the database. It prints the rows, with blanks between columns.
func (r *reader) query(block *guides.Block) {
	r.t.Helper()
	results, err := r.database.PgConn().Exec(r.t.Context(), block.Text).ReadAll()
	if err != nil {
		r.t.Errorf("%v:\n%s", err, block.Text)
	}
	r.last = &process{t: r.t, ended: make(chan struct{})}
	close(r.last.ended)
	for _, result := range results {
		for _, row := range result.Rows {
			_, _ = fmt.Fprintf(r.last, "%s\n", bytes.Join(row, []byte(" "))) // It is a buffer.
		}
	}
}

// start starts the block, which is ended with the test.
func (r *reader) start(block *guides.Block) {
	r.t.Helper()
	script := `if [[ -f "$STATE" ]]; then . "$STATE"; fi; set -euo pipefail; set -a` + "\n" + r.ports(block.Text) + "\n"
	if block.Verb == guides.Run {
		script += `set +a; { declare -px | grep -v '^declare -[a-zA-Z]*r'; printf 'cd %q\n' "$PWD"; } >"$STATE"`
	}
	p := &process{t: r.t, ended: make(chan struct{})}
	cmd := exec.CommandContext(context.WithoutCancel(r.t.Context()), "bash", "-c", script)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, append(slices.Clone(r.env), "STATE="+r.state), p, p
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = waittest.Bound(r.t)
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
	}()
	p.group = cmd.Process.Pid
	r.last = p
	r.t.Cleanup(p.end)
}

// process is a started block.
type process struct {
	t     *testing.T
	group int // the process group
	ended chan struct{}
	err   error // the error of its end

	mu   sync.Mutex
	said bytes.Buffer // its output
}

// end ends the block as Ctrl-C does.
func (p *process) end() {
	_ = syscall.Kill(-p.group, syscall.SIGINT) // It may have ended.
	bound := waittest.Bound(p.t)
	select {
	case <-p.ended:
	case <-time.After(bound):
		all, err := exec.CommandContext(context.WithoutCancel(p.t.Context()), "ps", "-eo", "pgid,pid,ppid,stat,args").Output()
		left := slices.DeleteFunc(strings.Split(string(all), "\n"), func(line string) bool {
			return !strings.HasPrefix(strings.TrimSpace(line), fmt.Sprint(p.group, " "))
		})
		_ = syscall.Kill(-p.group, syscall.SIGQUIT) // A Go program prints its goroutines.
		select {
		case <-p.ended:
		case <-time.After(waittest.Scale(5 * time.Second)):
		}
		p.t.Logf("a block did not end within %s of SIGINT, and is killed; %v\n%s\n%s", bound, err, strings.Join(left, "\n"), p.output())
		_ = syscall.Kill(-p.group, syscall.SIGKILL)
		<-p.ended
	}
}

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(text)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// await waits for the wanted output, and returns false once it can no longer appear.
func (p *process) await(wanted func(said string) bool) bool {
	for deadline := time.After(waittest.Bound(p.t)); ; {
		if wanted(p.output()) {
			return true
		}
		select {
		case <-p.ended:
			return wanted(p.output())
		case <-deadline:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
}
