package protocol

import (
	"errors"
	"log/slog"
	"os"

	"github.com/lucius-project/lucius/pkg/reload"
)

// WatcherConfig configures the watcher of a folder.
type WatcherConfig struct {
	// Dir is the folder of the protocol files. Required.
	Dir string
	// Holder holds the registry in use, which came from that folder. Required.
	Holder *Holder
	// Logger logs each reload, and each failure once. Optional.
	Logger *slog.Logger
	// Observe is called for each attempt to reload. Optional.
	Observe func(reload.Outcome)
}

// NewWatcher returns a watcher that loads changed protocol files: all as one set, or
// none. The errors of its looks are those of [Load]. The error names the missing
// field.
func NewWatcher(cfg WatcherConfig) (*reload.Watcher, error) {
	if cfg.Dir == "" || cfg.Holder == nil {
		return nil, errors.New("protocol: Dir and Holder are required")
	}
	return reload.New(reload.Config{
		Name: "protocol files", Look: cfg.look, InUse: func() string { return cfg.Holder.Current().Digest() },
		Logger: cfg.Logger, Observe: cfg.Observe,
	})
}

// look reads the folder. The watcher compares and loads the same bytes.
func (c *WatcherConfig) look() (string, reload.Load) {
	files := read(os.DirFS(c.Dir), c.Dir)
	return files.digest(), func() ([]any, error) {
		registry, err := files.registry()
		if err != nil {
			return nil, err
		}
		changed, removed := registry.since(c.Holder.Replace(registry))
		return []any{"dir", c.Dir, "changed", changed, "removed", removed}, nil
	}
}
