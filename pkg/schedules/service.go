package schedules

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config configures a [Service].
type Config struct {
	// Store holds the tables. Required.
	Store tablestore.Store
	// Table holds the schedules, and ScheduleTable the schedule of all jobs. Required.
	Table, ScheduleTable string
	// Commands accepts the commands. Required.
	Commands *commands.Service
	// Ledger holds the jobs. Required.
	Ledger *ledger.Ledger
	// Tolerance is by how much the clocks of two processes may differ. Optional. Defaults to 5 s.
	Tolerance time.Duration
	// Build names the program: another build computes the next occurrence again. Optional.
	Build string
	// Random returns numbers in [0, 1), and Entropy random bytes. Optional. They must be safe for concurrent use.
	Random  func() float64
	Entropy io.Reader
	// Logger logs what a pass cannot do. Optional.
	Logger *slog.Logger
}

// Service keeps the schedules and fires them. It is safe for concurrent use, by any number of processes on one store.
type Service struct{ cfg Config }

// New returns a service. The error names the missing field.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Table == "" || cfg.ScheduleTable == "" || cfg.Commands == nil || cfg.Ledger == nil {
		return nil, errors.New("schedules: Store, Table, ScheduleTable, Commands and Ledger are required")
	}
	return &Service{cfg: cfg}, nil
}

// Change is a request to change a schedule.
type Change struct {
	TenantID, Name string
	// Rev is the revision that the caller expects; 0 accepts any.
	Rev   int64
	Actor string
}

var errUnfinished = errors.New("not built yet")

// Create makes a schedule. It returns [ErrExists], [ErrLimit], an [*InvalidError], or the [*apierror.Error] of a command
// that would be refused.
func (s *Service) Create(ctx context.Context, def Definition, actor string) (*Schedule, error) {
	return nil, errUnfinished
}

// Edit replaces the definition, whose tenant and name are those of the change. What was due is decided first. It returns
// [ErrNotFound], [ErrRevConflict], and the errors of Create.
func (s *Service) Edit(ctx context.Context, change Change, def Definition) (*Schedule, error) {
	return nil, errUnfinished
}

// Get returns a schedule with its last fire. It returns [ErrNotFound].
func (s *Service) Get(ctx context.Context, tenantID, name string) (*Schedule, error) {
	return nil, errUnfinished
}

// List returns one page of a tenant's schedules by name, after that name, and the name after which the next page
// begins, empty at the end. state is one of them, or empty for all; a page may have fewer than limit then.
func (s *Service) List(ctx context.Context, tenantID string, state State, after string, limit int) ([]Schedule, string, error) {
	return nil, "", errUnfinished
}

// Pause stops a schedule. What was due is decided first, and what is due while it is paused is not caught up. To pause a
// paused schedule changes nothing. It returns [ErrNotFound], [ErrRevConflict], and [ErrState] if the schedule is completed.
func (s *Service) Pause(ctx context.Context, change Change) (*Schedule, error) {
	return nil, errUnfinished
}

// Resume starts a paused schedule with the first occurrence after now. Its errors are those of Pause.
func (s *Service) Resume(ctx context.Context, change Change) (*Schedule, error) {
	return nil, errUnfinished
}

// Delete deletes a schedule. Its jobs go on. It returns [ErrNotFound] and [ErrRevConflict].
func (s *Service) Delete(ctx context.Context, change Change) error {
	return errUnfinished
}

// Run fires a schedule now, in any state but deleted. A request with the same key returns what the first one made; replayed says
// so. It returns [ErrNotFound], an [*InvalidError] without a key, and the [*apierror.Error] of the command.
func (s *Service) Run(ctx context.Context, change Change, key string) (fire *Fire, replayed bool, err error) {
	return nil, false, errUnfinished
}

// Fires returns one page of the history, newest first, after that token, and the token of the next page, empty at the end.
// It returns [ErrNotFound], and an [*InvalidError] for a token of another list.
func (s *Service) Fires(ctx context.Context, tenantID, name, after string, limit int) ([]Fire, string, error) {
	return nil, "", errUnfinished
}

// BackfillRequest asks to fire the occurrences of the current version from From to To, both included. Those that have a
// job are left alone unless Repeat is set.
type BackfillRequest struct {
	Change

	From, To time.Time
	Repeat   bool
	Reason   string
	// Key is the idempotency key. Required: a request with the same key returns the backfill that the first one made.
	Key string
}

// Backfill starts to fire past occurrences, which [Service.Backfills] shows. It returns [ErrNotFound], [ErrRevConflict], and an
// [*InvalidError], also for more than [MaxBackfill] occurrences.
func (s *Service) Backfill(ctx context.Context, request BackfillRequest) (*Backfill, error) {
	return nil, errUnfinished
}

// Backfills returns the backfills of a schedule, the newest first, at most 100. It returns [ErrNotFound].
func (s *Service) Backfills(ctx context.Context, tenantID, name string) ([]Backfill, error) {
	return nil, errUnfinished
}
