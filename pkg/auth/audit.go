package auth

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
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
}

// The records of unknown callers that are written.
const (
	strangerRecords = 1 // a second, in the long run
	strangerBurst   = 100
)

// Audit writes audit records. It is safe for concurrent use.
type Audit struct {
	log       *slog.Logger
	strangers *rate.Limiter
	leftOut   atomic.Int64 // Dropped records since the last one that was written.
}

// NewAudit returns an audit log that writes to the logger, which should be a separate
// one: audit records are kept longer than a server's log.
func NewAudit(log *slog.Logger) *Audit {
	return &Audit{log: log, strangers: rate.NewLimiter(strangerRecords, strangerBurst)}
}

// Write writes the record, at level info. There is no field for a secret; ids
// come from requests, so what looks like a token in them is masked.
//
// Unknown callers can cause any number of refusals, so it writes only a burst of 100
// of their records and then one a second, by the records' times. The next record of
// any caller says in left_out how many were dropped.
func (a *Audit) Write(ctx context.Context, record Record) {
	if record.Caller.name == "" && !a.strangers.AllowN(record.At, 1) {
		a.leftOut.Add(1)
		return
	}
	attrs := []slog.Attr{
		slog.Time("at", record.At.UTC()),
		slog.String("caller", Printable(record.Caller.name)),
		slog.String("origin", string(record.Caller.origin)),
		slog.String("from", Printable(record.From)),
		slog.String("action", Printable(record.Action)),
		slog.String("object", Printable(record.Object)),
		slog.String("tenant", Printable(record.Tenant)),
		slog.String("outcome", string(record.Outcome)),
	}
	if leftOut := a.leftOut.Swap(0); leftOut > 0 {
		attrs = append(attrs, slog.Int64("left_out", leftOut))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}

// secrets matches what looks like a token of [NewToken] or a JWT.
var secrets = regexp.MustCompile(TokenPrefix + `[a-z2-7]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`)

// maxAudited is the longest text in a record, in bytes.
const maxAudited = 512

// Printable makes a text from a request safe to log: it masks what looks like a
// token, and cuts a long text.
func Printable(text string) string {
	masked := secrets.ReplaceAllString(text, "[masked]")
	return strings.ToValidUTF8(masked[:min(len(masked), maxAudited)], "")
}
