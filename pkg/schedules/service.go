package schedules

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config configures a [Service].
type Config struct {
	// Store holds the tables. Required.
	Store tablestore.Store
	// Commands accepts the commands. Required.
	Commands *commands.Service
	// Ledger holds the jobs. Required.
	Ledger *ledger.Ledger
	// Build names the program, as a text that is greater for a newer one: a newer build than the one that computed the next
	// occurrence computes it again. Optional.
	Build string
	// Random returns numbers in [0, 1), and Entropy random bytes. Optional. They must be safe for concurrent use.
	Random  func() float64
	Entropy io.Reader
	// Now returns the time, in milliseconds. Optional. Defaults to the clock of the host.
	Now func() time.Time
	// Observe is told of each decided occurrence, but for those that a pause or a deletion came just before, and how long after
	// its time, jitter included, that was. It must not block. Optional.
	Observe func(fire *Fire, late time.Duration)
}

// Service keeps the schedules and fires them. It is safe for concurrent use, by any number of processes on one store.
type Service struct {
	cfg Config
	// table holds the schedules, and entries the schedule of jobs.
	table, entries string
}

// New returns a service.
func New(cfg Config) *Service {
	tables := cfg.Ledger.Tables()
	if cfg.Entropy == nil {
		cfg.Entropy = rand.Reader
	}
	if cfg.Now == nil {
		cfg.Now = tablestore.Now
	}
	if cfg.Observe == nil {
		cfg.Observe = func(*Fire, time.Duration) {}
	}
	return &Service{cfg: cfg, table: tables.Cron, entries: tables.Schedule}
}

// undoTime bounds the work after a create that failed.
const undoTime = 5 * time.Second

// Change is a request to change a schedule.
type Change struct {
	TenantID, Name string
	// Rev is the revision that the caller expects; 0 accepts any.
	Rev   int64
	Actor string
}

// Create makes a schedule. It returns [ErrExists], [ErrLimit], an [*InvalidError], or the [*apierror.Error] of a command
// that would be refused.
func (s *Service) Create(ctx context.Context, def Definition, actor string) (*Schedule, error) {
	now := s.cfg.Now()
	cal, err := s.check(&def, now)
	if err != nil {
		return nil, err
	}
	var raw [16]byte
	if _, err := io.ReadFull(s.cfg.Entropy, raw[:]); err != nil {
		return nil, fmt.Errorf("make a schedule id: %w", err)
	}
	sc := &stored{id: hex.EncodeToString(raw[:]), def: def, head: head{
		TenantID: def.TenantID, Name: def.Name, Rev: 1, Version: 1, State: Active, Last: now, Build: s.cfg.Build, CreatedAt: now,
	}}
	sc.UpdatedAt = now
	sc.Next, _ = cal.Next(now) // check found it.
	err = tablestore.Retry(ctx, s.cfg.Random, func() error { return s.takeName(ctx, sc) })
	if err != nil {
		if errors.Is(err, tablestore.ErrUnavailable) { // The name may have been taken. HEAD was not written.
			s.undoCreate(ctx, sc.id, &def, err)
		}
		return nil, err
	}
	err = s.commit(ctx, sc, time.Time{}, s.writeVersion(sc, actor))
	switch {
	case s.landed(ctx, sc, err), err == nil:
		return sc.view(), nil
	case errors.Is(err, tablestore.ErrConflict): // It was slow, and its name was taken.
		return nil, errors.Join(tablestore.ErrUnavailable, err)
	}
	s.undoCreate(ctx, sc.id, &def, err)
	return nil, err
}

// undoCreate frees the name of a create that failed with that error, so that the client can repeat it at once. If undoCreate fails,
// too, the name becomes free after orphanGrace.
func (s *Service) undoCreate(ctx context.Context, id string, def *Definition, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime) // The context may have ended, which made it fail.
	defer cancel()
	if errors.Is(failed, tablestore.ErrUnknown) { // A late commit becomes impossible, unless it has landed.
		if s.abandon(ctx, id) != nil {
			return
		}
		if sc, err := s.loadHead(ctx, id); err != nil || sc.State != Deleted {
			return
		}
	}
	_ = s.freeName(ctx, id, def.TenantID, def.Name)
}

// takeName writes the row of the schedule's name. It replaces that of a schedule that is deleted, or was never made.
func (s *Service) takeName(ctx context.Context, sc *stored) error {
	row := nameRow{ID: sc.id, CreatedAt: sc.CreatedAt}
	op := tablestore.Op{Verb: tablestore.Insert, Key: s.nameKey(sc.def.TenantID, sc.def.Name), Properties: nameCodec.Encode(&row, nil)}
	named, tag, err := s.named(ctx, sc.def.TenantID, sc.def.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		if err := s.checkCount(ctx, sc.def.TenantID); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		old, err := s.load(ctx, named.ID)
		switch {
		case named.ID == sc.id: // An earlier try of this create wrote the name.
			return nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		case err == nil && old.State != Deleted, err != nil && s.cfg.Now().Sub(named.CreatedAt) < orphanGrace:
			return ErrExists
		case err != nil: // The create that took the name becomes impossible.
			if err := s.abandon(ctx, named.ID); err != nil {
				return err
			}
			if old, err = s.load(ctx, named.ID); err != nil || old.State != Deleted {
				return cmp.Or(err, ErrExists)
			}
		}
		op.Verb, op.ETag = tablestore.Replace, tag
	}
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{op})
	if err != nil {
		return fmt.Errorf("take the name of a schedule: %w", again(err))
	}
	return nil
}

// checkCount returns [ErrLimit] if the tenant or the store has as many schedules as it may.
func (s *Service) checkCount(ctx context.Context, tenantID string) error {
	for _, limit := range []struct {
		query tablestore.Query
		most  int
	}{
		{s.namesOf(tenantID), MaxPerTenant},
		{tablestore.Query{Table: s.entries, Partition: partitionEntries}, MaxPerStore},
	} {
		rows, err := tablestore.ScanAll(ctx, s.cfg.Store, limit.query)
		if err != nil {
			return fmt.Errorf("count the schedules: %w", err)
		}
		rows = slices.DeleteFunc(rows, func(row tablestore.Row) bool { return strings.Contains(row.Key.Row, ":"+backfillNonce) })
		if len(rows) >= limit.most {
			return ErrLimit
		}
	}
	return nil
}

// landed reports whether a change of HEAD whose outcome is not known was committed.
func (s *Service) landed(ctx context.Context, sc *stored, err error) bool {
	if !errors.Is(err, tablestore.ErrUnknown) {
		return false
	}
	now, err := s.load(ctx, sc.id)
	return err == nil && now.Operation == sc.Operation
}

// change decides what is due or claimed, and then changes HEAD as the function says, which returns the rows to write with it. A
// schedule that has the state already is left as it is.
func (s *Service) change(
	ctx context.Context, c *Change, already State, apply func(sc *stored, now time.Time) ([]tablestore.Op, error),
) (*stored, error) {
	sc, err := s.find(ctx, c.TenantID, c.Name)
	if err != nil {
		return nil, err
	}
	if c.Rev != 0 && c.Rev != sc.Rev {
		return nil, ErrRevConflict
	}
	rev, tried := sc.Rev, "" // tried is the last operation whose outcome was unknown.
	var decided decisions
	err = tablestore.Retry(ctx, s.cfg.Random, func() (err error) {
		if sc, err = s.load(ctx, sc.id); err != nil {
			return err
		}
		switch {
		case tried != "" && sc.Operation == tried: // It landed after the look.
			return nil
		case sc.State == Deleted:
			return ErrNotFound
		case sc.Rev != rev && (c.Rev != 0 || tried != ""): // The change may have landed under that of another.
			return ErrRevConflict
		case sc.State == already:
			decided = decisions{}
			return nil
		}
		rev, decided = sc.Rev, decisions{}
		if err := s.settleDue(ctx, sc, &decided); err != nil {
			return again(err)
		}
		if err := s.settleAhead(ctx, sc, &decided); err != nil {
			return err
		}
		now := sc.asOf // What came due since then is of the schedule as it is after the change.
		rows, err := apply(sc, now)
		if err != nil {
			return err
		}
		sc.Rev++
		if now.After(sc.Last) {
			sc.Last = now
		}
		err = s.commit(ctx, sc, time.Time{}, append(rows, decided.rows...)...)
		if s.landed(ctx, sc, err) {
			return nil
		}
		if errors.Is(err, tablestore.ErrUnknown) {
			tried = sc.Operation
		}
		return again(err)
	})
	if err != nil {
		return nil, err
	}
	s.observe(sc, &decided)
	return sc, nil
}

// again makes an unknown outcome one that is tried again: the next try finds out.
func again(err error) error {
	if errors.Is(err, tablestore.ErrUnknown) {
		return errors.Join(tablestore.ErrConflict, err)
	}
	return err
}

// settleAhead decides the occurrences after Last that are claimed: a process whose clock is ahead may be firing them. No pass may
// come to them after the change. Once the change is committed, no process that read HEAD before it claims more.
func (s *Service) settleAhead(ctx context.Context, sc *stored, d *decisions) error {
	from, to := sc.Last.Add(time.Millisecond), time.UnixMilli(maxMillis)
	err := s.settleClaims(ctx, sc, from, to, "was not fired before the schedule was changed", d)
	for i := range d.fires {
		if at := d.fires[i].ScheduledFor; at.After(sc.Last) {
			sc.Last = at
		}
	}
	return err
}

// settleDue decides what is due, so that a change of the schedule does not lose it. It is recorded with the change, so that a change
// which fails has decided nothing, as far as one pass goes.
func (s *Service) settleDue(ctx context.Context, sc *stored, d *decisions) error {
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	for sc.State == Active && !sc.Next.After(sc.asOf) {
		if len(d.fires) > 0 {
			if err := s.record(ctx, sc, time.Time{}, *d); err != nil {
				return err
			}
		}
		if *d, _, err = s.decideDue(ctx, sc, cal, true); err != nil {
			return err
		}
	}
	return nil
}

// begin sets the first occurrence after now and Last.
func (sc *stored) begin(cal *calendar.Calendar, now time.Time) {
	if sc.Last.After(now) {
		now = sc.Last
	}
	next, ok := cal.Next(now)
	if sc.Next, sc.State = next, Active; !ok {
		sc.State = Completed
	}
}

// stop removes what is to come.
func (sc *stored) stop(state State) {
	sc.State, sc.Next = state, time.Time{}
	sc.Trying, sc.TryingSince, sc.Tries, sc.TryDetail = time.Time{}, time.Time{}, 0, ""
}

// Edit replaces the definition, whose tenant and name are those of the change. What was due is decided first. An edit to the
// definition that the schedule has changes nothing, so that it can be repeated. It returns [ErrNotFound], [ErrRevConflict], and
// the errors of Create.
func (s *Service) Edit(ctx context.Context, change Change, def Definition) (*Schedule, error) {
	def.TenantID, def.Name = change.TenantID, change.Name
	cal, err := s.check(&def, s.cfg.Now())
	if err != nil {
		return nil, err
	}
	if now, err := s.find(ctx, change.TenantID, change.Name); err != nil {
		return nil, err
	} else if (change.Rev == 0 || change.Rev == now.Rev) && now.State != Completed && now.def.equals(&def) {
		return now.view(), nil
	}
	return s.turn(ctx, &change, "", func(sc *stored, now time.Time) ([]tablestore.Op, error) {
		var rows []tablestore.Op
		if sc.State == Paused {
			if rows, err = s.recordPause(sc, now, change.Actor); err != nil {
				return nil, err
			}
		}
		sc.def, sc.Version, sc.UpdatedAt = def, sc.Version+1, now
		if sc.State != Paused {
			sc.begin(cal, now)
			sc.Build = s.cfg.Build
		}
		return append(rows, s.writeVersion(sc, change.Actor)), nil
	})
}

// Pause stops a schedule. What was due is decided first, and what is due while it is paused is not caught up. To pause a
// paused schedule changes nothing. It returns [ErrNotFound], [ErrRevConflict], and [ErrState] if the schedule is completed.
func (s *Service) Pause(ctx context.Context, change Change) (*Schedule, error) {
	return s.turn(ctx, &change, Paused, func(sc *stored, _ time.Time) ([]tablestore.Op, error) {
		if sc.State == Completed {
			return nil, ErrState
		}
		sc.stop(Paused)
		return nil, nil
	})
}

// Resume starts a paused schedule with the first occurrence after now. Its errors are those of Pause.
func (s *Service) Resume(ctx context.Context, change Change) (*Schedule, error) {
	return s.turn(ctx, &change, Active, func(sc *stored, now time.Time) ([]tablestore.Op, error) {
		cal, err := calendar.Parse(sc.def.Spec)
		if err != nil || sc.State != Paused {
			return nil, cmp.Or(err, ErrState)
		}
		rows, err := s.recordPause(sc, now, change.Actor)
		sc.begin(cal, now)
		sc.Build = s.cfg.Build
		return rows, err
	})
}

// recordPause returns the row that says what was due while the schedule was paused, if there is anything.
func (s *Service) recordPause(sc *stored, now time.Time, actor string) ([]tablestore.Op, error) {
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	if next, due := cal.Next(sc.Last); !due || next.After(now) {
		return nil, nil
	}
	from := sc.Last.Add(time.Millisecond)
	many := Fire{
		From: from, ScheduledFor: now, Outcome: Missed, Version: sc.Version, DecidedAt: now, Count: countOccurrences(cal, from, now),
		Detail: "were not fired while the schedule was paused", Actor: actor,
	}
	key := s.key(sc.id, rowRange, newestFirst(now))
	return []tablestore.Op{{Verb: tablestore.Insert, Key: key, Properties: fireCodec.Encode(&many, nil)}}, nil
}

// turn changes the schedule, unless it is in the state.
func (s *Service) turn(
	ctx context.Context, c *Change, state State, apply func(sc *stored, now time.Time) ([]tablestore.Op, error),
) (*Schedule, error) {
	sc, err := s.change(ctx, c, state, apply)
	if err != nil {
		return nil, err
	}
	return sc.view(), nil
}

// Delete deletes a schedule. Its jobs go on. It returns [ErrNotFound] and [ErrRevConflict].
func (s *Service) Delete(ctx context.Context, change Change) error {
	sc, err := s.change(ctx, &change, "", func(sc *stored, _ time.Time) ([]tablestore.Op, error) {
		sc.stop(Deleted)
		return nil, nil
	})
	if err != nil {
		return err
	}
	if !sc.LastAt.IsZero() { // It has lost occurrences, and may be listed.
		_, err := s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: s.lostKey(change.TenantID, sc.id)}})
		if err != nil {
			return fmt.Errorf("shorten the list of losses: %w", err)
		}
	}
	return s.freeName(ctx, sc.id, change.TenantID, change.Name)
}

// freeName deletes the name of a schedule, unless another has taken it.
func (s *Service) freeName(ctx context.Context, id, tenantID, name string) error {
	named, tag, err := s.named(ctx, tenantID, name)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && named.ID != id:
		return nil
	case err != nil:
		return err
	}
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: s.nameKey(tenantID, name), ETag: tag}})
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("free the name of a schedule: %w", err)
	}
	return nil
}

// Get returns a schedule with its last fire. It returns [ErrNotFound].
func (s *Service) Get(ctx context.Context, tenantID, name string) (*Schedule, error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, err
	}
	view := sc.view()
	newest, _, err := s.fires(ctx, sc.id, "", 1)
	if err != nil {
		return nil, err
	}
	if len(newest) > 0 {
		view.LastFire = &newest[0]
	}
	return view, nil
}

// List returns one page of a tenant's schedules by name, after that name, and the name after which the next page
// begins, empty at the end. state is one of them, or empty for all; a page may have fewer than limit then.
func (s *Service) List(ctx context.Context, tenantID string, state State, after string, limit int) ([]Schedule, string, error) {
	query := s.namesOf(tenantID)
	if query.Limit = limit; after != "" {
		query.From = tablestore.Join(tenantID, after) + "!" // No key has this character.
	}
	page, err := s.cfg.Store.Scan(ctx, query)
	if err != nil {
		return nil, "", fmt.Errorf("list the schedules: %w", err)
	}
	var all []Schedule
	next := ""
	for i := range page.Rows {
		var named nameRow
		if err := nameCodec.Decode(&page.Rows[i], &named); err != nil {
			return nil, "", err
		}
		parts, err := tablestore.Split(page.Rows[i].Key.Row)
		if err != nil {
			return nil, "", fmt.Errorf("list the schedules: %w", err)
		}
		next = parts[len(parts)-1]
		sc, err := s.load(ctx, named.ID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, "", err
		}
		if err == nil && sc.State != Deleted && (state == "" || sc.State == state) {
			all = append(all, *sc.view())
		}
	}
	if page.Next == "" {
		next = ""
	}
	return all, next, nil
}

// view returns the schedule as it is shown.
func (sc *stored) view() *Schedule {
	return &Schedule{
		ID: sc.id, Definition: sc.def, Rev: sc.Rev, Version: sc.Version, State: sc.State, Last: sc.Last, Upcoming: sc.Next,
		FailuresInRow: sc.FailuresInRow, CreatedAt: sc.CreatedAt, UpdatedAt: sc.UpdatedAt,
	}
}

// Run fires a schedule now, in any state but deleted. A request with the same key returns what the first one made; replayed says
// so. It returns [ErrNotFound], an [*InvalidError] without a key, and the [*apierror.Error] of the command.
func (s *Service) Run(ctx context.Context, change Change, key string) (fire *Fire, replayed bool, err error) {
	if key == "" {
		return nil, false, &InvalidError{Message: "the Idempotency-Key is required"}
	}
	sc, err := s.find(ctx, change.TenantID, change.Name)
	if err != nil {
		return nil, false, err
	}
	if change.Rev != 0 && change.Rev != sc.Rev {
		return nil, false, ErrRevConflict
	}
	sum := sha256.Sum256([]byte(key))
	digest := hex.EncodeToString(sum[:])
	at, err := s.runAt(ctx, sc.id, digest)
	if err != nil {
		return nil, false, err
	}
	row := runRow(at, digest)
	_, err = s.cfg.Store.Get(ctx, tablestore.Key{Table: s.table, Partition: sc.id, Row: row})
	if replayed = err == nil; err != nil && !errors.Is(err, tablestore.ErrNotFound) {
		return nil, false, fmt.Errorf("read a run of schedule %s: %w", sc.id, err)
	}
	done := Fire{ScheduledFor: at, Version: sc.Version, DecidedAt: s.cfg.Now(), Actor: change.Actor, RunKey: key}
	var op tablestore.Op
	err = tablestore.Retry(ctx, s.cfg.Random, func() (err error) {
		if done, op, err = s.submit(ctx, sc, &ledger.OccurrenceClaim{Row: row}, &done); err != nil || op.Key.Row == "" {
			return err
		}
		_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{op})
		return err
	})
	if err != nil {
		return nil, false, err
	}
	if sum[0] < 256/trimEvery { // A paused schedule has no pass that trims. If it fails, a later run does it.
		_ = s.trimRuns(ctx, sc.id)
	}
	return &done, replayed, nil
}

// runAt returns when the run of that key was requested first.
func (s *Service) runAt(ctx context.Context, id, digest string) (time.Time, error) {
	first := runKey{At: s.cfg.Now()}
	err := tablestore.Retry(ctx, s.cfg.Random, func() error {
		row, err := s.cfg.Store.Get(ctx, s.key(id, rowRunKey, digest))
		switch {
		case err == nil:
			return runKeyCodec.Decode(&row, &first)
		case !errors.Is(err, tablestore.ErrNotFound):
			return err
		}
		_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{
			Verb: tablestore.Insert, Key: s.key(id, rowRunKey, digest), Properties: runKeyCodec.Encode(&first, nil),
		}})
		return again(err)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("take the key of a run of schedule %s: %w", id, err)
	}
	return first.At, nil
}
