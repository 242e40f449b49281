package protocol

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/lucius-project/lucius/pkg/reload"
)

// WatcherConfig is what the watcher of a folder is made of.
type WatcherConfig struct {
	// Dir is the folder of the protocol files. Required.
	Dir string
	// Holder holds the registry in use, which came from that folder. Required.
	Holder *Holder
	// Interval is the time between two looks at the folder. Optional. Defaults to
	// [reload.DefaultInterval].
	Interval time.Duration
	// Reload asks for a reload at once with each value, such as SIGHUP. Optional.
	Reload <-chan os.Signal
	// Logger is told of each reload and once of each failure. Optional.
	Logger *slog.Logger
	// Observe is told of each attempt to reload. Optional.
	Observe func(reload.Outcome)
}

// NewWatcher returns what takes up changed protocol files: all of them as one
// set, or none. The errors of its looks are those of [Load]. The error names the
// field that makes no sense.
func NewWatcher(cfg WatcherConfig) (*reload.Watcher, error) {
	if cfg.Dir == "" || cfg.Holder == nil {
		return nil, errors.New("protocol: Dir and Holder are required")
	}
	return reload.New(reload.Config{
		Name: "protocol files", Look: cfg.look, InUse: func() string { return cfg.Holder.Current().Digest() },
		Interval: cfg.Interval, Signal: cfg.Reload, Logger: cfg.Logger, Observe: cfg.Observe,
	})
}

// look reads the folder. What is compared with the look before, and what is
// loaded, are the same bytes.
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
