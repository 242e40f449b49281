package background

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
)

// Files is a set of files that can be reloaded, as a whole, while the process runs.
type Files interface {
	// Look reads the files. It returns a digest of their contents, or of the read
	// error, and a function that puts exactly these contents into use. If they are
	// invalid, load returns an error and leaves the previous ones in use. attrs are
	// attributes for the log.
	Look() (digest string, load func() (attrs []any, err error))
	// InUse returns the digest of the contents in use.
	InUse() string
}

// Watcher reloads changed files: all of them as one set, or none.
//
// It polls the contents of the files. File system notifications would be a
// second or two faster, but network file systems do not send them, and hosts differ in
// what they send when the symbolic link of a mounted config map is swapped. Times and
// sizes are not compared, because a file may change and keep both.
type Watcher struct {
	name    string
	files   Files
	logger  *slog.Logger
	observe func(ReloadOutcome)
	// seen is the digest of changed files that have not been loaded yet. They are loaded
	// if the next look finds the same digest: a write rarely takes a whole interval.
	seen string
	// tried is the digest of the last files if they were refused, otherwise empty.
	tried  string
	logged string // the last failure that was logged
	wake   chan struct{}

	mu      sync.Mutex // Guards all below.
	refused error
	asked   bool // The next look loads the files, changed or not.
}

// NewWatcher returns a watcher of the files. The name is a plural such as "protocol files".
// The logger logs each reload, and each failure once; observe is called after each reload,
// with [Reloaded] or [Refused].
func NewWatcher(name string, files Files, logger *slog.Logger, observe func(ReloadOutcome)) *Watcher {
	return &Watcher{name: name, files: files, logger: logger, observe: observe, wake: make(chan struct{}, 1)}
}

// ReloadOutcome is the result of one look at the files.
type ReloadOutcome int

// The outcomes.
const (
	// Unchanged means that the files are those in use, or those last refused.
	Unchanged ReloadOutcome = iota
	// Settling means that the files have changed. The next look loads them if
	// they have not changed again.
	Settling
	// Reloaded means that the files were loaded and are in use.
	Reloaded
	// Refused means that the files are invalid, and that the previous ones stay
	// in use.
	Refused
)

// String returns the outcome in lower case, as metrics show it.
func (o ReloadOutcome) String() string {
	return [...]string{"unchanged", "settling", "reloaded", "refused"}[o]
}

// Name returns the name of the files.
func (w *Watcher) Name() string { return w.name }

// Err returns why the last reload was refused, or nil if it was not. It is safe for
// concurrent use.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Ask wakes the loop to load the files, changed or not. It is safe for concurrent use.
func (w *Watcher) Ask() {
	w.mu.Lock()
	w.asked = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Loop returns the loop that looks at the files. Refused files do not make its passes fail:
// they are logged, and reported by Err.
func (w *Watcher) Loop() Loop {
	return Loop{Name: w.name, Wake: w.wake, Pass: func(ctx context.Context) error {
		_, _ = w.RunOnce(ctx)
		return nil
	}}
}

// RunOnce looks at the files, and loads them if they have changed and the previous look
// found the same contents. The error, only with [Refused], is that of the load and has been
// logged. Refused files are not loaded again before they change, except after Ask. One call
// runs at a time.
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
	attrs, err := load()
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
		w.logger.InfoContext(ctx, "files reloaded", append([]any{"files", w.name}, attrs...)...)
	} else if text := err.Error(); text != w.logged {
		w.logged = text
		w.logger.ErrorContext(ctx, "files refused, the previous ones stay in use", "files", w.name, "error", text)
	}
	return outcome, err
}
