//go:build nodrivers

package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A binary that is built with the tag nodrivers has the stores in memory and in a local folder,
// and the pull queue; drivers.go has what it leaves out.

func (p *program) driverCommands() []*cobra.Command { return nil }

// checkDrivers returns an error for settings whose driver this build leaves out.
func checkDrivers(cfg *config.Config) error {
	var setting string
	switch {
	case cfg.Shared():
		setting = "LUCIUS_STORAGE_BACKEND is " + cfg.StorageBackend
	case cfg.Bus == config.BusServiceBus:
		setting = "LUCIUS_BUS is " + cfg.Bus
	default:
		return nil
	}
	return fmt.Errorf("%s, but this program was built with the tag nodrivers, without PostgreSQL, "+
		"Azure Table Storage and Service Bus: use a program that was built without the tag", setting)
}

func openRemote(_ context.Context, cfg *config.Config, _ *slog.Logger, _ *programMetrics) (tablestore.Store, error) {
	return nil, checkDrivers(cfg)
}

func (h *host) openDrivers(context.Context, *server.Config) error { return nil }
