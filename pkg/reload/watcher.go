// Package reload reloads files that change while the process runs: all files of
// a set, or none.
package reload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// Config configures a [Watcher].
type Config struct {
	// Name is the name of the files in the plural, such as "protocol files".
	// Required.
	Name string
	// Look reads the files. It returns a hash of their contents, or of the read
	// error, and a function that puts exactly these contents into use.
	// Required.
	Look func() (digest string, load Load)
	// InUse returns the digest of the contents in use. Required.
	InUse func() string
	// Logger gets each reload, and each failure once. Optional.
	Logger *slog.Logger
	// Observe is called after each attempt to reload, with [Reloaded] or
	// [Refused]. Optional.
	Observe func(Outcome)
}

// Load puts the contents into use, or returns an error and leaves the previous
// ones in use. news are attributes for the log; there may be none.
type Load func() (news []any, err error)

// Watcher reloads changed files: all of them as one set, or none.
//
// It polls the contents of the files. File system notifications would be a
// second or two faster, but network file systems do not send them, and for the
// swapped link of a mounted config map they differ from host to host. Times and
// sizes are not compared: a file may change and keep both.
type Watcher struct {
	cfg Config
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

// New returns a watcher, or an error that names the missing fields.
func New(cfg Config) (*Watcher, error) {
	switch {
	case cfg.Name == "":
		return nil, errors.New("reload: Name is required")
	case cfg.Look == nil || cfg.InUse == nil:
		return nil, errors.New("reload: Look and InUse are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	return &Watcher{cfg: cfg, wake: make(chan struct{}, 1)}, nil
}

// Outcome is the result of a look at the files.
type Outcome int

// The outcomes.
const (
	// Unchanged says that the files are the same as at the last attempt.
	Unchanged Outcome = iota
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
func (o Outcome) String() string {
	return [...]string{"unchanged", "settling", "reloaded", "refused"}[o]
}

// Name returns the name of the files.
func (w *Watcher) Name() string { return w.cfg.Name }

// Err returns why the present files are not in use, or nil if they are. It is
// safe for concurrent use.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Ask makes the next look load the files, changed or not, and requests that
// look through [Watcher.Asked]. It is safe for concurrent use.
func (w *Watcher) Ask() {
	w.mu.Lock()
	w.asked = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Asked returns a channel that holds a value if a look was requested.
func (w *Watcher) Asked() <-chan struct{} { return w.wake }

// RunOnce looks at the files, and loads a change that the previous look saw as
// well. The error, only with [Refused], is that of the load and already logged.
// Refused files are not loaded again before they change. Only one call may run
// at a time.
func (w *Watcher) RunOnce(ctx context.Context) (Outcome, error) {
	w.mu.Lock()
	asked := w.asked
	w.asked = false
	w.mu.Unlock()
	digest, load := w.cfg.Look()
	switch {
	case asked:
		w.logged = "" // The operator wants an answer, even the same one again.
	case digest == cmp.Or(w.tried, w.cfg.InUse()):
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
	w.cfg.Observe(outcome)
	if err == nil {
		w.logged = ""
		w.cfg.Logger.InfoContext(ctx, "files reloaded", append([]any{"files", w.cfg.Name}, news...)...)
	} else if text := err.Error(); text != w.logged {
		w.logged = text
		w.cfg.Logger.ErrorContext(ctx, "files refused, those before stay in use", "files", w.cfg.Name, "error", text)
	}
	return outcome, err
}

// FileError is a fault in a file and its line.
type FileError struct {
	// File is the path of the file.
	File string
	// Line counts from 1; 0 means the whole file.
	Line int
	// Message is a sentence for people.
	Message string
}

// Error returns file, line and message in the format that editors understand.
func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}
