package protocol

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// WatcherConfig is what a [Watcher] is made of.
type WatcherConfig struct {
	// Dir is the folder of the protocol files. Required.
	Dir string
	// Holder holds the registry in use, which came from that folder. Required.
	Holder *Holder
	// Interval is the time between two looks at the folder. Optional. Defaults to
	// 2 s.
	Interval time.Duration
	// Reload asks for a reload at once with each value, such as SIGHUP. Optional.
	Reload <-chan os.Signal
	// Logger is told of each reload and once of each failure. Optional.
	Logger *slog.Logger
	// Observe is told of each attempt to reload: [Reloaded] or [Refused].
	// Optional.
	Observe func(Outcome)
}

// Watcher takes up changed protocol files: all of them as one set, or none.
//
// It polls the contents of the folder. Notifications of the file system would be
// quicker by a second or two, but they are not to be had on network file
// systems, and they tell of a mounted config map's swapped link in ways that
// differ from host to host. Times and sizes are not looked at: a file may change
// and keep both.
type Watcher struct {
	cfg WatcherConfig
	// seen is the digest of a change that was seen once. It is loaded when it is
	// seen again: a file that is half written rarely stays so for an interval.
	seen string
	// tried is the digest of the last attempt that failed, and empty after one
	// that did not.
	tried string
	// logged is the failure that the log holds already.
	logged string

	mu      sync.Mutex
	refused error
}

// NewWatcher returns a watcher. The error names the field that makes no sense.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	if cfg.Dir == "" || cfg.Holder == nil {
		return nil, errors.New("protocol: Dir and Holder are required")
	}
	cfg.Interval = cmp.Or(cfg.Interval, 2*time.Second)
	if cfg.Interval < 0 {
		return nil, errors.New("protocol: Interval must be positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	return &Watcher{cfg: cfg}, nil
}

// Outcome is what a look at the folder came to.
type Outcome int

// The outcomes.
const (
	// Unchanged says that the files are those of the last attempt, in use or
	// refused.
	Unchanged Outcome = iota
	// Settling says that the files differ, and are loaded at the next look if they
	// stay as they are.
	Settling
	// Reloaded says that the files were loaded and are in use.
	Reloaded
	// Refused says that something is wrong with the files, and that those before
	// stay in use.
	Refused
)

// String returns the outcome in lower case, as metrics have it.
func (o Outcome) String() string {
	return [...]string{"unchanged", "settling", "reloaded", "refused"}[o]
}

// Err returns why the files as they are now are not in use, or nil when they
// are. It is safe for concurrent use.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Run looks at the folder at each interval, and at once when it is asked to,
// until the context ends.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	for {
		before := w.cfg.Holder.Current()
		var outcome Outcome
		var err error
		select {
		case <-ticker.C:
			outcome, err = w.RunOnce(ctx)
		case <-w.cfg.Reload:
			w.logged = "" // Whoever asks wants an answer, also the same again.
			outcome, err = w.ReloadNow(ctx)
		case <-ctx.Done():
			return nil
		}
		w.log(ctx, outcome, err, before)
	}
}

// RunOnce looks at the folder, and loads a change that the look before saw as
// well. The error, which comes with [Refused] alone, is that of [Load]; files
// that were refused are not looked into again before they change. One call of
// RunOnce or ReloadNow runs at a time.
func (w *Watcher) RunOnce(context.Context) (Outcome, error) {
	files := read(os.DirFS(w.cfg.Dir), w.cfg.Dir)
	switch digest := files.digest(); digest {
	case cmp.Or(w.tried, w.cfg.Holder.Current().Digest()):
		w.seen = ""
		return Unchanged, nil
	case w.seen:
		return w.load(&files)
	default:
		w.seen = digest
		return Settling, nil
	}
}

// ReloadNow loads the folder as it is, changed or not. The error, which comes
// with [Refused] alone, is that of [Load].
func (w *Watcher) ReloadNow(context.Context) (Outcome, error) {
	files := read(os.DirFS(w.cfg.Dir), w.cfg.Dir)
	return w.load(&files)
}

// load puts the files into use, or remembers why not.
func (w *Watcher) load(files *snapshot) (Outcome, error) {
	registry, err := files.registry()
	outcome := Reloaded
	w.seen, w.tried = "", ""
	if err != nil {
		outcome, w.tried = Refused, files.digest()
	} else {
		w.cfg.Holder.Replace(registry)
	}
	w.mu.Lock()
	w.refused = err
	w.mu.Unlock()
	w.cfg.Observe(outcome)
	return outcome, err
}

// log tells of a reload, and of a failure when it is not the one before.
func (w *Watcher) log(ctx context.Context, outcome Outcome, err error, before *Registry) {
	switch outcome {
	case Reloaded:
		w.logged = ""
		changed, removed := w.cfg.Holder.Current().since(before)
		w.cfg.Logger.InfoContext(ctx, "protocols reloaded", "dir", w.cfg.Dir, "changed", changed, "removed", removed)
	case Refused:
		if text := err.Error(); text != w.logged {
			w.logged = text
			w.cfg.Logger.ErrorContext(ctx, "protocol files refused, those before stay in use", "dir", w.cfg.Dir, "error", text)
		}
	case Unchanged, Settling:
	}
}
