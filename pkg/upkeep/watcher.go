package upkeep

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
)

// Files are files that can be reloaded while the process runs, as one set.
type Files interface {
	// Look reads the files. It returns a hash of their contents, or of the read
	// error, and a function that puts exactly these contents into use, or returns an
	// error and leaves the previous ones in use. news are attributes for the log.
	Look() (digest string, load func() (news []any, err error))
	// InUse returns the digest of the contents in use.
	InUse() string
}

// Watcher reloads changed files: all of them as one set, or none.
//
// It polls the contents of the files. File system notifications would be a
// second or two faster, but network file systems do not send them, and for the
// swapped link of a mounted config map they differ from host to host. Times and
// sizes are not compared: a file may change and keep both.
type Watcher struct {
	name    string
	files   Files
	logger  *slog.Logger
	observe func(ReloadOutcome)
	// seen is the digest of a change that one look has seen. It is loaded if
	// the next look sees it again: a file is rarely half written for a whole
	// interval.
	seen string
	// tried is the digest of the last attempt if it failed, otherwise empty.
	tried  string
	logged string // the last failure that was logged
	wake   chan struct{}

	mu      sync.Mutex
	refused error
	asked   bool // The next look loads the files, changed or not.
}

// NewWatcher returns a watcher of the files, whose name is a plural such as "protocol
// files". The logger gets each reload, and each failure once; observe is called after
// each attempt to reload, with [Reloaded] or [Refused].
func NewWatcher(name string, files Files, logger *slog.Logger, observe func(ReloadOutcome)) *Watcher {
	return &Watcher{name: name, files: files, logger: logger, observe: observe, wake: make(chan struct{}, 1)}
}

// ReloadOutcome is the result of a look at the files.
type ReloadOutcome int

// The outcomes.
const (
	// Unchanged says that the files are the same as at the last attempt.
	Unchanged ReloadOutcome = iota
	// Settling says that the files have changed; the next look loads them if
	// they do not change again.
	Settling
	// Reloaded says that the files were loaded and are in use.
	Reloaded
	// Refused says that the files are invalid, and that the previous ones stay
	// in use.
	Refused
)

// String returns the outcome in lower case, as metrics show it.
func (o ReloadOutcome) String() string {
	return [...]string{"unchanged", "settling", "reloaded", "refused"}[o]
}

// Name returns the name of the files.
func (w *Watcher) Name() string { return w.name }

// Err returns why the present files are not in use, or nil if they are. It is
// safe for concurrent use.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Ask makes the next look load the files, changed or not, and wakes the loop for it. It
// is safe for concurrent use.
func (w *Watcher) Ask() {
	w.mu.Lock()
	w.asked = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Loop returns the loop that looks at the files. Refused files do not slow it down: they
// are logged and reported by Err.
func (w *Watcher) Loop() Loop {
	return Loop{Name: w.name, Wake: w.wake, Pass: func(ctx context.Context) error {
		_, _ = w.RunOnce(ctx)
		return nil
	}}
}

// RunOnce looks at the files, and loads a change that the previous look saw as
// well. The error, only with [Refused], is that of the load and already logged.
// Refused files are not loaded again before they change. Only one call may run
// at a time.
func (w *Watcher) RunOnce(ctx context.Context) (ReloadOutcome, error) {
	w.mu.Lock()
	asked := w.asked
	w.asked = false
	w.mu.Unlock()
	digest, load := w.files.Look()
	switch {
	case asked:
		w.logged = "" // The operator wants an answer, even the same one again.
	case digest == cmp.Or(w.tried, w.files.InUse()):
		w.seen = ""
		return Unchanged, nil
	case digest != w.seen:
		w.seen = digest
		return Settling, nil
	}
	news, err := load()
	outcome := Reloaded
	w.seen, w.tried = "", ""
	if err != nil {
		outcome, w.tried = Refused, digest
	}
	w.mu.Lock()
	w.refused = err
	w.mu.Unlock()
	w.observe(outcome)
	if err == nil {
		w.logged = ""
		w.logger.InfoContext(ctx, "files reloaded", append([]any{"files", w.name}, news...)...)
	} else if text := err.Error(); text != w.logged {
		w.logged = text
		w.logger.ErrorContext(ctx, "files refused, those before stay in use", "files", w.name, "error", text)
	}
	return outcome, err
}
