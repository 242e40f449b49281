package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
)

// serve returns lucius serve, which runs the server until it is told to stop.
func (p *program) serve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", GroupID: cli.GroupServer, Short: "Run the server", Args: cli.Takes(0, 0),
		Long:    "Runs the server. Each flag has an environment variable, named after it; flags take precedence.",
		Example: "  lucius serve\n  lucius serve --listen-addr 127.0.0.1:9090 --data-dir /var/lib/lucius",
	}
	config.Flags(cmd.Flags())
	printing := cmd.Flags().Bool("print-config", false, "print the configuration and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := config.Load(cmd.Flags(), p.Environment)
		if err != nil {
			return err
		}
		if *printing {
			return loaded.Print(p.Stdout)
		}
		if err := loaded.CheckServe(); err != nil {
			return err
		}
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		p.hangups = hangups
		return p.runServer(cmd.Context(), &loaded.Config, func(baseURL string) error {
			if _, err := fmt.Fprintf(p.Stdout, "lucius serves %s\n", baseURL); err != nil {
				return fmt.Errorf("print the server's URL: %w", err)
			}
			return nil
		})
	}
	return cmd
}

// runServer runs one server until the context ends: it opens the parts from the store
// outwards, serves, and closes them in reverse. It calls ready with the base URL once
// the server accepts connections.
func (p *program) runServer(ctx context.Context, cfg *config.Config, ready func(baseURL string) error) (err error) {
	if err := checkDrivers(cfg); err != nil {
		return err
	}
	log, err := newLogger(p.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	serves := false
	defer func() {
		if serves {
			log.InfoContext(ctx, "stopped")
		}
	}()
	tuneCollector()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.ListenAddr)
	if err != nil {
		return fmt.Errorf("LUCIUS_LISTEN_ADDR %s: %w", cfg.ListenAddr, err)
	}
	defer func() { _ = listener.Close() }() // The HTTP server has closed it if it served.
	registry, err := commands.LoadProtocols(cfg.ProtocolsDir)
	if err != nil {
		return protocolsError(cfg.ProtocolsDir, err)
	}
	access, err := openAccess(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.close()) }()
	m := newMetrics()
	store, err := openStore(ctx, cfg, log, m)
	if err != nil {
		return err
	}
	h := newHost(cfg, log, m, store, access, commands.NewProtocolHolder(registry))
	defer func() {
		if closing := h.store.Close(); closing != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closing))
		}
	}()
	defer h.close()
	_, stopProfiles, err := serveProfiles(ctx, cfg.DebugAddr)
	if err != nil {
		return err
	}
	defer stopProfiles()
	if err := h.open(ctx); err != nil {
		return err
	}
	scheme := "http"
	if access.certificates != nil {
		scheme = "https"
	}
	if err := ready(scheme + "://" + listener.Addr().String()); err != nil {
		return err
	}
	serves = true
	log.InfoContext(ctx, "serving", "url", scheme+"://"+listener.Addr().String(), "version", moduleVersion(),
		"store", cfg.StorageBackend, "bus", cfg.Bus, "reply_topics", cfg.ServiceBus.Replies, "roles", cfg.Roles, "traces", h.tracer != nil)
	return h.run(ctx, listener, p.hangups)
}

// protocolsError returns the error of a start, by that of [commands.LoadProtocols].
func protocolsError(dir string, err error) error {
	if missing(err) {
		err = fmt.Errorf("%w: name the folder of your protocols, or start with lucius init", err)
	}
	return fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", dir, err)
}
