package schedules

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of schedules.
const (
	MaxName       = 128       // bytes of a name
	MaxPerTenant  = 1_000     // schedules
	MaxPerStore   = 10_000    // active schedules
	MaxCommand    = 256 << 10 // bytes of a command
	MaxCatchUp    = 500       // occurrences that policy all fires after a downtime
	MaxBackfill   = 10_000    // occurrences of one backfill
	MaxRate       = 10        // occurrences a second of a backfill
	MinRate       = 0.01      // occurrences a second of a backfill
	MaxWindow     = 7 * 24 * time.Hour
	DefaultWindow = time.Hour
)

// The errors of a [Service], next to those of the store and the [*apierror.Error]s of a command.
var (
	// ErrNotFound is returned when the tenant has no schedule of that name.
	ErrNotFound = errors.New("no such schedule")
	// ErrExists is returned by Create when the tenant has a schedule of that name.
	ErrExists = errors.New("a schedule of that name exists")
	// ErrRevConflict is returned when the schedule is no longer at the revision that the caller expects.
	ErrRevConflict = errors.New("the schedule is at another revision")
	// ErrLimit is returned by Create when the tenant or the store has as many schedules as it may.
	ErrLimit = errors.New("the limit of schedules is reached")
	// ErrState is returned when the state of the schedule does not allow the request.
	ErrState = errors.New("the state of the schedule does not allow this")
	// ErrNoBackfill is returned when the schedule has no backfill of that id.
	ErrNoBackfill = errors.New("no such backfill")
	// ErrBackfilling is returned when a backfill of the schedule has not ended.
	ErrBackfilling = errors.New("another backfill of the schedule has not ended")
	// ErrKeyReused is returned when the idempotency key is that of another backfill.
	ErrKeyReused = errors.New("the idempotency key is that of another backfill")
)

// InvalidError says why a definition, a run or a backfill is refused.
type InvalidError struct{ Pointer, Message string }

// Error implements error.
func (e *InvalidError) Error() string { return e.Pointer + " " + e.Message }

// Overlap says what an occurrence does while the job of an earlier one runs.
type Overlap string

// The values of Overlap.
const (
	OverlapSkip   Overlap = "skip"           // it is refused
	OverlapQueue  Overlap = "queue"          // it waits; at most one does
	OverlapCancel Overlap = "cancel_running" // it cancels the earlier job
	OverlapAllow  Overlap = "allow"          // both run
)

// CatchUpPolicy says which missed occurrences are fired late.
type CatchUpPolicy string

// The values of CatchUpPolicy.
const (
	CatchUpNone CatchUpPolicy = "none"
	CatchUpLast CatchUpPolicy = "last" // the newest within the window
	CatchUpAll  CatchUpPolicy = "all"  // all within the window, oldest first
)

// CatchUp says which missed occurrences are fired late.
type CatchUp struct {
	Policy CatchUpPolicy `column:"catch_up" json:"policy"`
	Window time.Duration `column:"window_ms" json:"-"`
}

// Definition is what a caller says of a schedule. Each change makes a new version of it.
type Definition struct {
	TenantID string `column:"tenant_id" json:"tenant_id"`
	Name     string `column:"name" json:"name"`
	calendar.Spec

	Overlap Overlap `column:"overlap" json:"overlap"`
	CatchUp CatchUp `json:"catch_up"`
	// Command is the body of the commands, without tenant_id and idempotency_key. Its strings may hold
	// ${scheduled_for}, a time in UTC as of RFC 3339, and ${scheduled_date}, the date in the time zone.
	Command json.RawMessage `json:"command"`
}

// equals reports whether two definitions say the same. Commands are compared as JSON.
func (d *Definition) equals(other *Definition) bool {
	times := func(d Definition) tablestore.Properties { return versionCodec.Encode(&version{Definition: d}, nil) }
	return slices.Equal(times(*d), times(*other)) && sameJSON(d.Command, other.Command)
}

func sameJSON(a, b json.RawMessage) bool {
	one, err := commands.ParseJSON(a)
	two, also := commands.ParseJSON(b)
	return err == nil && also == nil && commands.HashCanonical(one) == commands.HashCanonical(two)
}

// State is the state of a schedule.
type State string

// The states.
const (
	Active    State = "active"
	Paused    State = "paused"
	Completed State = "completed" // it has no further occurrence
	Deleted   State = "deleted"
)

// Schedule is a schedule as it is read.
type Schedule struct {
	ID string `json:"schedule_id"` // new for each create
	Definition

	Rev      int64     `json:"rev"`
	Version  int       `json:"version"` // of the definition, from 1
	State    State     `json:"state"`
	Last     time.Time `json:"-"` // the newest decided occurrence, or the time of a change that decided all before it
	Upcoming time.Time `json:"-"` // the next occurrence, without jitter; zero unless it is active
	// FailuresInRow counts the newest occurrences that were refused or missed.
	FailuresInRow int       `json:"failures_in_row"`
	LastFire      *Fire     `json:"last_fire,omitempty"` // set by [Service.Get] alone
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// Next returns up to n occurrences to come, without jitter.
func (s *Schedule) Next(n int) []time.Time {
	if s.Upcoming.IsZero() {
		return nil
	}
	cal, err := calendar.Parse(s.Spec)
	if err != nil {
		return nil
	}
	times := []time.Time{s.Upcoming}
	for len(times) < n {
		at, ok := cal.Next(times[len(times)-1])
		if !ok {
			break
		}
		times = append(times, at)
	}
	return times
}

// Outcome is what became of an occurrence.
type Outcome string

// The outcomes.
const (
	Claimed Outcome = "claimed" // it is being fired
	Fired   Outcome = "fired"   // its job was accepted
	Skipped Outcome = "skipped" // the job of an earlier occurrence runs
	Refused Outcome = "refused" // the command was refused for good
	Missed  Outcome = "missed"  // it was not fired in time, or while the schedule was changed
)

// Fire is an occurrence with what became of it.
type Fire struct {
	ScheduledFor time.Time `column:"scheduled_for" json:"scheduled_for"`
	Outcome      Outcome   `column:"outcome" json:"outcome"`
	// JobID is empty unless the outcome is claimed or fired.
	JobID   string `column:"job_id" json:"jobId,omitempty"`
	Version int    `column:"version" json:"version"`
	// DecidedAt is when the outcome was decided.
	DecidedAt time.Time `column:"decided_at" json:"-"`
	Detail    string    `column:"detail" json:"detail,omitempty"`
	Code      string    `column:"code" json:"code,omitempty"` // of the problem of a refusal
	Actor     string    `column:"actor" json:"actor,omitempty"`
	// JobPurged says that the job is gone.
	JobPurged bool `column:"job_purged" json:"job_purged,omitempty"`
	// From is the first of many missed occurrences, of which ScheduledFor is the last and Count the number. It is zero for one.
	From  time.Time `column:"from" json:"from,omitzero"`
	Count int       `column:"count" json:"count,omitempty"`
	// RunKey is the key of a run by hand.
	RunKey string `column:"run_key" json:"-"`
	// BackfillID names the backfill that decided it.
	BackfillID string `column:"backfill_id" json:"backfill_id,omitempty"`
}

// Late returns how long after its time the occurrence was decided.
func (f *Fire) Late() time.Duration { return max(0, f.DecidedAt.Sub(f.ScheduledFor)) }

// stopped reports whether the occurrence was missed because an operator changed the schedule before its time: nothing is wrong then.
func (f *Fire) stopped() bool { return f.Outcome == Missed && f.DecidedAt.Before(f.ScheduledFor) }
