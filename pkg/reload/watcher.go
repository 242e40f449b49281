// Package reload takes up files that change while the process runs: all of a
// set, or none.
package reload

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// DefaultInterval is the time between two looks at the files.
const DefaultInterval = 2 * time.Second

// Config is what a [Watcher] is made of.
type Config struct {
	// Name says what is reloaded, in the plural, such as "protocol files". Required.
	Name string
	// Look reads the files. It returns a hash of what they hold, or of why they
	// cannot be read, and what puts that same text into use. Required.
	Look func() (digest string, load Load)
	// InUse returns the digest of what is in use. Required.
	InUse func() string
	// Interval is the time between two looks at the files. Optional. Defaults to
	// [DefaultInterval].
	Interval time.Duration
	// Signal asks for a reload at once with each value, such as SIGHUP. Optional.
	Signal <-chan os.Signal
	// Logger is told of each reload, and once of each failure. Optional.
	Logger *slog.Logger
	// Observe is told of each attempt to reload: [Reloaded] or [Refused].
	// Optional.
	Observe func(Outcome)
}

// Load puts what was read into use. With an error what was in use stays so. The
// attributes tell the log what is new; there may be none.
type Load func() (news []any, err error)

// Validate reports the first field that makes no sense, by name.
func (c Config) Validate() error {
	switch {
	case c.Name == "":
		return errors.New("reload: Name is required")
	case c.Look == nil || c.InUse == nil:
		return errors.New("reload: Look and InUse are required")
	case c.Interval < 0:
		return errors.New("reload: Interval must be positive")
	}
	return nil
}

// Watcher takes up changed files: all of them as one set, or none.
//
// It polls the contents of the files. Notifications of the file system would be
// quicker by a second or two, but they are not to be had on network file
// systems, and they tell of a mounted config map's swapped link in ways that
// differ from host to host. Times and sizes are not looked at: a file may change
// and keep both.
type Watcher struct {
	cfg Config
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

// New returns a watcher. The error names the field that makes no sense.
func New(cfg Config) (*Watcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Interval = cmp.Or(cfg.Interval, DefaultInterval)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	return &Watcher{cfg: cfg}, nil
}

// Outcome is what a look at the files came to.
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

// Name is what is reloaded.
func (w *Watcher) Name() string { return w.cfg.Name }

// Err returns why the files as they are now are not in use, or nil when they
// are. It is safe for concurrent use.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Run looks at the files at each interval, and at once when it is asked to,
// until the context ends.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_, _ = w.RunOnce(ctx) // It is logged, and Err has it.
		case <-w.cfg.Signal:
			w.logged = "" // Whoever asks wants an answer, also the same again.
			_, _ = w.ReloadNow(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// RunOnce looks at the files, and loads a change that the look before saw as
// well. The error, which comes with [Refused] alone, is that of the load; files
// that were refused are not looked into again before they change. One call of
// RunOnce or ReloadNow runs at a time.
func (w *Watcher) RunOnce(ctx context.Context) (Outcome, error) {
	switch digest, load := w.cfg.Look(); digest {
	case cmp.Or(w.tried, w.cfg.InUse()):
		w.seen = ""
		return Unchanged, nil
	case w.seen:
		return w.load(ctx, digest, load)
	default:
		w.seen = digest
		return Settling, nil
	}
}

// ReloadNow loads the files as they are, changed or not. The error, which comes
// with [Refused] alone, is that of the load.
func (w *Watcher) ReloadNow(ctx context.Context) (Outcome, error) {
	digest, load := w.cfg.Look()
	return w.load(ctx, digest, load)
}

// load puts the files into use, or remembers why not.
func (w *Watcher) load(ctx context.Context, digest string, load Load) (Outcome, error) {
	news, err := load()
	outcome := Reloaded
	w.seen, w.tried = "", ""
	if err != nil {
		outcome, w.tried = Refused, digest
	}
	w.mu.Lock()
	w.refused = err
	w.mu.Unlock()
	w.cfg.Observe(outcome)
	w.log(ctx, news, err)
	return outcome, err
}

// log tells of a reload, and of a failure when it is not the one before.
func (w *Watcher) log(ctx context.Context, news []any, err error) {
	if err == nil {
		w.logged = ""
		w.cfg.Logger.InfoContext(ctx, "files reloaded", append([]any{"files", w.cfg.Name}, news...)...)
		return
	}
	if text := err.Error(); text != w.logged {
		w.logged = text
		w.cfg.Logger.ErrorContext(ctx, "files refused, those before stay in use", "files", w.cfg.Name, "error", text)
	}
}
