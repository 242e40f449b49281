package schedules

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Backfill is the firing of past occurrences of one version. It is resumed after a crash.
type Backfill struct {
	ID      string    `column:"id"`
	Version int       `column:"version"` // of the definition
	From    time.Time `column:"from"`    // included, as To
	To      time.Time `column:"to"`
	Repeat  bool      `column:"repeat"` // fires also what has a job
	// MilliRate is how many occurrences are fired in a thousand seconds, at most.
	MilliRate int `column:"milli_rate"`
	// AskedTo is the end that the request named, which may be later than To.
	AskedTo time.Time `column:"asked_to"`
	Cursor  time.Time `column:"cursor"` // the last occurrence that is decided

	Total   int `column:"total"`      // occurrences between From and To
	Fired   int `column:"fired"`      // by this backfill
	Left    int `column:"left_alone"` // had a job
	Refused int `column:"refused"`
	// Detail says why the last one was refused, or why the next one waits.
	Detail string `column:"detail"`

	Cancelled bool      `column:"cancelled"` // it is to end
	Done      bool      `column:"done"`      // it has ended
	EndedAt   time.Time `column:"ended_at"`
	Due       time.Time `column:"due"` // of its entry, unless it is done
	Seq       int64     `column:"seq"` // rises with each change
	Actor     string    `column:"actor"`
	Reason    string    `column:"reason"`
	CreatedAt time.Time `column:"created_at"`

	loaded tablestore.Properties // what the row had, with the columns of a newer program
}

// Rate returns how many occurrences are fired in a second, at most.
func (b *Backfill) Rate() float64 { return float64(b.MilliRate) / 1000 }

// burst returns how many occurrences a pass decides at most.
func (b *Backfill) burst() int { return max(1, b.MilliRate/1000) }

// BackfillRequest asks to fire the occurrences of the current version from From to To, both included, without those that are
// not decided yet. Those that have a job are left alone unless Repeat is set.
type BackfillRequest struct {
	Change

	From, To time.Time // To may be zero: up to now.
	Repeat   bool
	// Rate is how many occurrences are fired in a second, at most: from [MinRate] to [MaxRate], or 0 for that.
	Rate   float64
	Reason string
	// Key is the idempotency key. Required: a request with the same key returns the backfill that the first one made.
	Key string
}

const (
	// backfillNonce begins the nonces of the entries of backfills, which the id follows.
	backfillNonce = "b-"
	// backfillAgain is the delay after a refusal that passes.
	backfillAgain = 5 * time.Second
	// mostBackfills is how many backfills are kept.
	mostBackfills = 100
)

// Backfill starts to fire past occurrences, which [Service.Backfills] shows; known says that an earlier request with the same
// key did. It works in any state but deleted. It returns [ErrNotFound], [ErrRevConflict], [ErrBackfilling], [ErrKeyReused], and an
// [*InvalidError], also for more than [MaxBackfill] occurrences.
func (s *Service) Backfill(ctx context.Context, request BackfillRequest) (b *Backfill, known bool, err error) {
	if request.Key == "" {
		return nil, false, &InvalidError{Message: "the Idempotency-Key is required"}
	}
	sc, err := s.find(ctx, request.TenantID, request.Name)
	if err != nil {
		return nil, false, err
	}
	err = tablestore.Retry(ctx, s.cfg.Random, func() error {
		b, known, err = s.startBackfill(ctx, sc.id, &request)
		return again(err)
	})
	if err != nil {
		return nil, false, err
	}
	return b, known, nil
}

// startBackfill writes a backfill. Its batch replaces HEAD too: so at most one backfill goes on, no trim deletes claims of the
// range, and a late batch never applies after its entry was dropped.
func (s *Service) startBackfill(ctx context.Context, scheduleID string, request *BackfillRequest) (b *Backfill, known bool, err error) {
	sc, err := s.load(ctx, scheduleID)
	if err == nil && sc.State == Deleted {
		err = ErrNotFound
	}
	if err != nil {
		return nil, false, err
	}
	if b, err = sc.plan(request, s.cfg.Now()); err != nil {
		return nil, false, err
	}
	all, err := s.backfills(ctx, sc.id)
	if err != nil {
		return nil, false, err
	}
	for i := range all {
		switch old := &all[i]; {
		case old.ID == b.ID && old.sameRequest(b):
			return old, true, nil
		case old.ID == b.ID:
			return nil, false, ErrKeyReused
		}
	}
	if request.Rev != 0 && request.Rev != sc.Rev {
		return nil, false, ErrRevConflict
	}
	if slices.ContainsFunc(all, func(old Backfill) bool { return !old.Done }) {
		return nil, false, ErrBackfilling
	}
	var missed []tablestore.Op
	if sc.State == Paused { // What was due since then is decided first, as before an edit: so the backfill comes to it.
		if missed, err = s.recordPause(sc, sc.asOf, request.Actor); len(missed) > 0 {
			sc.Last = sc.asOf
		}
	}
	if err == nil {
		err = sc.count(b)
	}
	if err == nil && len(missed) > 0 {
		err = s.commit(ctx, sc, time.Time{}, missed...)
	}
	if err != nil {
		return nil, false, err
	}
	rows := tablestore.Batch{*sc.asRead}
	for i := mostBackfills - 1; i < len(all); i++ {
		rows = append(rows, tablestore.Op{Verb: tablestore.Discard, Key: s.key(sc.id, rowBackfill, all[i].ID)})
	}
	return b, false, s.moveBackfill(ctx, sc.id, b, "", time.Time{}, rows...)
}

// plan returns the backfill that a request asks for.
func (sc *stored) plan(request *BackfillRequest, now time.Time) (*Backfill, error) {
	sum := sha256.Sum256([]byte(request.Key))
	b := &Backfill{
		ID: hex.EncodeToString(sum[:16]), Version: sc.Version, Repeat: request.Repeat, Due: now, CreatedAt: now,
		From: request.From.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond), AskedTo: request.To.UTC().Truncate(time.Millisecond),
		MilliRate: 1000 * MaxRate, Actor: request.Actor, Reason: request.Reason,
	}
	if request.Rate != 0 {
		if request.Rate < MinRate || request.Rate > MaxRate {
			return nil, &InvalidError{"/rate_per_second", fmt.Sprintf("must be 0 or from %v to %d", MinRate, MaxRate)}
		}
		b.MilliRate = int(math.Round(1000 * request.Rate))
	}
	b.Cursor = b.From.Add(-time.Millisecond)
	return b, nil
}

// sameRequest reports whether two backfills were requested in the same way.
func (b *Backfill) sameRequest(other *Backfill) bool {
	return b.From.Equal(other.From) && b.AskedTo.Equal(other.AskedTo) && b.Repeat == other.Repeat && b.MilliRate == other.MilliRate
}

// count sets the end of a backfill, and counts its occurrences. It returns an [*InvalidError] if there are none or too many, or if
// what became of them is not known any more.
func (sc *stored) count(b *Backfill) error {
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	if b.To = b.AskedTo; b.To.IsZero() || b.To.After(sc.Last) { // What comes later is not decided yet.
		b.To = sc.Last
	}
	switch {
	case b.From.Unix() < 0:
		return &InvalidError{"/from", "must not be earlier than 1970"}
	case !b.AskedTo.IsZero() && b.From.After(b.AskedTo):
		return &InvalidError{"/to", "must not be earlier than from"}
	case !b.Repeat && !b.From.After(sc.Trimmed):
		until := sc.Trimmed.Format(time.RFC3339)
		return &InvalidError{"/from", "must be later than " + until + ", up to which the history is deleted, unless repeat is set"}
	}
	for at, ok := cal.Next(b.Cursor); ok && !at.After(b.To); at, ok = cal.Next(at) {
		if b.Total++; b.Total > MaxBackfill {
			return &InvalidError{"/to", fmt.Sprintf("must be earlier: more than %d occurrences are between from and to", MaxBackfill)}
		}
	}
	if b.Total == 0 {
		return &InvalidError{"/from", "must be earlier: no occurrence of the past is between from and to"}
	}
	return nil
}

// CancelBackfill ends a backfill; the jobs that it has submitted go on. What it has begun is decided first, so that it may go on
// for a moment. One that has ended is left as it is. It returns [ErrNotFound] and [ErrNoBackfill].
func (s *Service) CancelBackfill(ctx context.Context, tenantID, name, id string) (b *Backfill, err error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, err
	}
	err = tablestore.Retry(ctx, s.cfg.Random, func() error {
		var tag tablestore.ETag
		b, tag, err = s.backfill(ctx, sc.id, id)
		switch {
		case errors.Is(err, tablestore.ErrNotFound):
			return ErrNoBackfill
		case err != nil, b.Done, b.Cancelled:
			return err
		}
		old := b.Due
		b.Cancelled, b.Due = true, s.cfg.Now()
		return again(s.moveBackfill(ctx, sc.id, b, tag, old))
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Backfills returns the backfills of a schedule, the newest first, at most 100. It returns [ErrNotFound].
func (s *Service) Backfills(ctx context.Context, tenantID, name string) ([]Backfill, error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, err
	}
	return s.backfills(ctx, sc.id)
}

// backfills reads the backfills of a schedule, the newest first.
func (s *Service) backfills(ctx context.Context, id string) ([]Backfill, error) {
	all, err := backfillCodec.ScanAll(ctx, s.cfg.Store, tablestore.Query{
		Table: s.table, Partition: id, From: rowBackfill + ":", To: tablestore.PrefixEnd(rowBackfill + ":"),
	})
	if err != nil {
		return nil, fmt.Errorf("read the backfills of schedule %s: %w", id, err)
	}
	slices.SortStableFunc(all, func(a, b Backfill) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, nil
}

// backfill reads a backfill. The error may wrap [tablestore.ErrNotFound].
func (s *Service) backfill(ctx context.Context, id, backfillID string) (*Backfill, tablestore.ETag, error) {
	row, err := s.cfg.Store.Get(ctx, s.key(id, rowBackfill, backfillID))
	var b Backfill
	if err == nil {
		b.loaded = row.Properties
		err = backfillCodec.Decode(&row, &b)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read a backfill of schedule %s: %w", id, err)
	}
	return &b, row.ETag, nil
}

// moveBackfill writes a backfill under its version, with those rows, its next entry before it, and deletes the old one after it.
// A cancellation makes the entry due earlier, so only Seq, which the entry has before the backfill, tells it from an old entry.
func (s *Service) moveBackfill(
	ctx context.Context, id string, b *Backfill, tag tablestore.ETag, old time.Time, rows ...tablestore.Op,
) error {
	b.Seq++
	var change tablestore.Change
	if !b.Done {
		change.Pre = []tablestore.Stage{{{{
			Verb: tablestore.Put, Key: s.entryKey(id, b.Due, backfillNonce+b.ID),
			Properties: entryCodec.Encode(&entryRow{Seq: b.Seq}, nil),
		}}}}
	}
	op := tablestore.Op{
		Verb: tablestore.Replace, Key: s.key(id, rowBackfill, b.ID), ETag: tag, Properties: backfillCodec.Encode(b, b.loaded),
	}
	if tag == "" {
		op.Verb = tablestore.Insert
	}
	change.Commit = append(tablestore.Batch{op}, rows...)
	if !old.IsZero() && (b.Done || !old.Equal(b.Due)) {
		change.Post = []tablestore.Stage{{{{Verb: tablestore.Discard, Key: s.entryKey(id, old, backfillNonce+b.ID)}}}}
	}
	if _, err := tablestore.Apply(ctx, s.cfg.Store, change, nil); err != nil {
		return fmt.Errorf("move a backfill of schedule %s: %w", id, err)
	}
	return nil
}

// goOn fires the next occurrences of a backfill, as many as its rate allows.
func (s *Service) goOn(ctx context.Context, entry ledger.Entry, backfillID string) (ledger.FireOutcome, error) {
	b, tag, err := s.backfill(ctx, entry.JobID, backfillID)
	now := s.cfg.Now()
	missing := errors.Is(err, tablestore.ErrNotFound)
	own := err == nil && !b.Done && entry.Due.Equal(b.Due) // Even if it was written again, for a change that is to outrun another.
	ahead := err == nil && !b.Done && !own && b.Seq < entry.Rev
	switch {
	case err != nil && !missing:
		return 0, err
	case (missing || ahead) && now.Sub(entry.Due) < orphanGrace:
		return ledger.Early, nil
	case missing || ahead: // Its change becomes impossible.
		if err := s.outrun(ctx, entry.JobID, b, tag); err != nil {
			return 0, err
		}
		return ledger.Orphaned, s.drop(ctx, entry)
	case !own:
		return ledger.Stale, s.drop(ctx, entry)
	}
	sc, err := s.load(ctx, entry.JobID)
	if err != nil {
		return 0, err
	}
	if b.Cancelled = b.Cancelled || sc.State == Deleted; b.Cancelled {
		err = s.finish(ctx, sc, b, now)
	} else {
		tag, err = s.fill(ctx, sc, b, tag, now)
	}
	if err != nil {
		return 0, err
	}
	return ledger.Acted, s.moveBackfill(ctx, sc.id, b, tag, entry.Due)
}

// outrun makes a change impossible that has not committed: the creation of a backfill that is nil, or else one of the backfill.
func (s *Service) outrun(ctx context.Context, id string, b *Backfill, tag tablestore.ETag) error {
	if b != nil {
		return s.moveBackfill(ctx, id, b, tag, b.Due)
	}
	sc, err := s.load(ctx, id)
	if err == nil {
		_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{*sc.asRead})
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// fill fires occurrences, and moves the cursor of the backfill, whose version is tag. Each claim is written with the backfill, so
// that another process which goes on with it, or ends it, leaves this one none:
//
//	invariant: all that was claimed for a backfill which has ended is decided
//
// It returns the version that the backfill then has.
func (s *Service) fill(ctx context.Context, sc *stored, b *Backfill, tag tablestore.ETag, now time.Time) (tablestore.ETag, error) {
	touch := &tablestore.Op{
		Verb: tablestore.Replace, Key: s.key(sc.id, rowBackfill, b.ID), ETag: tag, Properties: backfillCodec.Encode(b, b.loaded),
	}
	cal, err := s.pin(ctx, sc, b)
	if err != nil {
		return "", err
	}
	burst := b.burst()
	b.Due = now.Add(time.Duration(burst) * 1000 * time.Second / time.Duration(b.MilliRate)).Truncate(time.Millisecond)
	for n := 0; ; n++ {
		at, ok := cal.Next(b.Cursor)
		if !ok || at.After(b.To) {
			b.Done, b.EndedAt = true, now
			return touch.ETag, nil
		}
		if n == burst {
			return touch.ETag, nil
		}
		fire, err := s.refire(ctx, sc, b, touch, at, now)
		switch {
		case errors.Is(err, ledger.ErrClaimConflict): // Before MayPass: to a client, it would be an error of the server.
			return "", err
		case err != nil && (apierror.MayPass(err) || fire.waits(err)):
			b.Due, b.Detail = now.Add(max(b.Due.Sub(now), backfillAgain)), reason(err)
			return touch.ETag, nil
		case err != nil:
			return "", err
		}
		b.take(at, &fire)
	}
}

// pin sets the definition of the backfill's version, and returns its times.
func (s *Service) pin(ctx context.Context, sc *stored, b *Backfill) (cal *calendar.Calendar, err error) {
	if sc.def, err = s.definition(ctx, sc.id, b.Version); err == nil {
		sc.Version = b.Version
		cal, err = calendar.Parse(sc.def.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("schedule %s, version %d: %w", sc.id, b.Version, err)
	}
	return cal, nil
}

// take counts an occurrence that is decided.
func (b *Backfill) take(at time.Time, fire *Fire) {
	b.Cursor, b.Detail = at, ""
	switch {
	case fire.BackfillID != b.ID && fire.JobID != "":
		b.Left++
	case fire.Outcome == Fired:
		b.Fired++
	default:
		b.Refused++
		b.Detail = fire.Detail
	}
}

// row returns the row key of an occurrence of the backfill.
func (b *Backfill) row(at time.Time) string {
	if b.Repeat {
		return runRow(at, b.ID)
	}
	return fireRow(at)
}

// refire fires an occurrence of the past, unless it has a job. Its claim is written with touch, which
// changes nothing of the backfill but its version.
func (s *Service) refire(ctx context.Context, sc *stored, b *Backfill, touch *tablestore.Op, at, now time.Time) (Fire, error) {
	fire := Fire{ScheduledFor: at, Version: sc.Version, DecidedAt: now, Actor: b.Actor, BackfillID: b.ID}
	claim := &ledger.OccurrenceClaim{Row: b.row(at), With: touch, Replaces: func(row tablestore.Properties) bool {
		return slices.Contains([]Outcome{Missed, Skipped, Refused}, Outcome(row.Get("outcome").String()))
	}}
	done, op, err := s.submit(ctx, sc, claim, &fire)
	if err != nil {
		return fire, err
	}
	if fire.Outcome == Refused && done.Outcome != Fired { // It was refused before its claim replaced the outcome that is there.
		done.Detail = fire.Detail
	}
	return done, s.write(ctx, op)
}

// write marks an occurrence. After a conflict the next pass looks again: another process has decided it, or claimed it.
func (s *Service) write(ctx context.Context, op tablestore.Op) error {
	if op.Key.Row == "" {
		return nil
	}
	_, err := s.cfg.Store.Commit(ctx, tablestore.Batch{op})
	return err
}

// finish ends a backfill that is cancelled: it decides what processes have begun after the cursor, and counts what they fired.
func (s *Service) finish(ctx context.Context, sc *stored, b *Backfill, now time.Time) error {
	cal, err := s.pin(ctx, sc, b)
	if err != nil {
		return err
	}
	b.Done, b.EndedAt, b.Detail = true, now, ""
	at, ok := cal.Next(b.Cursor)
	for n := b.burst(); n > 0 && ok && !at.After(b.To); n-- { // A pass goes no further.
		row, err := s.cfg.Store.Get(ctx, tablestore.Key{Table: s.table, Partition: sc.id, Row: b.row(at)})
		if errors.Is(err, tablestore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read an occurrence of schedule %s: %w", sc.id, err)
		}
		fire, err := decodeFire(&row)
		if err == nil && fire.BackfillID == b.ID { // It has passed over those that have a job.
			err = s.finishOne(ctx, sc, b, at, now)
		}
		if err != nil {
			return err
		}
		at, ok = cal.Next(at)
	}
	return nil
}

// finishOne decides an occurrence that was claimed for the backfill.
func (s *Service) finishOne(ctx context.Context, sc *stored, b *Backfill, at, now time.Time) error {
	missed := Fire{
		ScheduledFor: at, Outcome: Missed, Version: sc.Version, DecidedAt: now, Actor: b.Actor, BackfillID: b.ID,
		Detail: "was not fired before its backfill was cancelled",
	}
	fire, op, err := s.settle(ctx, sc, b.row(at), &missed)
	if err == nil {
		err = s.write(ctx, op)
	}
	if err == nil && fire.Outcome != Missed {
		b.take(at, &fire)
	}
	return err
}
