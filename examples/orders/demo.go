package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres"
)

// demo runs the application and a server of Lucius on a PostgreSQL, and kills them.
type demo struct {
	self, lucius string // the programs
	protocols    string // the folder of the protocol files
	postgres     string // the URL of a PostgreSQL on this machine; empty starts one
	kills        int
	out          io.Writer

	database    string
	application *exec.Cmd
	server      *exec.Cmd
}

// betweenKills is how many orders are taken from one kill to the next.
const betweenKills = 100

// run runs the demo in a separate database, and returns an error unless each order has its
// job, and there is no other job.
func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "orders-") // Another user than root has to enter it.
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.postgres == "" {
		fmt.Fprintln(d.out, "starting a PostgreSQL")
	}
	on, err := postgres.Open(ctx, dir, d.postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.Stop()) }()
	database, drop, err := on.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop(context.WithoutCancel(ctx))) }()
	d.database = database
	if err := d.command(ctx, d.lucius, "postgres", "migrate").Run(); err != nil {
		return fmt.Errorf("lucius postgres migrate: %w", err)
	}
	defer func() { kill(d.application); kill(d.server) }()
	if err := errors.Join(d.serve(ctx), d.sell(ctx)); err != nil {
		return err
	}
	if err := d.killAll(ctx); err != nil {
		return err
	}
	kill(d.application)
	return report(ctx, database, d.out)
}

// command returns a command on the database.
func (d *demo) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, program, args...) //nolint:gosec // one of the demo's programs
	command.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND=postgres", "LUCIUS_POSTGRES_URL="+d.database)
	command.Stderr = os.Stderr
	return command
}

// serve starts the server.
func (d *demo) serve(ctx context.Context) error {
	server := d.command(ctx, d.lucius, "serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", d.protocols, "--log-level", "error")
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		return fmt.Errorf("start a server: %w", err)
	}
	d.server = server
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("lucius serve: %q, %w", line, err)
	}
	return nil
}

// sell starts the application.
func (d *demo) sell(ctx context.Context) error {
	application := d.command(ctx, d.self, "sell", d.database)
	if err := application.Start(); err != nil {
		return fmt.Errorf("start the application: %w", err)
	}
	d.application = application
	return nil
}

// killAll repeatedly kills the application or the server in the middle of their work.
func (d *demo) killAll(ctx context.Context) error {
	connection, err := pgx.Connect(ctx, d.database)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }() // Nothing is lost with it.
	for n := range d.kills {
		orders, err := d.ordered(ctx, connection, (n+1)*betweenKills)
		if err != nil {
			return err
		}
		victim, start, name := d.application, d.sell, "the application"
		if rand.IntN(2) == 0 { //nolint:gosec // not a secret
			victim, start, name = d.server, d.serve, "the server"
		}
		kill(victim)
		fmt.Fprintf(d.out, "%6d orders: killed %s\n", orders, name)
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ordered waits until there are that many orders, and returns how many there are.
func (d *demo) ordered(ctx context.Context, connection *pgx.Conn, least int) (orders int, err error) {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(look) {
		exists, err := count(ctx, connection, "FROM pg_tables WHERE tablename = 'orders'")
		if err == nil && exists > 0 {
			orders, err = count(ctx, connection, "FROM orders")
		}
		if err != nil || orders >= least {
			return orders, err
		}
	}
	return orders, fmt.Errorf("the application takes no orders: there are %d", orders)
}

// kill kills a process, if it was started, and waits until it has ended.
func kill(process *exec.Cmd) {
	if process == nil || process.ProcessState != nil {
		return
	}
	_ = process.Process.Kill() // It may have ended.
	_ = process.Wait()         // It was killed.
}
