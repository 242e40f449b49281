package auth

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Outcome is the outcome of an action.
type Outcome string

// The outcomes.
const (
	Done   Outcome = "done"   // the action was carried out
	Denied Outcome = "denied" // refused: 401, 403, or 404 for an object of another tenant
	Failed Outcome = "failed" // allowed, but it did not succeed
)

// Record is one action of a caller, for the audit log.
type Record struct {
	At      time.Time // The end of the action.
	Caller  Caller    // The zero value is an unknown caller.
	From    string    // The address that the request came from.
	Action  string    // The operation's id, such as cancelJob.
	Object  string    // The id of the object, empty if there is none.
	Tenant  string    // The object's tenant; empty for all tenants or if it is unknown.
	Outcome Outcome
	Reason  string // Given by the caller; empty if there is none.
}

// ExpirePause is the action of a pause that ended at its time. It is no operation of the
// API, and its origin is [ByExpiry].
const ExpirePause = "expirePause"

// How many records of unknown callers are written.
const (
	strangerRecords = 1 // a second, in the long run
	strangerBurst   = 100
)

// TrailSize is how many records an [Audit] keeps in memory.
const TrailSize = 1000

// Audit writes audit records, and keeps the newest [TrailSize] in memory. It is safe for
// concurrent use.
type Audit struct {
	log       *slog.Logger
	since     time.Time
	strangers *rate.Limiter
	leftOut   atomic.Int64 // Dropped records since the last one that was written.

	mu sync.Mutex // Numbers and trail agree. Not held while the log is written.
	// trail holds the records by their numbers, which begin with 1.
	// invariant: record n is at (n-1) % TrailSize for written-TrailSize < n <= written.
	trail   []Record
	written int64
}

// NewAudit returns an audit log that writes to the logger, which should be a separate
// one: audit records are kept longer than a server's log. Without a logger it only keeps
// the newest ones.
func NewAudit(log *slog.Logger) *Audit {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Audit{log: log, since: time.Now(), strangers: rate.NewLimiter(strangerRecords, strangerBurst)}
}

// Since is when the log began.
func (a *Audit) Since() time.Time { return a.since }

// Trail returns the newest records that match, the newest first, at most limit, and the
// number after which they go on, 0 at the end of what is kept. After is such a number, or 0
// for the newest.
func (a *Audit) Trail(after int64, limit int, match func(*Record) bool) (records []Record, next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := a.written
	if after > 0 {
		number = min(number, after-1)
	}
	for ; number > max(0, a.written-TrailSize); number-- {
		record := &a.trail[(number-1)%TrailSize]
		if !match(record) {
			continue
		}
		if len(records) == limit {
			return records, next
		}
		records, next = append(records, *record), number
	}
	return records, 0
}

// Write writes the record, at level info, and keeps it. There is no field for a secret;
// ids come from requests, so what looks like a token in them is masked.
//
// Unknown callers can cause any number of refusals, so it writes only a burst of 100
// of their records and then one a second, by the records' times. The next record of
// any caller says in left_out how many were dropped.
func (a *Audit) Write(ctx context.Context, record Record) {
	if record.Caller.name == "" && !a.strangers.AllowN(record.At, 1) {
		a.leftOut.Add(1)
		return
	}
	record.From, record.Action = Printable(record.From), Printable(record.Action)
	record.Object, record.Tenant, record.Reason = Printable(record.Object), Printable(record.Tenant), Printable(record.Reason)
	a.mu.Lock()
	if len(a.trail) < TrailSize {
		a.trail = append(a.trail, record)
	} else {
		a.trail[a.written%TrailSize] = record
	}
	a.written++
	a.mu.Unlock()
	attrs := []slog.Attr{
		slog.Time("at", record.At.UTC()),
		slog.String("caller", Printable(record.Caller.name)),
		slog.String("origin", string(record.Caller.origin)),
		slog.String("from", record.From),
		slog.String("action", record.Action),
		slog.String("object", record.Object),
		slog.String("tenant", record.Tenant),
		slog.String("outcome", string(record.Outcome)),
		slog.String("reason", record.Reason),
	}
	if leftOut := a.leftOut.Swap(0); leftOut > 0 {
		attrs = append(attrs, slog.Int64("left_out", leftOut))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}

// secrets matches what looks like a token of [NewToken] or a JWT.
var secrets = regexp.MustCompile(TokenPrefix + `[a-z2-7]{16,}|` + jwtPrefix + `[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`)

// jwtPrefix is how each JWT begins: a brace and a quotation mark, encoded.
const jwtPrefix = "eyJ"

// maxAudited is the longest text in a record, in bytes.
const maxAudited = 512

// Printable makes a text from a request safe to log: it masks what looks like a
// token, and cuts a long text.
func Printable(text string) string {
	masked := text
	if strings.Contains(text, TokenPrefix) || strings.Contains(text, jwtPrefix) { // Few do, and an expression is slow.
		masked = secrets.ReplaceAllString(text, "[masked]")
	}
	return strings.ToValidUTF8(masked[:min(len(masked), maxAudited)], "")
}
