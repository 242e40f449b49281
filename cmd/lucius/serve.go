package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/lucius-project/lucius/internal/config"
)

// serve runs the server until it is told to stop.
func (p *program) serve(ctx context.Context, args []string) error {
	loaded, flags, err := config.Load(args, p.lookup, p.stderr)
	if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("serve takes no argument, got %q", flags.Arg(0))
	}
	if printing := flags.Lookup("print-config"); printing != nil && printing.Value.String() == "true" {
		return loaded.Print(p.stdout)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	p.hangups = hangups
	return p.runServer(ctx, &loaded.Config, nil)
}

// runServer runs one server. ready, where it is not nil, is told the base URL
// once the server answers.
func (p *program) runServer(ctx context.Context, cfg *config.Config, ready func(baseURL string)) (err error) {
	log, err := newLogger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.ListenAddr)
	if err != nil {
		return fmt.Errorf("LUCIUS_LISTEN_ADDR %s: %w", cfg.ListenAddr, err)
	}
	defer func() { _ = listener.Close() }() // The server has closed it, where it came to serve.
	spareCollector()
	s, err := assemble(ctx, cfg, log, p.hangups)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	baseURL := s.admission.scheme() + "://" + listener.Addr().String()
	if ready != nil {
		ready(baseURL)
	} else if _, err := fmt.Fprintf(p.stdout, "lucius serves %s\n", baseURL); err != nil {
		return fmt.Errorf("say where the server is: %w", err)
	}
	return s.serve(ctx, listener)
}

// version prints what the binary was built from.
func (p *program) version(context.Context, []string) error {
	version := "development build"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	_, err := fmt.Fprintf(p.stdout, "lucius %s\n", version)
	return err
}
