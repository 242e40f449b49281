package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/commands"
)

// In an empty folder, two commands show a job that runs to its end. Nothing is edited.
func TestInitAndDev_RunAJobToItsEnd(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := exec.CommandContext(t.Context(), binary, "init")
	write.Dir = dir
	if out, err := write.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "lucius dev   # runs a job; README.md says how to run your own worker\n") {
		t.Fatalf("init: %v, %s", err, out)
	}
	dev := startDev(t, binary, dir)
	url := strings.Fields(dev.until("lucius serves "))[2]
	_, job, _ := strings.Cut(dev.until("  next  "), "lucius jobs get ")
	dev.until("  stop       Ctrl-C\n")
	if lines := strings.Count(dev.said.String(), "\n"); lines != 4 {
		t.Errorf("it prints %d lines:\n%s", lines, &dev.said)
	}
	terminalOf(t, url, "").want(0, "SUCCEEDED", "jobs", "get", strings.TrimSpace(job))
	dev.end()
}

// heedHangups lets the processes that the test starts receive SIGHUP. A process inherits that a signal
// is ignored, as nohup ignores this one, but not a handler.
func heedHangups(t *testing.T) {
	t.Helper()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
}

// Without a reader of its output, or without its terminal, it ends and deletes the folder of
// the example.
func TestDev_LeavesNoFilesBehind(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	heedHangups(t)
	for name, leave := range map[string]func(*exec.Cmd, io.Closer) error{
		"the output is closed":   func(_ *exec.Cmd, out io.Closer) error { return out.Close() },
		"the terminal is closed": func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temporary := t.TempDir()
			cmd := exec.CommandContext(t.Context(), binary, "dev", "--listen-addr", "127.0.0.1:0")
			cmd.Dir, cmd.Stderr, cmd.Env = t.TempDir(), os.Stderr, append(os.Environ(), "TMPDIR="+temporary)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if files, _ := os.ReadDir(temporary); err != nil || len(files) != 1 {
				t.Errorf("it says %q, %v, and has the files %v", line, err, files)
			}
			if err := leave(cmd, out); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("it does not end well: %v", err)
			}
			if files, err := os.ReadDir(temporary); err != nil || len(files) != 0 {
				t.Errorf("it left %v, %v", files, err)
			}
		})
	}
}

// devRun is a running lucius dev.
type devRun struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Reader
	said  strings.Builder
}

func startDev(t *testing.T, binary, dir string, flags ...string) *devRun {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"dev"}, flags...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &devRun{t: t, cmd: cmd, lines: bufio.NewReader(out)}
}

// until reads up to a line that has these parts, and returns it.
func (d *devRun) until(parts ...string) string {
	d.t.Helper()
	for {
		line, err := d.lines.ReadString('\n')
		d.said.WriteString(line)
		if err != nil {
			_ = d.cmd.Wait()
			d.t.Fatalf("no line with %q: %v\n%s", parts, err, d.said.String())
		}
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return line
		}
	}
}

// end stops it as Ctrl-C does.
func (d *devRun) end() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		d.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, d.lines)
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("it does not end well: %v", err)
	}
}

// Without protocol files there is an example; with the default port taken there is another
// port, which the next command needs; a command that is refused does not end the server.
func TestDev_ShowsAnExampleAndTakesAFreePort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() }) // It has no connections.
	dir, empty := t.TempDir(), t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"tenant_id":"a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	dated := t.TempDir()
	for name, more := range map[string]string{"a.json": `,"delay_seconds":3600`, "b.json": "", "c.json": `,"bad":1`} {
		command := strings.Replace(ingestFor("tenant_a", name), `{}}`, `{"language":"en"},"order_key":"k"`+more+`}`, 1)
		if err := os.WriteFile(filepath.Join(dated, name), []byte(command), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const stop = "  stop       Ctrl-C\n"
	for name, test := range map[string]struct {
		options devOptions
		anyPort bool
		says    []string
		ends    string // the end of the output after which the server is stopped
		err     error
	}{
		"an example": {
			options: devOptions{listen: taken.Addr().String(), protocols: empty, workers: true}, anyPort: true,
			says: []string{
				empty + " has no protocol files", taken.Addr().String() + " is taken by another program", "  protocols  summarize_v1: extract, ",
				"  next       export LUCIUS_URL=http://127.0.0.1:", "; lucius jobs get ",
			}, ends: stop,
		},
		"its course": {
			options: devOptions{listen: "127.0.0.1:0", protocols: empty, workers: true, verbose: true},
			says:    []string{stop, "  console    http://127.0.0.1:", "step.in_progress extract", "job.succeeded"}, ends: "final step succeeded\n",
		},
		"own workers": {
			options: devOptions{listen: "127.0.0.1:0", protocols: empty},
			says:    []string{"in memory, for your own workers", "; lucius why "}, ends: stop,
		},
		"a refused command": {
			options: devOptions{listen: "127.0.0.1:0", protocols: "../../protocols", commands: dir, workers: true},
			says:    []string{"  bad.json: ", "request_type", "; lucius submit FILE --wait\n"}, ends: stop,
		},
		"a command with a date, and one behind it": {
			options: devOptions{listen: "127.0.0.1:0", protocols: "../../protocols", commands: dated, workers: true},
			says:    []string{"  c.json: ", "; lucius jobs get "}, ends: stop,
		},
		"no command": {
			options: devOptions{listen: "127.0.0.1:0", protocols: "../../protocols", commands: empty},
			says:    []string{"; lucius submit FILE --wait\n"}, ends: stop,
		},
		"a port that was asked for": {
			options: devOptions{listen: taken.Addr().String(), protocols: "../../protocols"}, err: syscall.EADDRINUSE,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			out := &output{}
			p := &program{Env: cli.Env{Stdout: writerFunc(func(text []byte) (int, error) {
				n, err := out.Write(text)
				if test.ends != "" && strings.HasSuffix(out.String(), test.ends) {
					stop()
				}
				return n, err
			}), Stderr: out, Environment: []string{"LUCIUS_CONFIG=" + filepath.Join(empty, "contexts.yaml")}}}
			if err := p.runDev(ctx, &test.options, test.anyPort); !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			for _, want := range test.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestInit_OverwritesNothing(t *testing.T) {
	t.Parallel()
	c := terminalOf(t, "", "")
	dir := filepath.Join(t.TempDir(), "pipeline")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "commands")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, force := range []string{"--force=false", "--force"} {
		c.want(cli.ExitRefused, file+" is a file, but the project has a folder of that name", "init", dir, force)
		if found, err := os.ReadDir(dir); err != nil || len(found) > 1 {
			t.Fatalf("it wrote %v, %v", found, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.want(0, filepath.Join(dir, "protocols", "summarize.yaml"), "init", dir)
	worker := filepath.Join(dir, "worker.py")
	if err := os.WriteFile(worker, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "compose.yaml", "commands/summarize.json", "protocols/summarize.yaml", "test_worker.py", ".gitignore"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	c.want(cli.ExitRefused, worker+" exists: nothing was written", "init", dir)
	if _, err := os.Stat(filepath.Join(dir, "compose.yaml")); err == nil {
		t.Error("it wrote other files")
	}
	c.want(0, "cd "+dir, "init", dir, "--force")
	if text, err := os.ReadFile(worker); err != nil || string(text) == "mine" {
		t.Errorf("with --force: %v, %s", err, text)
	}
	if _, err := commands.LoadProtocols(filepath.Join(dir, "protocols")); err != nil {
		t.Error(err)
	}
}

func TestInit_WritesAWorkerInTheLanguage(t *testing.T) {
	t.Parallel()
	c := terminalOf(t, "", "")
	common := []string{".gitignore", "README.md", "commands/summarize.json", "compose.yaml", "protocols/summarize.yaml"}
	for language, files := range map[string][]string{
		"python":     {"test_worker.py", "worker.py"},
		"go":         {"go.mod", "worker.go", "worker_test.go"},
		"typescript": {"main.ts", "package.json", "tsconfig.json", "worker.test.ts", "worker.ts"},
	} {
		dir := filepath.Join(t.TempDir(), language)
		c.want(0, "cd "+dir, "init", dir, "--lang", language)
		var found []string
		for _, pattern := range []string{"*", "*/*"} {
			paths, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				if info, err := os.Stat(path); err == nil && !info.IsDir() {
					found = append(found, filepath.ToSlash(strings.TrimPrefix(path, dir+string(filepath.Separator))))
				}
			}
		}
		slices.Sort(found)
		if want := slices.Sorted(slices.Values(append(files, common...))); !slices.Equal(found, want) {
			t.Errorf("%s: it wrote %q, want %q", language, found, want)
		}
		readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
		rest := string(readme)
		about := projects[language] // In the order in which a reader needs it.
		for _, says := range []string{about.Worker, about.Test, about.Install, about.RunTest, about.Run} {
			_, after, found := strings.Cut(rest, says)
			if err != nil || !found {
				t.Errorf("%s: the README does not say %q, or too early: %v", language, says, err)
			}
			rest = after
		}
	}
	dir := filepath.Join(t.TempDir(), "none")
	c.want(cli.ExitUsage, `--lang is "ruby", it must be python, go or typescript`, "init", dir, "--lang", "ruby")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it wrote the folder: %v", err)
	}
}

// The container of compose.yaml runs as another user than the one who wrote the folder.
func TestInit_LetsOtherUsersRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "pipeline")
	terminalOf(t, "", "").want(0, "cd "+dir, "init", dir)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[entry.IsDir()]; err == nil && info.Mode().Perm()&want != want {
			t.Errorf("%s has mode %s, want %s", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestServe_WithoutProtocolsSaysHowToBegin(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		terminalOf(t, "", "").want(cli.ExitFailed, "start with lucius init", "serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", dir)
	}
}

func TestBrowser(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		system    string
		variables map[string]string
		want      string
	}{
		{"darwin", nil, "open"}, {"windows", nil, "rundll32"}, {"linux", nil, ""},
		{"linux", map[string]string{"DISPLAY": ":0"}, "xdg-open"}, {"linux", map[string]string{"WAYLAND_DISPLAY": "w"}, "xdg-open"},
		{"linux", map[string]string{"DISPLAY": ":10", "SSH_CONNECTION": "c"}, ""},
	} {
		if got, _ := browser(test.system, func(name string) string { return test.variables[name] }); got != test.want {
			t.Errorf("%s with %v: %q, want %q", test.system, test.variables, got, test.want)
		}
	}
}
